"""REINFORCE with a baseline: the policy gradient of a batch that the policy has just sampled.

Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", in the form
with returns-to-go and a baseline (Sutton & Barto 2018, section 13.4). What follows a turn, minus what that usually is,
weighs the gradient of the log-probability of its completion; one gradient step per batch. No ratio, no clipping, no
division by a deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mathturn_gym.baselines.algorithms._base import Advantages, Algorithm, Part
from mathturn_gym.baselines.algorithms._registry import register
from mathturn_gym.baselines.algorithms._running_means import RunningMeans

if TYPE_CHECKING:
    import torch

    from mathturn_gym.baselines._trainer import Trainer
    from mathturn_gym.losses import PolicyLoss
    from mathturn_gym.types import Episode

__all__ = ["REINFORCE"]


@register("reinforce", title="REINFORCE", source="Williams 1992; Sutton & Barto 2018, section 13.4")
@dataclass(frozen=True, kw_only=True)
class REINFORCE(Algorithm[RunningMeans]):
    """REINFORCE with a running mean per turn for a baseline; see the module.

    Args:
        discount: Per turn, in [0, 1].
        baseline_decay: What the running means keep of themselves per iteration, in [0, 1].
        group_size: Episodes per problem. The baseline does not use groups: 1 sees the most problems.
    """

    on_policy = True

    discount: float = 1.0
    baseline_decay: float = 0.9
    group_size: int = 1

    def begin(self, trainer: Trainer) -> RunningMeans:
        """Means without a history."""
        return RunningMeans(self.baseline_decay)

    def credit(self, episodes: Sequence[Episode], state: RunningMeans) -> Advantages:
        """Returns against the running means."""
        centered = state.center([episode.returns for episode in episodes if episode.returns is not None])
        return [advantages.astype("float32") for advantages in centered]

    def loss(self, logprobs: torch.Tensor, part: Part, state: RunningMeans) -> PolicyLoss:
        """Advantage times log-probability, added up over an episode's tokens, averaged over episodes."""
        return part.policy_loss(
            logprobs, objective="policy_gradient", ratio=None, denominator=part.minibatch.count("sequence")
        )
