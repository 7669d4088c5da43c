"""GSPO: GRPO's advantages with one importance ratio per episode (Zheng et al. 2025, arXiv:2507.18071).

The ratio is the geometric mean over an episode's tokens, so that it is as noisy as one token's whatever the length, and
an episode is clipped as a whole. Its spread is narrow: useful clip widths are far below PPO's.
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

__all__ = ["GSPO"]


@register("gspo", title="GSPO", source="Zheng et al. 2025, arXiv:2507.18071")
@dataclass(frozen=True, kw_only=True)
class GSPO(Clipping, GroupAlgorithm):
    """GSPO; see the module. The default widths are the paper's, for answers of thousands of tokens.

    Args:
        discount: Per turn, in [0, 1]; of the episode's return.
    """

    continues_truncated = False

    discount: float = 1.0
    clip: float = 3e-4
    clip_high: float | None = 4e-4

    def credit(self, episodes: Sequence[Episode], state: State) -> Advantages:
        """Whole-episode returns, normalized within their groups."""
        return estimate(episodes, "grpo", discount=self.discount)

    def loss(self, logprobs: torch.Tensor, part: Part, state: State) -> PolicyLoss:
        """The clipped objective with a ratio per episode."""
        return part.policy_loss(
            logprobs, ratio="sequence", clip=self.clip, clip_high=self.clip_high, normalization="sequence"
        )
