"""The statistics against independent ones: SciPy's trimmed mean, and rliable's own functions."""

from __future__ import annotations

import importlib.util
import sys
import types
import warnings
from typing import Any

import numpy as np
import pytest

from mathturn_gym.compare.statistics import AGGREGATES, aggregate, difference, improvement, profile, shared
from mathturn_gym.episodes.metrics import Estimate
from mathturn_gym.errors import InvalidValueError

_TRUTH = 0.1523
"""Of the differences below: the mean of 20 million."""


def matrix(runs: int, tasks: int, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.random.default_rng(seed).beta(2, 1 + np.arange(tasks), size=(runs, tasks)).round(2)


def by_task(scores: np.ndarray[Any, np.dtype[np.float64]]) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    return list(scores.T)


@pytest.fixture
def rliable(monkeypatch: pytest.MonkeyPatch) -> Any:
    """rliable's functions, without the part of `arch` that does not import beside pandas 3 and that they do not use."""
    pytest.importorskip("rliable")
    spec = importlib.util.find_spec("arch")
    assert spec is not None
    package = types.ModuleType("arch")
    package.__path__ = list(spec.submodule_search_locations or [])
    monkeypatch.setitem(sys.modules, "arch", package)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("rliable.library"), importlib.import_module("rliable.metrics")


@pytest.mark.parametrize(("runs", "tasks"), [(1, 1), (2, 3), (5, 1), (5, 3), (10, 7)])
def test_iqm_is_scipys_trimmed_mean(runs: int, tasks: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    for seed in range(20):
        scores = matrix(runs, tasks, seed)
        expected = stats.trim_mean(scores, 0.25, axis=None)
        assert aggregate(by_task(scores), "IQM", resamples=2).value == pytest.approx(expected, abs=1e-12)


def test_aggregates_are_rliables(rliable: Any) -> None:
    _, metrics = rliable
    theirs = {
        "IQM": metrics.aggregate_iqm,
        "median": metrics.aggregate_median,
        "mean": metrics.aggregate_mean,
        "optimality gap": metrics.aggregate_optimality_gap,
    }
    assert set(theirs) == set(AGGREGATES)
    for seed in range(10):
        scores = matrix(5, 4, seed)
        for name, function in theirs.items():
            found = aggregate(by_task(scores), name, resamples=2).value
            assert found == pytest.approx(float(function(scores)), abs=1e-12), name


def test_probability_of_improvement_is_rliables(rliable: Any) -> None:
    _, metrics = rliable
    for seed in range(20):
        x, y = matrix(5, 3, seed), matrix(4, 3, seed + 100)
        expected = metrics.probability_of_improvement(x, y)
        assert improvement(by_task(x), by_task(y)).value == pytest.approx(float(expected), abs=1e-12)


def test_profiles_are_rliables(rliable: Any) -> None:
    library, _ = rliable
    scores, levels = matrix(5, 3, 0), np.linspace(0, 1, 21)
    value, low, high = profile(by_task(scores), levels)
    np.testing.assert_allclose(value, library.score_distributions(scores, levels), atol=1e-12)
    assert (low <= value + 1e-12).all()
    assert (value <= high + 1e-12).all()
    assert (high - low).max() > 0.1


def test_the_seed_decides_the_interval() -> None:
    scores = by_task(matrix(5, 2, 0))
    assert aggregate(scores, "mean", resamples=500, seed=1) == aggregate(scores, "mean", resamples=500, seed=1)
    assert aggregate(scores, "mean", resamples=500, seed=1) != aggregate(scores, "mean", resamples=500, seed=2)


def test_runs_are_drawn_within_their_task() -> None:
    """However far apart tasks are, what varies are the runs of each."""
    near, far = ([np.array([0.1, 0.2, 0.3]), np.array([0.1, 0.2, 0.3]) + gap] for gap in (0.0, 0.6))
    widths = [found.high - found.low for found in (aggregate(s, "mean", seed=1) for s in (near, far))]  # type: ignore[operator]
    assert widths[0] == pytest.approx(widths[1], rel=1e-6)


def test_runs_that_are_all_the_same_say_nothing_of_their_spread() -> None:
    found = aggregate([np.zeros(5), np.ones(5)], "mean", resamples=500)
    assert (found.value, found.low, found.high) == (0.5, None, None)


def test_a_mean_of_one_task_has_students_interval() -> None:
    stats = pytest.importorskip("scipy.stats")
    scores = np.array([0.42, 0.5, 0.61, 0.47, 0.55])
    found = aggregate([scores], "mean", resamples=50_000)
    expected = stats.t.interval(0.95, 4, scores.mean(), stats.sem(scores))
    assert (found.low, found.high) == pytest.approx(expected, abs=0.002)


def test_scores_between_0_and_1_have_intervals_there() -> None:
    found = aggregate([np.array([0.97, 1.0, 0.9])], "mean")
    assert found.high == 1.0
    assert aggregate([np.array([9.7, 10.0, 9.0])], "mean").high > 10  # type: ignore[operator]


def test_all_runs_better_than_all_is_not_certain() -> None:
    found = improvement([np.arange(5.0) + 10], [np.arange(5.0)])
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low is not None
    assert 0.5 < found.low < 0.75
    turned = improvement([np.arange(5.0)], [np.arange(5.0) + 10])
    assert (turned.value, turned.low) == (0.0, 0.0)
    assert turned.high == pytest.approx(1 - found.low)


def test_tasks_with_different_numbers_of_runs_weigh_the_same_in_the_mean() -> None:
    scores = [np.array([0.0, 0.0, 0.0, 0.0]), np.array([1.0])]
    assert aggregate(scores, "mean", resamples=10).value == 0.5
    assert profile(scores, np.array([0.5]))[0].tolist() == [0.5]


def test_single_runs_have_no_interval() -> None:
    found = aggregate([np.array([0.3]), np.array([0.5])], "IQM")
    assert (found.value, found.low, found.high, found.count) == (0.4, None, None, 2)
    assert improvement([np.array([0.3])], [np.array([0.2])]).low is None
    assert aggregate([np.array([0.3]), np.array([0.4, 0.6])], "IQM").low is None, "too narrow: one task would not vary"


@pytest.mark.parametrize("name", ["IQM", "mean"])
@pytest.mark.parametrize("runs", [3, 5, 10])
def test_intervals_hold_the_truth_as_often_as_they_say(name: str, runs: int) -> None:
    """300 comparisons on 3 tasks; percentiles hold the truth in 81 to 93 %, the standard error is 1.3 %."""
    rng, held = np.random.default_rng(runs), 0
    shapes = [(8, 2), (6, 3), (4, 4)]
    truth = AGGREGATES[name]([rng.beta(a, b, size=(1, 100_000)) for a, b in shapes])[0]
    for experiment in range(300):
        found = aggregate([rng.beta(a, b, size=runs) for a, b in shapes], name, resamples=400, seed=experiment)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= truth <= found.high
    assert held / 300 > 0.915


@pytest.mark.parametrize(("shift", "tasks"), [(0.0, 1), (0.7, 3), (3.0, 3)])
def test_probabilities_of_improvement_hold_the_truth(shift: float, tasks: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    rng, held = np.random.default_rng(3), 0
    for _ in range(300):
        found = improvement(
            [rng.normal(shift, 1, 5) for _ in range(tasks)], [rng.normal(0, 1, 5) for _ in range(tasks)]
        )
        assert found.low is not None
        assert found.high is not None
        held += found.low <= stats.norm.cdf(shift / 2**0.5) <= found.high
    assert held / 300 > 0.915


@pytest.mark.parametrize("runs", [2, 3, 10])
def test_differences_are_scipys_paired_test(runs: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(runs)
    x, y = rng.random(runs), rng.random(runs)
    found, wanted = difference(x, y), stats.ttest_rel(x, y).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))
    assert found.value == pytest.approx(float(np.mean(x - y)))
    for none in (difference(x[:1], y[:1]), difference(x, x), difference(x + 0.25, x)):
        assert none.low is None, "nothing is known of the spread"


@pytest.mark.parametrize("runs", [3, 5])
def test_differences_hold_the_truth_whatever_seeds_have_in_common(runs: int) -> None:
    """Of accuracies whose logits have a seed's luck in common, and heavier tails than a normal's of their own."""
    rng, held = np.random.default_rng(runs), 0
    for _ in range(1000):
        luck = rng.normal(0, 1, runs)
        x, y = (1 / (1 + np.exp(-(level + luck + 0.5 * rng.standard_t(5, runs)))) for level in (0.8, 0.0))
        found = difference(x, y)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= _TRUTH <= found.high
    assert held / 1000 > 0.93


@pytest.mark.parametrize(("rows", "runs", "share"), [(2, 5, 0.5), (6, 10, 0.2), (6, 10, 0.8), (15, 3, 0.0)])
def test_shares_of_seeds_hold_the_truth(rows: int, runs: int, share: float) -> None:
    """Rows at levels of their own; every row's runs deviate by 1 in all, part of it with their seed."""
    rng, held = np.random.default_rng(runs), 0
    for _ in range(600):
        luck = rng.normal(0, share**0.5, runs)
        found = shared(rng.normal(0, 9, (rows, 1)) + luck + rng.normal(0, (1 - share) ** 0.5, (rows, runs)))
        assert found.low is not None
        assert found.high is not None
        held += found.low <= share <= found.high
    assert held / 600 > 0.93


def test_shares_of_seeds_are_an_analysis_of_variance() -> None:
    """Held against the regression on rows and seeds, by the sum of squares that each leaves."""
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    rows, runs = 3, 4
    scores = rng.normal(0, 1, runs) + rng.normal(0, 1, (rows, runs))
    row, seed = (one.ravel() for one in np.indices(scores.shape))
    designs = [np.eye(rows)[row], np.hstack([np.eye(rows)[row], np.eye(runs)[seed]])]
    left = [
        float(((scores.ravel() - design @ np.linalg.lstsq(design, scores.ravel(), rcond=None)[0]) ** 2).sum())
        for design in designs
    ]
    within = (rows - 1) * (runs - 1)
    ratio = ((left[0] - left[1]) / (runs - 1)) / (left[1] / within)
    ends = [ratio, ratio / stats.f.ppf(0.975, runs - 1, within), ratio * stats.f.ppf(0.975, within, runs - 1)]
    found = shared(scores)
    assert (found.value, found.low, found.high) == pytest.approx(
        [max(0.0, (one - 1) / (one + rows - 1)) for one in ends], rel=1e-7
    )
    moved = shared(scores + 7 * np.arange(rows)[:, None])
    assert (moved.value, moved.low) == pytest.approx((found.value, found.low)), "levels of rows do not matter"


def test_shares_of_seeds_at_their_ends() -> None:
    luck = np.array([0.1, 0.4, 0.2])
    assert shared(np.stack([luck, luck + 0.3])) == Estimate(1.0, 1.0, 1.0, 3), "seeds decide everything"
    for none in (luck[None, :], luck[:, None], np.full((2, 3), 0.5)):
        assert shared(none).value is None
    opposite = shared(np.stack([luck, -luck]))
    assert (opposite.value, opposite.low) == (0.0, 0.0), "an estimate below 0 is none of a variance"


def test_profiles_hold_the_truth() -> None:
    rng, held = np.random.default_rng(4), 0
    for _ in range(300):
        _, low, high = profile([rng.random(5), rng.random(5) ** 2], np.array([0.5]))
        held += int(low[0] <= (0.5 + (1 - 0.5**0.5)) / 2 <= high[0])
    assert held / 300 > 0.93


def test_bad_scores_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="at least one task"):
        aggregate([], "IQM")
    with pytest.raises(InvalidValueError, match="N >= 1"):
        aggregate([np.array([])], "IQM")
    with pytest.raises(InvalidValueError, match="finite"):
        aggregate([np.array([0.1, np.nan])], "IQM")
    with pytest.raises(InvalidValueError, match="same seeds, got 2 and 1 scores"):
        difference(np.array([0.1, 0.2]), np.array([0.1]))
    with pytest.raises(InvalidValueError, match="N >= 1"):
        difference(np.array([]), np.array([]))
    with pytest.raises(InvalidValueError, match="rows x seeds, got 1 dimensions"):
        shared(np.array([0.1, 0.2]))
    with pytest.raises(InvalidValueError, match="finite"):
        shared(np.array([[0.1, np.inf], [0.2, 0.3]]))
    with pytest.raises(InvalidValueError, match="same tasks, got 1 and 2"):
        improvement([np.array([0.1])], [np.array([0.1]), np.array([0.2])])
    with pytest.raises(InvalidValueError, match="resamples must be an integer >= 1"):
        aggregate([np.array([0.1])], "IQM", resamples=0)
