"""Intervals and p-values for what is counted over problems: every metric is a ratio of sums, and problems are the sample.

Episodes on one problem are alike, so a metric is as certain as the number of its *different problems* lets it be, not
as the number of episodes. Four kinds of metrics, each with the interval that simulation found to cover
(`benchmarks/intervals.py`, `docs/metrics.md`):

    bounded       Korn and Graubard's: Clopper and Pearson's exact interval for an effective number of samples
    differences   Student's t with four added problems, after Agresti and Min
    positive      Student's t on the logarithm
    other         Student's t

None of them is random. A result that is the same on every problem gets an interval of honest width, or none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, ndtri, stdtr, stdtrit

from mathturn_gym.errors import InvalidValueError, check_float

Floats = npt.NDArray[np.float64]
Bounds = tuple[float | None, float | None]
"""The least and the largest value that a figure can have, None where there is no such bound."""

# Weight of the assumption that the episodes on a problem are all alike, in problems (see `_bounded`).
_PRIOR_WEIGHT: Final = 1.0

# Number of differing problems at which the four pseudo-problems count half.
_FADING: Final = 8.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A metric with its interval.

    Args:
        value: The figure, or None where it is not defined (nothing to divide by).
        low: Lower end of the interval, or None where nothing is known of it.
        high: Upper end, or None.
        count: What it was divided by: how many episodes, turns or problems it is about.
    """

    value: float | None
    low: float | None
    high: float | None
    count: float

    def to_dict(self) -> dict[str, float | None]:
        """As JSON types."""
        return {"value": self.value, "low": self.low, "high": self.high, "count": self.count}

    def __str__(self) -> str:
        """`0.500 [0.375, 0.625]`, the value alone without an interval, or `-` where undefined."""
        if self.value is None:
            return "-"
        if self.low is None or self.high is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


class Pivot(NamedTuple):
    """An estimate whose distance from the truth, in standard errors, has Student's t distribution.

    An interval and a p-value from one pivot agree: the interval excludes 0 exactly where the p-value is small.

    Attributes:
        center: The estimate.
        error: Its standard error.
        degrees: Degrees of freedom of the standard error; fewer than 1 count as 1.
    """

    center: float
    error: float
    degrees: float

    def interval(self, confidence: float) -> tuple[float, float]:
        """Returns the ends of the two-sided interval."""
        half = float(stdtrit(max(1.0, self.degrees), 1 - (1 - confidence) / 2)) * self.error
        return self.center - half, self.center + half

    def p_value(self) -> float:
        """Returns the two-sided p-value of the hypothesis that the truth is 0."""
        if not self.error:
            return 1.0 if not self.center else 0.0
        return float(2 * stdtr(max(1.0, self.degrees), -abs(self.center) / self.error))


def cluster_sums(clusters: npt.NDArray[np.int64], values_EF: Floats, count: int) -> Floats:
    """Sums the rows of float64 (E, F) that share a cluster, int64 (E,) in [0, count): float64 (C, F)."""
    columns = [np.bincount(clusters, weights=column, minlength=count) for column in values_EF.T]
    return np.stack(columns, axis=1) if columns else np.zeros((count, 0))


def check_confidence(confidence: float) -> float:
    """Returns the confidence, or raises `InvalidValueError` unless it can be that of an interval."""
    if not 0 < check_float("confidence", confidence) < 1:
        raise InvalidValueError(f"confidence must be between 0 and 1 (for example 0.95), got {confidence!r}")
    return float(confidence)


def ratio_estimate(top_C: Floats, bottom_C: Floats, bounds: Bounds, *, units: float, confidence: float) -> Estimate:
    """The ratio of two sums over problems, with its interval.

    Args:
        top_C: float64 (C,); the numerator's share of each problem.
        bottom_C: float64 (C,); the denominator's, >= 0. Problems with 0 in both tell nothing.
        bounds: Of the figure: (0, 1) for a rate, (-1, 1) for a difference of rates, (0, None) for what is never negative.
        units: How many observations the figure is made of: no figure is more certain than as many coin tosses.
        confidence: In (0, 1).

    >>> str(ratio_estimate(np.zeros(20), np.ones(20), (0.0, 1.0), units=20, confidence=0.95))
    '0.000 [0.000, 0.168]'
    """
    # A problem that never met the condition ("of the wrong first turns …") says nothing about it.
    used = (bottom_C > 0) | (top_C != 0)
    top, bottom = top_C[used], bottom_C[used]
    total = float(bottom.sum())
    if not total:
        return Estimate(None, None, None, 0.0)
    value = float(top.sum() / total)
    low, high = bounds
    ends: tuple[float, float] | None
    if low is not None and high is not None and low < 0:
        # Linearized ratio (the delta method): numerator and denominator vary together.
        spread = top.size * (top - value * bottom) / total
        size = (high - low) / 2
        ends = _clipped(_signed(value + spread, size).interval(confidence), size)
    elif low is not None and high is not None:
        shares = _bounded((top - low * bottom) / (high - low), bottom, units, confidence)
        ends = low + (high - low) * shares[0], low + (high - low) * shares[1]
    else:
        ends = _unbounded(value, top - value * bottom, total, confidence, positive=low is not None)
    return _estimate(value, ends, total)


class Difference(NamedTuple):
    """A metric of two policies on the same problems.

    Args:
        a: The first policy's, NaN where it has nothing to divide by.
        b: The second's.
        difference: b minus a, with its interval; undefined where one of them is.
        p_value: Of the hypothesis that both policies have the same value, from the same statistic as the 95 % interval;
            None where there is no interval.
    """

    a: float
    b: float
    difference: Estimate
    p_value: float | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {"a": self.a, "b": self.b, "difference": self.difference.to_dict(), "p_value": self.p_value}


def difference_estimate(tops_2C: Floats, bottoms_2C: Floats, bounds: Bounds, *, confidence: float) -> Difference:
    """Compares a metric of two policies on the same problems.

    Denominators may differ between the policies, as those of conditional metrics do ("of the first turns that were
    wrong: corrected later"). So each policy's ratio is linearized (the delta method), problem by problem, and the
    differences of the terms are what varies.

    Args:
        tops_2C: float64 (2, C); numerators by problem.
        bottoms_2C: float64 (2, C); denominators.
        bounds: Of the metric.
        confidence: In (0, 1).
    """
    totals = bottoms_2C.sum(axis=1)
    if not totals.all():
        return Difference(math.nan, math.nan, Estimate(None, None, None, 0.0), None)
    values = tops_2C.sum(axis=1) / totals
    used = bottoms_2C.any(axis=0) | tops_2C.any(axis=0)
    shares = ((tops_2C - values[:, None] * bottoms_2C) / totals[:, None])[:, used]
    found = float(values[1] - values[0])
    low, high = bounds
    per_problem = found + shares.shape[1] * (shares[1] - shares[0])
    ends: tuple[float, float] | None
    if low is not None and high is not None:
        size = high - low  # differences reach twice as far as the metric itself
        pivot: Pivot | None = _corrected(_signed(per_problem, size), shares, bottoms_2C[:, used])
        assert pivot is not None
        ends = _clipped(pivot.interval(confidence), size)
    else:
        pivot = _corrected(_mean(found, per_problem), shares, bottoms_2C[:, used])
        ends = None if pivot is None else pivot.interval(confidence)
    p_value = None if pivot is None else pivot.p_value()
    return Difference(float(values[0]), float(values[1]), _estimate(found, ends, float(totals.sum())), p_value)


def _corrected(pivot: Pivot | None, shares_2C: Floats, bottoms_2C: Floats) -> Pivot | None:
    """Corrects a pivot for problems on which only one policy has a denominator.

    Each policy's variance comes from the problems that it has a denominator on, and these may be few for one of the two:
    a policy that is right at the first turn leaves little to correct. So its variance gets the factor n / (n - 1) of its own
    n, and the degrees of freedom are Welch and Satterthwaite's of both. With 12 against 48 such problems and equal rates,
    p <= .05 in 6.5 % of simulations, and in 7.6 % without the correction.
    """
    if pivot is None:
        return None
    counts, spreads = np.count_nonzero(bottoms_2C, axis=1), (shares_2C**2).sum(axis=1)
    # One problem has no spread: the widest interval that t has.
    if counts.min() < 2:
        return pivot._replace(degrees=1)
    if not spreads.any():
        return pivot
    inflation = float((spreads * counts / (counts - 1)).sum() / spreads.sum())
    degrees = float(spreads.sum() ** 2 / (spreads**2 / (counts - 1)).sum())
    return pivot._replace(error=pivot.error * math.sqrt(inflation), degrees=min(pivot.degrees, degrees))


def _estimate(value: float, ends: tuple[float, float] | None, count: float) -> Estimate:
    return (
        Estimate(value, None, None, count) if ends is None else Estimate(value, float(ends[0]), float(ends[1]), count)
    )


def _bounded(top: Floats, bottom: Floats, units: float, confidence: float) -> tuple[float, float]:
    """The interval of a figure in [0, 1].

    Clopper and Pearson's (*Biometrika* 26, 1934) for n* samples, the number of independent ones that would be as certain:
    n* = p (1 - p) / variance, the variance being that of problems, and n* shrunk by the ratio of the normal to Student's
    quantile squared (Korn and Graubard, *Survey Methodology* 24, 1998). Where few problems tell anything, their variance
    tells nothing, and its small values would be believed: so it is averaged with that of entirely dependent episodes
    (n* = number of problems), which weighs as much as `_PRIOR_WEIGHT` of the problems that speak for the rarer outcome.
    """
    problems, total = len(top), float(bottom.sum())
    # Half a hair outside [0, 1] is rounding.
    value = min(max(float(top.sum()) / total, 0.0), 1.0)
    speaking = min(np.count_nonzero(top > 1e-9), np.count_nonzero(top < bottom - 1e-9))
    effective = float(problems)
    if speaking and problems > 1 and 0.0 < value < 1.0:
        rest = top - value * bottom
        variance = problems / (problems - 1) * float(rest @ rest) / total**2
        # As a share of the variance of one toss: 1 / n.
        seen = max(variance / (value * (1 - value)), 1.0 / max(units, 1.0))
        mixed = (speaking * seen + _PRIOR_WEIGHT / problems) / (speaking + _PRIOR_WEIGHT)
        tail = 1 - (1 - confidence) / 2
        shrunk = float(ndtri(tail) / stdtrit(problems - 1, tail))
        effective = shrunk**2 / mixed
    elif 0.0 < value < 1.0:
        effective = 1.0
    return clopper_pearson(value, effective, confidence)


def clopper_pearson(value: float, samples: float, confidence: float) -> tuple[float, float]:
    """The exact binomial interval of a share among a number of independent samples, which need not be whole."""
    tail, hits = (1 - confidence) / 2, value * samples
    low = float(betaincinv(hits, samples - hits + 1, tail)) if value > 0 else 0.0
    high = float(betaincinv(hits + 1, samples - hits, 1 - tail)) if value < 1 else 1.0
    return low, high


def _signed(per_problem: Floats, size: float) -> Pivot:
    """The mean of differences, none of which is larger than `size`.

    Student's t after adding four problems, one for each way in which two policies can do on it: both right, both wrong, one
    of them right (Agresti and Min, *Statistics in Medicine* 24, 2005, for matched pairs). Their weight fades with the
    number of problems on which there is a difference, since these tell its variance by themselves.
    """
    differing = np.count_nonzero(np.abs(per_problem) > 1e-12 * max(1.0, size))
    added = 2 * _FADING / (differing + _FADING)
    number = len(per_problem) + 2 * added
    mean = float(per_problem.sum()) / number
    square = (float(per_problem @ per_problem) + added * size**2) / number
    return Pivot(mean, math.sqrt(max(0.0, square - mean**2) / number), len(per_problem) - 1)


def _clipped(ends: tuple[float, float], size: float) -> tuple[float, float]:
    return max(ends[0], -size), min(ends[1], size)


def _mean(value: float, per_problem: Floats) -> Pivot | None:
    """A mean without bounds; None where all problems say the same."""
    number = len(per_problem)
    if number < 2 or np.ptp(per_problem) <= 1e-12 * max(1.0, abs(value)):
        return None
    return Pivot(value, float(per_problem.std(ddof=1)) / math.sqrt(number), number - 1)


def _unbounded(
    value: float, rest: Floats, total: float, confidence: float, *, positive: bool
) -> tuple[float, float] | None:
    pivot = _mean(value, value + len(rest) * rest / total)
    if pivot is None:
        return None
    ends = pivot.interval(confidence)
    if not positive or value <= 0:
        return ends
    # On the logarithm: what is never negative is skewed, and so is its estimate (the delta method).
    # The half-width over the value is the standard error of the logarithm, times the quantile.
    factor = math.exp((ends[1] - value) / value)
    return value / factor, value * factor
