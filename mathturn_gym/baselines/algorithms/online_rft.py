"""Online rejection-sampling fine-tuning: supervised learning on the policy's own right answers, as it goes.

RFT (Yuan et al. 2023, arXiv:2308.01825) samples once, from the model at the start; online RFT samples from the policy as
it is (Shao et al. 2024, arXiv:2402.03300, section 5.2). Each iteration keeps the turns whose verdict is right and
maximizes their likelihood. Wrong answers teach nothing; those before a right one remain its context. Where a turn is of use to
a later one (a call of a tool), `selection="episode"` keeps every turn of an episode that was solved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from mathturn_gym.baselines.algorithms._base import Advantages, Algorithm, Part, State
from mathturn_gym.baselines.algorithms._registry import register
from mathturn_gym.errors import InvalidValueError, raise_unknown_name
from mathturn_gym.types import Status

if TYPE_CHECKING:
    import torch

    from mathturn_gym.episodes.losses import PolicyLoss
    from mathturn_gym.types import Episode


_SELECTIONS: Final = ("turn", "episode")


@register(
    "online_rft", title="online RFT", source="Shao et al. 2024, arXiv:2402.03300, section 5.2; RFT: Yuan et al. 2023"
)
@dataclass(frozen=True, kw_only=True)
class OnlineRFT(Algorithm):
    """Online rejection-sampling fine-tuning; see the module.

    Args:
        group_size: Episodes per problem.
        selection: What is learned: the "turn" that is right, or every turn of an "episode" that has a right one.
    """

    continues_truncated = False

    group_size: int = 1
    selection: Literal["turn", "episode"] = "turn"

    def __post_init__(self) -> None:
        """Refuses what it would not read."""
        super().__post_init__()
        if self.selection not in _SELECTIONS:
            raise_unknown_name("selection", self.selection, _SELECTIONS)
        if self.reward_kl:
            raise InvalidValueError(
                f"online_rft reads verdicts, not rewards: use kl_weight, not reward_kl ({self.reward_kl:g})"
            )

    def credit(self, episodes: Sequence[Episode], state: State) -> Advantages:
        """1 for what is kept, 0 for what is not."""
        right = [np.array([v.status is Status.RIGHT for v in episode.verdicts], np.float32) for episode in episodes]
        return right if self.selection == "turn" else [np.full_like(turns, turns.max(initial=0.0)) for turns in right]

    def loss(self, logprobs: torch.Tensor, part: Part, state: State) -> PolicyLoss:
        """Mean negative log-likelihood of the kept tokens."""
        # At least 1: a batch without a right answer has the loss 0.
        kept = max(1.0, float(part.minibatch.advantages.sum()))
        return part.policy_loss(logprobs, objective="policy_gradient", ratio=None, denominator=kept)
