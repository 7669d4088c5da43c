"""The mathematics problems of AReaL v0.3's JSON lines: `query_id`, `prompt`, `solutions`, `task`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mathturn_gym.problems.files import ProblemFile
from mathturn_gym.problems.rows import Found, RowError

__all__ = ["ArealProblems"]


class ArealProblems(ProblemFile):
    """A problem file that has AReaL's schema and no task but mathematics; a problem's id is its `query_id`.

    A row without `task` is a mathematics problem, as in the original; any other task is refused
    (`skip_bad_rows=True` leaves such rows out).

    Args:
        path: The file.
        skip_bad_rows: Leave broken rows and other tasks out instead of raising at the first.

    Raises:
        ProblemFileError: the file cannot be read, holds no problem, or a row cannot be used (file, line, field).
    """

    schemas = "AReaL {query_id, prompt, solutions, task: 'math'}"

    def read(self, row: Mapping[str, Any]) -> Found:
        """What one row holds, under its own id."""
        task = row.get("task", "math")
        if task != "math":
            raise RowError("task", f"is {task!r}, and only 'math' can be judged here: there is no sandbox for {task!r}")
        for field in ("query_id", "prompt", "solutions"):
            if field not in row:
                raise RowError(field, "is missing")
        return super().read(row)
