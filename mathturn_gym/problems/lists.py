"""Problems that have a number: lists in memory, and several sources that are the splits of one."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems.base import SPLITS, ProblemSource, first_with, split_of
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Problem

_Order: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]


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
    # What train lacks is cut out of train alone: a published test split stays what it was published as.
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
    # A run opens its source for training, validation and test: said once is enough.
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


# ---- lists


class FiniteSource(ProblemSource):
    """Problems that have a number and an order. They are played in their order, again and again, unless shuffled.

    Args:
        name: What messages call it.
        split: The split that it is, or None.
        shuffle: Stream `seed` runs through shuffled copies of the list, one after the other.
    """

    def __init__(self, name: str, split: str | None = None, *, shuffle: bool = False) -> None:
        self.name, self.split, self.shuffle = name, split, shuffle
        self._order: tuple[tuple[int, int], _Order] | None = None
        self._splits: list[str] | None = None

    @abstractmethod
    def __len__(self) -> int:
        """Number of problems."""

    @abstractmethod
    def __getitem__(self, position: int) -> Problem:
        """The problem at a position, from 0."""

    def __iter__(self) -> Iterator[Problem]:
        """Every problem once, in order."""
        return (self[position] for position in range(len(self)))

    @property
    def size(self) -> int:
        """Number of problems."""
        return len(self)

    def get(self, seed: int, index: int) -> Problem:
        """Problem `index % n`; where it is shuffled, of shuffle number `index // n` of the stream."""
        # Every pass has an order of its own, so that batches do not hold the same problems in each.
        epoch, place = divmod(index, len(self))
        return self[int(self._shuffle(seed, epoch)[place]) if self.shuffle else place]

    def shuffled(self) -> FiniteSource:
        """The same problems in an order that the seed decides."""
        return self if self.shuffle else self._subset(range(len(self)), self.name, self.split, shuffle=True)

    def called(self, split: str) -> FiniteSource:
        """All of its problems as the problems of a split."""
        return self._subset(range(len(self)), self.name, ALIASES.get(split, split), shuffle=self.shuffle)

    def hashed(self, splits: Collection[str], split: str) -> FiniteSource:
        """The problems that the hash of their prompts puts into one of some splits.

        Args:
            splits: Which.
            split: The split that they are then.

        Raises:
            InvalidValueError: there is no such problem.
        """
        return self._kept(self._hashed_splits(), splits, split)

    @abstractmethod
    def _subset(self, positions: Sequence[int], name: str, split: str | None, *, shuffle: bool) -> FiniteSource:
        """The problems at some positions."""

    def _hashed_splits(self) -> list[str]:
        """The split of every problem by the hash of its prompt."""
        return [split_of(problem.prompt) for problem in self]

    def _own_splits(self) -> list[str | None]:
        """The split that every problem says it is of, or None."""
        return [own_split(problem.metadata.get("split")) for problem in self]

    def _part(self, split: str) -> FiniteSource:
        if split == "all":
            return self._subset(range(len(self)), self.name, "all", shuffle=self.shuffle)
        if self._splits is None:
            # Divided when first asked: most lists are played whole, and a large one takes time to hash.
            self._splits, how = divide(self._hashed_splits(), self._own_splits())
            say(self.name, self._splits, how)
        return self._kept(self._splits, [split], split)

    def _kept(self, found: Sequence[str], splits: Collection[str], split: str) -> FiniteSource:
        positions = [position for position, one in enumerate(found) if one in splits]
        if not positions:
            raise no_problem_in(self.name, split, found)
        return self._subset(positions, f"{self.name}:{split}", split, shuffle=self.shuffle)

    def _shuffle(self, seed: int, epoch: int) -> _Order:
        # One order is kept: a stream is asked for its items one after the other.
        if self._order is None or self._order[0] != (seed, epoch):
            rng = np.random.Generator(np.random.Philox(key=derive_seed("order", seed, epoch)))
            self._order = (seed, epoch), rng.permutation(len(self))
        return self._order[1]


class ProblemList(FiniteSource):
    """A list of problems, played in its order.

    Args:
        problems: At least one, ids unique.
        name: What messages call it.
        split: The split that these problems are, or None.
        shuffle: Stream `seed` runs through shuffled copies of the list, one after the other.

    Raises:
        InvalidValueError: the list is empty, or an id comes twice.

    >>> source = ProblemList([Problem("a", "1+1=?", "2"), Problem("b", "1+2=?", "3")])
    >>> [source.get(seed=0, index=i).id for i in range(3)]
    ['a', 'b', 'a']
    """

    def __init__(
        self, problems: Iterable[Problem], name: str = "problems", split: str | None = None, *, shuffle: bool = False
    ) -> None:
        super().__init__(name, split, shuffle=shuffle)
        self.problems: Sequence[Problem] = tuple(problems)
        if not self.problems:
            raise InvalidValueError(f"problems: source {name!r} holds no problem; at least one is needed")
        self._by_id: dict[str, Problem] = {}
        for problem in self.problems:
            if problem.id in self._by_id:
                raise InvalidValueError(f"problems: id {problem.id!r} comes twice in source {name!r}")
            self._by_id[problem.id] = problem
        self._parts: dict[tuple[str | None, str | None], ProblemList] = {}

    def __len__(self) -> int:
        """Number of problems."""
        return len(self.problems)

    def __getitem__(self, position: int) -> Problem:
        """The problem at a position of the list."""
        return self.problems[position]

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
        # Some files write levels as numbers, others as texts: they are compared as texts.
        wanted = family, None if level is None else str(level)
        if wanted not in self._parts:
            kept = [problem for problem in self.problems if _has(problem, *wanted)]
            if not kept:
                raise InvalidValueError(self._nothing_like(*wanted))
            self._parts[wanted] = ProblemList(kept, self.name, self.split, shuffle=self.shuffle)
        return self._parts[wanted]

    def _subset(self, positions: Sequence[int], name: str, split: str | None, *, shuffle: bool) -> ProblemList:
        return ProblemList([self.problems[position] for position in positions], name, split, shuffle=shuffle)

    def _nothing_like(self, family: str | None, level: str | None) -> str:
        known = sorted({(str(p.metadata.get("family", "-")), str(p.metadata.get("level", "-"))) for p in self.problems})
        shown = ", ".join(f"{name} {at}" for name, at in known[:8])
        return f"source {self.name!r} has no problem of family {family!r} and level {level!r}; it has (family, level): {shown}"


def _has(problem: Problem, family: str | None, level: str | None) -> bool:
    found = problem.metadata
    return family in (None, found.get("family")) and (level is None or str(found.get("level")) == level)


class SplitSource(ProblemSource):
    """A source whose splits are given one by one; it plays "train", or its only split, until another is chosen.

    A split that is not given gets the tenth of the train problems that the hash of their prompts gives it, and train
    loses it. The names that data sets use for splits ("dev", "val") are understood.

    Args:
        parts: Sources by the name of their split.
        name: What messages call it.

    Raises:
        InvalidValueError: no split is given, or one of them twice under different names.

    >>> one, two = Problem("a", "1+1=?", "2"), Problem("b", "1+2=?", "3")
    >>> sums = SplitSource({"train": ProblemList([one]), "dev": ProblemList([two]), "test": ProblemList([two])})
    >>> sums.part("validation").get(seed=0, index=0).id
    'b'
    """

    def __init__(self, parts: Mapping[str, ProblemSource], name: str = "problems") -> None:
        if not parts:
            raise InvalidValueError(f"problems: source {name!r} has no split; at least one is needed")
        self.name = name
        self._own: dict[str, ProblemSource] = {}
        for given, source in parts.items():
            split = ALIASES.get(given, given)
            if split in self._own:
                raise InvalidValueError(
                    f"problems: split {split!r} of source {name!r} is given twice ({', '.join(parts)})"
                )
            self._own[split] = source
        self._default = "train" if "train" in self._own else next(iter(self._own))
        self._train: ProblemSource | None = None
        self._missing = [split for split in SPLITS if split not in self._own] if "train" in self._own else []
        self._said = False

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that were given."""
        return tuple(self._own)

    @property
    def size(self) -> int | None:
        """Number of problems of the split that is played."""
        return self._played().size

    def get(self, seed: int, index: int) -> Problem:
        """An item of the split that is played."""
        return self._played().get(seed, index)

    def by_id(self, problem_id: str) -> Problem:
        """The problem of whichever split has it."""
        return first_with(self._own.values(), problem_id, f"no split of source {self.name!r}")

    def part(self, split: str) -> ProblemSource:
        """A split: one of those given (under whatever name), or what train leaves to one that is missing."""
        return self._given(split) if split in self._own else super().part(split)

    def select(self, *, family: str | None = None, level: int | None = None) -> ProblemSource:
        """The part of the split that is played."""
        return self._played().select(family=family, level=level)

    def shuffled(self) -> SplitSource:
        """Every split in an order that the seed decides."""
        return SplitSource({split: source.shuffled() for split, source in self._own.items()}, self.name)

    def leaves(self) -> Iterator[ProblemSource]:
        """The leaves of the split that is played."""
        return self._played().leaves()

    def _played(self) -> ProblemSource:
        return self._given(self._default)

    def _given(self, split: str) -> ProblemSource:
        source = self._own[split]
        # A generator given as {"train": "lins", "test": "lins"} is asked for its own parts, or both would play train
        # problems.
        if not isinstance(source, FiniteSource) and source.split is None and split in SPLITS:
            return source.part(split)
        # Train gives up only what other splits lack: with train, validation and test given, nothing moves.
        if split != "train" or not self._missing:
            return source
        if self._train is None:
            self._train = self._out_of_train([one for one in SPLITS if one not in self._missing], split)
        return self._train

    def _part(self, split: str) -> ProblemSource:
        if split == "all":
            return self._everything()
        if split not in self._missing:
            raise InvalidValueError(
                f"source {self.name!r} has no split {split!r}, and no train problems to make it of; it has"
                f" {', '.join(self._own)} (':all' plays all problems in every split)"
            )
        return self._out_of_train([split], split)

    def _out_of_train(self, splits: Collection[str], split: str) -> ProblemSource:
        train = self._own["train"]
        if not isinstance(train, FiniteSource):
            return train.part(split)
        kept = train.hashed(splits, split)
        if not self._said:
            self._said = True
            missing = [one for one in train._hashed_splits() if one in self._missing]
            counts = [*missing, *["train"] * (len(train) - len(missing))]
            how = f"by a hash of the prompt, there being no split {' and no split '.join(self._missing)}"
            say(f"{self.name} (train)", counts, how)
        return kept

    def _everything(self) -> ProblemList:
        lists = [source for source in self._own.values() if isinstance(source, FiniteSource)]
        if len(lists) < len(self._own):
            raise InvalidValueError(f"source {self.name!r} has endless splits, which cannot be played as one list")
        # A question that stands in two splits is one problem (law 4).
        different = {problem.id: problem for source in lists for problem in source}
        return ProblemList(different.values(), self.name, "all")
