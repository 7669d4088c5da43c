"""RLOO per turn, in PPO's loss: a turn's baseline is what the others of the group made of that turn.

RLOO (Kool et al. 2019; Ahmadian et al. 2024, arXiv:2402.14740) gives an episode one return. Centered per turn, against
the other members of the group that reached it, a turn is judged by what the others made of theirs, and a discount of 0
lets every turn stand for itself. Several gradient steps per batch, with clipped ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mathturn_gym.baselines.algorithms._base import Advantages, Clipping, GroupAlgorithm, Part, State
from mathturn_gym.baselines.algorithms._credit import estimate
from mathturn_gym.baselines.algorithms._registry import register
from mathturn_gym.errors import raise_unknown_name
from mathturn_gym.returns import scale_advantages

if TYPE_CHECKING:
    import torch

    from mathturn_gym.losses import PolicyLoss
    from mathturn_gym.types import Episode

__all__ = ["TurnRLOO"]


@register("turn_rloo", title="turn RLOO", source="a variant: RLOO's baseline per turn, in PPO's loss")
@dataclass(frozen=True, kw_only=True)
class TurnRLOO(Clipping, GroupAlgorithm):
    """RLOO per turn with clipped ratios; see the module.

    Args:
        discount: Per turn, in [0, 1].
        scale_advantages: Divide the batch's advantages by their root mean square.
        normalization: What the loss is a mean over: "token", or "sequence" (episodes, as in GRPO).
    """

    discount: float = 1.0
    scale_advantages: bool = True
    normalization: Literal["token", "sequence"] = "token"

    def __post_init__(self) -> None:
        """Checks the normalization too."""
        super().__post_init__()
        if self.normalization not in ("token", "sequence"):
            raise_unknown_name("normalization", self.normalization, ("token", "sequence"))

    def credit(self, episodes: Sequence[Episode], state: State) -> Advantages:
        """Returns against the mean of the others that reached the turn."""
        advantages = estimate(episodes, "turn_rloo", discount=self.discount)
        return scale_advantages(advantages, center=False, by="rms") if self.scale_advantages else advantages

    def loss(self, logprobs: torch.Tensor, part: Part, state: State) -> PolicyLoss:
        """The clipped objective."""
        return part.policy_loss(logprobs, clip=self.clip, clip_high=self.clip_high, normalization=self.normalization)
