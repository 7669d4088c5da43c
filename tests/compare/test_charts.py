"""Charts of a comparison."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from itertools import pairwise

import pytest

from mathturn_gym.compare import Results
from mathturn_gym.compare.cells import Outcome, Point
from mathturn_gym.compare.charts import curve_charts, difference_charts
from mathturn_gym.compare.matrix import Cell
from mathturn_gym.compare.verdict import paired_differences
from mathturn_gym.episodes.metrics import Estimate
from mathturn_gym.show.charts import Series, lines, ranges


def runs(first: Sequence[float], last: Sequence[float]) -> Results:
    """A run of row "a" for each pair, in a straight line from one accuracy to the other, with three evaluations."""
    outcomes = []
    for seed, (begin, end) in enumerate(zip(first, last, strict=True)):
        curve = [Point(100.0 * x, x, {"acc@1": begin + (end - begin) * x}) for x in (0.0, 0.4, 1.0)]
        cell = Cell("a", "a", "t", seed, 100, None, {})
        outcomes.append(Outcome(cell, "finished", "", 100, 1.0, 10, {"acc@1": end}, curve))
    return Results(outcomes)


@pytest.mark.parametrize(
    ("first", "last", "marks"),
    [
        ((0.1, 0.3, 0.2), (0.0, 0.0, 0.0), 2),  # from different warm starts to nothing
        ((0.2, 0.2, 0.2), (0.6, 0.5, 0.7), 2),  # from one warm start
        ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), 0),
        ((0.1, 0.3, 0.2), (0.6, 0.5, 0.7), 3),
    ],
)
def test_a_band_has_a_gap_where_all_runs_have_the_same_score(
    first: Sequence[float], last: Sequence[float], marks: int
) -> None:
    """A band goes there and back again: twice as many corners as places with an interval."""
    (chart,) = curve_charts(runs(first, last), "tokens")
    assert chart.title == "t: acc@1 over environment tokens"
    bands = re.findall(r'class="band fill-1" d="([^"]*)"', chart.drawing)
    assert [len(re.findall("[ML]", band)) for band in bands] == ([2 * marks] if marks else [])
    assert chart.drawing.count("<circle") == 3, "an evaluation is a mark"
    assert ">a</text>" in chart.drawing, "the line is named at its end"


def test_runs_that_never_came_so_far_draw_no_line() -> None:
    one = runs((0.1,), (0.5,)).outcomes[0]
    assert curve_charts(Results([dataclasses.replace(one, status="unfinished", test=None)]), "tokens") == []


def test_differences_have_a_zero_line_and_their_sign() -> None:
    found = runs((0.1, 0.3, 0.2), (0.6, 0.5, 0.7))
    lower = [
        dataclasses.replace(one, cell=dataclasses.replace(one.cell, label="b"), test={"acc@1": 0.1 * one.cell.seed})
        for one in found.outcomes
    ]
    held = paired_differences(Results([*found.outcomes, *lower]))
    assert held is not None
    (chart,) = difference_charts(held)
    assert chart.title == "t: difference from a"
    assert chart.drawing.count('class="zero"') == 1
    assert ">-0.500</text>" in chart.drawing


def test_names_at_the_ends_of_lines_do_not_overlap() -> None:
    rows = [
        Series(f"row {k}", [(0, Estimate(0.0, None, None, 1)), (9, Estimate(0.5, None, None, 1))]) for k in range(12)
    ]
    drawn = lines(rows, "x", bands=True)
    heights = sorted(float(y) for y in re.findall(r'y="([\d.]+)" class="fill-\d+"', drawn))
    assert len(heights) == 12
    assert all(later - earlier >= 12.9 for earlier, later in pairwise(heights))
    assert heights[-1] < 260
    assert drawn.count("stroke-dasharray") == 2, "colors come again with broken lines"


@pytest.mark.parametrize("ends", [(-0.2, 0.1), (-0.4, -0.1), (0.1, 0.3), (0.0, 0.0)])
def test_every_range_lies_on_the_paper(ends: tuple[float, float]) -> None:
    drawn = ranges([("row", [Estimate(sum(ends) / 2, *ends, 5)])], ["x"], percent=False)
    places = [float(x) for x in re.findall(r'(?:x1|x2|cx)="([\d.-]+)"', drawn)]
    assert places
    assert all(149 <= x <= 499 for x in places)
