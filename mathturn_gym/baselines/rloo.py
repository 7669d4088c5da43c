"""RLOO per turn: the mean of the other members of the group that reached the turn is the baseline.

Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!", and Ahmadian et al. 2024, arXiv:2402.14740, who
give an episode one return; `estimator="rloo"` does that. Centered per turn, a turn is judged by what the others made of
theirs, and a discount of 0 means what it does for REINFORCE.
"""

from __future__ import annotations

from collections.abc import Sequence

from mathturn_gym.baselines.credit import estimated, scaled
from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.packing import PackedBatch, pack
from mathturn_gym.types import Episode

__all__ = ["RLOO"]


class RLOO(Trainer):
    """RLOO; see the module."""

    def credit(self, episodes: Sequence[Episode]) -> PackedBatch:
        """Returns against the mean of the others."""
        advantages = estimated(episodes, self.config, "turn_rloo")
        if self.config.scale_advantages:
            advantages = scaled(advantages)
        return pack(episodes, advantages=advantages, device=self.config.device)
