"""What a source of problems is: item (seed, index) -> Problem, and nothing else decides it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final, NoReturn

import numpy as np

from mathturn_gym.errors import InvalidValueError, raise_unknown_name
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Problem

__all__ = ["SPLITS", "FiniteSource", "Generator", "ProblemSource", "split_of"]

SPLITS: Final = ("train", "validation", "test")


class ProblemSource(ABC):
    """Problems by number.

    Attributes:
        name: Begins the ids of its problems.
    """

    name: str

    @abstractmethod
    def get(self, seed: int, index: int) -> Problem:
        """Problem `index` (>= 0, without end) of the stream `seed`; the same for the same arguments, always."""

    @abstractmethod
    def by_id(self, problem_id: str) -> Problem:
        """The problem that has this id.

        Raises:
            InvalidValueError: there is none.
        """

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


class FiniteSource(ProblemSource):
    """A list of problems; stream `seed` runs through shuffled copies of it, one after the other.

    Args:
        problems: At least one, ids unique.
        name: Used in messages.

    Raises:
        InvalidValueError: the list is empty, or an id comes twice.
    """

    def __init__(self, problems: Iterable[Problem], name: str = "problems") -> None:
        self.name = name
        self.problems: Sequence[Problem] = tuple(problems)
        if not self.problems:
            raise InvalidValueError(f"problems: source {name!r} holds no problem; at least one is needed")
        self._by_id: dict[str, Problem] = {}
        for problem in self.problems:
            if problem.id in self._by_id:
                raise InvalidValueError(f"problems: id {problem.id!r} comes twice in source {name!r}")
            self._by_id[problem.id] = problem
        self._order: tuple[tuple[int, int], np.ndarray[tuple[int], np.dtype[np.int64]]] | None = None
        self._parts: dict[tuple[str | None, str | None], FiniteSource] = {}

    def __len__(self) -> int:
        """Number of problems."""
        return len(self.problems)

    def __getitem__(self, position: int) -> Problem:
        """The problem at a position of the list."""
        return self.problems[position]

    def get(self, seed: int, index: int) -> Problem:
        """Problem `index % n` of shuffle number `index // n`."""
        epoch, place = divmod(index, len(self.problems))
        if self._order is None or self._order[0] != (seed, epoch):
            rng = np.random.Generator(np.random.Philox(key=derive_seed("order", seed, epoch)))
            self._order = (seed, epoch), rng.permutation(len(self.problems))
        return self.problems[int(self._order[1][place])]

    def by_id(self, problem_id: str) -> Problem:
        """The problem with this id."""
        if problem_id not in self._by_id:
            sample = list(self._by_id)[:3]
            raise InvalidValueError(
                f"problem_id {problem_id!r} is not in source {self.name!r}, which holds {len(self)} problems"
                f" ({', '.join(sample)} …)"
            )
        return self._by_id[problem_id]

    def select(self, *, family: str | None = None, level: int | None = None) -> ProblemSource:
        """The problems whose metadata have this family and level."""
        if family is None and level is None:
            return self
        wanted = family, None if level is None else str(level)
        if wanted not in self._parts:
            self._parts[wanted] = FiniteSource(
                [p for p in self.problems if _has(p, *wanted)] or self._none(*wanted), self.name
            )
        return self._parts[wanted]

    def part(self, split: str) -> FiniteSource:
        """The problems whose text falls into a split (80 % train, 10 % validation, 10 % test, by a stable hash).

        Args:
            split: "train", "validation", "test", or "all".

        Raises:
            InvalidValueError: unknown split, or no problem falls into it.
        """
        if split not in (*SPLITS, "all"):
            raise_unknown_name("split", split, (*SPLITS, "all"))
        if split == "all":
            return self
        return FiniteSource([p for p in self.problems if split_of(p.prompt) == split], f"{self.name}:{split}")

    def _none(self, family: str | None, level: str | None) -> NoReturn:
        known = sorted({(str(p.metadata.get("family", "-")), str(p.metadata.get("level", "-"))) for p in self.problems})
        shown = ", ".join(f"{name} {at}" for name, at in known[:8])
        raise InvalidValueError(
            f"source {self.name!r} has no problem of family {family!r} and level {level!r}; it has (family, level): {shown}"
        )


def _has(problem: Problem, family: str | None, level: str | None) -> bool:
    found = problem.metadata
    return family in (None, found.get("family")) and (level is None or str(found.get("level")) == level)


class Generator(ProblemSource):
    """Procedural problems, split into train, validation and test by a hash of their text.

    A subclass draws one problem from a random generator; that is all. Problems of different splits never have the
    same text, whatever their seeds, unless `split_by_prompt` is False (one text with many answers).

    Args:
        family: Name of the family, e.g. "lins".
        split: "train", "validation", "test", or "all".

    Raises:
        InvalidValueError: unknown split.
    """

    split_by_prompt = True

    def __init__(self, family: str, split: str = "train") -> None:
        if split not in (*SPLITS, "all"):
            raise_unknown_name("split", split, (*SPLITS, "all"))
        self.family = family
        self.split = split
        self.name = f"{family}:{split}"

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> Problem:
        """One problem with the the id "-" (`get` gives it its own), drawn from `rng` alone."""

    def get(self, seed: int, index: int) -> Problem:
        """Draws until the text falls into the split; each draw has a random generator of its own."""
        for attempt in range(10_000):
            place = (self.family, seed, index, attempt) if self.split_by_prompt else (self.name, seed, index, attempt)
            drawn = self.draw(np.random.Generator(np.random.Philox(key=derive_seed(*place))))
            if self.split == "all" or not self.split_by_prompt or split_of(drawn.prompt) == self.split:
                return Problem(
                    id=f"{self.name}/{seed}/{index}",
                    prompt=drawn.prompt,
                    gold=drawn.gold,
                    hints=drawn.hints,
                    false_hints=drawn.false_hints,
                    metadata={"family": self.family, "split": self.split, **drawn.metadata},
                )
        raise InvalidValueError(f"source {self.name!r} has no problem in split {self.split!r}")

    def by_id(self, problem_id: str) -> Problem:
        """Makes the problem again from the seed and index in its id."""
        name, *place = problem_id.rsplit("/", 2)
        if name != self.name or len(place) != 2 or not all(part.isdecimal() for part in place):
            raise InvalidValueError(
                f"problem_id {problem_id!r} is not of source {self.name!r}, whose ids are '{self.name}/SEED/INDEX'"
            )
        return self.get(int(place[0]), int(place[1]))

    def select(self, *, family: str | None = None, level: int | None = None) -> ProblemSource:
        """This source itself, where it is the family; it has no levels."""
        if family not in (None, self.family) or level is not None:
            raise InvalidValueError(
                f"source {self.name!r} has the family {self.family!r} without levels, got family {family!r}, level {level!r}"
            )
        return self


def split_of(text: str) -> str:
    """The split that a text belongs to: 80 % train, 10 % validation, 10 % test, by a stable hash.

    >>> [split_of(f"Solve {a}x+1=9 for x.") for a in (2, 4, 8)]
    ['train', 'train', 'train']
    """
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return _SPLIT_BY_TENTH[int.from_bytes(digest, "big") % 10]


_SPLIT_BY_TENTH: Final = ("train",) * 8 + SPLITS[1:]
