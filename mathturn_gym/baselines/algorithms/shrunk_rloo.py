"""Turn RLOO whose baseline is shrunk towards what other problems' turns were worth.

The mean over one or two other members is a poor baseline, for it is nearly as noisy as the return that it is taken from. The
other groups' mean at the same turn has little noise, and knows nothing of the problem. Between the two lies the best
guess of both (Efron & Morris 1973, JASA 68; for policy gradients the weight comes from other episodes alone, so that
the gradient stays unbiased: see `mathturn_gym.returns.advantages`, "shrunk_rloo").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mathturn_gym.baselines.algorithms._credit import estimate
from mathturn_gym.baselines.algorithms._registry import register
from mathturn_gym.baselines.algorithms.turn_rloo import TurnRLOO
from mathturn_gym.returns import scale_advantages

if TYPE_CHECKING:
    from mathturn_gym.baselines.algorithms._base import Advantages, State
    from mathturn_gym.types import Episode

__all__ = ["ShrunkRLOO"]


@register("shrunk_rloo", title="shrunk RLOO", source="a variant: turn RLOO with a James-Stein baseline")
@dataclass(frozen=True, kw_only=True)
class ShrunkRLOO(TurnRLOO):
    """Turn RLOO with a shrunken baseline; see the module, and `TurnRLOO` for its other options.

    Args:
        group_size: Episodes per problem; 1 leaves the other problems' mean alone.
        shrinkage: How many episodes the other groups' mean counts for; None estimates it from the other groups.
    """

    smallest_group = 1

    group_size: int = 2
    shrinkage: float | None = None

    def credit(self, episodes: Sequence[Episode], state: State) -> Advantages:
        """Returns against the others of the group and of the batch."""
        advantages = estimate(episodes, "shrunk_rloo", discount=self.discount, shrinkage=self.shrinkage)
        return scale_advantages(advantages, center=False, by="rms") if self.scale_advantages else advantages
