"""How a trainer's batches are played: ahead of the learner, and in spite of episodes that fail."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Literal, TypeVar

from mathturn_gym.errors import RunError
from mathturn_gym.types import Episode

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

OnFailure = Literal["stop", "retry", "drop_group"]
_ATTEMPTS: Final = 3  # how often a group is played that has failed with the whole batch


class Ahead:
    """Plays batches one after the other in a thread, at most `staleness` batches before they are learned from.

    Batch k begins once batch k - staleness is asked for, which is after update k - staleness: nothing is staler.
    """

    def __init__(self, staleness: int) -> None:
        self._staleness = staleness
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollouts")
        self._batches: dict[int, Future[list[Episode]]] = {}

    def batch(self, first: int, size: int, play: Callable[[int], list[Episode]]) -> list[Episode]:
        """The batch of `size` episodes that begins with episode `first`; `play` plays one by its first index."""
        # Asking for a batch begins those after it that may be played with weights this old.
        for start in range(first, first + size * (self._staleness + 1), size):
            if start not in self._batches:
                self._batches[start] = self._thread.submit(play, start)
        return self._batches.pop(first).result()

    def between(self, play: Callable[[], T]) -> T:
        """Does something else with the engine (an evaluation), after the batches that are begun."""
        # One thread: it waits its turn, and no two callers ask the engine at once.
        return self._thread.submit(play).result()

    def close(self) -> None:
        """Waits for what is being played, whose engine must have been closed."""
        self._thread.shutdown(wait=True, cancel_futures=True)


def play_groups(
    play: Callable[[int, int], list[Episode]], first: int, episodes: int, *, group: int, on_failure: OnFailure
) -> list[Episode]:
    """Plays a batch; groups with a failed episode are played again, alone, so that they fail no others.

    Args:
        play: Plays consecutive episodes: index of the first, and how many.
        first: Index of the first.
        episodes: How many.
        group: Episodes of a group.
        on_failure: "stop" raises at once; "retry" raises if a group has failed several times; "drop_group" goes on
            without it.

    Returns:
        The episodes in order of their index, each once.

    Raises:
        RunError: as `on_failure` says, or every group failed.
    """
    try:
        return play(first, episodes)
    except RunError as error:
        if on_failure == "stop":
            raise
        _LOG.warning("an episode failed (%s): its group is played again", error)
        # What has ended is kept: the same weights sampled it.
        done = {episode.index: episode for episode in error.finished}
        failure = error
    end = first + episodes
    for start in range(first, end, group):
        members = range(start, min(start + group, end))
        if all(index in done for index in members):
            continue
        for _ in range(_ATTEMPTS):
            try:
                done.update((episode.index, episode) for episode in play(start, len(members)))
                break
            except RunError as error:
                failure = error
        else:
            if on_failure == "retry":
                raise failure
            _LOG.warning("episodes %d to %d are left out: %s", start, members[-1], failure)
            for index in members:
                done.pop(index, None)
    if not done:
        raise failure
    return [done[index] for index in sorted(done)]
