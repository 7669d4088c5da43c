r"""Problems from JSON-lines files in the schemas of GSM8K and MATH.

    GSM8K   {"question": …, "answer": "… #### 42"}
    MATH    {"problem": …, "solution": "… \boxed{42} …"} with or without {"answer": "42"}

A broken row is an error that names file, line and field; with `skip_bad_rows=True` it is left out, kept in
`skipped`, and counted in a warning.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mathturn_gym.errors import InvalidValueError, ProblemFileError
from mathturn_gym.problems.base import FiniteSource
from mathturn_gym.types import Problem
from mathturn_gym.verifier.extract import extract

__all__ = ["BadRow", "JsonLines", "RowError", "text_field"]

_LOG = logging.getLogger(__name__)
_GSM8K_ANSWER: Final = re.compile(r"####\s*(\S[^\n]*?)\s*$")
_KNOWN: Final = "GSM8K {question, answer ending in '#### n'}, MATH {problem, answer and/or solution with \\boxed{}}"


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that was left out.

    Args:
        line: Line number, from 1.
        field: The field that is wrong, or "" for the row as a whole.
        reason: What is wrong with it.
    """

    line: int
    field: str
    reason: str


class JsonLines(FiniteSource):
    """A JSON-lines file of problems; ids are `STEM/LINE` (lines from 1, as editors count them).

    Args:
        path: The file, UTF-8.
        skip_bad_rows: Leave broken rows out instead of raising at the first.
        name: Begins the ids; the file's stem by default.

    Attributes:
        skipped: The rows that were left out.

    Raises:
        ProblemFileError: the file cannot be read, holds no problem, or a row is broken (file, line, field).
    """

    schemas = _KNOWN

    def __init__(self, path: str | Path, *, skip_bad_rows: bool = False, name: str | None = None) -> None:
        self.path = Path(path)
        self.skipped: list[BadRow] = []
        stem = name or self.path.stem
        problems = []
        for line, row in self._rows(skip_bad_rows):
            try:
                problems.append(self.to_problem(row, f"{stem}/{line}"))
            except RowError as error:
                self._bad(BadRow(line, error.field, error.reason), skip_bad_rows)
        if self.skipped:
            _LOG.warning("%s", self.skipped_report())
        if not problems:
            raise ProblemFileError(f"{self.path}: no usable problem; known schemas: {self.schemas}")
        super().__init__(problems, stem)

    def to_problem(self, row: Mapping[str, Any], problem_id: str) -> Problem:
        """One row as a problem; a subclass for another schema replaces this (and `schemas`).

        Raises:
            RowError: a field is unusable.
        """
        return _problem(row, problem_id)

    def skipped_report(self) -> str:
        """One line: how many rows were left out, and which."""
        rows = "; ".join(f"line {bad.line}: {bad.field or 'row'} {bad.reason}" for bad in self.skipped[:10])
        more = f"; and {len(self.skipped) - 10} more" if len(self.skipped) > 10 else ""
        return f"{self.path}: {len(self.skipped)} rows left out ({rows}{more})" if self.skipped else ""

    def _rows(self, skip_bad_rows: bool) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            lines = self.path.read_bytes().split(b"\n")
        except OSError as error:
            raise ProblemFileError(f"problems file {str(self.path)!r} cannot be read: {error.strerror}") from error
        for line, raw in enumerate(lines, start=1):
            if not raw.strip():
                continue
            try:
                row = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
            except UnicodeDecodeError as error:
                self._bad(BadRow(line, "", f"is not UTF-8 at byte {error.start}"), skip_bad_rows)
            except ValueError as error:
                self._bad(BadRow(line, "", f"is not JSON: {error}"), skip_bad_rows)
            else:
                if isinstance(row, dict):
                    yield line, row
                else:
                    self._bad(BadRow(line, "", f"is a {type(row).__name__}, not an object"), skip_bad_rows)

    def _bad(self, bad: BadRow, skip_bad_rows: bool) -> None:
        if not skip_bad_rows:
            field = f"field {bad.field!r}" if bad.field else "the row"
            raise ProblemFileError(
                f"{self.path}, line {bad.line}: {field} {bad.reason} (skip_bad_rows=True leaves such rows out)"
            )
        self.skipped.append(bad)


class RowError(Exception):
    """A field of a row is unusable (`JsonLines` makes it a `ProblemFileError` or leaves the row out)."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field, self.reason = field, reason


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _problem(row: Mapping[str, Any], problem_id: str) -> Problem:
    """One row as a problem, whichever known schema it has."""
    if "question" in row and "problem" not in row:
        prompt, gold, used = text_field(row, "question"), _gsm8k_gold(text_field(row, "answer")), {"question", "answer"}
    elif "problem" in row:
        prompt, gold, used = text_field(row, "problem"), _math_gold(row), {"problem", "answer", "solution", "question"}
    else:
        columns = ", ".join(map(repr, list(row)[:8])) or "none"
        raise RowError("", f"has no known schema; fields found: {columns}; known: {_KNOWN}")
    metadata = {key: value for key, value in row.items() if key not in used}
    try:
        return Problem(problem_id, prompt, gold, metadata=metadata)
    except InvalidValueError as error:
        raise RowError("", str(error)) from error


def text_field(row: Mapping[str, Any], field: str) -> str:
    """A row's non-empty text, or a `RowError` that says what is wrong with it."""
    if field not in row:
        raise RowError(field, "is missing")
    value = row[field]
    if not isinstance(value, str) or not value.strip():
        raise RowError(field, f"must be a non-empty text, got {value!r}")
    return value


def _gsm8k_gold(answer: str) -> str:
    match = _GSM8K_ANSWER.search(answer)
    if match is None:
        raise RowError("answer", f"must end in '#### n', got {answer[-40:]!r}")
    return match.group(1)


def _math_gold(row: Mapping[str, Any]) -> str:
    """`answer` where there is one (numbers as they would be written), else the last box of `solution`."""
    answer = row.get("answer")
    if isinstance(answer, (int, float)) and not isinstance(answer, bool):
        if not math.isfinite(answer):
            raise RowError("answer", f"must be finite, got {answer!r}")
        return str(int(answer)) if float(answer).is_integer() else repr(answer)
    if "answer" in row:
        return text_field(row, "answer")
    found = extract(text_field(row, "solution"))
    if found is None or found.how != "boxed":
        raise RowError("solution", "has no \\boxed{} answer, and there is no field 'answer'")
    return found.text
