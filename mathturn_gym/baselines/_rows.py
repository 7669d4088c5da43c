"""Rows of a batch by the episode that they belong to: an episode of several segments has several, which stay together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mathturn_gym.packing import select_rows

if TYPE_CHECKING:
    from mathturn_gym.packing import PackedBatch

__all__ = ["episode_of_rows", "select_episodes"]


def episode_of_rows(batch: PackedBatch) -> npt.NDArray[np.int64]:
    """Index into `batch.facts` of each row's episode, int64 (B,), of a batch in layout "episode"."""
    found = np.zeros(batch.num_rows, np.int64)
    found[batch.pieces.row] = batch.pieces.episode
    return found


def select_episodes(batch: PackedBatch, episodes: Sequence[int] | npt.NDArray[np.int64]) -> PackedBatch:
    """All rows of some episodes, in the batch's order.

    Args:
        batch: In layout "episode".
        episodes: Indices into `batch.facts`, at least one.
    """
    return select_rows(batch, np.flatnonzero(np.isin(episode_of_rows(batch), episodes)).tolist())
