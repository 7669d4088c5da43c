"""Dr. GRPO: GRPO without its two divisions (Liu et al. 2025, arXiv:2503.20783).

The group's deviation is left out, so that easy and hard problems weigh what their returns weigh, and the sum over
tokens is divided by a constant, so that a token weighs the same in a long answer as in a short one.
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

    from mathturn_gym.baselines._trainer import Trainer
    from mathturn_gym.losses import PolicyLoss
    from mathturn_gym.types import Episode

__all__ = ["DrGRPO", "EpisodeBudget"]


class EpisodeBudget(State):
    """Knows how long an episode could be.

    Args:
        tokens: The most tokens that the policy can sample in an episode.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens


@register("dr_grpo", title="Dr. GRPO", source="Liu et al. 2025, arXiv:2503.20783")
@dataclass(frozen=True, kw_only=True)
class DrGRPO(Clipping, GroupAlgorithm[EpisodeBudget]):
    """Dr. GRPO; see the module.

    Args:
        discount: Per turn, in [0, 1]; of the episode's return.
    """

    continues_truncated = False

    discount: float = 1.0

    def begin(self, trainer: Trainer) -> EpisodeBudget:
        """Notes the constant that sums over tokens are divided by."""
        env = trainer.config.env
        return EpisodeBudget(env.value("num_turns") * env.value("max_completion_tokens"))

    def credit(self, episodes: Sequence[Episode], state: EpisodeBudget) -> Advantages:
        """Whole-episode returns, centered within their groups."""
        return estimate(episodes, "dr_grpo", discount=self.discount)

    def loss(self, logprobs: torch.Tensor, part: Part, state: EpisodeBudget) -> PolicyLoss:
        """The clipped objective, divided by the most tokens that the minibatch's episodes could have."""
        most = part.minibatch.count("sequence") * state.tokens
        return part.policy_loss(logprobs, clip=self.clip, clip_high=self.clip_high, denominator=most)
