"""The pictures of a comparison: learning curves, aggregates, performance profiles, probability of improvement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mathturn_gym.base.plots import new_figure, plain_label, save_figure
from mathturn_gym.compare.results import LAST, Results, used_of, value_at
from mathturn_gym.compare.statistics import AGGREGATES, aggregate, improvement, profile
from mathturn_gym.compare.summary import VIEW_NAMES, best_first
from mathturn_gym.errors import MissingDependencyError

_POINTS: Final = 40
_BAND_RESAMPLES: Final = 300
_LINES: Final = ("-", "--", ":")
_AXIS_NAMES: Final = {
    "tokens": "environment tokens",
    "total_tokens": "all tokens, with prompts and feedback",
    "cpu_s": "CPU seconds of training",
}


def draw_all(results: Results, out: Path, *, resamples: int, seed: int) -> list[tuple[str, str]]:
    """Draws every picture that there is something to draw in.

    Args:
        results: Of the comparison.
        out: Folder to write.
        resamples: Bootstrap samples of the intervals.
        seed: Decides them.

    Returns:
        File name and caption of each.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("pictures need matplotlib: pip install 'mathturn-gym[train]'") from error
    kind = "solved within all turns" if results.figure == LAST else results.figure
    drawn = []
    for axis in results.axes:
        name = f"curves-{axis}.png"
        _curves(results, axis, kind, out / name)
        drawn.append(
            (name, f"Learning curves over {_AXIS_NAMES[axis]}: validation, IQM over seeds with its 95 % interval.")
        )
    for view in results.views:
        labels = best_first(results, view)
        if not labels:
            continue
        scores = [results.normalized(label, view) for label in labels]
        _aggregates(results, labels, scores, out / f"aggregates-{view}.png", resamples, seed)
        drawn.append((f"aggregates-{view}.png", f"Over all tasks, normalized, {VIEW_NAMES[view]}: {kind}."))
        _profiles(results, labels, scores, kind, out / f"profiles-{view}.png")
        drawn.append((f"profiles-{view}.png", f"Performance profiles, {VIEW_NAMES[view]}: higher is better."))
        if len(labels) > 1:
            _improvement(labels, scores, out / f"improvement-{view}.png")
            drawn.append((f"improvement-{view}.png", f"Probability of improvement, {VIEW_NAMES[view]}."))
    return drawn


def _curves(results: Results, axis: str, kind: str, path: Path) -> None:
    from matplotlib.ticker import EngFormatter

    columns = min(3, len(results.tasks))
    rows = math.ceil(len(results.tasks) / columns)
    figure = new_figure(5.2 * columns, 3.7 * rows + 0.5)
    for i, task in enumerate(results.tasks):
        axes = figure.add_subplot(rows, columns, i + 1, title=plain_label(task), xlabel=_AXIS_NAMES[axis])
        axes.set_ylabel(kind if i % columns == 0 else "")
        axes.grid(alpha=0.25)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 50k, not 50000 beside 75000
        for label in results.labels:
            _curve(axes, results, label, task, axis)
        low, high = axes.get_ylim()
        axes.set_ylim(max(-0.02, low), min(1.02, high))
        limit = results.limit(task, axis)
        if limit is not None:
            axes.axvline(limit.value, color="0.4", linewidth=0.9, linestyle=(0, (2, 3)))
    handles = [_line(results, label) for label in results.labels]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(6, len(handles)), frameon=False)
    save_figure(figure, path)


def _curve(axes: Any, results: Results, label: str, task: str, axis: str) -> None:
    """One row's line: its runs that have a result, as far as the shortest of them goes; the others thin and broken."""
    turn = results.turns(task) if results.figure == LAST else int(results.figure.removeprefix("acc@"))
    style = _style(results.labels, label)
    runs = [one for one in results.of(label, task) if one.curve]
    for one in runs:
        if not one.done:
            where = [used_of(point, axis) for point in one.curve]
            axes.plot(
                where, [value_at(one, axis, x, turn) for x in where], color=style["color"], linewidth=0.6, alpha=0.7
            )
    done = [one for one in runs if one.done]
    lasting = [one for one in done if one.status != "diverged"] or done  # a diverged run stays at 0
    if not done:
        return
    end = min(used_of(one, axis) for one in lasting)
    at = np.linspace(0.0, end, _POINTS)
    values = [[value_at(one, axis, float(x), turn) for one in done] for x in at]
    found = [
        aggregate([np.array(v, dtype=np.float64)], "IQM", resamples=_BAND_RESAMPLES) for v in values if None not in v
    ]
    if len(found) < len(values):
        return
    axes.plot(at, [one.value for one in found], linewidth=1.8, **style)
    # Where all runs have the same score there is no interval: the band has a gap there.
    low = [math.nan if one.low is None else one.low for one in found]
    high = [math.nan if one.high is None else one.high for one in found]
    if not np.isnan(low).all():
        axes.fill_between(at, low, high, color=style["color"], alpha=0.13, linewidth=0)


def _aggregates(
    results: Results,
    labels: Sequence[str],
    scores: Sequence[Sequence[npt.NDArray[np.float64]]],
    path: Path,
    resamples: int,
    seed: int,
) -> None:
    figure = new_figure(12.5, 0.42 * len(labels) + 1.3)
    for i, name in enumerate(AGGREGATES):
        axes = figure.add_subplot(1, len(AGGREGATES), i + 1, title=name)
        axes.use_sticky_edges = False  # bars keep a distance from the frame
        for row, (label, own) in enumerate(zip(labels, scores, strict=True)):
            found = aggregate(own, name, resamples=resamples, seed=seed)
            color = _style(results.labels, label)["color"]
            if found.low is not None and found.high is not None:
                axes.barh(row, found.high - found.low, left=found.low, height=0.55, color=color, alpha=0.55)
            axes.plot([found.value] * 2, [row - 0.32, row + 0.32], color="0.15", linewidth=1.6)
        axes.set_yticks(range(len(labels)), map(plain_label, labels) if i == 0 else [""] * len(labels))
        axes.set_ylim(len(labels) - 0.4, -0.6)
        axes.grid(axis="x", alpha=0.25)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(left=False)
    save_figure(figure, path)


def _profiles(
    results: Results, labels: Sequence[str], scores: Sequence[Sequence[npt.NDArray[np.float64]]], kind: str, path: Path
) -> None:
    figure = new_figure(7.2, 4.4)
    axes = figure.add_subplot(
        xlabel=f"accuracy level τ ({kind})", ylabel="share of runs with score > τ", xlim=(0, 1), ylim=(-0.02, 1.02)
    )
    levels = np.linspace(0.0, 1.0, 201)
    for label, own in zip(labels, scores, strict=True):
        value, low, high = profile(own, levels)
        style = _style(results.labels, label)
        axes.plot(levels, value, label=plain_label(label), linewidth=1.8, drawstyle="steps-post", **style)
        axes.fill_between(levels, low, high, step="post", color=style["color"], alpha=0.12, linewidth=0)
    axes.grid(alpha=0.25)
    figure.legend(loc="outside right center", frameon=False)
    save_figure(figure, path)


def _improvement(labels: Sequence[str], scores: Sequence[Sequence[npt.NDArray[np.float64]]], path: Path) -> None:
    size = len(labels)
    figure = new_figure(1.6 + 0.72 * size, 1.4 + 0.62 * size)
    axes = figure.add_subplot(title="P(row > column)")
    shown = np.full((size, size), np.nan)
    for r, x in enumerate(scores):
        for c, y in enumerate(scores):
            if r == c:
                continue
            found = improvement(x, y)
            assert found.value is not None
            shown[r, c] = found.value
            sure = found.low is not None and found.high is not None and not found.low <= 0.5 <= found.high
            dark = abs(found.value - 0.5) > 0.35
            weight = "bold" if sure else "normal"
            axes.text(
                c, r, f"{found.value:.2f}", ha="center", va="center", color="w" if dark else "k", fontweight=weight
            )
    axes.imshow(shown, cmap="RdBu", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(size), map(plain_label, labels), rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(size), map(plain_label, labels))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    save_figure(figure, path)


def _style(labels: Sequence[str], label: str) -> dict[str, Any]:
    """A color and a kind of line for each row; after ten the colors come again with another line."""
    turn, color = divmod(list(labels).index(label), 10)
    return {"color": f"C{color}", "linestyle": _LINES[turn % len(_LINES)]}


def _line(results: Results, label: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=plain_label(label), linewidth=1.8, **_style(results.labels, label))
