"""What a source of problems is: item (seed, index) -> Problem, and nothing else decides it.

A source knows the *split* that it is: "train", "validation", "test", or "all", or None where nobody has chosen one.
`source.part(split)` chooses. A generator of which nothing was chosen plays train problems, a list plays all of its own.
"""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from mathturn_gym.errors import InvalidValueError, raise_unknown_name
from mathturn_gym.problems import _splits
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Problem

SPLITS: Final = ("train", "validation", "test")
"""What problems are divided into: eight tenths, one tenth, one tenth."""

_ATTEMPTS: Final = 10_000
_TENTHS: Final = ("train",) * 8 + SPLITS[1:]


def split_of(text: str) -> str:
    """The split that a text belongs to: 80 % train, 10 % validation, 10 % test, by a stable hash.

    >>> [split_of(f"Solve {a}x+1=9 for x.") for a in (2, 4, 8)]
    ['train', 'train', 'train']
    """
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
            that was chosen to be "all", whatever the split: whoever asks for all problems by name gets them everywhere.

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


class _HashPart(ProblemSource):
    """The problems of a user's endless source whose prompts a hash puts into a split.

    Args:
        source: Divided by nobody so far.
        split: The split.
    """

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
        return _splits.find(self, problem_id)

    def get(self, seed: int, index: int) -> Problem:
        """Draws until the question falls into the split, and remembers where."""
        return _splits.remember(self.drawn(seed, index), self, seed, index)

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

    def drawn(self, seed: int, index: int) -> Problem:
        """Draws until the text falls into the split; each draw has a random generator of its own."""
        stream = self.family if self.split_by_prompt else self.name
        for attempt in range(_ATTEMPTS):
            drawn = self.draw(np.random.Generator(np.random.Philox(key=derive_seed(stream, seed, index, attempt))))
            own_split = split_of(drawn.prompt) if self.split_by_prompt else self.played
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
            id=_splits.content_id(self.family, drawn.prompt, drawn.gold, drawn.hints, drawn.false_hints),
            prompt=drawn.prompt,
            gold=drawn.gold,
            hints=drawn.hints,
            false_hints=drawn.false_hints,
            metadata={"family": self.family, "split": split, **drawn.metadata},
        )
