"""A baseline per turn that is known before the turn is played: a running mean of its returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mathturn_gym.baselines.algorithms._base import State

if TYPE_CHECKING:
    import torch

__all__ = ["RunningMeans"]


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

    def numbers(self) -> Mapping[str, Any]:
        """The means by turn."""
        return {"baselines": list(self.means)}

    def load(self, numbers: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes the means back."""
        self.means = [float(mean) for mean in numbers["baselines"]]
