"""What episode i of a collection is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mathturn_gym.errors import InvalidValueError, check_float, check_int
from mathturn_gym.seeding import derive_seed

__all__ = ["EpisodePlan"]


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """What episode i of a collection is: its problem, its group, its samples. Depends on i and the seed alone.

    Args:
        seed: The collection's seed.
        group_size: Consecutive episodes that play the same problem.
        problem_ids: Play these instead of the stream of `seed`.
        discount: For the episodes' `returns`.

    Raises:
        InvalidValueError: an argument is outside what is allowed.

    >>> plan = EpisodePlan(seed=4, group_size=2)
    >>> [plan.number(index) for index in range(4)], plan.group(3)
    ([0, 0, 1, 1], '4/1')
    """

    seed: int = 0
    group_size: int = 1
    problem_ids: Sequence[str] | None = None
    discount: float = 1.0

    def __post_init__(self) -> None:
        """Checks the ranges."""
        check_int("seed", self.seed, low=0)
        check_int("group_size", self.group_size, low=1)
        check_float("discount", self.discount, low=0.0, high=1.0)
        if isinstance(self.problem_ids, str):
            raise InvalidValueError(f"problem_ids must be a list of ids, got the text {self.problem_ids!r}")
        if self.problem_ids is not None and not self.problem_ids:
            raise InvalidValueError("problem_ids must hold at least one id, got none")

    def number(self, index: int) -> int:
        """Number of the problem that episode `index` plays."""
        return index // self.group_size

    def options(self, number: int) -> dict[str, Any]:
        """Options of `reset` for problem `number`."""
        if self.problem_ids is None:
            return {"index": number}
        return {"problem_id": self.problem_ids[number % len(self.problem_ids)]}

    def group(self, index: int) -> str | None:
        """Name that episodes on one problem share, None where every episode has a problem of its own."""
        return None if self.group_size == 1 else f"{self.seed}/{self.number(index)}"

    def turn_seed(self, index: int, turn: int) -> int:
        """Seed of one completion."""
        return derive_seed(self.seed, index, turn)

    def session(self, index: int) -> str:
        """Name that all turns of an episode share; the episodes of a group begin alike."""
        return f"{self.seed}/{self.number(index)}/{index}"
