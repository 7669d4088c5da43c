"""Several sources as one: weighted mixtures, and choosing problems by how often they are solved."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from mathturn_gym.errors import InvalidValueError, check_float
from mathturn_gym.problems.base import ProblemSource, check_split, first_with
from mathturn_gym.problems.lists import FiniteSource, ProblemList
from mathturn_gym.seeding import derive_seed, uniforms
from mathturn_gym.types import Episode, Problem


class Mixture(ProblemSource):
    """A weighted mixture; which source item (seed, index) comes from depends on these two alone.

    Args:
        sources: At least one, with names of their own.
        weights: One per source, >= 0, not all 0; equal by default.
        name: Used in messages.

    Raises:
        InvalidValueError: no source, two of the same name, or weights that cannot be.

    >>> from mathturn_gym.problems.families import Family
    >>> Mixture([Family("linear", 1), Family("primes", 1)], [3, 1]).get(seed=0, index=0).metadata["family"]
    'primes'
    """

    def __init__(
        self, sources: Sequence[ProblemSource], weights: Sequence[float] | None = None, name: str | None = None
    ) -> None:
        self.sources = tuple(sources)
        if not self.sources:
            raise InvalidValueError("sources must hold at least one source, got none")
        # Two sources of one name would be one to statistics by source, and to ids.
        names = [source.name for source in self.sources]
        for source_name in names:
            if names.count(source_name) > 1:
                raise InvalidValueError(f"sources must have different names: {source_name!r} comes twice")
        weights = [1.0] * len(names) if weights is None else list(weights)
        if len(weights) != len(names):
            raise InvalidValueError(f"weights must have one entry per source: {len(weights)} for {len(names)}")
        self.weights = tuple(check_float(f"weights[{i}]", weight, low=0.0) for i, weight in enumerate(weights))
        if not sum(self.weights):
            raise InvalidValueError("weights must not all be 0")
        self._ends = np.cumsum(self.weights) / sum(self.weights)
        self.name = "+".join(names) if name is None else name
        splits = {source.split for source in self.sources}
        self.split = splits.pop() if len(splits) == 1 else None

    def get(self, seed: int, index: int) -> Problem:
        """Item `index` of the source that the lot of (seed, index) falls on."""
        lot = uniforms(derive_seed("mixture", seed, index), 1)[0]
        # The last end may be rounded to just below 1.
        place = min(int(np.searchsorted(self._ends, lot, side="right")), len(self.sources) - 1)
        return self.sources[place].get(seed, index)

    def by_id(self, problem_id: str) -> Problem:
        """The problem of the first source that has it."""
        return first_with(self.sources, problem_id, f"none of the {len(self.sources)} sources of {self.name!r}")

    def part(self, split: str) -> ProblemSource:
        """The mixture of the sources' parts, with their weights."""
        return self if self.split == check_split(split) else self._of(lambda source: source.part(split))

    def shuffled(self) -> Mixture:
        """The mixture of the sources, each in an order that the seed decides."""
        return self._of(lambda source: source.shuffled())

    def leaves(self) -> Iterator[ProblemSource]:
        """The leaves of the sources."""
        return chain.from_iterable(source.leaves() for source in self.sources)

    def select(self, *, family: str | None = None, level: int | None = None) -> ProblemSource:
        """The mixture of those sources that have the family and level, with their weights."""
        if family is None and level is None:
            return self
        kept: list[tuple[ProblemSource, float]] = []
        for source, weight in zip(self.sources, self.weights, strict=True):
            try:
                kept.append((source.select(family=family, level=level), weight))
            except InvalidValueError:
                continue
        if not kept:
            raise InvalidValueError(f"no source of {self.name!r} has family {family!r} and level {level!r}")
        # The source itself: its name and size then tell what is played.
        if len(kept) == 1:
            return kept[0][0]
        return Mixture([source for source, _ in kept], [weight for _, weight in kept], self.name)

    def _of(self, change: Callable[[ProblemSource], ProblemSource]) -> Mixture:
        return Mixture([change(source) for source in self.sources], self.weights, self.name)


def pass_rates(episodes: Iterable[Episode]) -> dict[str, float]:
    """The share of solved episodes per problem id.

    >>> pass_rates([])
    {}
    """
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for episode in episodes:
        outcomes[episode.problem_id].append(episode.solved)
    return {problem_id: sum(solved) / len(solved) for problem_id, solved in outcomes.items()}


def filter_by_pass_rate(
    source: FiniteSource, rates: Mapping[str, float], *, low: float = 0.0, high: float = 1.0
) -> ProblemList:
    """The problems whose measured pass rate is in (low, high): neither always nor never solved, by default.

    Problems without a measured rate are left out. A group of episodes that all succeed, or all fail, has no advantage to
    learn from (AReaL drops such prompts the same way).

    Args:
        source: A list of problems (`distinct(source, n)` makes one of a generator).
        rates: By problem id, e.g. from `pass_rates`.
        low: The rate must be above it.
        high: The rate must be below it.

    Raises:
        InvalidValueError: bounds outside [0, 1], or no problem is left.
    """
    low, high = check_float("low", low, low=0.0, high=1.0), check_float("high", high, low=0.0, high=1.0)
    problems = list(source)
    # Strictly between: a group that always or never succeeds has no advantage in it (DAPO's dynamic sampling,
    # arXiv:2503.14476).
    kept = [problem for problem in problems if low < rates.get(problem.id, -1.0) < high]
    if not kept:
        measured = sum(problem.id in rates for problem in problems)
        raise InvalidValueError(
            f"no problem of {source.name!r} has a pass rate between {low} and {high} ({measured} of {len(source)} have one)"
        )
    return ProblemList(kept, source.name, source.split, shuffle=source.shuffle)
