"""GRPO: the return of an episode against the mean of its group, divided by the deviation of the group.

Outcome supervision of Shao et al. 2024 (arXiv:2402.03300): all tokens of an episode have the same advantage, in every turn.
A group with equal returns has no advantage and no gradient. The paper's KL term is `kl_weight` (.04 there). The
algorithms differ in scale and in the unit of ratio and mean:

| algorithm | divided by | ratio per | loss is a mean over | source |
|---|---|---|---|---|
| `grpo` | the group's deviation | token | episodes, of their token means | Shao et al. 2024 |
| `dr_grpo` | nothing | token | the most tokens that the episodes could have | Liu et al. 2025, arXiv:2503.20783 |
| `scaled_dr_grpo` | root mean square over the batch | token | the same | a variant |
| `gspo` | the group's deviation | episode | episodes | Zheng et al. 2025, arXiv:2507.18071 |

Dr. GRPO leaves both divisions of GRPO out: that by the deviation prefers problems that are nearly always or nearly never
solved, that by the length prefers short right and long wrong answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mathturn_gym.baselines.algorithms._base import Advantages, Clipping, GroupAlgorithm, Learner, Part, State
from mathturn_gym.baselines.algorithms._credit import estimate
from mathturn_gym.baselines.algorithms._registry import register
from mathturn_gym.episodes.returns import scale_advantages

if TYPE_CHECKING:
    import torch

    from mathturn_gym.episodes.losses import PolicyLoss
    from mathturn_gym.types import Episode


@register("grpo", title="GRPO", source="Shao et al. 2024, arXiv:2402.03300")
@dataclass(frozen=True, kw_only=True)
class GRPO(Clipping, GroupAlgorithm):
    """GRPO; see the module.

    Args:
        discount: Per turn, in [0, 1]; of the episode's return.
        normalization: What the loss is a mean over: "sequence" (episodes) as published, or "token" (DAPO's mean).
    """

    continues_truncated = False

    discount: float = 1.0
    normalization: Literal["token", "turn", "sequence"] = "sequence"

    def credit(self, episodes: Sequence[Episode], state: State) -> Advantages:
        """Whole-episode returns, normalized within their groups."""
        return estimate(episodes, "grpo", discount=self.discount)

    def loss(self, logprobs: torch.Tensor, part: Part, state: State) -> PolicyLoss:
        """The clipped objective; by default every episode counts alike, however long it is."""
        return self.clipped(part, logprobs, normalization=self.normalization)


class EpisodeBudget(State):
    """Holds the length of the longest possible episode: the most tokens that the policy can sample in it."""

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
        """Returns the constant that sums over tokens are divided by."""
        env = trainer.config.env
        return EpisodeBudget(env.value("num_turns") * env.value("max_completion_tokens"))

    def credit(self, episodes: Sequence[Episode], state: EpisodeBudget) -> Advantages:
        """Whole-episode returns, centered within their groups."""
        return estimate(episodes, "dr_grpo", discount=self.discount)

    def loss(self, logprobs: torch.Tensor, part: Part, state: EpisodeBudget) -> PolicyLoss:
        """The clipped objective, divided by the most tokens that the minibatch's episodes could have."""
        most = part.minibatch.count("sequence") * state.tokens
        return self.clipped(part, logprobs, denominator=most)


@register("scaled_dr_grpo", title="scaled Dr. GRPO", source="a variant: Dr. GRPO with scaled advantages")
@dataclass(frozen=True, kw_only=True)
class ScaledDrGRPO(DrGRPO):
    """Dr. GRPO with scaled advantages; see the module, and `DrGRPO` for its options."""

    def credit(self, episodes: Sequence[Episode], state: EpisodeBudget) -> Advantages:
        """Whole-episode returns, centered within their groups, divided by one number for the batch."""
        return scale_advantages(super().credit(episodes, state), center=False, by="rms")


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
    ratio: Literal["token", "turn", "sequence"] = "sequence"

    def credit(self, episodes: Sequence[Episode], state: State) -> Advantages:
        """Whole-episode returns, normalized within their groups."""
        return estimate(episodes, "grpo", discount=self.discount)

    def loss(self, logprobs: torch.Tensor, part: Part, state: State) -> PolicyLoss:
        """The clipped objective with a ratio per episode."""
        return self.clipped(part, logprobs, normalization="sequence")
