import numpy as np
import pytest

from mathturn_gym.metrics.bootstrap import Estimate, cluster_sums, ratio_estimates, resampled_ratios


def test_cluster_sums_add_the_rows_of_a_cluster() -> None:
    sums = cluster_sums(np.array([0, 2, 0]), np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]), 3)
    assert sums.tolist() == [[4.0, 40.0], [0.0, 0.0], [2.0, 20.0]]


def test_resampling_in_chunks_gives_what_one_piece_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    top, bottom = np.arange(7.0)[:, None], np.ones((7, 1))
    whole = resampled_ratios(top, bottom, resamples=20, seed=1)
    monkeypatch.setattr("mathturn_gym.metrics.bootstrap._CHUNK", 7 * 20)
    assert np.array_equal(whole, resampled_ratios(top, bottom, resamples=20, seed=1))
    assert whole.std() > 0


def test_the_bootstrap_has_the_standard_error_of_the_mean() -> None:
    values = np.random.default_rng(0).normal(size=(400, 1))
    ratios = resampled_ratios(values, np.ones_like(values), resamples=4000, seed=0)
    assert np.isclose(ratios.std(), values.std() / 20, rtol=0.05)


def test_a_rate_that_is_the_same_everywhere_gets_the_exact_bound() -> None:
    ones = np.ones((20, 1))
    (estimate,) = ratio_estimates(ones, ones, [True], confidence=0.95, resamples=100, seed=0)
    # With 20 of 20 successes Clopper and Pearson's 95 % interval is [0.025 ** (1 / 20), 1].
    assert interval(estimate) == pytest.approx((0.025 ** (1 / 20), 1.0))
    (never,) = ratio_estimates(0 * ones, ones, [True], confidence=0.95, resamples=100, seed=0)
    assert interval(never) == pytest.approx((0.0, 1 - 0.025 ** (1 / 20)))


def interval(estimate: Estimate) -> tuple[float, float]:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


def holds(estimate: Estimate, truth: float) -> bool:
    low, high = interval(estimate)
    return low <= truth <= high


def coverage(*, runs: int, clusters: int, per_cluster: int, concentration: float, confidence: float = 0.9) -> float:
    """How often the interval of a mean rate holds the truth, where episodes of a problem are alike."""
    rng = np.random.default_rng(7)
    held = 0
    for run in range(runs):
        rates = rng.beta(0.4 * concentration, 0.6 * concentration, size=clusters)
        right = rng.binomial(per_cluster, rates).astype(float)[:, None]
        (estimate,) = ratio_estimates(
            right, np.full_like(right, per_cluster), [True], confidence=confidence, resamples=400, seed=run
        )
        held += holds(estimate, 0.4)
    return held / runs


def test_intervals_cover_at_the_nominal_rate() -> None:
    # 500 runs: the standard error of a coverage of 0.9 is 0.013.
    assert 0.86 <= coverage(runs=500, clusters=60, per_cluster=4, concentration=2.0) <= 0.94


def test_resampling_episodes_instead_of_problems_would_not_cover() -> None:
    """The check of the check: with alike episodes, independent resampling is far too sure of itself."""
    rng = np.random.default_rng(7)
    held = 0
    for run in range(200):
        rates = rng.beta(0.2, 0.3, size=40)
        right = (rng.random((40, 8)) < rates[:, None]).astype(float).reshape(-1, 1)
        (estimate,) = ratio_estimates(right, np.ones_like(right), [True], confidence=0.9, resamples=400, seed=run)
        held += holds(estimate, 0.4)
    assert held / 200 < 0.75


def test_a_figure_that_no_sample_drew_has_no_interval() -> None:
    top, bottom = np.zeros((500, 1)), np.zeros((500, 1))
    top[0], bottom[0] = 1.0, 2.0
    seed = next(s for s in range(20) if np.isnan(resampled_ratios(top, bottom, resamples=1, seed=s)).all())
    (estimate,) = ratio_estimates(top, bottom, [True], confidence=0.9, resamples=1, seed=seed)
    assert (estimate.value, estimate.low, estimate.high) == (0.5, None, None)
