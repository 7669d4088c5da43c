"""Charts as SVG, without a library and without a script: they print, and both themes color them by their classes.

Every text is escaped here; hovering over a mark shows its numbers (`<title>`). The viewer's own charts
(`assets/view/figures.js`) are others because they are alive: they follow the pointer, are smoothed, and grow with a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from mathturn_gym.base.text import html_text, visible
from mathturn_gym.episodes.metrics import Estimate
from mathturn_gym.show.pages import asset, own_markup

_WIDTH: Final = 560
_LABEL: Final = 150
_LONGEST: Final = 20
_COLORS: Final = 10  # colors of series; after these they come again with broken lines
_LIGHT: Final = frozenset({"gone"})  # classes on which white numbers could not be read


@dataclass(frozen=True, slots=True)
class Series:
    """Values that belong together."""

    name: str  # of the series
    # Pairs of a place (a turn, a number of tokens) and a value; those without a value are left out.
    points: Sequence[tuple[float, Estimate]]
    dashed: bool = False  # drawn so
    color: int | None = None  # number of its color, from 1; None for its place in the chart


@dataclass(frozen=True, slots=True)
class _Plane:
    """Where a chart's numbers lie on its paper."""

    x: tuple[float, float]
    top: float
    left: float
    right: float
    height: float
    room: tuple[float, float] = (10, 40)

    def across(self, x: float) -> float:
        low, high = self.x
        return self.left + (x - low) / (high - low or 1) * (_WIDTH - self.left - self.right)

    def up(self, y: float) -> float:
        above, below = self.room
        return self.height - below - y / self.top * (self.height - above - below)


def lines(series: Sequence[Series], x_name: str, *, bands: bool = False, steps: bool = False) -> Markup:
    """Shares over numbers: a line for each series.

    Args:
        series: At least one.
        x_name: What the numbers are.
        bands: Draw intervals as bands and name the lines at their ends; otherwise intervals are bars beside one another,
            and names stand in a legend.
        steps: Values hold until the next place; points are not marked.
    """
    places = sorted({x for one in series for x, _ in one.points})
    low, high = places[0], places[-1]
    # Whole numbers are turns: each has a column of its own, with the series side by side in it.
    whole = not bands and all(float(x).is_integer() for x in places)
    most = _top(figure.high or figure.value or 0.0 for one in series for _, figure in one.points)
    margin = 16 + (min(_LONGEST, max(len(visible(one.name)) for one in series)) * 6.6 if bands else 0)
    ends = (low - 0.5, high + 0.5) if whole else (low, high)
    plane = _Plane(ends, most, 44, margin, 260)
    parts = [*_grid(plane, most), *_places(plane, places, whole), _x_name(plane, x_name)]
    labels: list[tuple[float, float, str, int]] = []
    for number, one in enumerate(series, 1):
        shift = (number - (len(series) + 1) / 2) * 9 if whole and not bands else 0.0  # bars stand beside one another
        known = [(plane.across(x) + shift, figure, x) for x, figure in one.points if figure.value is not None]
        if not known:
            continue
        color = _color(one, number)
        if bands:
            parts.append(_band(plane, known, color, steps=steps))
        path = _path([(x, plane.up(f.value or 0.0)) for x, f, _ in known], steps=steps)
        dashes = ' stroke-dasharray="5 4"' if one.dashed or (one.color or number) > _COLORS else ""
        parts.append(f'<path class="line-{color}" d="{path}"{dashes}/>')
        for x, figure, place in known if not steps else ():
            tooltip = _tooltip(f"{one.name}, {x_name} {place:,g}", figure)
            bar = ""
            if not bands and figure.low is not None and figure.high is not None:
                y1, y2 = plane.up(figure.low), plane.up(figure.high)
                bar = f'<line class="line-{color}" x1="{x:.1f}" x2="{x:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'
            size = 2.5 if bands else 4
            y = plane.up(figure.value or 0.0)
            parts.append(f'<g>{tooltip}{bar}<circle class="fill-{color}" cx="{x:.1f}" cy="{y:.1f}" r="{size}"/></g>')
        x, figure, _ = known[-1]
        labels.append((plane.up(figure.value or 0.0), x, one.name, color))
    if bands:
        return own_markup(_svg(plane.height, [*parts, *_names(labels, plane)]))
    return own_markup(
        _svg(plane.height, parts) + legend([(one.name, f"fill-{_color(one, i)}") for i, one in enumerate(series, 1)])
    )


def _grid(plane: _Plane, most: float, *, percent: bool = True) -> list[str]:
    parts = []
    for tick in _ticks(0.0, most):
        y = plane.up(tick)
        parts.append(
            f'<line class="grid" x1="{plane.left}" x2="{_WIDTH - plane.right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(_text(plane.left - 7, y + 4, _percent(tick) if percent else f"{tick:,.0f}", "soft end"))
    return parts


def _places(plane: _Plane, places: Sequence[float], whole: bool) -> list[str]:
    low, high = places[0], places[-1]
    every = max(1, math.ceil((high - low + 1) / 12))
    shown = range(int(low), int(high) + 1, every) if whole else [t for t in _ticks(low, high) if low <= t <= high]
    return [_text(plane.across(x), plane.height - plane.room[1] + 18, _short(x), "soft middle") for x in shown]


def _x_name(plane: _Plane, name: str) -> str:
    return _text((plane.left + _WIDTH - plane.right) / 2, plane.height - 6, name, "soft middle")


def _color(one: Series, number: int) -> int:
    return ((one.color or number) - 1) % _COLORS + 1


def _path(points: Sequence[tuple[float, float]], *, steps: bool) -> str:
    (x, y), *rest = points
    parts = [f"M{x:.1f} {y:.1f}"]
    for x, y in rest:
        parts.append(f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}")
    return "".join(parts)


def _band(plane: _Plane, known: Sequence[tuple[float, Estimate, float]], color: int, *, steps: bool) -> str:
    """The intervals as areas; where a point has none (all runs have the same score), there is a gap."""
    parts, piece = [], list[tuple[float, float, float]]()
    # A last point without an interval closes the last piece.
    for x, figure, _ in [*known, (0.0, Estimate(None, None, None, 0), 0.0)]:
        if figure.low is not None and figure.high is not None:
            piece.append((x, plane.up(figure.low), plane.up(figure.high)))
            continue
        if len(piece) > 1:
            there = _path([(x, low) for x, low, _ in piece], steps=steps)
            back = _path([(x, high) for x, _, high in reversed(piece)], steps=False)
            parts.append(f'<path class="band fill-{color}" d="{there}L{back[1:]}Z"/>')
        piece = []
    return "".join(parts)


def _names(labels: Sequence[tuple[float, float, str, int]], plane: _Plane) -> list[str]:
    """Names at the ends of the lines, moved apart where they would overlap."""
    parts, last = [], -math.inf
    ordered = sorted(labels)
    free = plane.height - plane.room[1] - 13 * len(ordered)  # so that the lowest name is still on the paper
    for place, (y, x, name, color) in enumerate(ordered):
        last = max(min(y, free + 13 * (place + 1)), last + 13)
        parts.append(_text(x + 7, last + 4, _shortened(name), f"fill-{color}"))
    return parts


def ranges(
    rows: Sequence[tuple[str, Sequence[Estimate]]], names: Sequence[str], *, percent: bool = True, x_name: str = ""
) -> Markup:
    """Values by row: for each series a mark and its interval, on one axis that includes 0.

    Args:
        rows: A label, and a value per series.
        names: Of the series; with a single one there is no legend.
        percent: Values are shares; otherwise they are written as they are, with their sign where some are negative.
        x_name: What the axis shows.
    """
    step, top, left, right = 13 * len(names) + 10, 6, _LABEL, 62
    height = top + step * len(rows) + (40 if x_name else 24)
    below = 38 if x_name else 22
    every = [figure for _, figures in rows for figure in figures]
    ends = [end for one in every for end in (one.value, one.low, one.high) if end is not None]
    least = -_top(-end for end in ends) if min(ends, default=0.0) < 0 else 0.0
    most = _top(ends) if max(ends, default=0.0) > 0 or not least else 0.0
    form = "+.3f" if least < 0 else ".3f"

    def across(value: float) -> float:
        return left + (value - least) / (most - least) * (_WIDTH - left - right)

    parts = []
    for tick in _ticks(least, most):
        x = across(tick)
        kind = "zero" if least < 0 and abs(tick) < 1e-9 else "grid"
        parts.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - below}"/>')
        words = _percent(tick) if percent else f"{tick:+.3g}" if least < 0 else f"{tick:.3g}"
        parts.append(_text(x, height - below + 16, words, "soft middle"))
    if x_name:
        parts.append(_text((left + _WIDTH - right) / 2, height - 5, x_name, "soft middle"))
    for row, (label, figures) in enumerate(rows):
        middle = top + step * (row + 0.5)
        parts.append(_label(label, middle))
        for number, (name, figure) in enumerate(zip(names, figures, strict=True), 1):
            if figure.value is None:
                continue
            y, x = middle + (number - (len(names) + 1) / 2) * 13, across(figure.value)
            bar = ""
            if figure.low is not None and figure.high is not None:
                x1, x2 = across(figure.low), across(figure.high)
                bar = f'<line class="line-{number}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            tooltip = _tooltip(f"{label}, {name}", figure)
            parts.append(f'<g>{tooltip}{bar}<circle class="fill-{number}" cx="{x:.1f}" cy="{y:.1f}" r="4"/></g>')
            parts.append(_text(_WIDTH - 2, y + 4, f"{figure.value:{form}}", "soft end"))
    kinds = [(name, f"fill-{i}") for i, name in enumerate(names, 1)] if len(names) > 1 else []
    return own_markup(_svg(height, parts) + legend(kinds))


def bars(rows: Sequence[tuple[str, Sequence[float]]], kinds: Sequence[tuple[str, str]], unit: str) -> Markup:
    """Counts by row, one per kind (a name and its class), as shares of a whole bar, with the row's total behind it."""
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
            tooltip = html_text(f"{label}: {name} {count:,.0f} of {total:,.0f} {unit} ({share:.1%})")
            size = f'x="{x:.1f}" y="{y}" width="{share * room:.1f}" height="{step - 8}"'
            parts.append(f'<g><title>{tooltip}</title><rect class="{kind}" {size}/></g>')
            if share * room > 30 and kind not in _LIGHT:
                parts.append(_text(x + share * room / 2, y + step / 2, f"{share:.0%}", "on middle"))
            x += share * room
    return own_markup(_svg(step * len(rows) + 4, parts) + legend(_present(kinds, [counts for _, counts in rows])))


def histogram(values: Sequence[Sequence[int]], kinds: Sequence[tuple[str, str]], x_name: str, unit: str) -> Markup:
    """Whole numbers in bins, the kinds (a name and its class each) on top of one another."""
    low, high = min(map(min, filter(None, values))), max(map(max, filter(None, values)))
    width = max(1, math.ceil((high - low + 1) / 28))
    bins = (high - low) // width + 1
    counts = [[0] * bins for _ in kinds]
    for k, own in enumerate(values):
        for value in own:
            counts[k][(value - low) // width] += 1
    most = _top(sum(own[i] for own in counts) for i in range(bins))
    plane = _Plane((0, bins), most, 44, 16, 240)
    parts = _grid(plane, most, percent=False)
    step = plane.across(1) - plane.left
    for i in range(bins):
        begin, y = low + i * width, plane.up(0)
        for (name, kind), own in zip(kinds, counts, strict=True):
            if not own[i]:
                continue
            tall = plane.up(0) - plane.up(own[i])
            y -= tall
            span = str(begin) if width == 1 else f"{begin} to {begin + width - 1}"
            tooltip = html_text(f"{span} {x_name}: {name} {own[i]:,} {unit}")
            size = f'x="{plane.across(i) + 0.5:.1f}" y="{y:.1f}" width="{max(step - 1, 0.5):.1f}" height="{tall:.1f}"'
            parts.append(f'<g><title>{tooltip}</title><rect class="{kind}" {size}/></g>')
    for i in range(0, bins, max(1, math.ceil(bins / 8))):
        parts.append(_text(plane.across(i + 0.5), plane.up(0) + 18, f"{low + i * width:,}", "soft middle"))
    parts.append(_x_name(plane, x_name))
    return own_markup(_svg(plane.height, parts) + legend(_present(kinds, zip(*counts, strict=True))))


def standalone(drawing: Markup) -> str:
    """Returns a chart as a file of its own, with the styles of the light theme in it; a legend below it is left out."""
    light, _, rest = asset("report/report.css").partition("@media (prefers-color-scheme: dark)")
    rules = light + "".join(f"{line}\n" for line in rest.splitlines() if line.startswith("svg"))
    picture = str(drawing).partition("</svg>")[0]
    head, _, inside = picture.partition(">")
    name = 'xmlns="http://www.w3.org/2000/svg"'
    return f"{head.replace('<svg', f'<svg {name}', 1)}><style>{rules}</style>{inside}</svg>\n"


def legend(kinds: Iterable[tuple[str, str]]) -> str:
    """Names beside their colors, from pairs of a name and a class."""
    shown = list(kinds)
    if not shown:
        return ""
    dot = '<svg viewBox="0 0 10 10" aria-hidden="true"><rect class="{}" width="10" height="10" rx="2"/></svg>'
    return f'<ul class="legend">{"".join(f"<li>{dot.format(kind)}{html_text(name)}</li>" for name, kind in shown)}</ul>'


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
    return f"<g><title>{html_text(label)}</title>{_text(_LABEL - 10, middle + 4, _shortened(label), 'end')}</g>"


def _shortened(name: str) -> str:
    line = " ".join(visible(name).split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _tooltip(name: str, figure: Estimate) -> str:
    return f"<title>{html_text(f'{name}: {figure} (of {figure.count:,.0f})')}</title>"


def _top(values: Iterable[float | None]) -> float:
    """A round number at or above all values, and above 0."""
    most = max((value for value in values if value is not None), default=0.0)
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    # A little below counts as reached: rounding must not take the next round number.
    return next(factor * power for factor in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if factor * power >= most * 0.999)


def _ticks(low: float, high: float) -> list[float]:
    """At most six round numbers from `low` to `high`."""
    reach = (high - low) or abs(high) or 1.0
    size = math.floor(math.log10(reach))
    steps = (factor * 10.0**power for power in (size - 1, size) for factor in (1, 2, 2.5, 5))
    step = next(step for step in steps if reach / step <= 5.01)
    return [i * step for i in range(math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6) + 1)]


def _short(number: float) -> str:
    """`50k` for 50000."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            return f"{number / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{number:.4g}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
