"""What a source of problems is: item (seed, index) -> Problem, and nothing else decides it.

A source knows the *split* that it is: "train", "validation", "test", or "all", or None where none was chosen.
`source.part(split)` chooses. A generator of which nothing was chosen plays train problems, a list plays all of its own.
"""

from __future__ import annotations

import copy
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Generic, TypeVar

import numpy as np

from mathturn_gym.errors import InvalidValueError, raise_unknown_name
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Problem

SPLITS: Final = ("train", "validation", "test")
"""What problems are divided into: eight tenths, one tenth, one tenth."""

# A split of a tenth is missed 10,000 times in a row with a chance of e^-1054: it has no problem then.
_ATTEMPTS: Final = 10_000
_TENTHS: Final = ("train",) * 8 + SPLITS[1:]


def split_of(text: str) -> str:
    """The split that a text belongs to: 80 % train, 10 % validation, 10 % test, by a stable hash.

    >>> [split_of(f"Solve {a}x+1=9 for x.") for a in (2, 4, 8)]
    ['train', 'train', 'train']
    """
    # Not Python's hash(): it differs from process to process. Files, splits and seeds of a paper must not.
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return _TENTHS[int.from_bytes(digest, "big") % 10]


def check_split(split: str) -> str:
    """Returns the split, or raises `InvalidValueError` for one that does not exist."""
    if split not in (*SPLITS, "all"):
        raise_unknown_name("split", split, (*SPLITS, "all"))
    return split


class ProblemSource(ABC):
    """Problems by number. A subclass needs `get`, `by_id` and a name; everything else has a default.

    Attributes:
        name: What messages call it; the ids of its problems begin with it, without the split.
        split: The split that was chosen, or None.
    """

    name: str
    split: str | None = None

    @abstractmethod
    def get(self, seed: int, index: int) -> Problem:
        """Problem `index` (>= 0, without end) of the stream `seed`; the same for the same arguments, always."""

    @abstractmethod
    def by_id(self, problem_id: str) -> Problem:
        """The problem that has this id.

        Raises:
            InvalidValueError: there is none.
        """

    @property
    def size(self) -> int | None:
        """Number of problems, None where there is no list of them (a generator)."""
        return None

    def part(self, split: str) -> ProblemSource:
        """The problems of this source that belong to a split.

        Args:
            split: "train", "validation", "test", or "all".

        Returns:
            A source whose `split` is the given one. A source that is that split already returns itself, and so does one
            that was chosen to be "all", whatever the split: a user who asks for all problems by name gets all of them.

        Raises:
            InvalidValueError: unknown split, or this source is another split, or it has no problem there.
        """
        check_split(split)
        if self.split in (split, "all"):
            return self
        if self.split is not None:
            raise InvalidValueError(
                f"source {self.name!r} is the split {self.split!r}, and has no part {split!r}: leave the split out of its"
                " name to have all three, or write ':all' to play all problems in every split"
            )
        return self._part(split)

    def select(self, *, family: str | None = None, level: int | None = None) -> ProblemSource:
        """The part of this source that has this family and level (`reset(options={"family": …, "level": …})`).

        Args:
            family: A problem family, or None for any.
            level: Its level, or None for any.

        Raises:
            InvalidValueError: the source has no such problems.
        """
        if family is None and level is None:
            return self
        raise InvalidValueError(f"source {self.name!r} has no families and levels to choose from")

    def shuffled(self) -> ProblemSource:
        """This source in an order that the seed decides; a generator has no other, and returns itself."""
        return self

    def leaves(self) -> Iterator[ProblemSource]:
        """The sources that this one draws from: itself, or for a mixture the leaves of its parts."""
        yield self

    @property
    def prompts_tell_answers(self) -> bool:
        """False where one prompt has many answers, so that knowing the prompt from training is worth nothing."""
        return True

    def _part(self, split: str) -> ProblemSource:
        return _HashPart(self, split)


def first_with(sources: Iterable[ProblemSource], problem_id: str, of: str) -> Problem:
    """The problem of the first source that has it; `of` says what they are, where none has."""
    for source in sources:
        with suppress(InvalidValueError):
            return source.by_id(problem_id)
    raise InvalidValueError(f"problem_id {problem_id!r} is in {of}")


# Items are asked for by (seed, index) in any order: so a split is made by drawing again, never by counting through the
# source.
class _HashPart(ProblemSource):
    """The problems of a user's endless source, not yet divided, whose prompts a hash puts into a split."""

    def __init__(self, source: ProblemSource, split: str) -> None:
        self.source, self.split = source, split
        self.name = f"{source.name}:{split}"

    def get(self, seed: int, index: int) -> Problem:
        """The first of a sequence of draws that falls into the split; the first of them is the source's own item."""
        for attempt in range(_ATTEMPTS):
            drawn = self.source.get(derive_seed("part", seed, index, attempt) if attempt else seed, index)
            if self._holds(drawn):
                return drawn
        raise InvalidValueError(f"source {self.source.name!r} has no problem in split {self.split!r}")

    def by_id(self, problem_id: str) -> Problem:
        """The source's problem, where it is in the split."""
        found = self.source.by_id(problem_id)
        if not self._holds(found):
            raise InvalidValueError(f"problem_id {problem_id!r} is not in split {self.split!r} of {self.source.name!r}")
        return found

    def _holds(self, problem: Problem) -> bool:
        return self.split == "all" or split_of(problem.prompt) == self.split


class Endless(ProblemSource):
    """Problems that are drawn, whose ids are `FAMILY/HASH`: what `Generator` and `Family` have in common.

    Args:
        family: Name of the family.
        split: "train", "validation", "test", or "all"; None plays train problems and leaves the choice to `part`.

    Raises:
        InvalidValueError: unknown split.
    """

    def __init__(self, family: str, split: str | None = None) -> None:
        self.family = family
        self._choose(split)

    @property
    def played(self) -> str:
        """The split whose problems are drawn."""
        return self.split or "train"

    def by_id(self, problem_id: str) -> Problem:
        """The problem of this content: from what was drawn lately, else by looking through streams."""
        return find(self, problem_id)

    def get(self, seed: int, index: int) -> Problem:
        """Draws until the question falls into the split, and remembers where."""
        return remember(self.drawn(seed, index), self, seed, index)

    @abstractmethod
    def drawn(self, seed: int, index: int) -> Problem:
        """Item (seed, index)."""

    def holds(self, problem: Problem) -> bool:
        """Whether a problem of this family is one of this source."""
        return self.played in ("all", problem.metadata["split"])

    def kinds(self) -> Sequence[Endless]:
        """The sources that this one draws its items from, each by itself: a family's levels."""
        return [self]

    def _named(self) -> str:
        return f"{self.family}:{self.played}"

    def _choose(self, split: str | None) -> None:
        self.split = None if split is None else check_split(split)
        self.name = self._named()

    def _part(self, split: str) -> ProblemSource:
        other = copy.copy(self)
        other._choose(split)
        return other


class Generator(Endless):
    """Procedural problems of one wording, split into train, validation and test by a hash of their text.

    A subclass draws one problem from a random generator; that is all. Problems of different splits never have the
    same text, whatever their seeds, unless `split_by_prompt` is False (one text with many answers).

    Args:
        family: Name of the family, e.g. "lins".
        split: "train", "validation", "test", or "all"; None plays train problems and leaves the choice to `part`.

    Raises:
        InvalidValueError: unknown split.
    """

    split_by_prompt = True

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> Problem:
        """One problem, drawn from `rng` alone; `get` replaces its id by that of its content."""

    def split_key(self, problem: Problem) -> str:
        """The text whose hash decides the split: problems of one key are in one split."""
        return problem.prompt

    def drawn(self, seed: int, index: int) -> Problem:
        """Draws until the text falls into the split; each draw has a random generator of its own."""
        # All splits of a family draw from one stream and differ in what they reject. Where the prompt does not decide
        # the split, only streams of their own keep splits apart.
        stream = self.family if self.split_by_prompt else self.name
        for attempt in range(_ATTEMPTS):
            # Philox counts: a generator for every item starts in microseconds, and no item depends on another one (law
            # 4).
            drawn = self.draw(np.random.Generator(np.random.Philox(key=derive_seed(stream, seed, index, attempt))))
            own_split = split_of(self.split_key(drawn)) if self.split_by_prompt else self.played
            if self.played in ("all", own_split):
                return self._finished(drawn, own_split)
        raise InvalidValueError(f"source {self.name!r} has no problem in split {self.played!r}")

    def select(self, *, family: str | None = None, level: int | None = None) -> ProblemSource:
        """This source itself, where it is the family; it has no levels."""
        if family not in (None, self.family) or level is not None:
            raise InvalidValueError(
                f"source {self.name!r} has the family {self.family!r} without levels, got family {family!r}, level {level!r}"
            )
        return self

    @property
    def prompts_tell_answers(self) -> bool:
        """Whether the family is split by its prompts."""
        return self.split_by_prompt

    def _finished(self, drawn: Problem, split: str) -> Problem:
        """The problem with its id and what is known of it."""
        return Problem(
            id=content_id(self.family, drawn.prompt, drawn.gold, drawn.hints, drawn.false_hints),
            prompt=drawn.prompt,
            gold=drawn.gold,
            hints=drawn.hints,
            false_hints=drawn.false_hints,
            metadata={"family": self.family, "split": split, **drawn.metadata},
        )


# ---- identity: a problem's id is a hash of its content, and a generator finds the problem again by that hash
#
# A hash cannot be turned back into a problem. So a process remembers where problems were drawn lately; what is not among
# them is looked for in the streams drawn from, and then in the streams of small seeds, until a source of up to 600
# problems has been seen completely (a chance below e^-13 per problem to have missed it). To find a certain problem of a
# larger source in another process, keep its place, (seed, index).

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
    # Drawn again and not kept: a problem is cheap to make, and 8,192 of them may be long.
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
        # Of a small source every problem has been seen by now; in a large one looking on would take minutes.
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
    # Ids that somebody asks for are mostly of the stream that was played last, near its end.
    for (family, seed), furthest in reversed(_streams.items()):
        if family == source.family:
            for index in range(furthest, max(-1, furthest - _LEAST // len(kinds)), -1):
                yield from ((kind, seed, index) for kind in kinds)
    for index in range(_MOST):
        for seed in range(_SEEDS):
            yield from ((kind, seed, index) for kind in kinds)
