"""Rejection-sampling fine-tuning (RFT): supervised learning on the policy's own right answers (arXiv:2308.01825).

Yuan et al. 2023. What reinforcement learning has to beat: each iteration samples, keeps the turns whose verdict is
right, and maximizes their likelihood. Wrong answers teach nothing; those before a right one remain its context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.losses import PolicyLoss, policy_loss
from mathturn_gym.packing import PackedBatch, pack
from mathturn_gym.types import Episode, Status

__all__ = ["RFT"]


class RFT(Trainer):
    """Rejection-sampling fine-tuning; see the module."""

    def credit(self, episodes: Sequence[Episode]) -> PackedBatch:
        """1 for a right turn, 0 for every other: what is kept, and what is not."""
        kept = [np.array([v.status is Status.RIGHT for v in episode.verdicts], np.float32) for episode in episodes]
        return pack(episodes, advantages=kept, device=self.config.device)

    def loss(self, logprobs: torch.Tensor, part: PackedBatch, minibatch: PackedBatch, **shared: Any) -> PolicyLoss:
        """Mean negative log-likelihood of the kept ids."""
        kept = max(1.0, float(minibatch.advantages.sum()))
        return policy_loss(logprobs, part, objective="policy_gradient", ratio=None, denominator=kept, **shared)
