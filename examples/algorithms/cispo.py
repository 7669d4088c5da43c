"""CISPO: the importance weight is clipped, and no token loses its gradient (MiniMax 2025, arXiv:2506.13585, section 3.1).

    mathturn train lins --algorithm cispo:CISPO       # with this folder on PYTHONPATH

PPO's clipping drops the gradient of a token whose ratio is too large. CISPO keeps it: a token's gradient is its advantage
times its ratio, held at `clip_high` above 1, times grad log p. Advantages are GRPO's, and the loss is a mean over tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mathturn_gym.baselines.algorithms import Advantages, GroupAlgorithm, Part, State
from mathturn_gym.baselines.algorithms._credit import estimate

if TYPE_CHECKING:
    import torch

    from mathturn_gym.episodes.losses import PolicyLoss
    from mathturn_gym.types import Episode


@dataclass(frozen=True, kw_only=True)
class CISPO(GroupAlgorithm):
    """CISPO; see the module.

    Args:
        clip_high: The weight is at most 1 plus this. There is no lower limit, as in the paper.
        discount: Per turn, in [0, 1]; of the episode's return.
    """

    clip_high: float = 0.2
    discount: float = 1.0

    def credit(self, episodes: Sequence[Episode], state: State) -> Advantages:
        """Whole-episode returns, normalized within their groups."""
        return estimate(episodes, "grpo", discount=self.discount)

    def loss(self, logprobs: torch.Tensor, part: Part, state: State) -> PolicyLoss:
        """Advantage times the clipped weight times log-prob."""
        gap = (logprobs.detach() - part.batch.behavior_logprobs) * part.batch.loss_mask
        weights = gap.exp().clamp(max=1 + self.clip_high)
        weighted = part.batch.replace_tensors({"advantages": part.batch.advantages * weights})
        return replace(part, batch=weighted).policy_loss(logprobs, objective="policy_gradient", ratio=None)
