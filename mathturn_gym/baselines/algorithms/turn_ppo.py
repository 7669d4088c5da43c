"""PPO over turns: a completion is one action, and the critic says what the context before it was worth.

GAE runs over the turns of an episode (Schulman et al. 2016, arXiv:1506.02438), `gae_lambda` and the discount count
turns, and all tokens of a completion share its advantage. The critic is trained at the beginnings of turns alone. The
loss is PPO's (Schulman et al. 2017, arXiv:1707.06347), clipped token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mathturn_gym.baselines.algorithms._credit import estimate
from mathturn_gym.baselines.algorithms._critic import CriticAlgorithm, CriticState
from mathturn_gym.baselines.algorithms._registry import register
from mathturn_gym.returns import scale_advantages

if TYPE_CHECKING:
    import torch

    from mathturn_gym.packing.batch import PackedBatch
    from mathturn_gym.types import Episode

__all__ = ["TurnPPO"]


@register("turn_ppo", title="turn PPO", source="a variant: PPO with turns as actions")
@dataclass(frozen=True, kw_only=True)
class TurnPPO(CriticAlgorithm):
    """PPO over turns; see the module. `gae_lambda` is per turn."""

    def judge(
        self, episodes: Sequence[Episode], batch: PackedBatch, values_BT: torch.Tensor, state: CriticState
    ) -> PackedBatch:
        """GAE over the turns of each episode, normalized over the batch's turns."""
        values = []
        for row, episode in enumerate(episodes):
            starts = (episode.turn_spans[:, 0] - 1).tolist()
            values.append(np.append(values_BT[row, starts].double().numpy(), 0.0))
        found = estimate(episodes, "gae", discount=self.discount, values=values, gae_lambda=self.gae_lambda)
        targets = [a + v[:-1] for a, v in zip(found, values, strict=True)]
        judged = state.trainer.pack(episodes, scale_advantages(found))
        aims = state.trainer.pack(episodes, targets)
        return judged.replace_tensors({"returns": aims.advantages})

    def judged(self, part: PackedBatch) -> torch.Tensor:
        """The first token of each turn."""
        first = part.loss_mask.clone()
        first[:, 1:] &= part.turn_index[:, 1:] != part.turn_index[:, :-1]
        return first
