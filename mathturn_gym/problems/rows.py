"""Problems made of rows, wherever these come from: a file, a data set, a list of dictionaries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mathturn_gym.errors import InvalidValueError, ProblemFileError
from mathturn_gym.problems._readers import BadRow, Rows
from mathturn_gym.problems.base import content_id
from mathturn_gym.problems.lists import ProblemList
from mathturn_gym.problems.schemas import KNOWN, Found, Mapper, RowError, RowReader
from mathturn_gym.types import Problem, Verdict

if TYPE_CHECKING:
    from mathturn_gym.verifier import Verifier

MAX_MEMORY: Final = 4 * 2**30
"""Bytes that the rows of one source may take in memory, all together."""

# Enough to see what is wrong with a file, few enough to be kept of any.
KEPT: Final = 1_000
"""Rows left out that are kept to be looked at."""

_LEAVE_OUT: Final = "(skip_bad_rows=True, on the command line --skip-bad-rows, leaves such rows out)"
_LOG = logging.getLogger("mathturn_gym.problems")


class LeftOut:
    """The rows that a source leaves out.

    Attributes:
        where: What messages call the source of the rows.
        skipped: The rows that were left out, the first thousand of them.
        num_skipped: How many were left out.
        num_repeated: How many repeat an earlier one.
    """

    def _begin(self, where: str, skip_bad_rows: bool) -> None:
        self.where, self._skips = where, skip_bad_rows
        self.skipped: list[BadRow] = []
        self.num_skipped = self.num_repeated = 0

    def skipped_report(self) -> str:
        """One line: how many rows were left out, and which; "" where none was."""
        lines: dict[str, list[str]] = {}  # by what is wrong with them: of a whole column it is said once
        for bad in self.skipped[:10]:
            lines.setdefault(str(bad).partition(": ")[2], []).append(str(bad.line))
        rows = "; ".join(f"line{'s' if len(at) > 1 else ''} {', '.join(at)}: {reason}" for reason, at in lines.items())
        more = f"; and {self.num_skipped - 10:,} more" if self.num_skipped > 10 else ""
        return f"{self.where}: {self.num_skipped:,} rows left out ({rows}{more})" if self.num_skipped else ""

    def _leave_out(self, bad: BadRow) -> None:
        if not self._skips:
            raise ProblemFileError(f"{self.where}, {bad} {_LEAVE_OUT}")
        self.num_skipped += 1
        if len(self.skipped) < KEPT:  # a file of another kind has millions of them
            self.skipped.append(bad)

    def _report(self, usable: int, schemas: str = KNOWN) -> None:
        """Logs what was left out; raises where nothing is left."""
        if self.num_skipped:
            _LOG.warning("%s", self.skipped_report())
        if self.num_repeated:
            _LOG.warning(
                "%s: %s rows repeat an earlier one, and are one problem with it", self.where, f"{self.num_repeated:,}"
            )
        if not usable:
            empty = ": it is empty, or has nothing but the names of its columns"
            reason = f"; known schemas: {schemas}; {self.skipped[0]}" if self.skipped else empty
            raise ProblemFileError(f"{self.where}: no usable problem{reason}")


class RowProblems(LeftOut, ProblemList):
    """Problems made of rows; ids are `NAME/HASH` (the hash is that of the content) unless a row has its own.

    Rows that ask the same and accept the same are one problem: the first stands for all, and a log line tells how many
    there were. Rows with ids of their own are distinguished by their ids.

    Args:
        rows: Numbered rows.
        where: What messages call the whole.
        name: Begins the ids.
        fields: Which columns hold what: `{"prompt": COLUMN, "gold": COLUMN}` (or `"solution"` instead of `"gold"`; also
            `"id"`); None recognizes the schema of each row.
        skip_bad_rows: Leave broken rows out instead of raising at the first.
        split: The split that these problems are, or None.

    Raises:
        ProblemFileError: there is no usable problem, a row is broken, an id comes twice (file, row, field), or the rows
            take more memory than `MAX_MEMORY`.
        InvalidValueError: `fields` that cannot be.
    """

    schemas: str = KNOWN

    def __init__(
        self,
        rows: Rows,
        where: str,
        name: str,
        fields: Mapping[str, str] | None = None,
        skip_bad_rows: bool = False,
        split: str | None = None,
    ) -> None:
        self._begin(where, skip_bad_rows)
        self._reader = RowReader(None if fields is None else Mapper(fields))
        self._line_of: dict[str, int] = {}
        self._size = 0
        problems = list(self._usable(rows, name))
        self._report(len(problems), self.schemas)
        super().__init__(problems, name, split)

    def line_of(self, problem_id: str) -> int:
        """Number of the line (or row) that a problem was made of.

        Raises:
            InvalidValueError: there is no such problem.
        """
        return self._line_of[self.by_id(problem_id).id]

    def read(self, row: Mapping[str, Any]) -> Found:
        """What one row holds; a subclass for another schema extends this (and `schemas`).

        Raises:
            RowError: a field is unusable.
        """
        return self._reader.read(row)

    def _usable(self, rows: Rows, name: str) -> Iterator[Problem]:
        for line, row in rows:
            found = self._problem(line, row, name)
            if isinstance(found, BadRow):
                self._leave_out(found)
            elif found is not None:
                yield found

    def _problem(self, line: int, row: Mapping[str, Any] | BadRow, name: str) -> Problem | BadRow | None:
        """The problem of a row, what is wrong with it, or None where it repeats an earlier one."""
        made = problem_of(row, line, name, self.read)
        if isinstance(made, BadRow):
            return made
        problem, found = made
        # Data sets repeat questions. As different problems they would make intervals too narrow (law 4: content is
        # identity).
        first = self._line_of.setdefault(problem.id, line)
        if first != line:
            if found.id is not None:
                return BadRow(line, "id", f"{problem.id!r} comes twice, in line {first} first")
            self.num_repeated += 1
            return None
        # A file of 1 GB may be many of Python objects, and it is these that fill the memory.
        self._size += found.size
        if self._size > MAX_MEMORY:
            raise ProblemFileError(
                f"{self.where}, line {line}: its rows take more than {MAX_MEMORY // 2**20:,} MiB in memory; StreamedFile reads"
                " JSON lines (.jsonl) from the disk instead"
            )
        return problem


def problem_of(
    row: Mapping[str, Any] | BadRow, line: int, name: str, read: Callable[[Mapping[str, Any]], Found]
) -> tuple[Problem, Found] | BadRow:
    """A row's problem and what it was read as, or what is wrong with the row; `name` begins the id of a row without one."""
    if isinstance(row, BadRow):
        return row
    try:
        found = read(row)
        problem_id = found.id or content_id(name, found.prompt, found.gold)
        return Problem(problem_id, found.prompt, found.gold, metadata=found.metadata), found
    except RowError as error:
        return BadRow(line, error.field, error.reason)
    except InvalidValueError as error:
        return BadRow(line, "", str(error))


def numbered(rows: Iterable[object]) -> Rows:
    """Rows that are in memory already, numbered from 1; fields that are None are left out."""
    for number, row in enumerate(rows, start=1):
        if isinstance(row, Mapping):
            yield number, {key: value for key, value in row.items() if value is not None}
        else:
            yield number, BadRow(number, "", f"is a {type(row).__name__}, not a dictionary")


# ---- is a gold answer right when it is judged against itself? Where it is not, no response can be judged by it


@dataclass(frozen=True, slots=True)
class GoldFailure:
    """A gold answer that does not verify.

    Args:
        problem_id: Whose it is.
        gold: The answer.
        as_text: It is right as it stands, and only as a text.
        verdict: The judge's, of the response that failed.
    """

    problem_id: str
    gold: str
    as_text: bool
    verdict: Verdict


def check_gold(problems: Iterable[Problem], verifier: Verifier) -> list[GoldFailure]:
    r"""The gold answers that are not right when a response gives exactly them.

    Args:
        problems: Any number; every accepted answer of each is judged against itself alone.
        verifier: The judge.

    Returns:
        Those that fail as `\boxed{gold}`, and those (`as_text`) that fail only as `\boxed{{gold}}`.

    >>> from mathturn_gym.verifier import Verifier
    >>> check_gold([Problem("p", "1+1=?", "2")], Verifier())
    []
    """
    cases = [(problem.id, gold) for problem in problems for gold in problem.gold]
    golds = [gold for _, gold in cases]
    plain = verifier.verify_batch([rf"\boxed{{{gold}}}" for gold in golds], golds)
    # Text that is spelled like its gold is right without being read: braces make the verifier read it.
    braced = verifier.verify_batch([rf"\boxed{{{{{gold}}}}}" for gold in golds], golds)
    return [
        GoldFailure(problem_id, gold, itself.correct, again if itself.correct else itself)
        for (problem_id, gold), itself, again in zip(cases, plain, braced, strict=True)
        if not (itself.correct and again.correct)
    ]
