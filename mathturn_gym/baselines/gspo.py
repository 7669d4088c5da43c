"""GSPO: GRPO's advantages with one importance ratio per episode (Zheng et al. 2025, arXiv:2507.18071).

The ratio is the geometric mean over an episode's ids, so that it is as noisy as one id's whatever the length, and an
episode is clipped as a whole. Its spread is narrow: useful clip widths are far below PPO's.
"""

from __future__ import annotations

from typing import Any

import torch

from mathturn_gym.baselines.grpo import GRPO
from mathturn_gym.losses import PolicyLoss, policy_loss
from mathturn_gym.packing import PackedBatch

__all__ = ["GSPO"]


class GSPO(GRPO):
    """GSPO; see the module."""

    def loss(self, logprobs: torch.Tensor, part: PackedBatch, minibatch: PackedBatch, **shared: Any) -> PolicyLoss:
        """The clipped objective with a ratio per episode."""
        return policy_loss(
            logprobs,
            part,
            ratio="sequence",
            clip=self.config.clip,
            normalization="sequence",
            denominator=minibatch.count("sequence"),
            **shared,
        )
