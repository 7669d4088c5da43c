"""Which episodes of a collection are waiting, out with a worker, or done. It knows nothing of workers but their names."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.types import Episode


@dataclass(frozen=True, slots=True, order=True)
class Share:
    """Consecutive episodes that one worker plays: `first` to `first + count - 1`.

    Args:
        first: Index of the first episode.
        count: How many.
    """

    first: int
    count: int

    @property
    def indices(self) -> range:
        """The episodes' indices."""
        return range(self.first, self.first + self.count)


class WorkQueue:
    """Hands out every episode of a collection, takes what was played, and counts each episode once.

    Shares are cut at multiples of their size, whatever the workers are, so that the number of workers does not decide
    which episodes are decoded together.

    Args:
        first: Index of the first episode.
        total: How many episodes there are; None for no end.
        size: Episodes of a share.
        done: Indices that need not be played any more.

    Attributes:
        replayed: Episodes that were handed out again because their worker was lost.
        dropped: Episodes that arrived a second time, and were not counted.

    >>> queue = WorkQueue(0, 5, size=2)
    >>> queue.hand_out("a"), queue.hand_out("b"), queue.hand_out("a"), queue.hand_out("a")
    (Share(first=0, count=2), Share(first=2, count=2), Share(first=4, count=1), None)
    >>> queue.lost("a")
    [Share(first=0, count=2), Share(first=4, count=1)]
    >>> queue.hand_out("b")
    Share(first=0, count=2)
    """

    def __init__(self, first: int, total: int | None, *, size: int, done: Iterable[int] = ()) -> None:
        self._next, self._size = first, size
        self._end = None if total is None else first + total
        self._first = first
        self._again: list[Share] = []
        self._out: dict[Hashable, list[Share]] = {}
        self._done = {index for index in done if index >= first and (self._end is None or index < self._end)}
        self._before = len(self._done)
        self.replayed = self.dropped = 0

    @property
    def finished(self) -> int:
        """Episodes that were played and counted, those that were `done` from the start aside."""
        return len(self._done) - self._before

    @property
    def complete(self) -> bool:
        """True once every episode is done."""
        return self._end is not None and len(self._done) == self._end - self._first

    @property
    def out(self) -> int:
        """Shares that are with workers."""
        return sum(len(shares) for shares in self._out.values())

    def hand_out(self, worker: Hashable, *, limit: int | None = None) -> Share | None:
        """The next share for a worker, those of lost workers first; None where there is none (now).

        Args:
            worker: Who gets it.
            limit: No episode of this index or above may begin yet; None for no limit.
        """
        share = self._upcoming(limit)
        if share is not None:
            self._out.setdefault(worker, []).append(share)
        return share

    def _upcoming(self, limit: int | None) -> Share | None:
        if self._again:
            return heapq.heappop(self._again)
        while self._end is None or self._next < self._end:
            first = self._next
            if limit is not None and first >= limit:
                return None
            boundary = (first // self._size + 1) * self._size
            stop = boundary if self._end is None else min(boundary, self._end)
            stop = stop if limit is None else min(stop, limit)
            self._next = stop
            if any(index not in self._done for index in range(first, stop)):
                return Share(first, stop - first)
        return None

    def take(self, worker: Hashable, share: Share, episodes: Iterable[Episode]) -> list[Episode]:
        """Counts what a worker has played; returns the episodes that were not there before, in order of their index.

        Args:
            worker: Who played them; one that was given up as lost may still deliver.
            share: What was handed out.
            episodes: All episodes of the share, in any order.

        Raises:
            InvalidValueError: they are not the episodes of the share.
        """
        played = sorted(episodes, key=lambda episode: episode.index)
        if [episode.index for episode in played] != list(share.indices):
            raise InvalidValueError(
                f"a worker was given the episodes {share.first} to {share.indices[-1]} and delivered"
                f" {[episode.index for episode in played]}"
            )
        mine = self._out.get(worker, [])
        if share in mine:
            mine.remove(share)
        new = [episode for episode in played if episode.index not in self._done]
        self.dropped += len(played) - len(new)
        self._done.update(episode.index for episode in new)
        # What a worker was lost with may have been handed out again before it arrived after all.
        self._again = [one for one in self._again if any(index not in self._done for index in one.indices)]
        heapq.heapify(self._again)
        return new

    def lost(self, worker: Hashable) -> list[Share]:
        """A worker is gone: what it had goes back, to be handed out before anything new. Returns it."""
        shares = sorted(self._out.pop(worker, []))
        for share in shares:
            heapq.heappush(self._again, share)
            self.replayed += share.count
        return shares
