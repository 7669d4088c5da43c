"""Bootstrap intervals for ratios of sums, resampling whole problems.

Every figure here is a ratio: a sum over episodes divided by another (a mean's divisor counts them). Episodes on one
problem are alike, so what is resampled is the problem with all its episodes (a cluster bootstrap: Davison & Hinkley,
*Bootstrap Methods and their Application*, 1997, §3.8), by percentiles (Efron & Tibshirani, *An Introduction to the
Bootstrap*, 1993, §13.3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mathturn_gym.errors import InvalidValueError, check_float, check_int
from mathturn_gym.seeding import derive_seed

__all__ = ["Estimate", "Floats", "cluster_sums", "ratio_estimates", "resampled_ratios"]

Floats = npt.NDArray[np.float64]
_CHUNK = 1 << 21


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its interval.

    Args:
        value: The figure, or None where it is not defined (nothing to divide by).
        low: Lower end of the interval, or None.
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
        """`0.500 [0.375, 0.625]`, or `-` where undefined."""
        if self.value is None or self.low is None or self.high is None:
            return "-"
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


def resampled_ratios(top_CF: Floats, bottom_CF: Floats, *, resamples: int, seed: int) -> Floats:
    """The ratios of sums in bootstrap samples of the clusters.

    Args:
        top_CF: float64 (C, F); numerators, summed per cluster.
        bottom_CF: float64 (C, F); denominators.
        resamples: How many, R >= 1.
        seed: Decides the samples.

    Returns:
        float64 (R, F); NaN where a sample has nothing to divide by.
    """
    clusters, figures = top_CF.shape
    ratios = np.empty((resamples, figures))
    rng = np.random.Generator(np.random.Philox(key=derive_seed("bootstrap", seed)))
    step = max(1, _CHUNK // max(1, clusters))
    both = np.concatenate([top_CF, bottom_CF], axis=1)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = rng.integers(0, clusters, size=(rows, clusters))
        drawn += np.arange(rows)[:, None] * clusters
        weights = np.bincount(drawn.ravel(), minlength=rows * clusters).reshape(rows, clusters)
        sums = weights.astype(np.float64) @ both
        with np.errstate(invalid="ignore", divide="ignore"):
            bottoms = sums[:, figures:]
            ratios[start : start + rows] = np.where(bottoms > 0, sums[:, :figures] / bottoms, np.nan)
    return ratios


def ratio_estimates(
    top_CF: Floats, bottom_CF: Floats, is_rate: Sequence[bool], *, confidence: float, resamples: int, seed: int
) -> list[Estimate]:
    """Each figure's ratio of sums, with a percentile interval.

    Where a rate is 0 or 1 in every cluster all bootstrap samples agree, and the percentiles would claim certainty.
    There the other end is the exact binomial bound for as many clusters, 1 - (alpha / 2)^(1 / C) away (Clopper and
    Pearson, *Biometrika* 26, 1934).

    Args:
        top_CF: float64 (C, F); numerators, summed per cluster.
        bottom_CF: float64 (C, F); denominators, >= 0.
        is_rate: F flags: the figure is in [0, 1].
        confidence: In (0, 1), e.g. 0.95.
        resamples: Bootstrap samples, >= 1.
        seed: Decides the samples.

    Raises:
        InvalidValueError: an argument outside what is allowed.
    """
    check_confidence(confidence, resamples)
    tail = (1 - confidence) / 2
    tops, bottoms = top_CF.sum(axis=0), bottom_CF.sum(axis=0)
    if not top_CF.shape[0]:
        return [Estimate(None, None, None, 0.0) for _ in is_rate]
    ratios = resampled_ratios(top_CF, bottom_CF, resamples=resamples, seed=seed)
    estimates = []
    for f, rate in enumerate(is_rate):
        if bottoms[f] <= 0:
            estimates.append(Estimate(None, None, None, 0.0))
            continue
        value = float(tops[f] / bottoms[f])
        column = ratios[~np.isnan(ratios[:, f]), f]
        if not column.size:  # few samples, and none of them drew a problem that this figure is about
            estimates.append(Estimate(value, None, None, float(bottoms[f])))
            continue
        low, high = (float(end) for end in np.quantile(column, [tail, 1 - tail]))
        if rate and low == high and value in (0.0, 1.0):
            margin = 1 - math.pow(tail, 1 / int(np.count_nonzero(bottom_CF[:, f])))
            low, high = (0.0, margin) if value == 0.0 else (1 - margin, 1.0)
        estimates.append(Estimate(value, low, high, float(bottoms[f])))
    return estimates


def check_confidence(confidence: float, resamples: int) -> None:
    """Raises `InvalidValueError` unless these can make an interval."""
    if not 0 < check_float("confidence", confidence) < 1:
        raise InvalidValueError(f"confidence must be between 0 and 1 (for example 0.95), got {confidence!r}")
    check_int("resamples", resamples, low=1)
