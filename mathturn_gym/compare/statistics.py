"""Statistics of a few runs on a few tasks: the definitions of Agarwal et al., NeurIPS 2021 (arXiv:2108.13264).

The definitions are those of the authors' library, `rliable`, and the tests compare them with its own. The library itself is
not used: its resampling takes NumPy's global state, so that a seed given to it changes nothing, and it knows no missing
runs, which a crash leaves behind.

The intervals differ, too. The percentiles that the paper proposed, of a bootstrap over five runs a task, cover the true
value in 81 to 92 % of simulated comparisons where they say 95 (`benchmarks/intervals.py`). And the paper draws each
task's runs alone. Here *seeds* are drawn, each with its runs on all tasks: tasks share warm starts and orders of
problems, so that runs of one seed are alike (correlations of .76 to .86 in `docs/experiments.md`), and intervals that
ignore it are up to 1.5 times too narrow.

*Scores* are float64 (tasks, seeds): a column for each seed, NaN where a seed has no run on a task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # its `special` takes a quarter of a second, and loads when it is first asked for

from mathturn_gym.episodes.metrics import Estimate
from mathturn_gym.episodes.metrics.intervals import Pivot, ratio_estimate
from mathturn_gym.errors import InvalidValueError, check_float, check_int
from mathturn_gym.seeding import derive_seed

Floats = npt.NDArray[np.float64]
CONFIDENCE: Final = 0.95
_CHUNK: Final = 1 << 21


def _iqm(samples_TRS: Floats) -> Floats:
    """The mean of what is left of all runs on all tasks after the lowest and the highest quarter are cut off.

    As `scipy.stats.trim_mean(scores, 0.25)`: the number cut off at each end is rounded down.
    """
    pooled = np.sort(np.concatenate(list(samples_TRS), axis=1), axis=1)  # NaN comes last
    counts = np.count_nonzero(~np.isnan(pooled), axis=1)[:, None]
    cut, place = counts // 4, np.arange(pooled.shape[1])
    kept = (place >= cut) & (place < counts - cut)
    return np.asarray(np.where(kept, pooled, 0.0).sum(axis=1) / kept.sum(axis=1))


def _task_means(samples_TRS: Floats) -> Floats:
    known = ~np.isnan(samples_TRS)
    return np.asarray(np.where(known, samples_TRS, 0.0).sum(axis=2) / known.sum(axis=2))


def _median(samples_TRS: Floats) -> Floats:
    return np.asarray(np.median(_task_means(samples_TRS), axis=0))


def _mean(samples_TRS: Floats) -> Floats:
    return np.asarray(_task_means(samples_TRS).mean(axis=0))


def _optimality_gap(samples_TRS: Floats) -> Floats:
    return np.asarray(1.0 - _task_means(np.minimum(samples_TRS, 1.0)).mean(axis=0))


AGGREGATES: Final[Mapping[str, Callable[[Floats], Floats]]] = {
    "IQM": _iqm,
    "median": _median,
    "mean": _mean,
    "optimality gap": _optimality_gap,
}
"""Each takes (T, R, S), R samples of T tasks' S runs with NaN for missing runs, and returns (R,).

IQM: interquartile mean over all runs. median, mean: of the tasks' means. optimality gap: how far the mean stays below 1.
"""


def aggregate(scores: Floats, name: str, *, resamples: int = 10_000, seed: int = 0) -> Estimate:
    """Returns an aggregate over tasks with its 95 % interval.

    The interval is Student's. Its standard error is that of a bootstrap that draws seeds, each with its runs on all tasks,
    enlarged by sqrt(N / (N - 1)), since N seeds drawn from N vary too little. Its degrees of freedom are N - 1, where N
    is the number of seeds of the task with the fewest.

    Args:
        scores: float64 (T, S); tasks and seeds, NaN for missing runs.
        name: A key of `AGGREGATES`.
        resamples: Bootstrap samples.
        seed: Decides them.

    Returns:
        The aggregate, its interval, and the number of runs. There is no interval where a task has a single run, or where
        the runs of every task have the same score.

    Raises:
        InvalidValueError: no task, a task without runs, or a score that is infinite.

    >>> aggregate(np.array([[0.0, 0.5, 0.6, 1.0]]), "IQM", resamples=1000).value
    0.55
    """
    check_int("resamples", resamples, low=1)
    _check(scores)
    return _aggregate(scores.astype(np.float64).tobytes(), scores.shape, name, resamples, seed)


@lru_cache(maxsize=4096)  # tables, charts and raw numbers all ask for the same
def _aggregate(frozen: bytes, shape: tuple[int, ...], name: str, resamples: int, seed: int) -> Estimate:
    scores = np.frombuffer(frozen, dtype=np.float64).reshape(shape)
    function = AGGREGATES[name]
    rng = np.random.Generator(np.random.Philox(key=derive_seed("compare", seed)))
    value = float(function(scores[:, None, :])[0])
    counts = np.count_nonzero(~np.isnan(scores), axis=1)
    runs, fewest = int(counts.sum()), int(counts.min())
    if fewest < 2 or not (np.nanmax(scores, axis=1) > np.nanmin(scores, axis=1)).any():
        return Estimate(value, None, None, runs)
    drawn: list[Floats] = []
    left, step = resamples, max(1, _CHUNK // scores.size)
    while left:
        samples = scores[:, rng.integers(0, shape[1], size=(min(step, left), shape[1]))]
        # a sample without any run of a task says nothing of it, and is drawn again.
        usable = samples[:, (~np.isnan(samples)).any(axis=2).all(axis=0)]
        drawn.append(function(usable))
        left -= usable.shape[1]
    error = float(np.concatenate(drawn).std()) * math.sqrt(fewest / (fewest - 1))
    low, high = Pivot(value, error, fewest - 1).interval(CONFIDENCE)
    if np.nanmin(scores) >= 0.0 and np.nanmax(scores) <= 1.0:
        low, high = max(low, 0.0), min(high, 1.0)
    return Estimate(value, low, high, runs)


def profile(scores: Floats, levels: Floats) -> tuple[Floats, Floats, Floats]:
    """Returns the performance profile: the share of runs whose score is above a level, with a pointwise 95 % interval.

    The interval is that of a rate whose clusters are seeds (see `ratio_estimate`), and each task weighs the same.

    Args:
        scores: float64 (T, S); tasks and seeds, NaN for missing runs.
        levels: float64 (L,).

    Returns:
        The share, its lower end and its upper end, float64 (L,) each.

    Raises:
        InvalidValueError: as `aggregate`.
    """
    _check(scores)
    known = ~np.isnan(scores)
    weights = known / known.sum(axis=1, keepdims=True)
    found = [
        ratio_estimate(
            (weights * (scores > level)).sum(axis=0),
            weights.sum(axis=0),
            (0.0, 1.0),
            units=float(known.sum()),
            confidence=CONFIDENCE,
        )
        for level in levels.tolist()
    ]
    value, low, high = (
        np.array(ends, np.float64) for ends in zip(*((f.value, f.low, f.high) for f in found), strict=True)
    )
    return value, low, high


def improvement(x: Floats, y: Floats) -> Estimate:
    """Returns the probability that a run of X beats one of Y on the same task, averaged over tasks, with a 95 % interval.

    Ties count one half: the Mann-Whitney statistic divided by the number of pairs. The interval is that of all
    probabilities whose own standard error makes the observed one plausible (Newcombe, *Statistics in Medicine* 25, 2006,
    method 5), with Student's quantile: it has a width where all runs of X beat all of Y, too. Tasks share their seeds, so
    the standard error is that of one task, however many there are: right if runs of one seed do equally well on all
    tasks, and too wide otherwise.

    Args:
        x: float64 (T, S); scores of X, NaN for missing runs.
        y: Scores of Y on the same tasks, in the same order.

    Raises:
        InvalidValueError: the numbers of tasks differ; or as `aggregate`.

    >>> str(improvement(np.array([[0.5, 0.7]]), np.array([[0.5, 0.6]])))
    '0.625 [0.049, 0.982]'
    """
    if len(x) != len(y):
        raise InvalidValueError(f"x and y must be on the same tasks, got {len(x)} and {len(y)}")
    _check(x)
    _check(y)
    pairs = [(one[~np.isnan(one)], other[~np.isnan(other)]) for one, other in zip(x, y, strict=True)]
    sizes = [(one.size, other.size) for one, other in pairs]
    runs = sum(map(sum, sizes))
    value = float(np.mean([_better(one, other) for one, other in pairs]))
    if min(map(min, sizes)) < 2:
        return Estimate(value, None, None, runs)
    return Estimate(value, _plausible(value, sizes, 0.0), _plausible(value, sizes, 1.0), runs)


class PairedDifference(NamedTuple):
    """How much better runs of one row are than those of another with the same seeds."""

    difference: Estimate  # the mean difference, its interval, and the number of seeds
    p_value: float | None  # of the hypothesis that there is none; None where there is no interval


def difference(x: Floats, y: Floats) -> PairedDifference:
    """Returns the mean difference of X and Y, with Student's 95 % interval and the p-value of the paired t-test.

    Several tasks are one number a seed: the mean over the tasks. So runs of one seed may be alike, between the rows and
    between the tasks. Only seeds with all runs of both rows count.

    Args:
        x: float64 (T, S); scores of X, NaN for missing runs.
        y: Scores of Y on the same tasks and of the same seeds.

    Returns:
        The mean of X - Y, its interval, and the number of seeds. There is no interval of a single seed, nor where all
        seeds say the same; no value where no seed has all runs.

    Raises:
        InvalidValueError: their shapes differ; or as `aggregate`.

    >>> str(difference(np.array([[0.5, 0.7, 0.6]]), np.array([[0.4, 0.5, 0.6]])).difference)
    '0.100 [-0.148, 0.348]'
    """
    if x.shape != y.shape or x.ndim != 2:
        raise InvalidValueError(f"x and y must be of the same tasks and seeds, got {x.shape} and {y.shape}")
    each = (x - y).mean(axis=0)  # NaN where a run is missing
    each = each[~np.isnan(each)]
    if not each.size:
        return PairedDifference(Estimate(None, None, None, 0), None)
    value = float(each.mean())
    if not math.isfinite(value):
        raise InvalidValueError("scores must not be infinite")
    if each.size < 2 or np.ptp(each) <= 1e-12:
        return PairedDifference(Estimate(value, None, None, each.size), None)
    pivot = Pivot(value, float(each.std(ddof=1)) / math.sqrt(each.size), each.size - 1)
    return PairedDifference(Estimate(value, *pivot.interval(CONFIDENCE), each.size), pivot.p_value())


def seeds_for(spread: float, effect: float, *, power: float = 0.8) -> int:
    """Returns how many seeds a paired t-test at .05 needs to find a difference.

    Args:
        spread: Standard deviation of the differences over seeds, as a first comparison measures it.
        effect: The difference that is worth finding, above 0.
        power: Probability of finding it if it is there.

    >>> seeds_for(0.05, 0.05), seeds_for(0.1, 0.05)
    (10, 34)
    """
    check_float("spread", spread, low=0.0)
    if check_float("effect", effect, low=0.0) == 0.0:
        raise InvalidValueError("effect must be above 0: no number of seeds finds a difference of nothing")
    seeds = 2
    # Both quantiles are Student's (Guenther, *The American Statistician* 35, 1981): within one seed of the exact number.
    while seeds < (_quantile(seeds, 0.975) + _quantile(seeds, power)) ** 2 * (spread / effect) ** 2:
        seeds += 1
    return seeds


def _quantile(seeds: int, share: float) -> float:
    return float(scipy.special.stdtrit(seeds - 1, share))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Corrects p-values for their number (Holm, *Scandinavian Journal of Statistics* 6, 1979).

    Args:
        p_values: Of all differences that are looked at; None for those without one, which do not count.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    known = sorted((p, at) for at, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    most = 0.0
    for rank, (p, at) in enumerate(known):
        most = max(most, min(1.0, p * (len(known) - rank)))
        corrected[at] = most
    return corrected


def shared(scores: Floats) -> float | None:
    """Returns how alike runs of one seed are: the mean correlation between the rows of a comparison over their seeds.

    Runs with one seed share problems, their order, and the warm start where every seed has its own. Where this is large,
    rows must be compared seed by seed. Correlations do not depend on how much a row varies: variances of rows differ by
    factors of hundreds, for which an analysis of variance is no model (its interval covered the true share in 1 to 50 %
    of simulations). There is no interval: a jackknife's covers in 83 to 97 % with five to ten seeds.

    Args:
        scores: float64 (rows, N); the same N seeds in every row.

    Returns:
        The mean over all pairs of rows that vary; None for fewer than two such rows or three seeds.

    Raises:
        InvalidValueError: not two dimensions, or a score that is not finite.

    >>> shared(np.array([[0.1, 0.2, 0.3], [0.5, 0.7, 0.9]]))
    1.0
    """
    if scores.ndim != 2:
        raise InvalidValueError(f"scores must be rows x seeds, got {scores.ndim} dimensions")
    if not np.isfinite(scores).all():
        raise InvalidValueError("scores must be finite")
    varying = scores[np.ptp(scores, axis=1) > 1e-12] if scores.shape[1] else scores[:0]
    if len(varying) < 2 or varying.shape[1] < 3:
        return None
    correlations = np.asarray(np.corrcoef(varying))[np.triu_indices(len(varying), 1)]
    return float(correlations.mean().round(12))


def _plausible(value: float, sizes: Sequence[tuple[int, int]], end: float) -> float:
    """Returns the probability nearest to `end` that is plausible."""
    degrees = min(m + n for m, n in sizes) - 2
    inside, outside = value, end
    for _ in range(50):
        middle = (inside + outside) / 2
        low, high = Pivot(middle, _error(middle, sizes), degrees).interval(CONFIDENCE)
        inside, outside = (middle, outside) if low <= value <= high else (inside, middle)
    return inside


def _error(share: float, sizes: Sequence[tuple[int, int]]) -> float:
    """Mean of the tasks' standard errors where every task has this probability (Hanley and McNeil, *Radiology* 143, 1982)."""
    errors = []
    for m, n in sizes:
        more = (m + n) / 2 - 1
        variance = share * (1 - share) * (1 + more * ((1 - share) / (2 - share) + share / (1 + share))) / (m * n)
        errors.append(math.sqrt(variance))
    return sum(errors) / len(errors)


def _better(x: Floats, y: Floats) -> float:
    """P(X > Y) + P(X = Y) / 2 over all pairs."""
    return float(((x[:, None] > y[None, :]) + 0.5 * (x[:, None] == y[None, :])).mean())


def _check(scores: Floats) -> None:
    if scores.ndim != 2 or not scores.size or np.isnan(scores).all(axis=1).any():
        raise InvalidValueError("scores must be tasks x seeds, with at least one task and a run on each")
    if np.isinf(scores).any():
        raise InvalidValueError("scores must not be infinite")
