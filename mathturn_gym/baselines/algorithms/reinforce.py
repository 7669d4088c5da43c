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

import numpy as np

from mathturn_gym.baselines.algorithms._base import (
    Advantages,
    Algorithm,
    Clipping,
    GroupAlgorithm,
    Learner,
    Part,
    State,
)
from mathturn_gym.baselines.algorithms._credit import RunningMeans, estimate, token_returns
from mathturn_gym.baselines.algorithms._registry import register
from mathturn_gym.episodes.returns import scale_advantages

if TYPE_CHECKING:
    import torch

    from mathturn_gym.episodes.losses import PolicyLoss
    from mathturn_gym.episodes.packing.batch import PackedBatch
    from mathturn_gym.types import Episode


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

    def begin(self, trainer: Learner) -> RunningMeans:
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


# ---- rEINFORCE's advantages in PPO's loss: several gradient steps per batch, with clipped ratios


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

    def begin(self, trainer: Learner) -> RunningMeans:
        """Means without a history."""
        return RunningMeans(self.baseline_decay)

    def credit(self, episodes: Sequence[Episode], state: RunningMeans) -> Advantages:
        """Returns against the running means, divided by their root mean square."""
        returns = [episode.returns for episode in episodes if episode.returns is not None]
        return state.scale(state.center(returns), returns)

    def loss(self, logprobs: torch.Tensor, part: Part, state: RunningMeans) -> PolicyLoss:
        """The clipped objective, every token counting alike."""
        return part.policy_loss(logprobs, clip=self.clip, clip_high=self.clip_high)


# ---- rEINFORCE++: returns centered and scaled over all tokens of the batch, and a clipped ratio


class WithReference(State):
    """Knows the policy at the start.

    Args:
        trainer: Of the run.
    """

    def __init__(self, trainer: Learner) -> None:
        self.trainer = trainer


@register("reinforce_pp", title="REINFORCE++", source="Hu et al. 2025, arXiv:2501.03262")
@dataclass(frozen=True, kw_only=True)
class ReinforcePP(Clipping, Algorithm[WithReference]):
    """REINFORCE++; see the module.

    Args:
        discount: Per turn, in [0, 1].
        reward_kl: What a nat of KL from the start (k1 estimate, per token) takes off the reward; 0 needs no reference
            model.
        group_size: Episodes per problem; the paper has 1.
    """

    charges_turns = False

    discount: float = 1.0
    group_size: int = 1

    def begin(self, trainer: Learner) -> WithReference:
        """Keeps the trainer, which has the reference model."""
        return WithReference(trainer)

    def credit(self, episodes: Sequence[Episode], state: WithReference) -> Advantages | PackedBatch:
        """Returns, normalized over all tokens of the batch."""
        if not self.reward_kl:
            return estimate(episodes, "reinforce_pp", discount=self.discount)
        batch = state.trainer.pack(episodes)
        mask_BT = batch.loss_mask.cpu().numpy()
        reference_BT = state.trainer.reference_logprobs(batch).cpu().double().numpy()
        values_BT = np.zeros(mask_BT.shape)
        for row, episode in enumerate(episodes):
            at = np.flatnonzero(mask_BT[row])
            drift = episode.logprobs[at].astype(np.float64) - reference_BT[row, at]
            lengths = np.diff(episode.turn_spans, axis=1)[:, 0]
            values_BT[row, at] = token_returns(-self.reward_kl * drift, lengths, episode.rewards, self.discount)
        if mask_BT.any():
            values_BT[mask_BT] = scale_advantages([values_BT[mask_BT]], epsilon=1e-8)[0]
        return state.trainer.with_token_advantages(batch, values_BT)

    def loss(self, logprobs: torch.Tensor, part: Part, state: WithReference) -> PolicyLoss:
        """The clipped objective, every token counting alike."""
        return part.policy_loss(logprobs, clip=self.clip, clip_high=self.clip_high)


# ---- rEINFORCE++ with baseline: the group's mean is taken off first, and what is left is scaled over the whole batch


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


# ---- rEINFORCE++ with turns in place of tokens: every turn counts once in the batch's mean and deviation


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
