"""What to say about a few runs on a few tasks: the definitions of Agarwal et al., NeurIPS 2021 (arXiv:2108.13264).

The definitions are those of the authors' library, `rliable`, and the tests hold these figures against its own. The
library itself is not used: its resampling takes NumPy's global state, so that a seed given to it changes nothing, and
it knows no algorithm whose tasks have different numbers of runs, which is what a crashed run leaves behind.

Its intervals are others, too. Percentiles of a stratified bootstrap over five runs a task, which 2021 proposed, hold
the truth in 81 to 92 % of simulated comparisons where they say 95 (`benchmarks/intervals.py`).

*Scores* are one array per task, (N,) float64, one number per run, in [0, 1]; N may differ from task to task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from mathturn_gym.episodes.metrics import Estimate
from mathturn_gym.episodes.metrics.intervals import clopper_pearson, f_quantile, student
from mathturn_gym.errors import InvalidValueError, check_int
from mathturn_gym.seeding import derive_seed

Floats = npt.NDArray[np.float64]
Scores = Sequence[Floats]
CONFIDENCE: Final = 0.95
_CHUNK: Final = 1 << 22


def _iqm(samples: Sequence[Floats]) -> Floats:
    """The mean of what is left of all runs on all tasks after the lowest and the highest quarter are cut off.

    As `scipy.stats.trim_mean(scores, 0.25)`: the number cut off at each end is rounded down.
    """
    pooled = np.sort(np.concatenate(samples, axis=1), axis=1)
    cut = pooled.shape[1] // 4
    return np.asarray(pooled[:, cut : pooled.shape[1] - cut].mean(axis=1))


def _task_means(samples: Sequence[Floats]) -> Floats:
    return np.stack([task.mean(axis=1) for task in samples], axis=1)


def _median(samples: Sequence[Floats]) -> Floats:
    return np.asarray(np.median(_task_means(samples), axis=1))


def _mean(samples: Sequence[Floats]) -> Floats:
    return np.asarray(_task_means(samples).mean(axis=1))


def _optimality_gap(samples: Sequence[Floats]) -> Floats:
    return np.asarray(1.0 - _task_means([np.minimum(task, 1.0) for task in samples]).mean(axis=1))


AGGREGATES: Final[Mapping[str, Callable[[Sequence[Floats]], Floats]]] = {
    "IQM": _iqm,
    "median": _median,
    "mean": _mean,
    "optimality gap": _optimality_gap,
}
"""Each takes one array (R, N) per task - R samples of its N runs - and gives (R,).

IQM: interquartile mean over all runs. median, mean: of the tasks' means. optimality gap: how far the mean stays below 1.
"""


def aggregate(scores: Scores, name: str, *, resamples: int = 10_000, seed: int = 0) -> Estimate:
    """An aggregate over tasks with its 95 % interval.

    Runs are drawn again within each task: what varies is which seeds were run, the tasks are given. The interval is
    Student's, with the standard error of that bootstrap, enlarged by sqrt(N / (N - 1)) since N runs drawn from N vary too
    little, and with Welch and Satterthwaite's degrees of freedom of the tasks' variances (*Biometrics* 2, 1946).

    Args:
        scores: One array per task.
        name: A key of `AGGREGATES`.
        resamples: Bootstrap samples.
        seed: Decides them.

    Returns:
        The figure, its interval, and the number of runs. There is no interval where a task has a single run, or where
        the runs of every task have the same score: nothing is known of their spread.

    Raises:
        InvalidValueError: no task, a task without runs, or a score that is not finite.

    >>> aggregate([np.array([0.0, 0.5, 0.6, 1.0])], "IQM", resamples=1000).value
    0.55
    """
    check_int("resamples", resamples, low=1)
    return _aggregate(_frozen(scores), name, resamples, seed)


@lru_cache(maxsize=4096)  # tables, pictures and raw numbers all ask for the same
def _aggregate(frozen: tuple[bytes, ...], name: str, resamples: int, seed: int) -> Estimate:
    scores = _thawed(frozen)
    function, rng = AGGREGATES[name], _rng(seed, name)
    value = float(function([task[None, :] for task in scores])[0])
    runs = sum(task.size for task in scores)
    if min(task.size for task in scores) < 2 or not any(np.ptp(task) for task in scores):
        return Estimate(value, None, None, runs)
    step = max(1, _CHUNK // runs)
    drawn = np.concatenate(
        [function([_draw(task, min(step, resamples - at), rng) for task in scores]) for at in range(0, resamples, step)]
    )
    sizes = np.array([task.size for task in scores])
    error = float(drawn.std()) * math.sqrt(sizes.mean() / (sizes.mean() - 1))
    low, high = student(value, error, _degrees(scores), CONFIDENCE)
    if all(task.min() >= 0.0 and task.max() <= 1.0 for task in scores):
        low, high = max(low, 0.0), min(high, 1.0)
    return Estimate(value, low, high, runs)


def _degrees(scores: Scores) -> float:
    """Degrees of freedom of the sum of the tasks' squared standard errors."""
    squares = np.array([task.var(ddof=1) / task.size for task in scores])
    freedom = np.array([task.size - 1 for task in scores])
    return float(squares.sum() ** 2 / (squares**2 / freedom).sum())


def profile(scores: Scores, levels: Floats) -> tuple[Floats, Floats, Floats]:
    """The performance profile: the share of runs whose score is above a level, and its pointwise 95 % interval.

    The interval is Clopper and Pearson's for as many independent runs as would have the same weight; that every task has
    its own share makes it a little too wide.

    Args:
        scores: One array per task; each task weighs the same.
        levels: float64 (L,).

    Returns:
        The share, its lower end and its upper end, float64 (L,) each.

    Raises:
        InvalidValueError: as `aggregate`.
    """
    _check(scores)
    value = np.asarray(np.mean([(task[None, :] > levels[:, None]).mean(axis=1) for task in scores], axis=0))
    samples = len(scores) ** 2 / sum(1 / task.size for task in scores)
    ends = [clopper_pearson(share, samples, CONFIDENCE) for share in value.tolist()]
    low, high = (np.array(side, np.float64) for side in zip(*ends, strict=True))
    return value, low, high


def improvement(x: Scores, y: Scores) -> Estimate:
    """The probability that a run of X is better than one of Y on the same task, averaged over tasks, and its 95 % interval.

    Ties count one half: the Mann-Whitney statistic divided by the number of pairs. The interval is that of all
    probabilities whose own standard error makes the observed one plausible (Newcombe, *Statistics in Medicine* 25, 2006,
    method 5), with Student's quantile: it has a width where all runs of X beat all of Y, too.

    Args:
        x: Scores of X, one array per task.
        y: Scores of Y on the same tasks, in the same order.

    Raises:
        InvalidValueError: the numbers of tasks differ; or as `aggregate`.

    >>> str(improvement([np.array([0.5, 0.7])], [np.array([0.5, 0.6])]))
    '0.625 [0.049, 0.982]'
    """
    if len(x) != len(y):
        raise InvalidValueError(f"x and y must be on the same tasks, got {len(x)} and {len(y)}")
    _check(x)
    _check(y)
    runs = sum(task.size for task in (*x, *y))
    value = float(np.mean([_better(one, other) for one, other in zip(x, y, strict=True)]))
    if min(task.size for task in (*x, *y)) < 2:
        return Estimate(value, None, None, runs)
    pairs = [(one.size, other.size) for one, other in zip(x, y, strict=True)]
    degrees = sum(m + n - 2 for m, n in pairs)
    return Estimate(value, _plausible(value, pairs, degrees, 0.0), _plausible(value, pairs, degrees, 1.0), runs)


def difference(x: Floats, y: Floats) -> Estimate:
    """How much better runs of X are than those of Y with the same seeds: the mean, and Student's 95 % interval.

    Args:
        x: float64 (N,); scores of X, one per seed.
        y: float64 (N,); of Y with the same seeds.

    Returns:
        The mean of X - Y, its interval, and N. There is no interval of a single seed, nor where all seeds say the same.

    Raises:
        InvalidValueError: their numbers differ, there is none, or a score is not finite.

    >>> str(difference(np.array([0.5, 0.7, 0.6]), np.array([0.4, 0.5, 0.6])))
    '0.100 [-0.148, 0.348]'
    """
    _check([x, y])
    if x.size != y.size:
        raise InvalidValueError(f"x and y must be of the same seeds, got {x.size} and {y.size} scores")
    each = x - y
    value = float(each.mean())
    if each.size < 2 or np.ptp(each) <= 1e-12:
        return Estimate(value, None, None, each.size)
    low, high = student(value, float(each.std(ddof=1)) / math.sqrt(each.size), each.size - 1, CONFIDENCE)
    return Estimate(value, low, high, each.size)


def shared(scores: Floats) -> Estimate:
    """The share of the variance between a row's runs that lies in their seeds: in what runs with one seed have in common.

    That is the problems and their order, and the warm start where every seed has its own. Of a two-way table with one run a
    cell: MS over seeds and MS of the rest give sigma2_seed / (sigma2_seed + sigma2_rest), an intraclass correlation for
    consistency, and the F distribution its exact interval (McGraw and Wong, *Psychological Methods* 1, 1996, case 3A), if
    all rows vary alike. Where it is large, differences are to be paired by seed.

    Args:
        scores: float64 (rows, N); the same N seeds in every row.

    Returns:
        The share (0 where the estimate is below), its interval, and N. There is none of fewer than two rows or seeds, nor where
        runs do not differ.

    Raises:
        InvalidValueError: not two dimensions, nothing in them, or a score that is not finite.

    >>> str(shared(np.array([[0.1, 0.3, 0.2, 0.5], [0.3, 0.4, 0.4, 0.7]])))
    '0.958 [0.500, 0.997]'
    """
    if scores.ndim != 2:
        raise InvalidValueError(f"scores must be rows x seeds, got {scores.ndim} dimensions")
    _check(list(scores))
    rows, seeds = (int(count) for count in scores.shape)
    centered = scores - scores.mean(axis=1, keepdims=True)
    by_seed = centered.mean(axis=0)
    if rows < 2 or seeds < 2 or np.ptp(centered) <= 1e-12:
        return Estimate(None, None, None, seeds)
    between, within = seeds - 1, (rows - 1) * (seeds - 1)
    ms_seed: float = rows * float((by_seed**2).sum()) / between
    ms_rest: float = float(((centered - by_seed) ** 2).sum()) / within
    if ms_rest <= 1e-12 * ms_seed:
        return Estimate(1.0, 1.0, 1.0, seeds)

    def of(ratio: float) -> float:
        return max(0.0, (ratio - 1) / (ratio + rows - 1))

    ratio = ms_seed / ms_rest
    tail = (1 + CONFIDENCE) / 2
    low = of(ratio / f_quantile(tail, between, within))
    return Estimate(of(ratio), low, of(ratio * f_quantile(tail, within, between)), seeds)


def _plausible(value: float, pairs: Sequence[tuple[int, int]], degrees: float, end: float) -> float:
    """The probability nearest to `end` that is plausible."""
    inside, outside = value, end
    for _ in range(50):
        middle = (inside + outside) / 2
        low, high = student(middle, math.sqrt(_variance(middle, pairs)), degrees, CONFIDENCE)
        inside, outside = (middle, outside) if low <= value <= high else (inside, middle)
    return inside


def _variance(share: float, pairs: Sequence[tuple[int, int]]) -> float:
    """Of the mean over tasks where every task has this probability (Hanley and McNeil, *Radiology* 143, 1982)."""
    total = 0.0
    for m, n in pairs:
        more = (m + n) / 2 - 1
        total += share * (1 - share) * (1 + more * ((1 - share) / (2 - share) + share / (1 + share))) / (m * n)
    return total / len(pairs) ** 2


def _better(x: Floats, y: Floats) -> float:
    """P(X > Y) + P(X = Y) / 2 over all pairs."""
    return float(((x[:, None] > y[None, :]) + 0.5 * (x[:, None] == y[None, :])).mean())


def _rng(seed: int, name: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=derive_seed("compare", name, seed)))


def _draw(task: Floats, rows: int, rng: np.random.Generator) -> Floats:
    """Runs of one task drawn with replacement, float64 (rows, N)."""
    return np.asarray(task[rng.integers(0, task.size, size=(rows, task.size))])


def _frozen(scores: Scores) -> tuple[bytes, ...]:
    """Checked scores as something that can be looked up."""
    _check(scores)
    return tuple(np.asarray(task, dtype=np.float64).tobytes() for task in scores)


def _thawed(frozen: tuple[bytes, ...]) -> list[Floats]:
    return [np.frombuffer(task, dtype=np.float64) for task in frozen]


def _check(scores: Scores) -> None:
    if not scores or any(task.ndim != 1 or not task.size for task in scores):
        raise InvalidValueError("scores must be one array per task, (N,) with N >= 1, and at least one task")
    if not all(np.isfinite(task).all() for task in scores):
        raise InvalidValueError("scores must be finite")
