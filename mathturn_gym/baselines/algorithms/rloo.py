"""RLOO: REINFORCE whose baseline is the mean return of the other episodes of the group.

The baseline of an episode does not contain its own return, so the gradient is unbiased (Kool et al. 2019, "Buy 4 REINFORCE
samples, get a baseline for free!"; Ahmadian et al. 2024, arXiv:2402.14740). The algorithms differ in what one action is:

| algorithm | action | baseline | loss | source |
|---|---|---|---|---|
| `rloo` | an episode | mean of the others of its group | log-prob, summed over an episode; one step per batch | both papers |
| `turn_rloo` | a turn | mean of the others that reached it, of other problems if none did | PPO's, advantages scaled | a variant |
| `shrunk_rloo` | a turn | the same, shrunk towards the other problems' mean (James & Stein 1961) | the same | a variant |

`shrunk_rloo` estimates from the other groups how much shrinking helps, so that its baseline stays independent of the
episode; `docs/returns.md` derives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mathturn_gym.baselines.algorithms._base import Advantages, Clipping, GroupAlgorithm, Part, State
from mathturn_gym.baselines.algorithms._credit import estimate
from mathturn_gym.baselines.algorithms._registry import register
from mathturn_gym.episodes.returns import scale_advantages

if TYPE_CHECKING:
    import torch

    from mathturn_gym.episodes.losses import PolicyLoss
    from mathturn_gym.types import Episode


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
        """Advantage times log-prob, summed over an episode's tokens, averaged over episodes."""
        return part.policy_loss(
            logprobs, objective="policy_gradient", ratio=None, denominator=part.minibatch.count("sequence")
        )


@register("turn_rloo", title="turn RLOO", source="a variant: RLOO's baseline per turn, in PPO's loss")
@dataclass(frozen=True, kw_only=True)
class TurnRLOO(Clipping, GroupAlgorithm):
    """RLOO per turn with clipped ratios; see the module.

    Args:
        discount: Per turn, in [0, 1].
        scale_advantages: Divide the batch's advantages by their root mean square.
        normalization: Unit of the loss's mean: "token", "turn", or "sequence" (episodes, as in GRPO).
    """

    discount: float = 1.0
    scale_advantages: bool = True
    normalization: Literal["token", "turn", "sequence"] = "token"

    def credit(self, episodes: Sequence[Episode], state: State) -> Advantages:
        """Returns against the mean of the others that reached the turn."""
        advantages = estimate(episodes, "turn_rloo", discount=self.discount)
        return scale_advantages(advantages, center=False, by="rms") if self.scale_advantages else advantages

    def loss(self, logprobs: torch.Tensor, part: Part, state: State) -> PolicyLoss:
        """The clipped objective."""
        return self.clipped(part, logprobs, normalization=self.normalization)


@register("shrunk_rloo", title="shrunk RLOO", source="a variant: turn RLOO with a James-Stein baseline")
@dataclass(frozen=True, kw_only=True)
class ShrunkRLOO(TurnRLOO):
    """Turn RLOO with a shrunken baseline; see the module, and `TurnRLOO` for its other options.

    Args:
        group_size: Episodes per problem; with 1 the baseline is the other problems' mean.
        shrinkage: Number of episodes that the other groups' mean counts for; None estimates it from the other groups.
    """

    smallest_group = 1

    group_size: int = 2
    shrinkage: float | None = None

    def credit(self, episodes: Sequence[Episode], state: State) -> Advantages:
        """Returns against the others of the group and of the batch."""
        advantages = estimate(episodes, "shrunk_rloo", discount=self.discount, shrinkage=self.shrinkage)
        return scale_advantages(advantages, center=False, by="rms") if self.scale_advantages else advantages
