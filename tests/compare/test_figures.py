"""Pictures of a comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mathturn_gym.compare import Cell, Outcome, Point, Results
from mathturn_gym.compare.figures import draw_all

pytest.importorskip("matplotlib")


def runs(first: Sequence[float], last: Sequence[float]) -> Results:
    """A run of row "a" for each pair, in a straight line from one accuracy to the other."""
    outcomes = []
    for seed, (begin, end) in enumerate(zip(first, last, strict=True)):
        curve = [Point(0.0, 0.0, {"acc@1": begin}), Point(100.0, 1.0, {"acc@1": end})]
        cell = Cell("a", "a", "t", seed, 100, None, {})
        outcomes.append(Outcome(cell, "finished", "", 100, 1.0, 10, {"acc@1": end}, curve))
    return Results(outcomes)


@pytest.mark.parametrize(
    ("first", "last", "gap"),
    [
        ((0.1, 0.3, 0.2), (0.0, 0.0, 0.0), "right"),  # from different warm starts to nothing
        ((0.2, 0.2, 0.2), (0.6, 0.5, 0.7), "left"),  # from one warm start
        ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), "everywhere"),
        ((0.1, 0.3, 0.2), (0.6, 0.5, 0.7), "nowhere"),
    ],
)
def test_a_band_has_a_gap_where_all_runs_have_the_same_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: Sequence[float], last: Sequence[float], gap: str
) -> None:
    from matplotlib.axes import Axes

    bands: list[tuple[Any, ...]] = []
    drawn = Axes.fill_between

    def seen(self: Axes, *args: Any, **options: Any) -> Any:
        bands.append(args[:3])
        return drawn(self, *args, **options)

    monkeypatch.setattr(Axes, "fill_between", seen)
    pictures = draw_all(runs(first, last), tmp_path, resamples=20, seed=0)
    assert all((tmp_path / name).stat().st_size for name, _ in pictures)
    curves = [band for band in bands if np.max(band[0]) == 100.0]  # over tokens
    if gap == "everywhere":
        assert curves == []
        return
    assert curves
    for _, low, high in curves:
        assert bool(np.isnan(low[0])) == (gap == "left")
        assert bool(np.isnan(low[-1])) == (gap == "right")
        assert np.isfinite([low[1:-1], high[1:-1]]).all()


def test_runs_that_never_came_so_far_draw_no_line(tmp_path: Path) -> None:
    one = runs((0.1,), (0.5,)).outcomes[0]
    unfinished = dataclasses.replace(one, status="unfinished", test=None)
    assert draw_all(Results([unfinished]), tmp_path, resamples=20, seed=0)
