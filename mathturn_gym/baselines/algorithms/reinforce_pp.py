"""REINFORCE++: returns centered and scaled over all tokens of the batch, and a clipped ratio.

Hu et al. 2025, arXiv:2501.03262 (version 9, equations 8 to 10). A token is worth the return from its turn on, less
`reward_kl` times the KL from the start that is still to come, and all tokens of the batch are normalized together.
(`kl_weight` is another thing, a term of the loss.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mathturn_gym.baselines.algorithms._base import Advantages, Algorithm, Clipping, Part, State
from mathturn_gym.baselines.algorithms._credit import estimate, token_returns
from mathturn_gym.baselines.algorithms._registry import register
from mathturn_gym.returns import scale_advantages

if TYPE_CHECKING:
    import torch

    from mathturn_gym.baselines._trainer import Trainer
    from mathturn_gym.losses import PolicyLoss
    from mathturn_gym.packing.batch import PackedBatch
    from mathturn_gym.types import Episode

__all__ = ["ReinforcePP", "WithReference"]


class WithReference(State):
    """Knows the policy at the start.

    Args:
        trainer: Of the run.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer


@register("reinforce_pp", title="REINFORCE++", source="Hu et al. 2025, arXiv:2501.03262")
@dataclass(frozen=True, kw_only=True)
class ReinforcePP(Clipping, Algorithm[WithReference]):
    """REINFORCE++; see the module.

    Args:
        discount: Per turn, in [0, 1].
        reward_kl: What a nat of KL from the start (k1 estimate, per token) takes off the reward; 0 needs no reference
            model.
        group_size: Episodes per problem; the paper has 1.
    """

    charges_turns = False

    discount: float = 1.0
    group_size: int = 1

    def begin(self, trainer: Trainer) -> WithReference:
        """Keeps the trainer, which has the reference model."""
        return WithReference(trainer)

    def credit(self, episodes: Sequence[Episode], state: WithReference) -> Advantages | PackedBatch:
        """Returns, normalized over all tokens of the batch."""
        if not self.reward_kl:
            return estimate(episodes, "reinforce_pp", discount=self.discount)
        batch = state.trainer.pack(episodes)
        mask_BT = batch.loss_mask.cpu().numpy()
        reference_BT = state.trainer.reference_logprobs(batch).cpu().double().numpy()
        values_BT = np.zeros(mask_BT.shape)
        for row, episode in enumerate(episodes):
            at = np.flatnonzero(mask_BT[row])
            drift = episode.logprobs[at].astype(np.float64) - reference_BT[row, at]
            lengths = np.diff(episode.turn_spans, axis=1)[:, 0]
            values_BT[row, at] = token_returns(-self.reward_kl * drift, lengths, episode.rewards, self.discount)
        if mask_BT.any():
            values_BT[mask_BT] = scale_advantages([values_BT[mask_BT]], epsilon=1e-8)[0]
        return state.trainer.with_token_advantages(batch, values_BT)

    def loss(self, logprobs: torch.Tensor, part: Part, state: WithReference) -> PolicyLoss:
        """The clipped objective, every token counting alike."""
        return part.policy_loss(logprobs, clip=self.clip, clip_high=self.clip_high)
