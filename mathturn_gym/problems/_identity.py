"""A problem's identity is its content: its id is a hash of it, and a generator finds it again by that hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from mathturn_gym.errors import InvalidValueError

if TYPE_CHECKING:
    from mathturn_gym.problems.base import ProblemSource
    from mathturn_gym.types import Problem

__all__ = ["PlaceIndex", "content_id"]

_REMEMBERED: Final = 2_048
_STREAMS: Final = 64
_LEAST: Final = 4_096
_MOST: Final = 100_000
_SURE: Final = 20
_SEEDS: Final = 16


def content_id(
    name: str, prompt: str, gold: str | Sequence[str], hints: Sequence[str] = (), false_hints: Sequence[str] = ()
) -> str:
    """`NAME/HASH`: equal for equal prompt, accepted answers and hints, and for nothing else (64 bits).

    >>> content_id("lins", "Solve 3x+4=19 for x.", ("5",)) == content_id("lins", "Solve 3x+4=19 for x.", "5")
    True
    """
    answers = [gold] if isinstance(gold, str) else list(gold)
    # JSON in ASCII: unambiguous, and it takes any text, lone surrogates included.
    content = json.dumps([prompt, answers, list(hints), list(false_hints)]).encode()
    return f"{name}/{hashlib.blake2b(content, digest_size=8).hexdigest()}"


class PlaceIndex:
    """Where a generator's problems were drawn, (seed, index) by id: a hash cannot be turned back into a problem.

    Bounded: the last few thousand problems and the last streams are remembered. What is not among them is looked for
    in the streams drawn from, and then in the streams of small seeds, until a source of up to 5,000 problems has been
    seen completely (a chance below e^-20 per problem to have missed it).

    Args:
        source: The generator; its `get` calls `remember`.
    """

    def __init__(self, source: ProblemSource) -> None:
        self._source = source
        # Two generations: when the younger one is full, the older one is forgotten.
        self._recent: dict[str, tuple[int, int]] = {}
        self._older: dict[str, tuple[int, int]] = {}
        self._streams: dict[int, int] = {}

    def remember(self, problem: Problem, seed: int, index: int) -> Problem:
        """Notes where the problem was drawn, and returns it."""
        if len(self._recent) >= _REMEMBERED:
            self._older, self._recent = self._recent, {}
        self._recent[problem.id] = seed, index
        furthest = max(index, self._streams.pop(seed, 0))
        if len(self._streams) >= _STREAMS:
            del self._streams[next(iter(self._streams))]
        self._streams[seed] = furthest
        return problem

    def find(self, problem_id: str, prefix: str) -> Problem:
        """The problem of this id.

        Args:
            problem_id: The id.
            prefix: What the ids of the source begin with.

        Raises:
            InvalidValueError: it is not of this source, or was not found.
        """
        name = self._source.name
        if not problem_id.startswith(prefix):
            raise InvalidValueError(
                f"problem_id {problem_id!r} is not of source {name!r}, whose ids are '{prefix}HASH'"
            )
        place = self._recent.get(problem_id) or self._older.get(problem_id)
        if place is not None:
            return self._source.get(*place)
        streams, seen, draws = dict(self._streams), set[str](), 0
        try:
            for seed, index in self._candidates():
                found = self._source.get(seed, index)
                if found.id == problem_id:
                    return found
                draws += 1
                seen.add(found.id)
                if draws >= _MOST or (draws >= _LEAST and draws >= _SURE * len(seen)):
                    break
        finally:
            self._streams = streams  # looking through streams does not make them streams in use
        raise InvalidValueError(
            f"problem_id {problem_id!r} was not found in source {name!r}: not among the problems that it has drawn, nor among"
            f" {draws:,} others ({len(seen):,} different ones). reset(seed=…, options={{'index': …}}) always gives the same"
            " problem again"
        )

    def _candidates(self) -> Iterator[tuple[int, int]]:
        """Places to look at: streams in use from their ends, then all small seeds alike."""
        for seed, furthest in reversed(list(self._streams.items())):
            for index in range(furthest, max(-1, furthest - _LEAST), -1):
                yield seed, index
        for index in range(_MOST):
            for seed in range(_SEEDS):
                yield seed, index
