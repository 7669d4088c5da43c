"""Charts as SVG texts, without a library and without a script: they print, and both themes color them by their classes.

Every text is escaped here, whoever wrote it; hovering over a mark tells its numbers (`<title>`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from mathturn_gym.base.text import html_text, visible
from mathturn_gym.episodes.metrics import Estimate

_WIDTH: Final = 560
_LABEL: Final = 150
_LONGEST: Final = 20
_LIGHT: Final = frozenset({"gone"})
"""Classes on which white numbers could not be read."""


@dataclass(frozen=True, slots=True)
class Series:
    """Figures that belong together.

    Args:
        name: Of the series.
        points: Pairs of a place (a turn, say) and a figure; figures without a value are left out.
        dashed: Drawn so.
    """

    name: str
    points: Sequence[tuple[int, Estimate]]
    dashed: bool = False


def lines(series: Sequence[Series], x_name: str) -> str:
    """Shares over whole numbers: a line for each series, with the intervals of its points.

    Args:
        series: At most three.
        x_name: What the whole numbers are.
    """
    height, left, right, top, bottom = 260, 44, 16, 10, 40
    places = [x for one in series for x, _ in one.points]
    low, high = min(places), max(places)
    most = _top(figure.high or figure.value or 0.0 for one in series for _, figure in one.points)

    def across(x: float) -> float:
        return left + (x - low + 0.5) / (high - low + 1) * (_WIDTH - left - right)

    def up(y: float) -> float:
        return height - bottom - y / most * (height - top - bottom)

    parts = []
    for tick in _ticks(most):
        y = up(tick)
        parts.append(f'<line class="grid" x1="{left}" x2="{_WIDTH - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(left - 7, y + 4, _percent(tick), "soft end"))
    every = max(1, math.ceil((high - low + 1) / 12))
    parts += [_text(across(x), height - bottom + 18, str(x), "soft middle") for x in range(low, high + 1, every)]
    parts.append(_text((left + _WIDTH - right) / 2, height - 6, x_name, "soft middle"))
    for number, one in enumerate(series, 1):
        shift = (number - (len(series) + 1) / 2) * 9  # intervals stand beside one another
        known = [(across(x) + shift, figure, x) for x, figure in one.points if figure.value is not None]
        path = "".join(f"{'L' if i else 'M'}{x:.1f} {up(f.value or 0.0):.1f}" for i, (x, f, _) in enumerate(known))
        dashes = ' stroke-dasharray="5 4"' if one.dashed else ""
        parts.append(f'<path class="line-{number}" d="{path}"{dashes}/>')
        for x, figure, place in known:
            told = _told(f"{one.name}, {x_name} {place}", figure)
            ends = ""
            if figure.low is not None and figure.high is not None:
                y1, y2 = up(figure.low), up(figure.high)
                ends = f'<line class="line-{number}" x1="{x:.1f}" x2="{x:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'
            y = up(figure.value or 0.0)
            parts.append(f'<g>{told}{ends}<circle class="fill-{number}" cx="{x:.1f}" cy="{y:.1f}" r="4"/></g>')
    return _svg(height, parts) + legend([(one.name, f"fill-{i}") for i, one in enumerate(series, 1)])


def ranges(rows: Sequence[tuple[str, Sequence[Estimate]]], names: Sequence[str]) -> str:
    """Shares by row: for each a mark and its interval per series.

    Args:
        rows: A label, and a figure per series.
        names: Of the series.
    """
    step, top, left, right = 13 * len(names) + 10, 6, _LABEL, 62
    height = top + step * len(rows) + 24
    most = _top(figure.high or figure.value or 0.0 for _, figures in rows for figure in figures)

    def across(value: float) -> float:
        return left + value / most * (_WIDTH - left - right)

    parts = []
    for tick in _ticks(most):
        x = across(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - 22}"/>')
        parts.append(_text(x, height - 6, _percent(tick), "soft middle"))
    for row, (label, figures) in enumerate(rows):
        middle = top + step * (row + 0.5)
        parts.append(_label(label, middle))
        for number, (name, figure) in enumerate(zip(names, figures, strict=True), 1):
            if figure.value is None:
                continue
            y, x = middle + (number - (len(names) + 1) / 2) * 13, across(figure.value)
            ends = ""
            if figure.low is not None and figure.high is not None:
                x1, x2 = across(figure.low), across(figure.high)
                ends = f'<line class="line-{number}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            told = _told(f"{label}, {name}", figure)
            parts.append(f'<g>{told}{ends}<circle class="fill-{number}" cx="{x:.1f}" cy="{y:.1f}" r="4"/></g>')
            parts.append(_text(_WIDTH - 2, y + 4, f"{figure.value:.3f}", "soft end"))
    return _svg(height, parts) + legend([(name, f"fill-{i}") for i, name in enumerate(names, 1)])


def bars(rows: Sequence[tuple[str, Sequence[float]]], kinds: Sequence[tuple[str, str]], unit: str) -> str:
    """Counts by row as shares of a whole bar, with the row's total behind it.

    Args:
        rows: A label, and a count per kind.
        kinds: Name and class of each kind.
        unit: What is counted.
    """
    step, left, right = 30, _LABEL, 62
    room, parts = _WIDTH - left - right, []
    for row, (label, counts) in enumerate(rows):
        y, total, x = row * step + 4, sum(counts), float(left)
        parts.append(_label(label, y + step / 2 - 4))
        parts.append(_text(_WIDTH - 2, y + step / 2, f"{total:,.0f}", "soft end"))
        for (name, kind), count in zip(kinds, counts, strict=True):
            if not count:
                continue
            share = count / total
            told = html_text(f"{label}: {name} {count:,.0f} of {total:,.0f} {unit} ({share:.1%})")
            size = f'x="{x:.1f}" y="{y}" width="{share * room:.1f}" height="{step - 8}"'
            parts.append(f'<g><title>{told}</title><rect class="{kind}" {size}/></g>')
            if share * room > 30 and kind not in _LIGHT:
                parts.append(_text(x + share * room / 2, y + step / 2, f"{share:.0%}", "on middle"))
            x += share * room
    return _svg(step * len(rows) + 4, parts) + legend(_present(kinds, [counts for _, counts in rows]))


def histogram(values: Sequence[Sequence[int]], kinds: Sequence[tuple[str, str]], x_name: str, unit: str) -> str:
    """Whole numbers in bins, the kinds on top of one another.

    Args:
        values: Per kind its numbers.
        kinds: Name and class of each.
        x_name: What the numbers are.
        unit: What has them.
    """
    height, left, right, top, bottom = 240, 44, 16, 10, 40
    low, high = min(map(min, filter(None, values))), max(map(max, filter(None, values)))
    width = max(1, math.ceil((high - low + 1) / 28))
    bins = (high - low) // width + 1
    counts = [[0] * bins for _ in kinds]
    for k, own in enumerate(values):
        for value in own:
            counts[k][(value - low) // width] += 1
    most = _top(sum(own[i] for own in counts) for i in range(bins))
    room, step = height - top - bottom, (_WIDTH - left - right) / bins
    parts = []
    for tick in _ticks(most):
        y = height - bottom - tick / most * room
        parts.append(f'<line class="grid" x1="{left}" x2="{_WIDTH - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(left - 7, y + 4, f"{tick:,.0f}", "soft end"))
    for i in range(bins):
        begin, y = low + i * width, float(height - bottom)
        for (name, kind), own in zip(kinds, counts, strict=True):
            if not own[i]:
                continue
            tall = own[i] / most * room
            y -= tall
            span = str(begin) if width == 1 else f"{begin} to {begin + width - 1}"
            told = html_text(f"{span} {x_name}: {name} {own[i]:,} {unit}")
            size = f'x="{left + i * step + 0.5:.1f}" y="{y:.1f}" width="{max(step - 1, 0.5):.1f}" height="{tall:.1f}"'
            parts.append(f'<g><title>{told}</title><rect class="{kind}" {size}/></g>')
    for i in range(0, bins, max(1, math.ceil(bins / 8))):
        parts.append(_text(left + (i + 0.5) * step, height - bottom + 18, f"{low + i * width:,}", "soft middle"))
    parts.append(_text((left + _WIDTH - right) / 2, height - 6, x_name, "soft middle"))
    return _svg(height, parts) + legend(_present(kinds, zip(*counts, strict=True)))


def legend(kinds: Iterable[tuple[str, str]]) -> str:
    """Names beside their colors.

    Args:
        kinds: Name and class of each.
    """
    dot = '<svg viewBox="0 0 10 10" aria-hidden="true"><rect class="{}" width="10" height="10" rx="2"/></svg>'
    return f'<ul class="legend">{"".join(f"<li>{dot.format(kind)}{html_text(name)}</li>" for name, kind in kinds)}</ul>'


def _present(kinds: Sequence[tuple[str, str]], rows: Iterable[Sequence[float]]) -> list[tuple[str, str]]:
    """The kinds of which there is any."""
    totals = [sum(column) for column in zip(*rows, strict=True)]
    return [kind for kind, total in zip(kinds, totals, strict=True) if total]


def _svg(height: float, parts: Iterable[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height:g}" role="img">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{html_text(text)}</text>'


def _label(label: str, middle: float) -> str:
    """A row's name, shortened where it is too long; hovering tells all of it."""
    line = " ".join(visible(label).split())
    short = line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
    return f"<g><title>{html_text(label)}</title>{_text(_LABEL - 10, middle + 4, short, 'end')}</g>"


def _told(name: str, figure: Estimate) -> str:
    return f"<title>{html_text(f'{name}: {figure} (of {figure.count:,.0f})')}</title>"


def _top(values: Iterable[float]) -> float:
    """A round number at or above all values."""
    most = max((value for value in values if value is not None), default=0.0)
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(factor * power for factor in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if factor * power >= most * 0.999)


def _ticks(most: float) -> list[float]:
    """Four or five round numbers from 0 to `most`."""
    step = next(
        factor * power
        for power in (10.0 ** math.floor(math.log10(most) - 1), 10.0 ** math.floor(math.log10(most)))
        for factor in (1, 2, 2.5, 5)
        if most / (factor * power) <= 5.01
    )
    return [i * step for i in range(int(most / step + 1e-6) + 1)]


def _percent(share: float) -> str:
    return f"{100 * share:g} %" if share * 1000 % 10 < 1e-6 or share < 0.01 else f"{100 * share:.3g} %"
