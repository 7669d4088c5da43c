"""The statistics against independent ones: SciPy's trimmed mean, and rliable's own functions."""

from __future__ import annotations

import importlib.util
import math
import sys
import types
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from mathturn_gym.compare.statistics import (
    AGGREGATES,
    aggregate,
    difference,
    holm,
    improvement,
    profile,
    seeds_for,
    shared,
)
from mathturn_gym.errors import InvalidValueError

Floats = npt.NDArray[np.float64]
_GONE = math.nan
_TRUTH = 0.1523
"""Of the differences below: the mean of 20 million."""


def matrix(runs: int, tasks: int, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.random.default_rng(seed).beta(2, 1 + np.arange(tasks), size=(runs, tasks)).round(2)


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
    for seed in range(20):
        scores = matrix(runs, tasks, seed)
        expected = stats.trim_mean(scores, 0.25, axis=None)
        assert aggregate(scores.T, "IQM", resamples=2).value == pytest.approx(expected, abs=1e-12)


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
            found = aggregate(scores.T, name, resamples=2).value
            assert found == pytest.approx(float(function(scores)), abs=1e-12), name


def test_probability_of_improvement_is_rliables(rliable: Any) -> None:
    _, metrics = rliable
    for seed in range(20):
        x, y = matrix(5, 3, seed), matrix(4, 3, seed + 100)
        expected = metrics.probability_of_improvement(x, y)
        assert improvement(x.T, y.T).value == pytest.approx(float(expected), abs=1e-12)


def test_profiles_are_rliables(rliable: Any) -> None:
    library, _ = rliable
    scores, levels = matrix(5, 3, 0), np.linspace(0, 1, 21)
    value, low, high = profile(scores.T, levels)
    np.testing.assert_allclose(value, library.score_distributions(scores, levels), atol=1e-12)
    assert (low <= value + 1e-12).all()
    assert (value <= high + 1e-12).all()
    assert (high - low).max() > 0.1


def test_the_seed_decides_the_interval() -> None:
    scores = matrix(5, 2, 0).T
    assert aggregate(scores, "mean", resamples=500, seed=1) == aggregate(scores, "mean", resamples=500, seed=1)
    assert aggregate(scores, "mean", resamples=500, seed=1) != aggregate(scores, "mean", resamples=500, seed=2)


def test_runs_are_drawn_within_their_task() -> None:
    """However far apart tasks are, what varies are the runs of each."""
    near, far = (np.array([[0.4, 0.5, 0.6], [0.4 + gap, 0.5 + gap, 0.6 + gap]]) for gap in (0.0, 0.3))
    widths = [found.high - found.low for found in (aggregate(s, "mean", seed=1) for s in (near, far))]  # type: ignore[operator]
    assert widths[0] == pytest.approx(widths[1], rel=1e-6)


def test_runs_that_are_all_the_same_say_nothing_of_their_spread() -> None:
    found = aggregate(np.stack([np.zeros(5), np.ones(5)]), "mean", resamples=500)
    assert (found.value, found.low, found.high) == (0.5, None, None)


def test_a_mean_of_one_task_has_students_interval() -> None:
    scores = np.array([0.42, 0.5, 0.61, 0.47, 0.55])
    found = aggregate(scores[None, :], "mean", resamples=50_000)
    expected = stats.t.interval(0.95, 4, scores.mean(), stats.sem(scores))
    assert (found.low, found.high) == pytest.approx(expected, abs=0.002)


def test_scores_between_0_and_1_have_intervals_there() -> None:
    found = aggregate(np.array([[0.97, 1.0, 0.9]]), "mean")
    assert found.high == 1.0
    assert aggregate(np.array([[9.7, 10.0, 9.0]]), "mean").high > 10  # type: ignore[operator]


def test_all_runs_better_than_all_is_not_certain() -> None:
    found = improvement(np.arange(5.0)[None, :] + 10, np.arange(5.0)[None, :])
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low is not None
    assert 0.5 < found.low < 0.75
    turned = improvement(np.arange(5.0)[None, :], np.arange(5.0)[None, :] + 10)
    assert (turned.value, turned.low) == (0.0, 0.0)
    assert turned.high == pytest.approx(1 - found.low)


def test_tasks_with_different_numbers_of_runs_weigh_the_same_in_the_mean() -> None:
    scores = np.array([[0.0, 0.0, 0.0, 0.0], [1.0, _GONE, _GONE, _GONE]])
    assert aggregate(scores, "mean", resamples=10).value == 0.5
    assert profile(scores, np.array([0.5]))[0].tolist() == [0.5]


def test_single_runs_have_no_interval() -> None:
    found = aggregate(np.array([[0.3], [0.5]]), "IQM")
    assert (found.value, found.low, found.high, found.count) == (0.4, None, None, 2)
    assert improvement(np.array([[0.3]]), np.array([[0.2]])).low is None
    mixed = np.array([[0.3, _GONE], [0.4, 0.6]])
    assert aggregate(mixed, "IQM").low is None, "too narrow: one task would not vary"


def logistic(rng: np.random.Generator, alike: float, runs: int) -> Floats:
    """Scores of three tasks whose logits correlate within a seed."""
    luck, own = rng.normal(0, 1, runs), rng.normal(0, 1, (3, runs))
    levels = np.array([[-0.5], [0.0], [0.5]])
    return np.asarray(1 / (1 + np.exp(-(levels + alike**0.5 * luck + (1 - alike) ** 0.5 * own))))


@pytest.mark.parametrize("name", ["IQM", "mean"])
@pytest.mark.parametrize("runs", [3, 5, 10])
@pytest.mark.parametrize("alike", [0.0, 0.8])
def test_intervals_cover_whatever_the_runs_of_a_seed_have_in_common(name: str, runs: int, alike: float) -> None:
    """Of 300 comparisons on 3 tasks; drawing each task alone, at .8: 77 to 83 %. The standard error is 1.3 %."""
    rng, covered = np.random.default_rng(100 + runs), 0
    truth = AGGREGATES[name](logistic(np.random.default_rng(0), 0.0, 400_000)[:, None, :])[0]
    for experiment in range(300):
        found = aggregate(logistic(rng, alike, runs), name, resamples=300, seed=experiment)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth <= found.high
    assert covered / 300 > 0.91


@pytest.mark.parametrize(("shift", "alike"), [(0.0, 0.0), (0.7, 0.8), (3.0, 0.8)])
def test_probabilities_of_improvement_and_profiles_cover(shift: float, alike: float) -> None:
    """Of 300 comparisons with five seeds; with each task alone, at .8: 83 and 86 %."""
    rng, covered = np.random.default_rng(3), [0, 0]
    for _ in range(300):
        x, y = (
            alike**0.5 * rng.normal(0, 1, 5) + (1 - alike) ** 0.5 * rng.normal(0, 1, (3, 5)) + level
            for level in (shift, 0.0)
        )
        found = improvement(x, y)
        assert found.low is not None
        assert found.high is not None
        covered[0] += found.low <= stats.norm.cdf(shift / 2**0.5) <= found.high
        _, low, high = profile(x, np.array([0.5]))
        covered[1] += int(low[0] <= stats.norm.sf(0.5 - shift) <= high[0])
    assert min(covered) / 300 > 0.93


def test_runs_that_are_missing_are_left_out_of_the_draws() -> None:
    whole = matrix(6, 2, 0).T
    torn = whole.copy()
    torn[0, 0] = _GONE
    found = aggregate(torn, "mean", resamples=2000)
    assert found.value == pytest.approx((whole[0, 1:].mean() + whole[1].mean()) / 2)
    assert found.count == 11
    lonely = np.array([[0.1, 0.5, *[_GONE] * 10], [*[_GONE] * 10, 0.3, 0.9]])  # most draws lack a task: drawn again
    assert aggregate(lonely, "mean", resamples=200).low is not None


def test_several_tasks_are_one_number_a_seed() -> None:
    """Seeds whose luck is the same on both tasks: a mean over tasks is no more certain than one task."""
    luck = np.array([0.1, -0.05, 0.02, -0.07])
    x, y = np.stack([0.5 + luck, 0.6 + luck]), np.full((2, 4), 0.4)
    both, one = difference(x, y).difference, difference(x[:1], y[:1]).difference
    assert both.low is not None
    assert both.high is not None
    assert one.low is not None
    assert one.high is not None
    assert both.value == pytest.approx(0.15)
    assert both.high - both.low == pytest.approx(one.high - one.low)
    x[1, 3] = _GONE
    assert difference(x, y).difference.count == 3, "a seed counts where it has all runs"


def test_holms_correction_is_that_of_statsmodels() -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    for seed in range(5):
        p_values = np.random.default_rng(seed).random(12) ** 4
        assert holm(p_values.tolist()) == pytest.approx(multitest.multipletests(p_values, method="holm")[1].tolist())


@pytest.mark.parametrize("runs", [2, 3, 10])
def test_differences_are_scipys_paired_test(runs: int) -> None:
    rng = np.random.default_rng(runs)
    x, y = rng.random(runs), rng.random(runs)
    test = stats.ttest_rel(x, y)
    (found, p_value), wanted = difference(x[None, :], y[None, :]), test.confidence_interval(0.95)
    assert p_value == pytest.approx(test.pvalue)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))
    assert found.value == pytest.approx(float(np.mean(x - y)))
    for one, other in ((x[:1], y[:1]), (x, x), (x + 0.25, x)):
        none = difference(one[None, :], other[None, :])
        assert none.difference.low is none.p_value is None, "nothing is known of the spread"


@pytest.mark.parametrize("runs", [3, 5])
def test_differences_hold_the_truth_whatever_seeds_have_in_common(runs: int) -> None:
    """Of accuracies whose logits have a seed's luck in common, and heavier tails than a normal's of their own."""
    rng, held = np.random.default_rng(runs), 0
    for _ in range(1000):
        luck = rng.normal(0, 1, runs)
        x, y = (1 / (1 + np.exp(-(level + luck + 0.5 * rng.standard_t(5, runs)))) for level in (0.8, 0.0))
        found = difference(x[None, :], y[None, :]).difference
        assert found.low is not None
        assert found.high is not None
        held += found.low <= _TRUTH <= found.high
    assert held / 1000 > 0.93


@pytest.mark.parametrize("alike", [0.0, 0.5, 0.9])
def test_what_seeds_share_does_not_depend_on_how_much_rows_vary(alike: float) -> None:
    """An analysis of variance takes the row that varies most for all: its interval covered in 5 % of simulations."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(200):
        scale = np.exp(rng.uniform(-3, 3, (6, 1)))
        scores = scale * (alike**0.5 * rng.normal(0, 1, 10) + (1 - alike) ** 0.5 * rng.normal(0, 1, (6, 10)))
        found.append(shared(scores))
    assert np.mean([one for one in found if one is not None]) == pytest.approx(alike, abs=0.04)


def test_what_seeds_share_at_its_ends() -> None:
    luck = np.array([0.1, 0.4, 0.2])
    assert shared(np.stack([luck, 3 * luck + 0.3])) == 1.0, "seeds decide everything"
    assert shared(np.stack([luck, -luck])) == -1.0
    assert shared(np.stack([luck, luck, np.full(3, 0.5)])) == 1.0, "a row that does not vary says nothing"
    for none in (luck[None, :], luck[:, None], np.full((2, 3), 0.5), np.zeros((2, 2))):
        assert shared(none) is None


def test_bad_scores_are_refused() -> None:
    for empty in (np.zeros((0, 3)), np.zeros(3), np.array([[0.1, 0.2], [_GONE, _GONE]])):
        with pytest.raises(InvalidValueError, match="tasks x seeds, with at least one task and a run on each"):
            aggregate(empty, "IQM")
    with pytest.raises(InvalidValueError, match="must not be infinite"):
        aggregate(np.array([[0.1, np.inf]]), "IQM")
    with pytest.raises(InvalidValueError, match=r"same tasks and seeds, got \(1, 2\) and \(1, 1\)"):
        difference(np.array([[0.1, 0.2]]), np.array([[0.1]]))
    assert difference(np.zeros((1, 0)), np.zeros((1, 0))).difference.value is None
    with pytest.raises(InvalidValueError, match="rows x seeds, got 1 dimensions"):
        shared(np.array([0.1, 0.2]))
    with pytest.raises(InvalidValueError, match="finite"):
        shared(np.array([[0.1, np.inf], [0.2, 0.3]]))
    with pytest.raises(InvalidValueError, match="same tasks, got 1 and 2"):
        improvement(np.array([[0.1]]), np.array([[0.1], [0.2]]))
    with pytest.raises(InvalidValueError, match="resamples must be an integer >= 1"):
        aggregate(np.array([[0.1]]), "IQM", resamples=0)


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0, 4.0])
def test_seeds_for_a_difference_are_those_of_the_exact_power(ratio: float) -> None:
    """Power of the paired t-test by the noncentral t distribution."""
    nct = stats.nct
    quantile = stats.t.ppf

    def power(seeds: int) -> float:
        return float(1 - nct.cdf(quantile(0.975, seeds - 1), seeds - 1, seeds**0.5 / ratio))

    found = seeds_for(0.1 * ratio, 0.1)
    assert power(found) >= 0.8 - 0.02
    assert found == 2 or power(found - 2) < 0.8


def test_no_number_of_seeds_finds_nothing() -> None:
    with pytest.raises(InvalidValueError, match="effect must be above 0"):
        seeds_for(0.1, 0.0)
