"""Pass@k training: the reward of a group is that one of k samples is right (Chen et al. 2025, arXiv:2508.10751).

    mathturn train lins --algorithm pass_at_k:PassAtK --set num_turns=1      # with this folder on PYTHONPATH

The fair rival of training over turns with no more feedback than "wrong": it trains independent samples to differ. Advantages
are the paper's exact ones (its section 2.3): what a right and what a wrong sample adds, over all sets of k in the group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt
from typing import TYPE_CHECKING

import numpy as np

from mathturn_gym.baselines.algorithms import Advantages, Clipping, GroupAlgorithm, Part, State
from mathturn_gym.types import Status

if TYPE_CHECKING:
    import torch

    from mathturn_gym.episodes.losses import PolicyLoss
    from mathturn_gym.types import Episode


def gains(group: int, wrong: int, k: int) -> tuple[float, float]:
    """Advantage of a right and of a wrong sample.

    Args:
        group: Samples of the problem.
        wrong: Of these, the wrong ones.
        k: Samples of a set.

    >>> gains(4, 4, 2), tuple(round(one, 3) for one in gains(4, 3, 2))
    ((0.0, 0.0), (1.0, -0.333))
    """
    mean = 1 - comb(wrong, k) / comb(group, k)
    spread = sqrt(mean * (1 - mean))
    if spread == 0:
        return 0.0, 0.0
    with_wrong = 1 - comb(wrong - 1, k - 1) / comb(
        group - 1, k - 1
    )  # mean of the sets that hold a certain wrong sample
    return (1 - mean) / spread, (with_wrong - mean) / spread


@dataclass(frozen=True, kw_only=True)
class PassAtK(Clipping, GroupAlgorithm):
    """Pass@k training; see the module.

    Args:
        k: Samples of a set, at most `group_size`.
    """

    k: int = 4

    def credit(self, episodes: Sequence[Episode], state: State) -> Advantages:
        """What each sample adds to the sets that it is in."""
        groups = defaultdict(list)
        for at, episode in enumerate(episodes):
            groups[episode.group].append(at)
        found = [np.zeros(episode.num_turns, np.float32) for episode in episodes]
        for members in groups.values():
            right = [any(v.status is Status.RIGHT for v in episodes[at].verdicts) for at in members]
            gain = gains(len(members), right.count(False), self.k)
            for at, one in zip(members, right, strict=True):
                found[at][:] = gain[0] if one else gain[1]
        return found

    def loss(self, logprobs: torch.Tensor, part: Part, state: State) -> PolicyLoss:
        """The clipped objective, a mean over tokens."""
        return self.clipped(part, logprobs)
