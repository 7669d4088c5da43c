"""Sources as sets of different problems: taking N different ones, counting them, and finding those that two share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mathturn_gym.errors import InvalidValueError, SharedPromptsError, check_int
from mathturn_gym.problems.base import ProblemSource
from mathturn_gym.problems.lists import FiniteSource, ProblemList
from mathturn_gym.types import Problem

# An unseen problem that is drawn as often as the others is missed by twenty draws for each found with a chance of
# e^-20.
_PATIENCE: Final = 20
_LEAST: Final = 1_000


def distinct(source: ProblemSource, n: int, seed: int = 0, *, fewer: bool = False) -> ProblemList:
    """The first n different problems of a stream, as a list: an evaluation on n problems is one on n different ones.

    Args:
        source: Any source.
        n: How many, >= 1.
        seed: Of the stream.
        fewer: Be content with fewer where the source has no more. A generator is taken to have no more when the last
            twenty draws for every problem found (and a thousand at least) brought nothing new.

    Raises:
        InvalidValueError: the source has fewer problems.

    >>> from mathturn_gym.problems import load_problems
    >>> len(distinct(load_problems("lins:test"), 50)), len(distinct(load_problems("lins:test"), 500, fewer=True))
    (50, 87)
    """
    check_int("n", n, low=1)
    found: dict[str, Problem] = {}
    draws = 0
    for problem in _different(source, seed):
        draws += 1
        # By content: a generator repeats questions, and a repeated question is no second piece of evidence (law 4).
        found.setdefault(problem.id, problem)
        if len(found) == n:
            break
    if len(found) < n and not fewer:
        raise InvalidValueError(
            f"source {source.name!r} has {len(found):,} different problems (looked for in {draws:,} draws), and {n:,} are"
            " needed: ask for fewer, or take a larger family"
        )
    return ProblemList(found.values(), source.name, source.split)


def _different(source: ProblemSource, seed: int) -> Iterator[Problem]:
    """The problems of a stream, until it is clear that no new one will come."""
    if source.size is not None:
        yield from (source.get(seed, index) for index in range(source.size))
        return
    seen: set[str] = set()
    index = last_new = 0
    while index - last_new < max(_LEAST, _PATIENCE * len(seen)):
        problem = source.get(seed, index)
        index += 1
        if problem.id not in seen:
            seen.add(problem.id)
            last_new = index
        yield problem


@dataclass(frozen=True, slots=True)
class Distinct:
    """How many different problems a source has.

    Args:
        found: Different ones among the draws.
        draws: How many were drawn.
        estimate: How many there are at least, by Chao's estimator; `found` where all are taken to have been seen.
        complete: All have been seen: the list's length, or no problem was drawn only once.
    """

    found: int
    draws: int
    estimate: int
    complete: bool

    def __str__(self) -> str:
        """`87`, or `more than 4,812 (about 31,000)`."""
        if self.complete:
            return f"{self.found:,}"
        digits = max(0, len(str(self.estimate)) - 2)
        return f"more than {self.found:,} (about {round(self.estimate, -digits):,})"


def count_distinct(source: ProblemSource, draws: int = 20_000, seed: int = 0) -> Distinct:
    """How many different problems a source has: counted for a list, estimated from draws for a generator.

    The estimate is Chao's lower bound, found + (draws - 1) / draws * f1 (f1 - 1) / (2 (f2 + 1)) with f1 problems drawn
    once and f2 drawn twice (A. Chao, *Scandinavian Journal of Statistics* 11, 1984, bias-corrected form).

    Args:
        source: Any source.
        draws: How many to draw from a generator.
        seed: Of the stream.

    >>> from mathturn_gym.problems import load_problems
    >>> str(count_distinct(load_problems("lins:test")))
    '87'
    """
    check_int("draws", draws, low=1)
    if source.size is not None:
        return Distinct(source.size, source.size, source.size, complete=True)
    times: dict[str, int] = {}
    for index in range(draws):
        if index % _LEAST == 0 and index >= _PATIENCE * len(times) > 0:  # each seen twenty times: there are no others
            draws = index
            break
        problem_id = source.get(seed, index).id
        times[problem_id] = times.get(problem_id, 0) + 1
    once, twice = (sum(count == n for count in times.values()) for n in (1, 2))
    # f2 + 1: the bias-corrected form is defined where no problem was drawn twice.
    unseen = (draws - 1) / draws * once * (once - 1) / (2 * (twice + 1))
    return Distinct(len(times), draws, round(len(times) + unseen), complete=not once)


def overlap(a: ProblemSource, b: ProblemSource, *, draws: int = 2_000) -> tuple[str, ...]:
    """The prompts that two sources share, in alphabetical order.

    Lists are compared completely. Of a generator the first `draws` items of stream 0 are looked at, so a rare prompt may
    be missed. Prompts that do not tell their answer (a hidden number) are not counted: knowing them does not help.

    Args:
        a: Any source.
        b: Another.
        draws: Items of a generator, shared among the parts of a mixture.

    >>> from mathturn_gym.problems import load_problems
    >>> len(overlap(load_problems("lins:train"), load_problems("lins:test")))
    0
    >>> len(overlap(load_problems("lins:all"), load_problems("lins:test"))) > 60
    True
    """
    check_int("draws", draws, low=1)
    return tuple(sorted(_prompts(a, draws) & _prompts(b, draws)))


def _prompts(source: ProblemSource, draws: int) -> set[str]:
    leaves = list(source.leaves())
    found: set[str] = set()
    for leaf in leaves:
        if isinstance(leaf, FiniteSource):
            found.update(problem.prompt for problem in leaf)
        # A hidden number has one prompt for all answers: sharing it gives nothing away.
        elif leaf.prompts_tell_answers:
            found.update(leaf.get(0, index).prompt for index in range(max(1, draws // len(leaves))))
    return found


def check_disjoint(train: ProblemSource, other: ProblemSource, *, allow: bool = False, draws: int = 2_000) -> None:
    """Refuses to train and to evaluate on the same prompts.

    It is allowed where the user asks for it by name: `allow=True`, or two sources whose split is "all".

    Args:
        train: What is trained on.
        other: What is evaluated on.
        allow: Let them share prompts.
        draws: See `overlap`.

    Raises:
        SharedPromptsError: they share prompts; the message says how many, and shows one.
    """
    # ":all" on both sides is how a user says that fitting is to be measured.
    if allow or (train.split == "all" and other.split == "all"):
        return
    shared = overlap(train, other, draws=draws)
    if shared:
        raise SharedPromptsError(
            f"the problems trained on ({train.name!r}) and evaluated on ({other.name!r}) share {len(shared):,} prompts, the"
            f" first of them {shared[0][:80]!r}: take different splits of one source, or ask for it by name (':all' in both,"
            " or allow=True)"
        )
