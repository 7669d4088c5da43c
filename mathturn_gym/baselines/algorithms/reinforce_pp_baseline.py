"""REINFORCE++ with baseline: the group's mean is taken off first, and what is left is scaled over the whole batch.

Hu et al. 2025, arXiv:2501.03262 (REINFORCE++ w/ Baseline). It differs from GRPO in the divisor, which is one for all
groups: a group whose episodes nearly agree is not blown up. The paper's KL, a term of the loss, is `kl_weight`.
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

__all__ = ["ReinforcePPBaseline"]


@register("reinforce_pp_baseline", title="REINFORCE++ with baseline", source="Hu et al. 2025, arXiv:2501.03262")
@dataclass(frozen=True, kw_only=True)
class ReinforcePPBaseline(Clipping, GroupAlgorithm):
    """REINFORCE++ with baseline; see the module.

    Args:
        discount: Per turn, in [0, 1]; of the episode's return.
    """

    continues_truncated = False

    discount: float = 1.0

    def credit(self, episodes: Sequence[Episode], state: State) -> Advantages:
        """Whole-episode returns less their group's mean, normalized over all tokens of the batch."""
        return estimate(episodes, "reinforce_pp_baseline", discount=self.discount)

    def loss(self, logprobs: torch.Tensor, part: Part, state: State) -> PolicyLoss:
        """The clipped objective, every token counting alike."""
        return part.policy_loss(logprobs, clip=self.clip, clip_high=self.clip_high)
