"""The problems that a trainer's data set holds, found again when it hands back a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems import FiniteSource, ProblemList, ProblemsLike, distinct, load_problems
from mathturn_gym.types import Problem

__all__ = ["KnownProblems", "chosen_problems"]


def chosen_problems(problems: ProblemsLike, size: int | None, seed: int = 0) -> list[Problem]:
    """Different problems out of a source.

    Args:
        problems: See `load_problems`.
        size: How many; None takes all of a list.
        seed: Of the stream of a source that has no end.

    Raises:
        InvalidValueError: a source without end and no size, or one that does not have so many problems.
    """
    source = load_problems(problems)
    wanted = source.size if size is None else size
    if wanted is None:
        raise InvalidValueError(f"source {source.name!r} has no end: say how many problems to take (size=1000)")
    return list(distinct(source, wanted, seed))


class KnownProblems(FiniteSource):
    """Problems by id and by prompt: a source that grows.

    A data set's row is matched by the id that it carries; where a user's own data set carries none, by its text, as long as
    one problem alone has that text. Never by position: trainers shuffle, repeat and split their rows.
    """

    def __init__(self) -> None:
        super().__init__("data set")
        self._by_id: dict[str, Problem] = {}
        self._by_prompt: dict[str, list[str]] = {}

    def __len__(self) -> int:
        """Number of problems."""
        return len(self._by_id)

    def add(self, problems: Iterable[Problem]) -> None:
        """Adds problems; one that is known already is passed over.

        Raises:
            InvalidValueError: another problem has the same id.
        """
        for problem in problems:
            known = self._by_id.get(problem.id)
            if known is None:
                self._by_id[problem.id] = problem
                self._by_prompt.setdefault(problem.prompt, []).append(problem.id)
            elif (known.prompt, known.gold) != (problem.prompt, problem.gold):
                raise InvalidValueError(
                    f"two different problems have the id {problem.id!r}: give them ids of their own"
                )

    def __getitem__(self, position: int) -> Problem:
        """The problems in the order in which they came."""
        return list(self._by_id.values())[position]

    def by_id(self, problem_id: str) -> Problem:
        """The problem of this id."""
        if problem_id not in self._by_id:
            raise InvalidValueError(f"problem_id {problem_id!r} is not known: {self._how()}")
        return self._by_id[problem_id]

    def id_of(self, prompt: str | Sequence[Mapping[str, Any]]) -> str:
        """The id of the problem that a prompt shows.

        Args:
            prompt: A text, or messages; the last message says what the problem is, by `problem_id` or by its content.

        Raises:
            InvalidValueError: no problem has this id or text, or several have it.
        """
        if isinstance(prompt, str):
            text, problem_id = prompt, None
        else:
            text, problem_id = str(prompt[-1]["content"]), prompt[-1].get("problem_id")
        if problem_id is not None:
            return self.by_id(str(problem_id)).id
        ids = self._by_prompt.get(text, [])
        if not ids:
            raise InvalidValueError(f"no known problem has the prompt {text[:80]!r}: {self._how()}")
        if len(ids) > 1:
            raise InvalidValueError(
                f"{len(ids)} problems have the prompt {text[:80]!r} ({', '.join(ids[:3])} …), and the prompt carries no"
                f" problem_id: {self._how()}"
            )
        return ids[0]

    def _subset(self, positions: Sequence[int], name: str, split: str | None, *, shuffle: bool) -> ProblemList:
        return ProblemList([self[position] for position in positions], name, split, shuffle=shuffle)

    def _how(self) -> str:
        return f"make the data set with .dataset(problems), which knows {len(self)} problems so far"
