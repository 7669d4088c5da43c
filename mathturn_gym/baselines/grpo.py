"""GRPO: an episode's return against its group's mean, divided by the group's deviation (arXiv:2402.03300).

Shao et al. 2024. Every id of an episode has the same advantage, whichever turn it belongs to, and the loss is the mean
over episodes of the mean over their ids. A group whose episodes all have the same return teaches nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mathturn_gym.baselines.credit import estimated
from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.losses import PolicyLoss, policy_loss
from mathturn_gym.packing import PackedBatch, pack
from mathturn_gym.types import Episode

__all__ = ["GRPO"]


class GRPO(Trainer):
    """GRPO; see the module."""

    def credit(self, episodes: Sequence[Episode]) -> PackedBatch:
        """Whole-episode returns, normalized within their groups."""
        return pack(episodes, advantages=estimated(episodes, self.config, "grpo"), device=self.config.device)

    def loss(self, logprobs: torch.Tensor, part: PackedBatch, minibatch: PackedBatch, **shared: Any) -> PolicyLoss:
        """The clipped objective; every episode counts alike, however long it is."""
        return policy_loss(
            logprobs,
            part,
            clip=self.config.clip,
            normalization="sequence",
            denominator=minibatch.count("sequence"),
            **shared,
        )
