"""The episodes that a run keeps, with their texts, so that one can look at what was learned from and what was learned.

    RUN/episodes_validation.jsonl   the first episodes of each evaluation: the same problems each time
    RUN/episodes_train.jsonl        the first episodes of the iteration before it, with their advantages

Each has the iteration in its metadata; `mathturn view RUN` shows both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from mathturn_gym.trajectories import EpisodeWriter, read_episodes, write_episodes
from mathturn_gym.types import Episode

if TYPE_CHECKING:
    from mathturn_gym.packing import PackedBatch

__all__ = ["KEPT", "append_episodes", "drop_episodes", "with_advantages"]

KEPT: Final = ("validation", "train")
_KEY: Final = "iteration"


def append_episodes(folder: Path, name: str, episodes: Sequence[Episode], iteration: int) -> None:
    """Adds episodes of an iteration to `episodes_NAME.jsonl`.

    Args:
        folder: The run's.
        name: One of `KEPT`.
        episodes: Any number; none makes no file.
        iteration: Iterations that were done when they were played.
    """
    if not episodes:
        return
    with EpisodeWriter(_file(folder, name)) as writer:
        for episode in episodes:
            writer.write(replace(episode, metadata={**episode.metadata, _KEY: iteration}))


def drop_episodes(folder: Path, iteration: int) -> None:
    """Drops what iterations after `iteration` kept: they are played again."""
    for name in KEPT:
        file = _file(folder, name)
        if file.exists():
            # Read whole before it is replaced: the reader streams.
            write_episodes(file, [one for one in read_episodes(file) if one.metadata.get(_KEY, 0) <= iteration])


def with_advantages(episodes: Sequence[Episode], batch: PackedBatch) -> list[Episode]:
    """The episodes with the advantages that a batch has for their tokens.

    An algorithm may leave episodes out of its batch, or lay them out in another way: those get none.

    Args:
        episodes: Of one iteration, so that their indices differ.
        batch: What `credit` made of it.
    """
    if batch.layout != "episode" or batch.form != "padded":
        return list(episodes)
    values = {episode.index: np.full(len(episode.ids), np.nan, np.float32) for episode in episodes}
    given: set[int] = set()
    pieces, advantages = batch.pieces, batch.advantages.float().cpu().numpy()
    columns = (pieces.row, pieces.episode, pieces.start, pieces.length, pieces.offset)
    for row, at, start, length, offset in zip(*(column.tolist() for column in columns), strict=True):
        index = batch.facts[at]["index"]
        if index in values:
            values[index][start : start + length] = advantages[row, offset : offset + length]
            given.add(index)
    found = []
    for episode in episodes:
        if episode.index in given:
            own = np.where(episode.loss_mask, values[episode.index], np.float32(np.nan))
            episode = replace(episode, token_values={**episode.token_values, "advantage": own})
        found.append(episode)
    return found


def _file(folder: Path, name: str) -> Path:
    return folder / f"episodes_{name}.jsonl"
