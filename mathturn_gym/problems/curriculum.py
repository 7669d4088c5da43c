"""A curriculum that follows the policy: problems near the edge of what it can solve."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np

from mathturn_gym.errors import InvalidValueError, check_float, check_int
from mathturn_gym.problems.base import ProblemSource
from mathturn_gym.problems.families import FAMILIES, Family
from mathturn_gym.problems.families.registry import LEVELS
from mathturn_gym.problems.mixtures import Mixture
from mathturn_gym.seeding import derive_seed, uniforms
from mathturn_gym.types import Episode, Problem

Ladder: TypeAlias = "ProblemSource | str | Sequence[ProblemSource | str]"
# Distance from the target band at which a weight has fallen to 1/e: a cell solved in all cases, .3 above the band,
# keeps a twentieth.
_SOFTNESS: Final = 0.1
_RANGE: Final = re.compile(r"(?P<low>\d+)(?:-(?P<high>\d+))?")


class Curriculum(ProblemSource):
    """Sources that are drawn from according to the success rate so far.

    A *cell* is a source of its own, such as a family at a level. Cells stand on *ladders*, from easy to hard. A cell's
    rate is the share of solved episodes among its last `window`. Cells in the target band weigh 1, cells outside it less
    and less: exp(-distance / 0.1). A cell without enough history weighs 1 at the foot of its ladder, and otherwise as soon
    as the cell below it is solved more often than the band's lower end. A share `explore` of the items is drawn from all
    cells alike, so that no rate grows stale.

    Item (seed, index) depends on these two and on the recorded history, on nothing else: the same history gives the same
    items, whatever the order of `get` calls in between. Every problem says in `metadata["cell"]` which cell it is from.
    `state_dict` keeps the history in a checkpoint.

    Args:
        ladders: Each a source, or a sequence of sources from easy to hard; names (`"lins"`, `"linear@2"`) stand for
            sources.
        band: Success rates to aim at, 0 <= low < high <= 1.
        window: Episodes of a cell that count.
        minimum: Episodes that a cell needs before its rate counts.
        explore: Share of items drawn from all cells alike, in [0, 1].

    Raises:
        InvalidValueError: an argument outside what is allowed.

    >>> curriculum = Curriculum([["add1", "add2"], "lins"], minimum=2)
    >>> for _ in range(2):
    ...     curriculum.record("add1", solved=True)
    >>> {cell: round(weight, 2) for cell, weight in curriculum.weights().items()}
    {'add1': 0.06, 'add2': 0.47, 'lins': 0.47}
    """

    def __init__(
        self,
        ladders: Sequence[Ladder],
        *,
        band: tuple[float, float] = (0.3, 0.7),
        window: int = 64,
        minimum: int = 8,
        explore: float = 0.1,
    ) -> None:
        if isinstance(ladders, str) or not ladders:
            raise InvalidValueError(f"ladders must hold at least one source, got {ladders!r}")
        low, high = (check_float("band", end, low=0.0, high=1.0) for end in band)
        if low >= high:
            raise InvalidValueError(f"band must be (low, high) with low < high, got {band!r}")
        self.band = low, high
        self.minimum = check_int("minimum", minimum, low=1, high=check_int("window", window, low=1))
        self.explore = check_float("explore", explore, low=0.0, high=1.0)
        self._cells, self._below = _cells(ladders)
        self._history = _History(self._cells, window)
        self._ends: tuple[int, np.ndarray[tuple[int], np.dtype[np.float64]]] | None = None
        self.name = f"curriculum:{','.join(self._cells)}"
        splits = {source.split for source in self._cells.values()}
        self.split = splits.pop() if len(splits) == 1 else None

    @classmethod
    def of_families(
        cls,
        families: Sequence[str] = FAMILIES,
        levels: Sequence[int] = LEVELS,
        *,
        form: str = "plain",
        **settings: Any,
    ) -> Curriculum:
        """One ladder per family, whose cells are its levels.

        Args:
            families: Their names.
            levels: The levels to use.
            form: "plain" text or "latex".
            **settings: `band`, `window`, `minimum` and `explore`, see `Curriculum`.

        Raises:
            InvalidValueError: unknown family or level; an argument outside what is allowed.
        """
        if isinstance(families, str) or not families or not levels:
            raise InvalidValueError(f"families and levels must hold at least one each, got {families!r}, {levels!r}")
        ladders = [[Family(name, level, form=form) for level in sorted(set(levels))] for name in families]
        return cls(ladders, **settings)

    @classmethod
    def named(cls, text: str, load: Callable[[str], ProblemSource]) -> Curriculum:
        """The curriculum of a text such as `integers,linear@1-3,add1<add2<add3,lins`.

        Commas separate ladders; `<` separates the cells of one, from easy to hard. `FAMILY@LOW-HIGH` is a ladder of levels,
        and families without levels have those of the next one that has some.

        Args:
            text: As above.
            load: Gives the source of a name.

        Raises:
            InvalidValueError: not of this form, or an unknown name.
        """
        form = "problems must be 'curriculum:FAMILY,FAMILY@LOW-HIGH' or 'curriculum:NAME<NAME,NAME'"
        ladders: list[list[ProblemSource]] = []
        # Read from the back, so that "integers,linear@1-3" gives integers the levels that stand behind it.
        levels: range | None = None
        for written in reversed(text.split(",")):
            family, at, span = written.partition("@")
            match = _RANGE.fullmatch(span)
            if "<" not in written and family in FAMILIES and (match is not None or not at):
                if match is not None:
                    levels = range(int(match["low"]), int(match["high"] or match["low"]) + 1)
                if not levels:
                    raise InvalidValueError(f"{form}, got {written!r}, which has no levels")
                ladders.append([Family(family, level) for level in levels])
            elif written:
                ladders.append([load(cell) for cell in written.split("<")])
            else:
                raise InvalidValueError(f"{form}, got 'curriculum:{text}'")
        return cls(ladders[::-1])

    def record(self, cell: str, *, solved: bool) -> None:
        """Adds an outcome to the history.

        Raises:
            InvalidValueError: the curriculum has no such cell.
        """
        if cell not in self._cells:
            raise InvalidValueError(f"curriculum has no cell {cell!r}; it has {', '.join(self._cells)}")
        self._history.add(cell, bool(solved))

    def record_episode(self, episode: Episode) -> None:
        """`record` for an episode of this curriculum: `collect(…, on_episode=curriculum.record_episode)`.

        Episodes end in an order that depends on the batching; where that must not matter, record them in order of their
        index once `collect` has returned.
        """
        self.record(str(episode.metadata.get("cell")), solved=episode.solved)

    def rates(self) -> dict[str, float | None]:
        """The success rate of each cell, None where too few episodes are known."""
        return {cell: self._rate(cell) for cell in self._cells}

    def weights(self) -> dict[str, float]:
        """The chance of each cell; they add up to 1."""
        scores = {cell: self._score(cell) for cell in self._cells}
        total, count = sum(scores.values()), len(scores)
        return {
            cell: self.explore / count + (1 - self.explore) * (score / total if total else 1 / count)
            for cell, score in scores.items()
        }

    def get(self, seed: int, index: int) -> Problem:
        """Item `index` of the cell that the lot of (seed, index) falls on under the present weights."""
        # Weights change with the history alone, and `get` is called for every episode.
        if self._ends is None or self._ends[0] != self._history.version:
            self._ends = self._history.version, np.cumsum(list(self.weights().values()))
        ends = self._ends[1]
        lot = uniforms(derive_seed("curriculum", seed, index), 1)[0] * ends[-1]
        cell = list(self._cells)[min(int(np.searchsorted(ends, lot, side="right")), len(self._cells) - 1)]
        return _marked(self._cells[cell].get(seed, index), cell)

    def by_id(self, problem_id: str) -> Problem:
        """The problem of the first cell that has it."""
        for cell, source in self._cells.items():
            try:
                return _marked(source.by_id(problem_id), cell)
            except InvalidValueError:
                continue
        raise InvalidValueError(
            f"problem_id {problem_id!r} is in none of the {len(self._cells)} cells of {self.name!r}"
        )

    def part(self, split: str) -> ProblemSource:
        """Train: this curriculum, its cells restricted to train problems, with the same history.

        Every other split: all cells alike, whatever the history, so that evaluations stay comparable.
        """
        if self.split == split == "train":
            return self
        cells = {cell: source.part(split) for cell, source in self._cells.items()}
        if split != "train":
            # Evaluations must not drift with the history that they measure.
            return Mixture(list(cells.values()), name="+".join(cells))
        other = copy.copy(self)
        other._cells, other.split = cells, "train"
        return other

    def shuffled(self) -> Curriculum:
        """This curriculum, with the same history, its cells in orders that the seed decides."""
        other = copy.copy(self)
        other._cells = {cell: source.shuffled() for cell, source in self._cells.items()}
        return other

    def select(self, *, family: str | None = None, level: int | None = None) -> ProblemSource:
        """The cells of this family and level, unweighted."""
        if family is None and level is None:
            return self
        return Mixture(list(self._cells.values()), name=self.name).select(family=family, level=level)

    def leaves(self) -> Iterator[ProblemSource]:
        """The leaves of the cells."""
        return chain.from_iterable(source.leaves() for source in self._cells.values())

    def state_dict(self) -> dict[str, list[bool]]:
        """The history, as JSON types."""
        return self._history.to_dict()

    def load_state_dict(self, state: Mapping[str, Sequence[bool]]) -> None:
        """Puts a history of `state_dict` in place of the present one.

        Raises:
            InvalidValueError: it is the history of other cells.
        """
        if set(state) != set(self._cells):
            raise InvalidValueError(f"state has the cells {sorted(state)}, this curriculum {sorted(self._cells)}")
        self._history.replace(state)

    def _rate(self, cell: str) -> float | None:
        outcomes = self._history[cell]
        return sum(outcomes) / len(outcomes) if len(outcomes) >= self.minimum else None

    def _score(self, cell: str) -> float:
        rate, (low, high) = self._rate(cell), self.band
        if rate is not None:
            return math.exp(-max(low - rate, rate - high, 0.0) / _SOFTNESS)
        # Without a history of its own a cell is opened by the cell below it, so that hard problems are not asked before
        # easy ones can be solved.
        below = self._below[cell]
        if below is None:
            return 1.0
        rate_below = self._rate(below)
        return 1.0 if rate_below is not None and rate_below > low else 0.0


class _History:
    """The last outcomes of every cell, shared by a curriculum and its train part; every change raises `version`."""

    def __init__(self, cells: Iterable[str], window: int) -> None:
        self._outcomes: dict[str, deque[bool]] = {cell: deque(maxlen=window) for cell in cells}
        self.version = 0

    def __getitem__(self, cell: str) -> deque[bool]:
        return self._outcomes[cell]

    def add(self, cell: str, solved: bool) -> None:
        self._outcomes[cell].append(solved)
        self.version += 1

    def replace(self, state: Mapping[str, Sequence[bool]]) -> None:
        for cell, outcomes in self._outcomes.items():
            outcomes.clear()
            outcomes.extend(bool(solved) for solved in state[cell])
        self.version += 1

    def to_dict(self) -> dict[str, list[bool]]:
        return {cell: list(outcomes) for cell, outcomes in self._outcomes.items()}


def _cells(ladders: Sequence[Ladder]) -> tuple[dict[str, ProblemSource], dict[str, str | None]]:
    """The sources by the name of their cell (the source's without its split), and the cell below each."""
    from mathturn_gym.problems import load_problems

    cells: dict[str, ProblemSource] = {}
    below: dict[str, str | None] = {}
    for ladder in ladders:
        lower: str | None = None
        for given in [ladder] if isinstance(ladder, (str, ProblemSource)) else ladder:
            source = load_problems(given)
            # Without the split: train and test of a run must agree on the names in the history.
            cell = source.name.removesuffix(f":{source.split or 'train'}")
            if cell in cells:
                raise InvalidValueError(f"ladders must hold every source once: {cell!r} comes twice")
            cells[cell], below[cell], lower = source, lower, cell
    if not cells:
        raise InvalidValueError(f"ladders must hold at least one source, got {ladders!r}")
    return cells, below


def _marked(problem: Problem, cell: str) -> Problem:
    return dataclasses.replace(problem, metadata={**problem.metadata, "cell": cell})
