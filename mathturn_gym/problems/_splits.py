"""A problem's identity is its content: its id is a hash of it, and a generator finds it again by that hash.

A hash cannot be turned back into a problem. So a process remembers where problems were drawn lately; what is not among
them is looked for in the streams drawn from, and then in the streams of small seeds, until a source of up to 600
problems has been seen completely (a chance below e^-13 per problem to have missed it). Whoever needs a certain problem
of a larger source in another process keeps its place, (seed, index).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems.base import SPLITS

if TYPE_CHECKING:
    from mathturn_gym.problems.base import Endless
    from mathturn_gym.types import Problem

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


# ---- how problems that stand in a list are divided into splits


ALIASES: Final = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
"""What data sets call their splits."""

_LOG = logging.getLogger("mathturn_gym.problems")
_said: set[str] = set()


def own_split(mark: object) -> str | None:
    """The split that a problem says it is of, or None.

    >>> own_split("Dev"), own_split(3)
    ('validation', None)
    """
    return ALIASES.get(mark.strip().lower()) if isinstance(mark, str) else None


def divide(hashed: Sequence[str], own: Sequence[str | None]) -> tuple[list[str], str]:
    """The split of each problem.

    Args:
        hashed: N splits by the hash of the prompt.
        own: N splits that the problems say they are of, or None; believed where every one of them says so.

    Returns:
        N splits, and how they came about.

    >>> divide(["train", "test", "test"], ["train", "train", "validation"])[0]
    ['train', 'test', 'validation']
    """
    if None in own:
        return list(hashed), "by a hash of the prompt (8 : 1 : 1), having no splits of their own"
    there = set(own)
    found = [
        by_hash if said == "train" and by_hash not in there else str(said)
        for by_hash, said in zip(hashed, own, strict=True)
    ]
    if "train" not in there or there == set(SPLITS):
        return found, "by their own splits"
    return found, "by their own splits; what is missing comes out of train by a hash of the prompt"


def say(where: str, splits: Iterable[str], how: str) -> None:
    """Logs how many problems went where: once in a process, however often a run opens the same source."""
    counts = Counter(splits)
    text = f"{where}: {sum(counts.values()):,} problems are divided {how}: {_shown(counts)}"
    if text not in _said:
        _said.add(text)
        _LOG.warning("%s", text)


def no_problem_in(where: str, split: str, splits: Iterable[str]) -> InvalidValueError:
    """The error for a part without problems."""
    return InvalidValueError(
        f"source {where!r} has no problem in the split {split!r} ({_shown(Counter(splits))}): give every split problems of"
        " its own, as {'train': …, 'test': …}, or play all of them in every split (':all', split='all')"
    )


def _shown(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[split]:,} {split}" for split in SPLITS)
