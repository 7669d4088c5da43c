"""PPO over turns: a completion is one action, and the critic says what the context before it was worth.

GAE runs over the turns of an episode (Schulman et al. 2016, arXiv:1506.02438), `gae_lambda` and the discount count
turns, and all ids of a completion share its advantage. The critic is trained at the beginnings of turns alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mathturn_gym.baselines.credit import estimated
from mathturn_gym.baselines.critic import CriticTrainer
from mathturn_gym.packing import PackedBatch, pack
from mathturn_gym.types import Episode

__all__ = ["TurnPPO"]


class TurnPPO(CriticTrainer):
    """PPO over turns; see the module."""

    def judge(self, episodes: Sequence[Episode], batch: PackedBatch, values_BT: torch.Tensor) -> PackedBatch:
        """GAE over the turns of each episode, normalized over the batch's turns."""
        values = []
        for row, episode in enumerate(episodes):
            ends = [*(episode.turn_spans[:, 0] - 1).tolist(), len(episode.ids) - 1]
            values.append(values_BT[row, ends].double().numpy())
            if not episode.truncated:
                values[-1][-1] = 0.0
        found = estimated(episodes, self.config, "gae", values=values, gae_lambda=self.config.gae_lambda)
        targets = [a + v[:-1] for a, v in zip(found, values, strict=True)]
        flat = np.concatenate(found)
        scaled = [(a - flat.mean()) / (flat.std() + 1e-6) for a in found]
        judged = pack(episodes, advantages=scaled, device=self.config.device)
        aims = pack(episodes, advantages=targets, device=self.config.device)
        return judged.replace_tensors({"returns": aims.advantages})

    def judged(self, part: PackedBatch) -> torch.Tensor:
        """The first id of each turn."""
        first = part.loss_mask.clone()
        first[:, 1:] &= part.turn_index[:, 1:] != part.turn_index[:, :-1]
        return first
