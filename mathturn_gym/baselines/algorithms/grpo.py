"""GRPO: an episode's return against its group's mean, divided by the group's deviation.

Shao et al. 2024, arXiv:2402.03300 (outcome supervision). Every token of an episode has the same advantage, whichever
turn it belongs to, and the loss is the mean over episodes of the mean over their tokens. A group whose episodes all
have the same return teaches nothing. The paper's KL term is `kl_weight`, .04 there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mathturn_gym.baselines.algorithms._base import Advantages, Clipping, GroupAlgorithm, Learner, Part, State
from mathturn_gym.baselines.algorithms._credit import estimate
from mathturn_gym.baselines.algorithms._registry import register
from mathturn_gym.episodes.returns import scale_advantages

if TYPE_CHECKING:
    import torch

    from mathturn_gym.baselines.algorithms._base import Advantages
    from mathturn_gym.episodes.losses import PolicyLoss
    from mathturn_gym.types import Episode


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


# ---- dr. GRPO: GRPO without its two divisions (Liu et al. 2025, arXiv:2503.20783)


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

    def begin(self, trainer: Learner) -> EpisodeBudget:
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


# ---- dr. GRPO with advantages on a common scale: divided by their root mean square over the batch


@register("scaled_dr_grpo", title="scaled Dr. GRPO", source="a variant: Dr. GRPO with scaled advantages")
@dataclass(frozen=True, kw_only=True)
class ScaledDrGRPO(DrGRPO):
    """Dr. GRPO with scaled advantages; see the module, and `DrGRPO` for its options."""

    def credit(self, episodes: Sequence[Episode], state: EpisodeBudget) -> Advantages:
        """Whole-episode returns, centered within their groups, divided by one number for the batch."""
        return scale_advantages(super().credit(episodes, state), center=False, by="rms")


# ---- gSPO: GRPO's advantages with one importance ratio per episode (Zheng et al. 2025, arXiv:2507.18071)


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
