"""REINFORCE++: returns centered and scaled over the whole batch, a clipped ratio, and a KL where asked (arXiv:2501.03262).

Hu et al. 2025. Their advantages are normalized over tokens; here every turn counts once, since a turn's ids share its
return. Set `kl_weight` for their KL penalty, which here is a term of the loss (k3).
"""

from __future__ import annotations

from collections.abc import Sequence

from mathturn_gym.baselines.credit import estimated
from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.packing import PackedBatch, pack
from mathturn_gym.types import Episode

__all__ = ["ReinforcePP"]


class ReinforcePP(Trainer):
    """REINFORCE++; see the module."""

    def credit(self, episodes: Sequence[Episode]) -> PackedBatch:
        """Returns of each turn, normalized over all turns of the batch."""
        return pack(episodes, advantages=estimated(episodes, self.config, "reinforce_pp"), device=self.config.device)
