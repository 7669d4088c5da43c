"""Problems in the JSON-lines schema of AReaL v0.3: `query_id`, `prompt`, `solutions`, `task`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mathturn_gym.problems.files import ProblemFile, RowError, text_field
from mathturn_gym.types import Problem
from mathturn_gym.verifier.extract import extract

__all__ = ["ArealProblems"]


class ArealProblems(ProblemFile):
    r"""The mathematics problems of an AReaL data set; a problem's id is its `query_id`.

    A solution's answer is its last `\boxed{…}`, or the whole text where it has none. A row without `task` is a
    mathematics problem, as in the original; any other task is refused (`skip_bad_rows=True` leaves such rows out).

    Args:
        path: The file, UTF-8.
        skip_bad_rows: Leave broken rows and other tasks out instead of raising at the first.

    Raises:
        ProblemFileError: the file cannot be read, holds no problem, or a row cannot be used (file, line, field).
    """

    schemas = "AReaL {query_id, prompt, solutions, task: 'math'}"

    def to_problem(self, row: Mapping[str, Any], problem_id: str) -> Problem:
        """One row as a problem, under its own id."""
        task = row.get("task", "math")
        if task != "math":
            raise RowError("task", f"is {task!r}, and only 'math' can be judged here: there is no sandbox for {task!r}")
        solutions = row.get("solutions")
        if not isinstance(solutions, list) or not solutions or not all(isinstance(s, str) for s in solutions):
            raise RowError("solutions", f"must be a list of texts, got {solutions!r}")
        query = row.get("query_id")
        if isinstance(query, bool) or not isinstance(query, (str, int)) or not str(query).strip():
            raise RowError("query_id", f"must be a non-empty text or a number, got {query!r}")
        known = ("query_id", "prompt", "solutions", "task")
        return Problem(
            str(query),
            text_field(row, "prompt"),
            tuple(_answer(solution) for solution in solutions),
            metadata={key: value for key, value in row.items() if key not in known},
        )


def _answer(solution: str) -> str:
    r"""The answer of a solution: its last box, or all of it."""
    found = extract(solution)
    answer = found.text if found is not None and found.how == "boxed" else solution.strip()
    if not answer:
        raise RowError("solutions", "has an empty solution")
    return answer
