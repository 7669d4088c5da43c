"""A baseline per turn that is known before the turn is played: a running mean of its returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from mathturn_gym.baselines.algorithms._base import State

if TYPE_CHECKING:
    import torch

__all__ = ["RunningMeans"]

_LEAST_SPREAD: Final = 1e-3
"""Of the returns' own size: what is smaller is rounding, not a difference between actions."""


class RunningMeans(State):
    """Running means of the returns of each turn.

    A turn's mean is over earlier iterations only, so it does not depend on the actions that it judges, and the
    gradient stays unbiased; in a turn's first iteration there is nothing earlier, and that batch's own mean is taken.

    Args:
        decay: What is kept of the old mean per iteration, in [0, 1].

    >>> baseline = RunningMeans(decay=0.5)
    >>> [a.tolist() for a in baseline.center([np.array([1.0]), np.array([-1.0, 1.0])])]
    [[1.0], [-1.0, 0.0]]
    >>> [a.tolist() for a in baseline.center([np.array([1.0, -1.0])])]
    [[1.0, -2.0]]
    >>> baseline.means
    [0.5, 0.0]
    """

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self.means: list[float] = []
        self.mean_square: float | None = None

    def center(self, returns: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[np.float64]]:
        """Each return minus the mean of its turn; moves the means on.

        Args:
            returns: One array (K,) per episode.

        Returns:
            One array per episode, float64 (K,).
        """
        used = list(self.means)
        for turn in range(max(map(len, returns), default=0)):
            seen = [float(r[turn]) for r in returns if len(r) > turn]
            now = float(np.mean(seen))
            if turn < len(self.means):
                self.means[turn] = self._decay * self.means[turn] + (1 - self._decay) * now
            else:
                self.means.append(now)
                used.append(now)
        return [np.asarray(r, np.float64) - used[: len(r)] for r in returns]

    def scale(
        self, centered: Sequence[npt.NDArray[Any]], returns: Sequence[npt.NDArray[Any]]
    ) -> list[npt.NDArray[np.float32]]:
        """Advantages divided by their root mean square; moves its running mean on.

        The divisor is that of this batch or of those before it, whichever is larger. Of this batch alone it would turn
        a batch in which all went wrong, after one in which something went right, into advantages of full size for
        everything; of those before it alone, the first success after a long time into one of any size. So no advantage
        exceeds the square root of the number of turns, and what a dry batch teaches fades as the dryness lasts.

        Args:
            centered: What `center` gave.
            returns: What it was given.

        Returns:
            One array per episode, float32 (K,).

        >>> baseline = RunningMeans(decay=0.5)
        >>> dry, lucky = [np.array([-1.0, -1.0])], [np.array([-1.0, 1.0])]
        >>> [baseline.scale(baseline.center(batch), batch)[0].tolist() for batch in (dry, lucky)]
        [[0.0, 0.0], [0.0, 1.4142135381698608]]
        """
        now = _mean_square(centered)
        before = now if self.mean_square is None else self.mean_square
        self.mean_square = self._decay * before + (1 - self._decay) * now
        divisor = max(now, before, _LEAST_SPREAD**2 * _mean_square(returns)) ** 0.5
        return [(one / divisor if divisor else np.zeros_like(one)).astype(np.float32) for one in centered]

    def numbers(self) -> Mapping[str, Any]:
        """The means by turn, and the mean square of the advantages."""
        return {"baselines": list(self.means), "mean_square": self.mean_square}

    def load(self, numbers: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes the means back."""
        self.means = [float(mean) for mean in numbers["baselines"]]
        square = numbers["mean_square"]
        self.mean_square = None if square is None else float(square)


def _mean_square(arrays: Sequence[npt.NDArray[Any]]) -> float:
    flat = np.concatenate([np.asarray(one, np.float64) for one in arrays])
    return float(np.mean(flat**2)) if flat.size else 0.0
