"""What to say about a few runs on a few tasks: the definitions of Agarwal et al., NeurIPS 2021 (arXiv:2108.13264).

The definitions are those of the authors' library, `rliable`, and the tests hold these figures against its own. The
library itself is not used: its resampling takes NumPy's global state, so that a seed given to it changes nothing, and
it knows no algorithm whose tasks have different numbers of runs, which is what a crashed run leaves behind.

*Scores* are one array per task, (N,) float64, one number per run, in [0, 1]; N may differ from task to task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from mathturn_gym.errors import InvalidValueError, check_int
from mathturn_gym.metrics import Estimate
from mathturn_gym.seeding import derive_seed

__all__ = ["AGGREGATES", "CONFIDENCE", "Scores", "aggregate", "improvement", "profile"]

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


def aggregate(scores: Scores, name: str, *, resamples: int = 50_000, seed: int = 0) -> Estimate:
    """An aggregate over tasks with its stratified bootstrap interval (percentiles, 95 %).

    Runs are drawn again within each task: what varies is which seeds were run, the tasks are given.

    Args:
        scores: One array per task.
        name: A key of `AGGREGATES`.
        resamples: Bootstrap samples.
        seed: Decides them.

    Returns:
        The figure, its interval (None where a task has a single run: nothing is known of its spread), the number of runs.

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
    if min(task.size for task in scores) < 2:
        return Estimate(value, None, None, runs)
    step = max(1, _CHUNK // runs)
    drawn = [
        function([_draw(task, min(step, resamples - at), rng) for task in scores]) for at in range(0, resamples, step)
    ]
    return _interval(value, np.concatenate(drawn), runs)


def profile(scores: Scores, levels: Floats, *, resamples: int = 2_000, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """The performance profile: the share of runs whose score is above a level, and its pointwise interval.

    Args:
        scores: One array per task; each task weighs the same.
        levels: float64 (L,).
        resamples: Bootstrap samples.
        seed: Decides them.

    Returns:
        The share, its lower end and its upper end, float64 (L,) each.

    Raises:
        InvalidValueError: as `aggregate`.
    """
    _check(scores)
    rng = _rng(seed, "profile")

    def share(samples: Sequence[Floats]) -> Floats:
        return np.asarray(np.mean([_above(task, levels) for task in samples], axis=0))

    value = share([task[None, :] for task in scores])[0]
    drawn = share([_draw(task, resamples, rng) for task in scores])
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=0)
    return value, low, high


def improvement(x: Scores, y: Scores, *, resamples: int = 2_000, seed: int = 0) -> Estimate:
    """The probability that a run of X is better than one of Y on the same task, averaged over tasks.

    Ties count one half: the Mann-Whitney statistic divided by the number of pairs.

    Args:
        x: Scores of X, one array per task.
        y: Scores of Y on the same tasks, in the same order.
        resamples: Bootstrap samples.
        seed: Decides them.

    Raises:
        InvalidValueError: the numbers of tasks differ; or as `aggregate`.

    >>> improvement([np.array([0.5, 0.7])], [np.array([0.5, 0.6])], resamples=100).value
    0.625
    """
    if len(x) != len(y):
        raise InvalidValueError(f"x and y must be on the same tasks, got {len(x)} and {len(y)}")
    return _improvement(_frozen(x), _frozen(y), resamples, seed)


@lru_cache(maxsize=4096)
def _improvement(frozen_x: tuple[bytes, ...], frozen_y: tuple[bytes, ...], resamples: int, seed: int) -> Estimate:
    x, y, rng = _thawed(frozen_x), _thawed(frozen_y), _rng(seed, "improvement")
    runs = sum(task.size for task in (*x, *y))
    value = float(_better([task[None, :] for task in x], [task[None, :] for task in y])[0])
    if min(task.size for task in (*x, *y)) < 2:
        return Estimate(value, None, None, runs)
    drawn = _better([_draw(task, resamples, rng) for task in x], [_draw(task, resamples, rng) for task in y])
    return _interval(value, drawn, runs)


def _better(xs: Sequence[Floats], ys: Sequence[Floats]) -> Floats:
    """P(X > Y) per sample, averaged over tasks: (R, N) and (R, M) per task to (R,)."""
    pairs = [(a[:, :, None], b[:, None, :]) for a, b in zip(xs, ys, strict=True)]
    return np.asarray(np.mean([((a > b) + 0.5 * (a == b)).mean(axis=(1, 2)) for a, b in pairs], axis=0))


def _above(task: Floats, levels: Floats) -> Floats:
    """Share of each row's runs above each level, (R, N) and (L,) to (R, L); a run at a time, for memory's sake."""
    total = np.zeros((task.shape[0], levels.size))
    for run in task.T:
        total += run[:, None] > levels
    return np.asarray(total / task.shape[1])


def _rng(seed: int, name: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=derive_seed("compare", name, seed)))


def _draw(task: Floats, rows: int, rng: np.random.Generator) -> Floats:
    """Runs of one task drawn with replacement, float64 (rows, N)."""
    return np.asarray(task[rng.integers(0, task.size, size=(rows, task.size))])


def _interval(value: float, drawn: Floats, count: int) -> Estimate:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Estimate(value, float(low), float(high), count)


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
