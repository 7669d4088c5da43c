"""RLOO: REINFORCE whose baseline is the mean return of the group's other episodes.

Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!"; Ahmadian et al. 2024, arXiv:2402.14740. An
episode is one action with one return; its advantage weighs the gradient of its whole log-probability, and a batch is
used for one gradient step. No clipping, no division by a deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mathturn_gym.baselines.algorithms._base import Advantages, GroupAlgorithm, Part, State
from mathturn_gym.baselines.algorithms._credit import estimate
from mathturn_gym.baselines.algorithms._registry import register

if TYPE_CHECKING:
    import torch

    from mathturn_gym.losses import PolicyLoss
    from mathturn_gym.types import Episode

__all__ = ["RLOO"]


@register("rloo", title="RLOO", source="Kool et al. 2019; Ahmadian et al. 2024, arXiv:2402.14740")
@dataclass(frozen=True, kw_only=True)
class RLOO(GroupAlgorithm):
    """RLOO; see the module.

    Args:
        discount: Per turn, in [0, 1]; of the episode's return.
    """

    continues_truncated = False
    on_policy = True

    discount: float = 1.0

    def credit(self, episodes: Sequence[Episode], state: State) -> Advantages:
        """Whole-episode returns against the mean of the others."""
        return estimate(episodes, "rloo", discount=self.discount)

    def loss(self, logprobs: torch.Tensor, part: Part, state: State) -> PolicyLoss:
        """Advantage times log-probability, added up over an episode's tokens, averaged over episodes."""
        return part.policy_loss(
            logprobs, objective="policy_gradient", ratio=None, denominator=part.minibatch.count("sequence")
        )
