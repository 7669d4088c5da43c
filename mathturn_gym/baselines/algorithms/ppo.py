"""PPO with a separate critic, over tokens or over turns (Schulman et al. 2017, arXiv:1707.06347).

Advantages are generalized advantage estimates (GAE; Schulman et al. 2016, arXiv:1506.02438), normalized over the batch, as
implementations do and the paper does not say.

| algorithm | action | the critic values | `gae_lambda` counts | source |
|---|---|---|---|---|
| `ppo` | a token | every context that ends with a sampled token | tokens | both papers |
| `turn_ppo` | a turn (completion) | the context before a turn | turns | a variant |

In `ppo`, a turn's reward is that of its last token. The discount is applied between turns and nowhere else, so that it
means the same as in the other algorithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mathturn_gym.baselines.algorithms._credit import estimate, token_gae
from mathturn_gym.baselines.algorithms._registry import register
from mathturn_gym.baselines.algorithms.critic import CriticAlgorithm, CriticState
from mathturn_gym.episodes.returns import scale_advantages

if TYPE_CHECKING:
    import torch

    from mathturn_gym.episodes.packing.batch import PackedBatch
    from mathturn_gym.types import Episode


@register(
    "ppo", title="PPO", source="Schulman et al. 2017, arXiv:1707.06347; GAE: Schulman et al. 2016, arXiv:1506.02438"
)
@dataclass(frozen=True, kw_only=True)
class PPO(CriticAlgorithm):
    """PPO over tokens; see the module. `gae_lambda` is per token."""

    def judge(
        self, episodes: Sequence[Episode], batch: PackedBatch, values_BT: torch.Tensor, state: CriticState
    ) -> PackedBatch:
        """GAE over the tokens of each episode, normalized over the batch's tokens."""
        advantages, returns = np.zeros(values_BT.shape), np.zeros(values_BT.shape)
        mask_BT = batch.loss_mask.cpu().numpy()
        for row, episode in enumerate(episodes):
            at = np.flatnonzero(mask_BT[row])
            values = values_BT[row].double().numpy()
            # `at - 1`: the value of a context stands at its last token, before the sampled one.
            found = token_gae(
                values[at - 1],
                np.diff(episode.turn_spans, axis=1)[:, 0],
                episode.rewards,
                self.discount,
                self.gae_lambda,
            )
            advantages[row, at], returns[row, at] = found, found + values[at - 1]
        if mask_BT.any():
            advantages[mask_BT] = scale_advantages([advantages[mask_BT]])[0]
        return state.trainer.with_token_advantages(batch, advantages, returns)

    def judged(self, part: PackedBatch) -> torch.Tensor:
        """Every token that was sampled."""
        return part.loss_mask


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
            # After the last turn nothing is to come.
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
