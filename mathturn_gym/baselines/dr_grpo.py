"""Dr. GRPO: GRPO without its two divisions (Liu et al. 2025, arXiv:2503.20783).

The group's deviation is left out, so that easy and hard problems weigh what their returns weigh, and the sum over ids
is divided by a constant, so that an id weighs the same in a long answer as in a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mathturn_gym.baselines.credit import estimated, scaled
from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.losses import PolicyLoss, policy_loss
from mathturn_gym.packing import PackedBatch, pack
from mathturn_gym.types import Episode

__all__ = ["DrGRPO"]


class DrGRPO(Trainer):
    """Dr. GRPO; see the module."""

    def credit(self, episodes: Sequence[Episode]) -> PackedBatch:
        """Whole-episode returns, centered within their groups."""
        advantages = estimated(episodes, self.config, "dr_grpo")
        if self.config.scale_advantages:  # by one number for the whole batch: no problem gains or loses weight
            advantages = scaled(advantages)
        return pack(episodes, advantages=advantages, device=self.config.device)

    def loss(self, logprobs: torch.Tensor, part: PackedBatch, minibatch: PackedBatch, **shared: Any) -> PolicyLoss:
        """The clipped objective, divided by the most ids that the minibatch's episodes could have."""
        config = self.config
        most = minibatch.num_rows * config.num_turns * config.max_completion_tokens
        return policy_loss(logprobs, part, clip=config.clip, denominator=most, **shared)
