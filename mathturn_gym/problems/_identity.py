"""A problem's identity is its content: its id is a hash of it, and a generator finds it again by that hash.

A hash cannot be turned back into a problem. So a process remembers where problems were drawn lately; what is not among
them is looked for in the streams drawn from, and then in the streams of small seeds, until a source of up to 600
problems has been seen completely (a chance below e^-13 per problem to have missed it). Whoever needs a certain problem
of a larger source in another process keeps its place, (seed, index).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from mathturn_gym.errors import InvalidValueError

if TYPE_CHECKING:
    from mathturn_gym.problems.base import Endless
    from mathturn_gym.types import Problem

__all__ = ["content_id", "find", "remember"]

_REMEMBERED: Final = 8_192
_STREAMS: Final = 256
_LEAST: Final = 4_096
_MOST: Final = 8_192
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


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class _Recent(Generic[_Key, _Value]):
    """The last few thousand entries: two generations, the older of which is forgotten when the younger is full.

    Without a lock, which a forked child might inherit locked: every step is one assignment, and an entry that two threads
    lose between them is found by looking for it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._new: dict[_Key, _Value] = {}
        self._old: dict[_Key, _Value] = {}

    def put(self, key: _Key, value: _Value) -> None:
        if len(self._new) >= self._most:
            self._old, self._new = self._new, {}
        self._new[key] = value

    def get(self, key: _Key) -> _Value | None:
        found = self._new.get(key)
        return self._old.get(key) if found is None else found

    def items(self) -> list[tuple[_Key, _Value]]:
        return list(({**self._old, **self._new}).items())


_places: Final[_Recent[str, tuple[Endless, int, int]]] = _Recent(_REMEMBERED)
_streams: Final[_Recent[tuple[str, int], int]] = _Recent(_STREAMS)


def remember(problem: Problem, source: Endless, seed: int, index: int) -> Problem:
    """Notes where a problem was drawn, and returns it."""
    _places.put(problem.id, (source, seed, index))
    stream = source.family, seed
    _streams.put(stream, max(index, _streams.get(stream) or 0))
    return problem


def find(source: Endless, problem_id: str) -> Problem:
    """The problem of a source that has this id.

    Raises:
        InvalidValueError: it is not of this source, or was not found.
    """
    if not problem_id.startswith(f"{source.family}/"):
        raise InvalidValueError(
            f"problem_id {problem_id!r} is not of source {source.name!r}, whose ids are '{source.family}/HASH'"
        )
    place = _places.get(problem_id)
    if place is not None:
        found = place[0].get(*place[1:])
        if source.holds(found):
            return found
    seen: set[str] = set()
    draws = 0
    for one, seed, index in _candidates(source):
        found = one.drawn(seed, index)
        if found.id == problem_id:
            return found
        draws += 1
        seen.add(found.id)
        if draws >= _MOST or (draws >= _LEAST and draws >= _SURE * len(seen)):
            break
    raise InvalidValueError(
        f"problem_id {problem_id!r} was not found in source {source.name!r}: not among the problems drawn lately, nor among"
        f" {draws:,} others ({len(seen):,} different ones). reset(seed=…, options={{'index': …}}) always gives the same"
        " problem again"
    )


def _candidates(source: Endless) -> Iterator[tuple[Endless, int, int]]:
    """Places to look at: the streams of this family in use, from their ends, then all small seeds alike."""
    kinds = source.kinds()
    for (family, seed), furthest in reversed(_streams.items()):
        if family == source.family:
            for index in range(furthest, max(-1, furthest - _LEAST // len(kinds)), -1):
                yield from ((kind, seed, index) for kind in kinds)
    for index in range(_MOST):
        for seed in range(_SEEDS):
            yield from ((kind, seed, index) for kind in kinds)
