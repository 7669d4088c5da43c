"""REINFORCE with a baseline, and REINFORCE++.

The policy gradient of a batch that the policy has just sampled: A * grad log p(completion), where the advantage A of a turn
is its return-to-go minus a baseline (Sutton & Barto 2018, section 13.4). The algorithms differ in baseline, scale and loss:

| algorithm | baseline | scale | loss | source |
|---|---|---|---|---|
| `reinforce` | running mean per turn | none | log-prob, summed over an episode; one step per batch | Williams 1992 |
| `clipped_reinforce` | the same | root mean square | PPO's, token mean | a variant |
| `reinforce_pp` | mean over the batch's tokens | their deviation | PPO's, token mean | Hu et al. 2025, arXiv:2501.03262 |
| `reinforce_pp_baseline` | mean of the group, then of the tokens | their deviation | PPO's, token mean | the same paper |
| `turn_reinforce_pp` | mean over the batch's turns | their deviation | PPO's, token mean | a variant |

Williams 1992 is "Simple statistical gradient-following algorithms for connectionist reinforcement learning". A loss with
clipped ratios allows several gradient steps per batch. `turn_reinforce_pp` counts every turn once; the published method
counts a turn as often as it has tokens.
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
        baseline_decay: Decay of the running means per iteration, in [0, 1].
        group_size: Episodes per problem. The baseline does not use groups: 1 sees the most problems.
    """

    on_policy = True

    discount: float = 1.0
    baseline_decay: float = 0.9
    group_size: int = 1

    def begin(self, trainer: Learner) -> RunningMeans:
        """Returns empty running means."""
        return RunningMeans(self.baseline_decay)

    def credit(self, episodes: Sequence[Episode], state: RunningMeans) -> Advantages:
        """Returns against the running means."""
        centered = state.center([episode.returns for episode in episodes if episode.returns is not None])
        return [advantages.astype("float32") for advantages in centered]

    def loss(self, logprobs: torch.Tensor, part: Part, state: RunningMeans) -> PolicyLoss:
        """Advantage times log-prob, summed over an episode's tokens, averaged over episodes."""
        return part.policy_loss(
            logprobs, objective="policy_gradient", ratio=None, denominator=part.minibatch.count("sequence")
        )


@register("clipped_reinforce", title="clipped REINFORCE", source="a variant: REINFORCE's advantages in PPO's loss")
@dataclass(frozen=True, kw_only=True)
class ClippedREINFORCE(Clipping, Algorithm[RunningMeans]):
    """REINFORCE with scaled advantages and clipped ratios; see the module.

    Args:
        discount: Per turn, in [0, 1]; with 0 a turn's return is its own reward.
        baseline_decay: Decay of the running means per iteration, in [0, 1].
        group_size: Episodes per problem. The baseline does not use groups: 1 sees the most problems.
    """

    discount: float = 1.0
    baseline_decay: float = 0.9
    group_size: int = 1

    def begin(self, trainer: Learner) -> RunningMeans:
        """Returns empty running means."""
        return RunningMeans(self.baseline_decay)

    def credit(self, episodes: Sequence[Episode], state: RunningMeans) -> Advantages:
        """Returns against the running means, divided by their root mean square."""
        returns = [episode.returns for episode in episodes if episode.returns is not None]
        return state.scale(state.center(returns), returns)


class WithReference(State):
    """Holds the trainer, which has the initial policy as its reference model."""

    def __init__(self, trainer: Learner) -> None:
        self.trainer = trainer


@register("reinforce_pp", title="REINFORCE++", source="Hu et al. 2025, arXiv:2501.03262")
@dataclass(frozen=True, kw_only=True)
class ReinforcePP(Clipping, Algorithm[WithReference]):
    """REINFORCE++; see the module.

    Args:
        discount: Per turn, in [0, 1].
        reward_kl: Reward taken off per nat of KL to the initial policy (k1 estimate, per token); 0 needs no reference
            model.
        group_size: Episodes per problem; the paper has 1.
    """

    charges_turns = False

    discount: float = 1.0
    group_size: int = 1

    def begin(self, trainer: Learner) -> WithReference:
        """Returns a state that holds the trainer."""
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
            # The k1 estimate, token by token: its sum over a turn is the turn's.
            drift = episode.logprobs[at].astype(np.float64) - reference_BT[row, at]
            lengths = np.diff(episode.turn_spans, axis=1)[:, 0]
            values_BT[row, at] = token_returns(-self.reward_kl * drift, lengths, episode.rewards, self.discount)
        if mask_BT.any():
            values_BT[mask_BT] = scale_advantages([values_BT[mask_BT]], epsilon=1e-8)[0]
        return state.trainer.with_token_advantages(batch, values_BT)


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
