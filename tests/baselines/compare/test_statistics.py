"""The statistics against independent ones: SciPy's trimmed mean, and rliable's own functions."""

from __future__ import annotations

import importlib.util
import sys
import types
import warnings
from typing import Any

import numpy as np
import pytest

from mathturn_gym.baselines.compare.statistics import AGGREGATES, aggregate, improvement, profile
from mathturn_gym.errors import InvalidValueError


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


def test_intervals_are_rliables(rliable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    library, metrics = rliable
    scores = matrix(6, 3, 1)
    monkeypatch.setattr(np.random, "choice", np.random.RandomState(0).choice)  # what its resampling really draws from
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, interval = library.get_interval_estimates(
            {"x": scores}, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=4000
        )
    found = aggregate(by_task(scores), "IQM", resamples=50_000)
    assert found.low == pytest.approx(interval["x"][0, 0], abs=0.01)
    assert found.high == pytest.approx(interval["x"][1, 0], abs=0.01)


def test_probability_of_improvement_is_rliables(rliable: Any) -> None:
    _, metrics = rliable
    for seed in range(20):
        x, y = matrix(5, 3, seed), matrix(4, 3, seed + 100)
        expected = metrics.probability_of_improvement(x, y)
        assert improvement(by_task(x), by_task(y), resamples=2).value == pytest.approx(float(expected), abs=1e-12)


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
    """Tasks that are each certain leave nothing to vary, however far apart they are."""
    found = aggregate([np.zeros(5), np.ones(5)], "mean", resamples=500)
    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)


def test_tasks_with_different_numbers_of_runs_weigh_the_same_in_the_mean() -> None:
    scores = [np.array([0.0, 0.0, 0.0, 0.0]), np.array([1.0])]
    assert aggregate(scores, "mean", resamples=10).value == 0.5
    assert profile(scores, np.array([0.5]))[0].tolist() == [0.5]


def test_single_runs_have_no_interval() -> None:
    found = aggregate([np.array([0.3]), np.array([0.5])], "IQM")
    assert (found.value, found.low, found.high, found.count) == (0.4, None, None, 2)
    assert improvement([np.array([0.3])], [np.array([0.2])]).low is None
    assert aggregate([np.array([0.3]), np.array([0.4, 0.6])], "IQM").low is None, "too narrow: one task would not vary"


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """500 experiments of 10 runs on 2 tasks whose true mean is known; a percentile bootstrap is a little too narrow."""
    rng, held = np.random.default_rng(0), 0
    for experiment in range(500):
        scores = [rng.beta(8, 2, size=10), rng.beta(2, 8, size=10)]
        found = aggregate(scores, "mean", resamples=400, seed=experiment)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.5 <= found.high
    assert 0.85 < held / 500 < 0.98


def test_bad_scores_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="at least one task"):
        aggregate([], "IQM")
    with pytest.raises(InvalidValueError, match="N >= 1"):
        aggregate([np.array([])], "IQM")
    with pytest.raises(InvalidValueError, match="finite"):
        aggregate([np.array([0.1, np.nan])], "IQM")
    with pytest.raises(InvalidValueError, match="same tasks, got 1 and 2"):
        improvement([np.array([0.1])], [np.array([0.1]), np.array([0.2])])
    with pytest.raises(InvalidValueError, match="resamples must be an integer >= 1"):
        aggregate([np.array([0.1])], "IQM", resamples=0)
