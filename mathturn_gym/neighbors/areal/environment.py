"""The original's `math-code-single-step` environment: its mathematics task, judged by our verifier."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mathturn_gym.env.verification import VerifierLike, get_verifier
from mathturn_gym.errors import InvalidValueError, check_float
from mathturn_gym.neighbors.areal.protocol import EnvironmentService, in_thread
from mathturn_gym.problems.files import ProblemFile
from mathturn_gym.problems.schemas import Found, RowError
from mathturn_gym.types import Status, TurnContext, Verdict


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


class MathCodeSingleStepEnv(EnvironmentService):
    """Judges answers to the problems of an AReaL data set.

    A query id is a problem's `query_id`, with anything after an "@" left out ("q8@idx:8-0" asks for "q8").

    Args:
        dataset_path: JSON lines with `query_id`, `prompt`, `solutions` and `task` (see `ArealProblems`).
        verifier: What `mathturn_gym.env.verification.get_verifier` takes; None for the built-in one.
        timeout: Seconds that the judging of one action may take; what is not judged by then is undecided. The
            built-in verifier has limits of its own, a verifier of the user's may have none.

    Raises:
        ProblemFileError: the file cannot be read, or a row cannot be used; a task other than "math" cannot.
        InvalidValueError: an argument is outside what is allowed.
    """

    def __init__(
        self, dataset_path: str | os.PathLike[str], *, verifier: VerifierLike = None, timeout: float = 60.0
    ) -> None:
        self.problems = ArealProblems(Path(dataset_path))
        self.verifier = get_verifier(verifier)
        self.timeout = check_float("timeout", timeout, low=1e-3)

    async def step(self, action: tuple[str, list[str]]) -> tuple[None, list[float], bool, bool, dict[str, Any]]:
        """Judges the answers to one query, in a thread of their own.

        Returns:
            None, a score per answer, True, False, and an info with `verdicts`.

        Raises:
            InvalidValueError: the action is no pair of a query id and a list of texts, or there is no such query.
        """
        query, answers = _checked(action)
        # AReaL numbers the repetitions of a query behind an "@".
        problem = self.problems.by_id(query.split("@")[0])
        try:
            turns = [TurnContext(problem, 0, 1, answer) for answer in answers]
            verdicts = await in_thread(self.verifier.verify_turns, turns, timeout=self.timeout)
        except TimeoutError:
            # Undecided, and not wrong: time is no answer (law 5).
            verdicts = [Verdict(Status.UNDECIDED, f"not judged within {self.timeout:g} s")] * len(answers)
        return None, [verdict.value for verdict in verdicts], True, False, {"verdicts": verdicts}


def _checked(action: Any) -> tuple[str, list[str]]:
    try:
        query, answers = action
    except (TypeError, ValueError):
        query, answers = None, None
    if query is None or not isinstance(answers, (list, tuple)) or not all(isinstance(text, str) for text in answers):
        raise InvalidValueError(f"action must be (query id, [answer, …]), got {action!r}")
    return str(query), list(answers)
