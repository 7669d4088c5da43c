"""Evaluations of a run, the same for every algorithm, and the episodes that a run keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mathturn_gym.episodes.metrics.figures import facts
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.episodes.trajectories import EpisodeWriter, read_episodes, write_episodes
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Episode

if TYPE_CHECKING:
    from mathturn_gym.baselines.settings import RunConfig
    from mathturn_gym.env.config import EnvConfig
    from mathturn_gym.episodes.packing import PackedBatch
    from mathturn_gym.types import Episode, Policy

# Number of episodes that an evaluation plays at once.
_PLAYED_AT_ONCE: Final = 128


def accuracy_by_turn(episodes: Sequence[Episode], num_turns: int) -> dict[str, float]:
    """Share of episodes with a right answer at or before each turn, as "acc@1", "acc@2" and so on."""
    first = [facts(episode).first_success for episode in episodes]
    return {
        f"acc@{turn + 1}": float(np.mean([at is not None and at <= turn for at in first])) for turn in range(num_turns)
    }


def validation_env(config: RunConfig, policy: Policy | None = None) -> Any:
    """The environment of a run's evaluations; None where there are none.

    The policy's tokenizer is the environment's, unless the config names one.
    """
    episodes = config.evaluation.episodes
    at_once = min(episodes, _PLAYED_AT_ONCE)
    return config.env.make("validation", at_once, policy=policy, gold_in_info=True) if episodes else None


def play_test(env: EnvConfig, policy: Policy, episodes: int, *, seed: int) -> dict[str, float]:
    """Accuracy by turn on the test split, number of different problems, and tokens per episode."""
    vector: Any = env.make("test", min(episodes, _PLAYED_AT_ONCE), policy=policy)
    try:
        # Of the run's seed, and of no stream that training or validation draws from.
        played = collect(vector, policy, episodes, seed=derive_seed(seed, "test"))
    finally:
        vector.close()
    return {
        **accuracy_by_turn(played, int(env.value("num_turns"))),
        "episodes": len(played),
        "problems": len({episode.problem_id for episode in played}),
        "tokens_per_episode": float(np.mean([episode.loss_mask.sum() for episode in played])),
    }


KEPT: Final = ("validation", "train")
_KEY: Final = "iteration"


def append_episodes(folder: Path, name: str, episodes: Sequence[Episode], iteration: int) -> None:
    """Adds episodes of an iteration to `episodes_NAME.jsonl`, NAME being one of `KEPT`; none makes no file."""
    if not episodes:
        return
    with EpisodeWriter(_file(folder, name)) as writer:
        for episode in episodes:
            writer.write(replace(episode, metadata={**episode.metadata, _KEY: iteration}))


def drop_episodes(folder: Path, iteration: int) -> None:
    """Removes the episodes of iterations after `iteration`, which a resumed run plays again."""
    for name in KEPT:
        file = _file(folder, name)
        if file.exists():
            # Read whole before it is replaced: the reader streams.
            write_episodes(file, [one for one in read_episodes(file) if _iteration_of(one) <= iteration])


def _iteration_of(episode: Episode) -> int:
    found = episode.metadata.get(_KEY, 0)
    return found if isinstance(found, int) else 0


def with_advantages(episodes: Sequence[Episode], batch: PackedBatch) -> list[Episode]:
    """Adds the advantages of a batch to its episodes (of one iteration), as `token_values["advantage"]`.

    Episodes that the algorithm left out of its batch, and batches of other layouts, get none.
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
            # NaN off the mask: a prompt has no advantage, which is not the same as 0.
            own = np.where(episode.loss_mask, values[episode.index], np.float32(np.nan))
            episode = replace(episode, token_values={**episode.token_values, "advantage": own})
        found.append(episode)
    return found


def _file(folder: Path, name: str) -> Path:
    return folder / f"episodes_{name}.jsonl"
