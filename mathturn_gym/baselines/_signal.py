"""Is there something to learn from? What is done, and said, where there is not.

A batch whose advantages are all 0 has no policy gradient. What is left of the loss then, the entropy bonus, goes on
pushing the policy towards noise, and AdamW makes steps of full length of it however small it is: on problems beyond a
policy, entropy rose from .42 to 5.8 nats within five iterations. Such a batch is not learned from.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from mathturn_gym.baselines.algorithms._credit import differ
from mathturn_gym.packing import PackedBatch
from mathturn_gym.types import Episode

__all__ = ["DryWatch", "carries_signal", "groups_of", "rows_with_signal", "uniform_share"]

_LOG = logging.getLogger(__name__)

_NOTHING: Final = 1e-6
"""Advantages below this share of the returns' size are rounding."""
_DRY: Final = 3
_RISE, _FACTOR = 0.5, 2.0


def carries_signal(batch: PackedBatch) -> bool:
    """True where some trained token has an advantage."""
    mask = batch.loss_mask
    if not bool(mask.any()):
        return False
    size = float(batch.returns[mask].abs().max())
    return float(batch.advantages[mask].abs().max()) > _NOTHING * size


def rows_with_signal(batch: PackedBatch) -> npt.NDArray[np.int64]:
    """Numbers of the rows in which some trained token has an advantage, by `carries_signal`'s measure."""
    mask = batch.loss_mask
    size = batch.returns.masked_fill(~mask, 0.0).abs().max() if mask.any() else torch.zeros(())
    found = (batch.advantages.abs() > _NOTHING * size) & mask
    return np.flatnonzero(found.any(dim=-1).cpu().numpy())


def groups_of(episodes: Sequence[Episode]) -> list[list[Episode]]:
    """Episodes that were sampled together on one problem; they follow each other."""
    return [list(members) for _, members in groupby(episodes, key=lambda e: e.index if e.group is None else e.group)]


def uniform_share(episodes: Sequence[Episode]) -> float:
    """Share of groups whose members have the same returns at every turn: within such a group nothing is better."""
    groups = groups_of(episodes)
    return sum(not differ(group) for group in groups) / max(1, len(groups))


class DryWatch:
    """Warns of training that learns nothing, and of a policy that dissolves, once each."""

    def __init__(self) -> None:
        self._dry = 0
        self._first: float | None = None
        self._said_entropy = False

    def see(self, learned: bool, entropy: float, episodes: int) -> None:
        """Takes an iteration's facts.

        Args:
            learned: The batch had a signal.
            entropy: Mean entropy of its tokens, nats.
            episodes: Of an iteration.
        """
        self._dry = 0 if learned else self._dry + 1
        if self._dry == _DRY:
            _LOG.warning(
                "no action was better than another in the last %d iterations (%d episodes): nothing was learned, and the"
                " policy is left as it is; choose easier problems, more turns, larger groups or a warm start",
                _DRY,
                _DRY * episodes,
            )
        self._first = entropy if self._first is None else self._first
        if entropy > _FACTOR * self._first + _RISE and not self._said_entropy:
            self._said_entropy = True
            _LOG.warning(
                "the policy's entropy has risen from %.2f to %.2f nats a token: entropy_weight or learning_rate is too"
                " large for this model",
                self._first,
                entropy,
            )
