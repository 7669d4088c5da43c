"""Intervals over problems: how wide they are, and how often they hold the truth."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from mathturn_gym.episodes.metrics.intervals import (
    Bounds,
    Estimate,
    Floats,
    cluster_sums,
    difference_estimate,
    ratio_estimate,
)

RATE, SIGNED, POSITIVE, ANY = (0.0, 1.0), (-1.0, 1.0), (0.0, None), (None, None)


def ends(estimate: Estimate) -> tuple[float, float]:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


def of_rate(top: Floats, per_problem: float = 1.0) -> Estimate:
    bottom = np.full_like(top, per_problem)
    return ratio_estimate(top, bottom, RATE, units=float(bottom.sum()), confidence=0.95)


def test_cluster_sums_add_the_rows_of_a_cluster() -> None:
    sums = cluster_sums(np.array([0, 2, 0]), np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]), 3)
    assert sums.tolist() == [[4.0, 40.0], [0.0, 0.0], [2.0, 20.0]]


class TestRates:
    def test_one_episode_per_problem_gives_nearly_the_exact_binomial_interval(self) -> None:
        tops = np.array([1.0] * 120 + [0.0] * 280)
        exact = stats.binomtest(120, 400).proportion_ci(method="exact")
        assert ends(of_rate(tops)) == pytest.approx((exact.low, exact.high), abs=0.003)

    def test_the_same_on_every_problem_gives_the_exact_bound(self) -> None:
        # With 20 of 20 successes Clopper and Pearson's 95 % interval is [0.025 ** (1 / 20), 1].
        assert ends(of_rate(np.ones(20))) == pytest.approx((0.025 ** (1 / 20), 1.0))
        assert ends(of_rate(np.full(20, 8.0), 8.0)) == pytest.approx((0.025 ** (1 / 20), 1.0))
        assert ends(of_rate(np.zeros(20), 8.0)) == pytest.approx((0.0, 1 - 0.025 ** (1 / 20)))

    def test_a_rate_that_does_not_vary_between_problems_is_as_certain_as_its_episodes(self) -> None:
        low, high = ends(of_rate(np.full(50, 4.0), 8.0))
        exact = stats.binomtest(200, 400).proportion_ci(method="exact")
        assert exact.high - exact.low <= high - low < 1.2 * (exact.high - exact.low)

    def test_episodes_that_repeat_each_other_add_nothing(self) -> None:
        once = ends(of_rate(np.array([1.0, 0.0] * 20)))
        often = ends(of_rate(np.array([8.0, 0.0] * 20), 8.0))
        assert often == pytest.approx(once, abs=1e-9)

    def test_one_problem_tells_next_to_nothing(self) -> None:
        low, high = ends(of_rate(np.array([3.0]), 8.0))
        assert high - low > 0.9

    def test_problems_that_a_figure_is_not_about_do_not_count(self) -> None:
        top, bottom = np.array([1.0, 0.0, 0.0, 0.0]), np.array([1.0, 1.0, 0.0, 0.0])
        assert ratio_estimate(top, bottom, RATE, units=2, confidence=0.95) == ratio_estimate(
            top[:2], bottom[:2], RATE, units=2, confidence=0.95
        )
        assert ratio_estimate(top, np.zeros(4), RATE, units=0, confidence=0.95) == Estimate(None, None, None, 0.0)


class TestOthers:
    def test_figures_between_other_bounds_are_scaled(self) -> None:
        turns = np.array([1.0, 3.0, 1.0, 1.0, 2.0] * 8)
        found = ratio_estimate(turns, np.ones(40), (1.0, 3.0), units=40, confidence=0.95)
        rate = ratio_estimate((turns - 1) / 2, np.ones(40), RATE, units=40, confidence=0.95)
        assert ends(found) == pytest.approx(tuple(1 + 2 * end for end in ends(rate)))

    def test_without_bounds_it_is_students(self) -> None:
        values = np.random.default_rng(0).normal(3, 2, 25)
        found = ratio_estimate(values, np.ones(25), ANY, units=25, confidence=0.9)
        assert ends(found) == pytest.approx(stats.t.interval(0.9, 24, values.mean(), stats.sem(values)))

    def test_what_is_never_negative_has_an_interval_above_0(self) -> None:
        values = np.random.default_rng(0).lognormal(0, 3, 12)
        low, high = ends(ratio_estimate(values, np.ones(12), POSITIVE, units=12, confidence=0.95))
        assert 0 < low < values.mean() < high
        assert low * high == pytest.approx(values.mean() ** 2)

    def test_what_does_not_vary_has_no_interval_without_bounds(self) -> None:
        for bounds in (ANY, POSITIVE):
            found = ratio_estimate(np.full(9, 4.0), np.ones(9), bounds, units=9, confidence=0.95)
            assert (found.value, found.low, found.high) == (4.0, None, None)
        assert str(ratio_estimate(np.full(9, 4.0), np.ones(9), ANY, units=9, confidence=0.95)) == "4.000"

    def test_a_difference_that_was_not_seen_may_be_there(self) -> None:
        low, high = ends(ratio_estimate(np.zeros(50), np.ones(50), SIGNED, units=50, confidence=0.95))
        assert high == pytest.approx(-low)
        assert 0.05 < high < 0.08


class TestDifferences:
    def test_pairs_of_the_same_size_give_nearly_students(self) -> None:
        rng = np.random.default_rng(1)
        a, b = rng.binomial(8, rng.beta(2, 2, 300), (2, 300)).astype(float)
        one, other, found, _ = difference_estimate(np.stack([a, b]), np.full((2, 300), 8.0), RATE, confidence=0.95)
        gaps = (b - a) / 8
        assert (one, other) == pytest.approx((a.mean() / 8, b.mean() / 8))
        assert found.value == pytest.approx(gaps.mean())
        assert ends(found) == pytest.approx(stats.t.interval(0.95, 299, gaps.mean(), stats.sem(gaps)), abs=0.005)

    def test_sums_that_differ_by_policy_are_weighed(self) -> None:
        tops = np.array([[1.0, 2.0, 0.0], [2.0, 2.0, 5.0]])
        bottoms = np.array([[2.0, 2.0, 0.0], [2.0, 4.0, 6.0]])
        one, other, found, _ = difference_estimate(tops, bottoms, ANY, confidence=0.95)
        assert (one, other, found.value) == (0.75, 0.75, 0.0)

    def test_policies_with_denominators_on_different_problems_give_nearly_welchs_test(self) -> None:
        """The few problems of the second decide: four values have three degrees of freedom, not 43."""
        rng = np.random.default_rng(2)
        a, b = rng.normal(0, 1, 40), rng.normal(1.5, 2, 4)
        tops = np.stack([np.concatenate([a, np.zeros(4)]), np.concatenate([np.zeros(40), b])])
        bottoms = np.stack([np.repeat([1.0, 0.0], [40, 4]), np.repeat([0.0, 1.0], [40, 4])])
        found = difference_estimate(tops, bottoms, ANY, confidence=0.95)
        welch = stats.ttest_ind(b, a, equal_var=False)
        interval = welch.confidence_interval(0.95)
        assert found.p_value == pytest.approx(welch.pvalue, rel=0.05)
        assert ends(found.difference) == pytest.approx((interval.low, interval.high), rel=0.05)

    def test_a_policy_with_one_problem_to_divide_by_is_as_uncertain_as_can_be(self) -> None:
        tops, bottoms = np.stack([np.tile([1.0, 0.0], 10), np.eye(20)[0]]), np.stack([np.ones(20), np.eye(20)[0]])
        low, high = ends(difference_estimate(tops, bottoms, RATE, confidence=0.95).difference)
        assert high - low > 1.0

    def test_nothing_to_divide_by_is_no_difference(self) -> None:
        one, _, found, p_value = difference_estimate(
            np.zeros((2, 3)), np.array([[0.0] * 3, [1.0] * 3]), RATE, confidence=0.95
        )
        assert math.isnan(one)
        assert found.value is None
        assert p_value is None


Draw = Callable[[np.random.Generator], tuple[Estimate, float]]


def rate(mean: float, concentration: float, problems: int, group: int) -> Draw:
    """Problems with success rates of their own."""

    def draw(rng: np.random.Generator) -> tuple[Estimate, float]:
        rates = rng.beta(mean * concentration, (1 - mean) * concentration, problems)
        return of_rate(rng.binomial(group, rates).astype(float), float(group)), mean

    return draw


def gain(mean: float, better: float, problems: int, group: int) -> Draw:
    """A second policy that solves a share of what the first one fails."""

    def draw(rng: np.random.Generator) -> tuple[Estimate, float]:
        rates = rng.beta(mean, 1 - mean, problems)
        tops = np.stack([rng.binomial(group, rates), rng.binomial(group, rates + better * (1 - rates))]).astype(float)
        bottoms = np.full((2, problems), float(group))
        return difference_estimate(tops, bottoms, RATE, confidence=0.95)[2], better * (1 - mean)

    return draw


def cost(spread: float, problems: int, bounds: Bounds) -> Draw:
    """Skewed costs."""

    def draw(rng: np.random.Generator) -> tuple[Estimate, float]:
        values = rng.lognormal(0, spread, problems)
        found = ratio_estimate(values, np.ones(problems), bounds, units=problems, confidence=0.95)
        return found, math.exp(spread**2 / 2)

    return draw


@pytest.mark.parametrize(
    ("draw", "least"),
    [
        (rate(0.02, 1.0, 50, 8), 0.93),  # the percentile bootstrap: .85
        (rate(0.1, 1.0, 20, 8), 0.93),  # .85
        (rate(0.4, 0.3, 20, 8), 0.93),
        (rate(0.4, 5.0, 200, 1), 0.93),
        (gain(0.4, 0.1, 20, 1), 0.93),  # .91
        (gain(0.05, 0.05, 20, 1), 0.93),  # .73
        (gain(0.4, 0.0, 200, 8), 0.92),
        (cost(0.6, 20, POSITIVE), 0.91),
        (cost(0.6, 200, ANY), 0.91),
    ],
)
def test_intervals_cover(draw: Draw, least: float) -> None:
    """Of 500 simulated evaluations; the standard error of a coverage of .95 is .010, so these bounds leave two of it."""
    rng = np.random.default_rng(11)
    held = 0
    for _ in range(500):
        found, truth = draw(rng)
        low, high = ends(found)
        held += low <= truth <= high
    assert held / 500 >= least


def test_forgetting_which_episodes_share_a_problem_would_not_cover() -> None:
    """The check of the check: with alike episodes, counting them as independent is far too sure of itself."""
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(200):
        rates = rng.beta(0.2, 0.3, size=40)
        tops = (rng.random((40, 8)) < rates[:, None]).astype(float).reshape(-1)
        low, high = ends(of_rate(tops))
        held += low <= 0.4 <= high
    assert held / 200 < 0.75
