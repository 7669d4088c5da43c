"""A curriculum that follows the policy: problems near the edge of what it can solve."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from mathturn_gym.errors import InvalidValueError, check_float, check_int
from mathturn_gym.problems.base import ProblemSource
from mathturn_gym.problems.families import FAMILIES, LEVELS, Family
from mathturn_gym.problems.mixtures import Mixture
from mathturn_gym.seeding import derive_seed, uniforms
from mathturn_gym.types import Episode, Problem

__all__ = ["Curriculum"]

_SOFTNESS: Final = 0.1


class Curriculum(ProblemSource):
    """Procedural families whose levels are chosen by the success rate so far.

    A cell is a family at a level. Its rate is the share of solved episodes among its last `window`. Cells in the target
    band weigh 1, cells outside it less and less: exp(-distance / 0.1). A cell without enough history weighs 1 at level 1,
    and otherwise as soon as the level below it is solved more often than the band's lower end. A share `explore` of the
    items is drawn from all cells alike, so that no rate grows stale.

    Item (seed, index) depends on these two and on the recorded history, on nothing else: the same history gives the same
    items, whatever the order of `get` calls in between. `state_dict` keeps the history in a checkpoint.

    Args:
        families: Their names.
        levels: The levels to use.
        band: Success rates to aim at, 0 <= low < high <= 1.
        window: Episodes of a cell that count.
        minimum: Episodes that a cell needs before its rate counts.
        explore: Share of items drawn from all cells alike, in [0, 1].
        split: Of the families.
        form: Of the families.

    Raises:
        InvalidValueError: an argument outside what is allowed.

    >>> curriculum = Curriculum(["integers"], minimum=2)
    >>> for _ in range(2):
    ...     curriculum.record("integers", 1, solved=True)
    >>> curriculum.weights()["integers@2"] > curriculum.weights()["integers@3"]
    True
    """

    def __init__(
        self,
        families: Sequence[str] = FAMILIES,
        levels: Sequence[int] = LEVELS,
        *,
        band: tuple[float, float] = (0.3, 0.7),
        window: int = 64,
        minimum: int = 8,
        explore: float = 0.1,
        split: str = "train",
        form: str = "plain",
    ) -> None:
        if isinstance(families, str) or not families or not levels:
            raise InvalidValueError(
                f"families and levels must hold at least one name each, got {families!r}, {levels!r}"
            )
        low, high = (check_float("band", end, low=0.0, high=1.0) for end in band)
        if low >= high:
            raise InvalidValueError(f"band must be (low, high) with low < high, got {band!r}")
        self.band = low, high
        self.window = check_int("window", window, low=1)
        self.minimum = check_int("minimum", minimum, low=1, high=self.window)
        self.explore = check_float("explore", explore, low=0.0, high=1.0)
        self.name = f"curriculum:{split}"
        self._levels = sorted(set(levels))
        self._cells = {(name, level): Family(name, level, split, form) for name in families for level in self._levels}
        self._history: dict[tuple[str, int], deque[bool]] = {cell: deque(maxlen=window) for cell in self._cells}
        self._ends: np.ndarray[Any, np.dtype[np.float64]] | None = None

    def record(self, family: str, level: int, *, solved: bool) -> None:
        """Adds an outcome to the history.

        Raises:
            InvalidValueError: the curriculum has no such cell.
        """
        if (family, level) not in self._history:
            raise InvalidValueError(f"curriculum has no cell {family}@{level}; it has {', '.join(self.weights())}")
        self._history[family, level].append(bool(solved))
        self._ends = None

    def record_episode(self, episode: Episode) -> None:
        """`record` for an episode of this curriculum: `collect(…, on_episode=curriculum.record_episode)`.

        Episodes end in an order that depends on the batching; where that must not matter, record them in order of their
        index once `collect` has returned.
        """
        self.record(str(episode.metadata["family"]), int(episode.metadata["level"]), solved=episode.solved)

    def rates(self) -> dict[str, float | None]:
        """The success rate of each cell, None where too few episodes are known."""
        return {f"{name}@{level}": self._rate((name, level)) for name, level in self._cells}

    def weights(self) -> dict[str, float]:
        """The chance of each cell; they add up to 1."""
        scores = {cell: self._score(cell) for cell in self._cells}
        total, count = sum(scores.values()), len(scores)
        return {
            f"{name}@{level}": self.explore / count + (1 - self.explore) * (score / total if total else 1 / count)
            for (name, level), score in scores.items()
        }

    def get(self, seed: int, index: int) -> Problem:
        """Item `index` of the cell that the lot of (seed, index) falls on under the present weights."""
        if self._ends is None:
            self._ends = np.cumsum(list(self.weights().values()))
        lot = uniforms(derive_seed("curriculum", seed, index), 1)[0] * self._ends[-1]
        place = min(int(np.searchsorted(self._ends, lot, side="right")), len(self._cells) - 1)
        return list(self._cells.values())[place].get(seed, index)

    def by_id(self, problem_id: str) -> Problem:
        """The problem of the cell that its id names."""
        return self._mixture().by_id(problem_id)

    def select(self, *, family: str | None = None, level: int | None = None) -> ProblemSource:
        """The cells of this family and level, unweighted."""
        return self if family is None and level is None else self._mixture().select(family=family, level=level)

    def state_dict(self) -> dict[str, list[bool]]:
        """The history, as JSON types."""
        return {f"{name}@{level}": list(outcomes) for (name, level), outcomes in self._history.items()}

    def load_state_dict(self, state: Mapping[str, Sequence[bool]]) -> None:
        """Puts a history of `state_dict` in place of the present one.

        Raises:
            InvalidValueError: it is the history of other cells.
        """
        if set(state) != set(self.state_dict()):
            raise InvalidValueError(f"state has the cells {sorted(state)}, this curriculum {sorted(self.state_dict())}")
        for cell, outcomes in self._history.items():
            outcomes.clear()
            outcomes.extend(bool(solved) for solved in state[f"{cell[0]}@{cell[1]}"])
        self._ends = None

    def _rate(self, cell: tuple[str, int]) -> float | None:
        outcomes = self._history[cell]
        return sum(outcomes) / len(outcomes) if len(outcomes) >= self.minimum else None

    def _score(self, cell: tuple[str, int]) -> float:
        rate, (low, high) = self._rate(cell), self.band
        if rate is not None:
            distance = max(low - rate, rate - high, 0.0)
            return math.exp(-distance / _SOFTNESS)
        place = self._levels.index(cell[1])
        if place == 0:
            return 1.0
        below = self._rate((cell[0], self._levels[place - 1]))
        return 1.0 if below is not None and below > low else 0.0

    def _mixture(self) -> Mixture:
        return Mixture(list(self._cells.values()), name=self.name)
