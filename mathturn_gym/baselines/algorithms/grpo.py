"""GRPO: an episode's return against its group's mean, divided by the group's deviation.

Shao et al. 2024, arXiv:2402.03300 (outcome supervision). Every token of an episode has the same advantage, whichever
turn it belongs to, and the loss is the mean over episodes of the mean over their tokens. A group whose episodes all
have the same return teaches nothing. The paper's KL term is `kl_weight`, .04 there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mathturn_gym.baselines.algorithms._base import Advantages, Clipping, GroupAlgorithm, Part, State
from mathturn_gym.baselines.algorithms._credit import estimate
from mathturn_gym.baselines.algorithms._registry import register

if TYPE_CHECKING:
    import torch

    from mathturn_gym.losses import PolicyLoss
    from mathturn_gym.types import Episode

__all__ = ["GRPO"]


@register("grpo", title="GRPO", source="Shao et al. 2024, arXiv:2402.03300")
@dataclass(frozen=True, kw_only=True)
class GRPO(Clipping, GroupAlgorithm):
    """GRPO; see the module.

    Args:
        discount: Per turn, in [0, 1]; of the episode's return.
    """

    continues_truncated = False

    discount: float = 1.0

    def credit(self, episodes: Sequence[Episode], state: State) -> Advantages:
        """Whole-episode returns, normalized within their groups."""
        return estimate(episodes, "grpo", discount=self.discount)

    def loss(self, logprobs: torch.Tensor, part: Part, state: State) -> PolicyLoss:
        """The clipped objective; every episode counts alike, however long it is."""
        return part.policy_loss(logprobs, clip=self.clip, clip_high=self.clip_high, normalization="sequence")
