"""Intervals for what is counted over problems: every figure is a ratio of sums, and problems are what was sampled.

Episodes on one problem are alike, so a figure is as certain as the number of its *different problems* lets it be, not
as the number of episodes. Four kinds of figures, each with the interval that simulation found to cover
(`benchmarks/intervals.py`, `docs/metrics.md`):

    bounded       Korn and Graubard's: Clopper and Pearson's exact interval for an effective number of samples
    differences   Student's t with four added problems, after Agresti and Min
    positive      Student's t on the logarithm
    other         Student's t

None of them is drawn by lot. A result that is the same on every problem gets an interval of honest width, or none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from mathturn_gym.errors import InvalidValueError, check_float

_TINY = 1e-300
_STEPS = 100_000
_EPSILON = 1e-15


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b): the chance that a Beta(a, b) variable is below x.

    >>> beta_cdf(0.5, 2.0, 2.0)
    0.5
    """
    if x <= 0.0 or x >= 1.0:
        return float(x > 0.0)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    # The fraction converges quickly on this side of the mean only.
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(x, a, b) / a
    return 1.0 - front * _fraction(1.0 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1.0 / _not_zero(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, _STEPS):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0)),
        ):
            d = 1.0 / _not_zero(1.0 + step * d)
            c = _not_zero(1.0 + step / c)
            change = c * d
            value *= change
        if abs(change - 1.0) < _EPSILON:
            break
    return value


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


@lru_cache(maxsize=4096)
def beta_quantile(p: float, a: float, b: float) -> float:
    """The x with I_x(a, b) = p.

    >>> round(beta_quantile(0.975, 1.0, 20.0), 6)
    0.168433
    """
    low, high, x = 0.0, 1.0, a / (a + b)
    for _ in range(200):
        gap = beta_cdf(x, a, b) - p
        low, high = (low, x) if gap > 0 else (x, high)
        # Newton's step, unless it leaves the bracket.
        density = math.exp(_log_density(x, a, b)) if 0.0 < x < 1.0 else 0.0
        step = x - gap / density if density > 0.0 else -1.0
        following = step if low < step < high else 0.5 * (low + high)
        if abs(following - x) <= 1e-13 * following:
            break
        x = following
    return x


def _log_density(x: float, a: float, b: float) -> float:
    beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return (a - 1.0) * math.log(x) + (b - 1.0) * math.log1p(-x) - beta


@lru_cache(maxsize=1024)
def t_quantile(p: float, degrees: float) -> float:
    """The quantile of Student's t for p >= 0.5; that of the normal distribution for infinitely many degrees.

    >>> round(t_quantile(0.975, 4.0), 4)
    2.7764
    """
    if math.isinf(degrees) or degrees > 1e7:
        return normal_quantile(p)
    # P(|T| < t) = I_x(1/2, degrees / 2) with x = t² / (degrees + t²)
    x = beta_quantile(2.0 * p - 1.0, 0.5, degrees / 2.0)
    return math.sqrt(degrees * x / (1.0 - x))


def f_quantile(p: float, numerator: float, denominator: float) -> float:
    """The quantile of the F distribution with these degrees of freedom.

    >>> round(f_quantile(0.975, 4.0, 8.0), 4)
    5.0526
    """
    x = beta_quantile(p, numerator / 2.0, denominator / 2.0)
    return denominator * x / (numerator * (1.0 - x))


def normal_quantile(p: float) -> float:
    """The quantile of the standard normal distribution."""
    return NormalDist().inv_cdf(p)


# ---- intervals for what is counted over problems: every figure is a ratio of sums, and problems are what was sampled


Floats = npt.NDArray[np.float64]
Bounds = tuple[float | None, float | None]
"""The least and the largest value that a figure can have, None where there is no such bound."""

_DOUBT: Final = 1.0
"""How many problems' worth of doubt there is about how alike the episodes on a problem are (see `_bounded`)."""

_FADING: Final = 8.0
"""At so many problems on which two policies differ, the four added problems have half their weight."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its interval.

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


def cluster_sums(clusters: npt.NDArray[np.int64], values_EF: Floats, count: int) -> Floats:
    """Sums rows that share a cluster.

    Args:
        clusters: int64 (E,), in [0, count).
        values_EF: float64 (E, F).
        count: Number of clusters, C.

    Returns:
        float64 (C, F).
    """
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
    used = (bottom_C > 0) | (top_C != 0)
    top, bottom = top_C[used], bottom_C[used]
    total = float(bottom.sum())
    if not total:
        return Estimate(None, None, None, 0.0)
    value = float(top.sum() / total)
    low, high = bounds
    ends: tuple[float, float] | None
    if low is not None and high is not None and low < 0:
        spread = top.size * (top - value * bottom) / total
        ends = _signed(value + spread, (high - low) / 2, confidence)
    elif low is not None and high is not None:
        shares = _bounded((top - low * bottom) / (high - low), bottom, units, confidence)
        ends = low + (high - low) * shares[0], low + (high - low) * shares[1]
    else:
        ends = _unbounded(value, top - value * bottom, total, confidence, positive=low is not None)
    return _estimate(value, ends, total)


def difference_estimate(
    tops_2C: Floats, bottoms_2C: Floats, bounds: Bounds, *, confidence: float
) -> tuple[float, float, Estimate]:
    """A figure of two policies on the same problems, and its difference (the second's minus the first's).

    Args:
        tops_2C: float64 (2, C); numerators by problem.
        bottoms_2C: float64 (2, C); denominators.
        bounds: Of the figure.
        confidence: In (0, 1).

    Returns:
        Both values and the difference; NaN and an undefined difference where a policy has nothing to divide by.
    """
    totals = bottoms_2C.sum(axis=1)
    if not totals.all():
        return math.nan, math.nan, Estimate(None, None, None, 0.0)
    values = tops_2C.sum(axis=1) / totals
    used = bottoms_2C.any(axis=0) | tops_2C.any(axis=0)
    shares = ((tops_2C - values[:, None] * bottoms_2C) / totals[:, None])[:, used]
    found = float(values[1] - values[0])
    low, high = bounds
    per_problem = found + shares.shape[1] * (shares[1] - shares[0])
    ends: tuple[float, float] | None
    if low is not None and high is not None:
        ends = _signed(per_problem, high - low, confidence)  # differences reach twice as far
    else:
        ends = _student(found, per_problem, confidence)
    return float(values[0]), float(values[1]), _estimate(found, ends, float(totals.sum()))


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
    (n* = number of problems), which weighs as much as `_DOUBT` of the problems that speak for the rarer outcome.
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
        mixed = (speaking * seen + _DOUBT / problems) / (speaking + _DOUBT)
        tail = 1 - (1 - confidence) / 2
        shrunk = normal_quantile(tail) / t_quantile(tail, problems - 1)
        effective = shrunk**2 / mixed
    elif 0.0 < value < 1.0:
        effective = 1.0
    return clopper_pearson(value, effective, confidence)


def clopper_pearson(value: float, samples: float, confidence: float) -> tuple[float, float]:
    """The exact binomial interval of a share.

    Args:
        value: The share, in [0, 1].
        samples: Number of independent samples; it need not be whole.
        confidence: In (0, 1).
    """
    tail, hits = (1 - confidence) / 2, value * samples
    low = beta_quantile(tail, hits, samples - hits + 1) if value > 0 else 0.0
    high = beta_quantile(1 - tail, hits + 1, samples - hits) if value < 1 else 1.0
    return low, high


def _signed(per_problem: Floats, size: float, confidence: float) -> tuple[float, float]:
    """The interval of a mean of differences, none of which is larger than `size`.

    Student's t after adding four problems, one for each way in which two policies can do on it: both right, both wrong, one
    of them right (Agresti and Min, *Statistics in Medicine* 24, 2005, for matched pairs). Their weight fades with the
    number of problems on which there is a difference, since these tell its variance by themselves.
    """
    differing = np.count_nonzero(np.abs(per_problem) > 1e-12 * max(1.0, size))
    added = 2 * _FADING / (differing + _FADING)
    number = len(per_problem) + 2 * added
    mean = float(per_problem.sum()) / number
    square = (float(per_problem @ per_problem) + added * size**2) / number
    low, high = student(mean, math.sqrt(max(0.0, square - mean**2) / number), len(per_problem) - 1, confidence)
    return max(low, -size), min(high, size)


def _student(value: float, per_problem: Floats, confidence: float) -> tuple[float, float] | None:
    """The interval of a mean without bounds; None where all problems say the same."""
    number = len(per_problem)
    if number < 2 or np.ptp(per_problem) <= 1e-12 * max(1.0, abs(value)):
        return None
    return student(value, float(per_problem.std(ddof=1)) / math.sqrt(number), number - 1, confidence)


def _unbounded(
    value: float, rest: Floats, total: float, confidence: float, *, positive: bool
) -> tuple[float, float] | None:
    ends = _student(value, value + len(rest) * rest / total, confidence)
    if ends is None or not positive or value <= 0:
        return ends
    # On the logarithm: what is never negative is skewed, and so is its estimate (the delta method).
    factor = math.exp((ends[1] - value) / value)
    return value / factor, value * factor


def student(value: float, error: float, degrees: float, confidence: float) -> tuple[float, float]:
    """Student's interval.

    Args:
        value: The figure.
        error: Its standard error.
        degrees: Degrees of freedom of that.
        confidence: In (0, 1).
    """
    half = t_quantile(1 - (1 - confidence) / 2, max(1.0, degrees)) * error
    return value - half, value + half
