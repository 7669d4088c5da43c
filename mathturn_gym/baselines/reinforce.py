"""REINFORCE with a running mean per turn for a baseline (Williams 1992).

"Simple statistical gradient-following algorithms for connectionist reinforcement learning": the return of a turn,
minus what that turn usually brings, is the advantage of every id of its completion. Several minibatches make the
policy move within an iteration; the ratio to the behavior log-probs is clipped for that (Schulman et al. 2017,
arXiv:1707.06347).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mathturn_gym.baselines.config import TrainConfig
from mathturn_gym.baselines.runs import TrainerState
from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.packing import PackedBatch, pack
from mathturn_gym.types import Episode

__all__ = ["Reinforce", "TurnBaseline"]


class TurnBaseline:
    """A running mean of the returns of each turn, and advantages against it.

    A turn's mean is over earlier iterations only, so it does not depend on the actions that it judges, and the
    gradient stays unbiased; in a turn's first iteration there is nothing earlier, and that batch's own mean is taken.

    Args:
        num_turns: Turns of an episode.
        decay: What is kept of the old mean per iteration, in [0, 1].

    >>> baseline = TurnBaseline(2, decay=0.5)
    >>> [a.astype(float).round(3).tolist() for a in baseline.advantages([np.array([1.0]), np.array([-1.0, 1.0])])]
    [[1.225], [-1.225, 0.0]]
    >>> baseline.means
    (0.0, 1.0)
    """

    def __init__(self, num_turns: int, decay: float) -> None:
        self._decay = decay
        self.means: tuple[float | None, ...] = (None,) * num_turns

    def advantages(self, returns: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[np.float32]]:
        """(return - mean of its turn) / standard deviation of these over the batch; moves the means on.

        Args:
            returns: One array (K,) per episode.

        Returns:
            One array per episode, float32 (K,).
        """
        used: list[float] = []
        moved: list[float | None] = []
        for turn, before in enumerate(self.means):
            seen = [float(r[turn]) for r in returns if len(r) > turn]
            now = float(np.mean(seen)) if seen else before
            used.append(now or 0.0 if before is None else before)
            moved.append(now if before is None or now is None else self._decay * before + (1 - self._decay) * now)
        self.means = tuple(moved)
        centered = [np.asarray(r, np.float64) - used[: len(r)] for r in returns]
        scale = float(np.std(np.concatenate(centered))) + 1e-6
        return [(c / scale).astype(np.float32) for c in centered]


class Reinforce(Trainer):
    """REINFORCE; see the module."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.baseline = TurnBaseline(config.num_turns, config.baseline_decay)

    def credit(self, episodes: Sequence[Episode]) -> PackedBatch:
        """Returns against the running means."""
        returns = [episode.returns for episode in episodes if episode.returns is not None]
        return pack(episodes, advantages=self.baseline.advantages(returns), device=self.config.device)

    def _more_numbers(self) -> Mapping[str, Any]:
        return {"baselines": list(self.baseline.means)}

    def _load_more(self, state: TrainerState) -> None:
        self.baseline.means = tuple(state.numbers["baselines"])
