"""REINFORCE++ with turns in place of tokens: every turn counts once in the batch's mean and deviation.

REINFORCE++ (Hu et al. 2025, arXiv:2501.03262) normalizes over tokens, so long completions decide what is usual. Here a
turn's tokens share its return, and a turn is one observation of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mathturn_gym.baselines.algorithms._base import Advantages, Algorithm, Clipping, Part, State
from mathturn_gym.baselines.algorithms._credit import estimate
from mathturn_gym.baselines.algorithms._registry import register

if TYPE_CHECKING:
    import torch

    from mathturn_gym.losses import PolicyLoss
    from mathturn_gym.types import Episode

__all__ = ["TurnReinforcePP"]


@register("turn_reinforce_pp", title="turn REINFORCE++", source="a variant: REINFORCE++ normalized over turns")
@dataclass(frozen=True, kw_only=True)
class TurnReinforcePP(Clipping, Algorithm):
    """REINFORCE++ normalized over turns; see the module.

    Args:
        discount: Per turn, in [0, 1].
        group_size: Episodes per problem.
    """

    discount: float = 1.0
    group_size: int = 1

    def credit(self, episodes: Sequence[Episode], state: State) -> Advantages:
        """Returns of each turn, normalized over all turns of the batch."""
        return estimate(episodes, "turn_reinforce_pp", discount=self.discount)

    def loss(self, logprobs: torch.Tensor, part: Part, state: State) -> PolicyLoss:
        """The clipped objective, every token counting alike."""
        return part.policy_loss(logprobs, clip=self.clip, clip_high=self.clip_high)
