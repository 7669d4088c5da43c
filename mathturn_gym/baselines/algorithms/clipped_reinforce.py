"""REINFORCE's advantages in PPO's loss: several gradient steps per batch, with clipped ratios.

Returns against a running mean per turn, as in REINFORCE, divided by their root mean square (see `RunningMeans.scale`:
a batch without success does not become one of large advantages). Several minibatches make the policy move within an iteration; the ratio to the behavior log-probs is clipped for that (Schulman et al. 2017,
arXiv:1707.06347).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mathturn_gym.baselines.algorithms._base import Advantages, Algorithm, Clipping, Part
from mathturn_gym.baselines.algorithms._registry import register
from mathturn_gym.baselines.algorithms._running_means import RunningMeans

if TYPE_CHECKING:
    import torch

    from mathturn_gym.baselines._trainer import Trainer
    from mathturn_gym.losses import PolicyLoss
    from mathturn_gym.types import Episode

__all__ = ["ClippedREINFORCE"]


@register("clipped_reinforce", title="clipped REINFORCE", source="a variant: REINFORCE's advantages in PPO's loss")
@dataclass(frozen=True, kw_only=True)
class ClippedREINFORCE(Clipping, Algorithm[RunningMeans]):
    """REINFORCE with scaled advantages and clipped ratios; see the module.

    Args:
        discount: Per turn, in [0, 1]; 0 lets every turn stand for itself.
        baseline_decay: What the running means keep of themselves per iteration, in [0, 1].
        group_size: Episodes per problem. The baseline does not use groups: 1 sees the most problems.
    """

    discount: float = 1.0
    baseline_decay: float = 0.9
    group_size: int = 1

    def begin(self, trainer: Trainer) -> RunningMeans:
        """Means without a history."""
        return RunningMeans(self.baseline_decay)

    def credit(self, episodes: Sequence[Episode], state: RunningMeans) -> Advantages:
        """Returns against the running means, divided by their root mean square."""
        returns = [episode.returns for episode in episodes if episode.returns is not None]
        return state.scale(state.center(returns), returns)

    def loss(self, logprobs: torch.Tensor, part: Part, state: RunningMeans) -> PolicyLoss:
        """The clipped objective, every token counting alike."""
        return part.policy_loss(logprobs, clip=self.clip, clip_high=self.clip_high)
