"""MT-GRPO as published: credit for the turn and for the outcome, each normalized in the group (Zeng et al. 2025, arXiv:2505.11821).

    mathturn train lins --algorithm mt_grpo:MTGRPO       # with this folder on PYTHONPATH

The paper has two turns: a call of a tool with a reward of its own, and an answer. The first turn's advantage is that of its
own reward plus `outcome_weight` times that of the outcome; the second turn has the outcome's. Here every turn but an
episode's last is a first one. The rewards of turns are the environment's, so a call is rewarded by a term of `reward_terms`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mathturn_gym.baselines.algorithms import Advantages, Clipping, GroupAlgorithm, Part, State

if TYPE_CHECKING:
    import torch

    from mathturn_gym.episodes.losses import PolicyLoss
    from mathturn_gym.types import Episode


def normalized(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """Less their mean, divided by their deviation; zeros for one value."""
    found = np.asarray(values, np.float64)
    return (found - found.mean()) / (found.std(ddof=1) + 1e-4) if found.size > 1 else np.zeros(found.size)


@dataclass(frozen=True, kw_only=True)
class MTGRPO(Clipping, GroupAlgorithm):
    """MT-GRPO; see the module.

    Args:
        outcome_weight: Weight of the outcome's advantage in turns before the last (the paper's lambda).
    """

    outcome_weight: float = 1.0

    def credit(self, episodes: Sequence[Episode], state: State) -> Advantages:
        """The turn's normalized reward and the normalized outcome, which is the last turn's reward."""
        groups = defaultdict(list)
        for at, episode in enumerate(episodes):
            groups[episode.group].append(at)
        found = [np.zeros(episode.num_turns, np.float32) for episode in episodes]
        for members in groups.values():
            played = [at for at in members if episodes[at].num_turns]
            outcome = dict(zip(played, normalized([episodes[at].rewards[-1] for at in played]), strict=True))
            for turn in range(max((episodes[at].num_turns for at in played), default=0)):
                there = [at for at in played if episodes[at].num_turns > turn + 1]
                own = dict(zip(there, normalized([episodes[at].rewards[turn] for at in there]), strict=True))
                for at in played:
                    if at in own:
                        found[at][turn] = own[at] + self.outcome_weight * outcome[at]
                    elif episodes[at].num_turns == turn + 1:
                        found[at][turn] = outcome[at]
        return found

    def loss(self, logprobs: torch.Tensor, part: Part, state: State) -> PolicyLoss:
        """The clipped objective, a mean over episodes of their token means."""
        return self.clipped(part, logprobs, normalization="sequence")
