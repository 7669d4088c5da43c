"""Dr. GRPO with advantages on a common scale: divided by their root mean square over the batch.

One number for the whole batch, so no problem gains or loses weight against another, which is what Dr. GRPO (Liu et al.
2025, arXiv:2503.20783) is about; but entropy and KL weigh the same however small the returns' differences are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mathturn_gym.baselines.algorithms._registry import register
from mathturn_gym.baselines.algorithms.dr_grpo import DrGRPO, EpisodeBudget
from mathturn_gym.returns import scale_advantages

if TYPE_CHECKING:
    from mathturn_gym.baselines.algorithms._base import Advantages
    from mathturn_gym.types import Episode

__all__ = ["ScaledDrGRPO"]


@register("scaled_dr_grpo", title="scaled Dr. GRPO", source="a variant: Dr. GRPO with scaled advantages")
@dataclass(frozen=True, kw_only=True)
class ScaledDrGRPO(DrGRPO):
    """Dr. GRPO with scaled advantages; see the module, and `DrGRPO` for its options."""

    def credit(self, episodes: Sequence[Episode], state: EpisodeBudget) -> Advantages:
        """Whole-episode returns, centered within their groups, divided by one number for the batch."""
        return scale_advantages(super().credit(episodes, state), center=False, by="rms")
