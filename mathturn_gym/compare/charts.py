"""The charts of a comparison: learning curves, differences, aggregates and performance profiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from mathturn_gym.compare.cells import Outcome
from mathturn_gym.compare.results import Results, used_of, value_at
from mathturn_gym.compare.statistics import aggregate, profile
from mathturn_gym.compare.summary import VIEW_NAMES, best_first, center
from mathturn_gym.compare.verdict import Differences, figure_of
from mathturn_gym.episodes.metrics import Estimate
from mathturn_gym.show.charts import Series, lines, ranges
from mathturn_gym.show.pages import Chart

_BAND_RESAMPLES: Final = 300
_LEVELS: Final = 101
_AXIS_NAMES: Final = {
    "tokens": "environment tokens",
    "total_tokens": "all tokens, with prompts and feedback",
    "cpu_s": "CPU seconds of training",
}


def curve_charts(results: Results, axis: str) -> list[Chart]:
    """Returns the learning curves, a chart for each task that has any."""
    charts = []
    for task in results.tasks:
        series = [
            Series(label, points, color=number)
            # A row has one color, by its place in the comparison, in every chart.
            for number, label in enumerate(results.labels, 1)
            if (points := _curve(results, label, task, axis))
        ]
        if series:
            title = f"{task}: {figure_of(results, task)} over {_AXIS_NAMES[axis]}"
            charts.append(Chart(title, lines(series, _AXIS_NAMES[axis], bands=True)))
    return charts


def _curve(results: Results, label: str, task: str, axis: str) -> list[tuple[float, Estimate]]:
    """A row's line: the runs that have a result, at their evaluations, as far as the shortest of them goes."""
    turn = int(figure_of(results, task).removeprefix("acc@"))
    done = [one for one in results.of(label, task) if one.done and one.curve]
    lasting = [one for one in done if one.status != "diverged"] or done  # a diverged run stays at 0
    if not lasting:
        return []
    end = min(used_of(one, axis) for one in lasting)
    points = []
    for x in _places(lasting, axis, end):
        values = [value_at(one, axis, x, turn) for one in done]
        # A mean over fewer runs at some places than at others would jump.
        if None in values:
            return []
        scores = np.array([values], dtype=np.float64)
        points.append((x, aggregate(scores, center(results), resamples=_BAND_RESAMPLES)))
    return points


def _places(runs: Sequence[Outcome], axis: str, end: float) -> list[float]:
    """Where a row's runs were evaluated: the mean place of their first evaluation, of their second, and so on."""
    evaluations = zip(*([used_of(point, axis) for point in one.curve] for one in runs), strict=False)
    places = [float(np.mean(those)) for those in evaluations]
    return [*dict.fromkeys(place for place in places if place < end), end]


def difference_charts(found: Differences) -> list[Chart]:
    """Returns the differences from the reference, a chart for each column of the table."""
    charts = []
    for column in found.columns:
        rows = [
            (label, [one.difference])
            for label in found.labels
            if (one := found.found.get((label, column))) and one.difference.value is not None
        ]
        if rows:
            rows.sort(key=lambda row: -(row[1][0].value or 0.0))
            drawn = ranges(rows, ["difference"], percent=False, x_name=f"minus {found.reference}")
            charts.append(Chart(f"{column}: difference from {found.reference}", drawn))
    return charts


def aggregate_chart(results: Results, view: str, *, resamples: int, seed: int) -> Chart | None:
    """Returns the rows' aggregates over all tasks; None where no row has a score on every task."""
    name = center(results)
    rows = [
        (label, [aggregate(results.normalized(label, view), name, resamples=resamples, seed=seed)])
        for label in best_first(results, view)
    ]
    title = f"{name} over all tasks, normalized, {VIEW_NAMES[view]}"
    return Chart(title, ranges(rows, [name], percent=False)) if rows else None


def profile_chart(results: Results, view: str) -> Chart:
    """Returns the performance profiles of the rows that have a score on every task."""
    levels = np.linspace(0.0, 1.0, _LEVELS)
    series = []
    for label in best_first(results, view):
        ends = zip(*(each.tolist() for each in profile(results.normalized(label, view), levels)), strict=True)
        points = [(x, Estimate(v, low, high, 0)) for x, (v, low, high) in zip(levels.tolist(), ends, strict=True)]
        series.append(Series(label, points, color=results.labels.index(label) + 1))
    drawn = lines(series, "normalized score τ", bands=True, steps=True)
    return Chart(f"Share of runs with a score above τ, {VIEW_NAMES[view]}", drawn)
