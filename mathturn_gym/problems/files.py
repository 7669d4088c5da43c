"""Problem files, in memory or read on demand.

A broken row is an error that names file, line and field; with `skip_bad_rows=True` it is left out, kept in `skipped`,
and counted in a warning.
"""

from __future__ import annotations

import copy
import hashlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from mathturn_gym.errors import InvalidValueError, ProblemFileError
from mathturn_gym.problems._readers import MAX_ROW, BadRow, numbered_lines, parse_line, read_rows
from mathturn_gym.problems.base import SPLITS, split_of
from mathturn_gym.problems.lists import FiniteSource, own_split
from mathturn_gym.problems.rows import LeftOut, RowProblems, problem_of
from mathturn_gym.problems.schemas import Found, Mapper, RowReader
from mathturn_gym.types import Problem

LARGE: Final = 256 * 2**20
"""Bytes from which on `load_problems` streams a file of JSON lines instead of reading it into memory."""

_Int64: TypeAlias = npt.NDArray[np.int64]
# A row's splits in one byte: by the hash of its prompt in the low bits, its own in the next, 3 for none.
_BITS: Final = 2
_LOW: Final = 3
_NONE: Final = 3


class ProblemFile(RowProblems):
    """A file of problems in memory: JSON lines, JSON, CSV (each also gzipped) or Parquet.

    Ids begin with the file's stem. `shuffled()` plays it in an order that the seed decides, `called("test")` as a split.

    Args:
        path: The file; text in UTF-8.
        skip_bad_rows: Leave broken rows out instead of raising at the first.
        fields: Which columns hold what, for schemas that are not recognized (see `RowProblems`).

    Raises:
        ProblemFileError: the file cannot be read, holds no problem, or a row is broken (file, line, field).
        InvalidValueError: unknown ending, or `fields` that cannot be.
        MissingDependencyError: Parquet without pyarrow.
    """

    def __init__(
        self, path: str | Path, *, skip_bad_rows: bool = False, fields: Mapping[str, str] | None = None
    ) -> None:
        self.path = Path(path)
        super().__init__(read_rows(self.path), str(self.path), stem(self.path), fields, skip_bad_rows)


def stem(path: Path) -> str:
    """A file's name without its endings."""
    return path.name.split(".")[0] or path.name


class StreamedFile(LeftOut, FiniteSource):
    """A JSON-lines file too large for memory: every row is read once at the start, and again when it is asked for.

    What stays in memory are 17 bytes a row: its place, the hash of its id, and its split. Ids, order, repeated rows and
    splits are those of `ProblemFile`.

    Args:
        path: An uncompressed `.jsonl` file.
        skip_bad_rows: Leave broken rows out instead of raising at the first.
        fields: See `RowProblems`.

    Raises:
        ProblemFileError: the file cannot be read, has no usable row, a row is broken (file, line, field), or (when a row
            is asked for) the file has changed.
    """

    def __init__(
        self, path: str | Path, *, skip_bad_rows: bool = False, fields: Mapping[str, str] | None = None
    ) -> None:
        self.path = Path(path)
        super().__init__(stem(self.path))
        self._prefix = self.name  # a part has another name, and the same ids
        self._mapper = None if fields is None else Mapper(fields)
        self._begin(str(self.path), skip_bad_rows)
        self._starts, self._digests, self._marks = self._scan()
        self._sorter: _Int64 | None = None
        self._report(len(self))

    def __len__(self) -> int:
        """Number of problems."""
        return len(self._starts)

    def __getitem__(self, position: int) -> Problem:
        """Reads the problem at a position."""
        start = int(self._starts[position])
        try:
            with self.path.open("rb") as stream:
                stream.seek(start)
                raw = stream.readline(MAX_ROW)
        except OSError as error:
            raise _cannot_read(self.path, error) from error
        # A byte-order mark can only be at the start of the file.
        # Read again and hashed again: a file may be rewritten while a run lasts for days.
        made = self._problem(raw, 2 if start else 1, RowReader(self._mapper))
        if isinstance(made, BadRow) or _digest(made[0].id) != int(self._digests[position]):
            raise ProblemFileError(f"{self.path}: the row at byte {start:,} has changed since the file was first read")
        return made[0]

    def by_id(self, problem_id: str) -> Problem:
        """The problem with this id."""
        if self._sorter is None:
            self._sorter = np.argsort(self._digests)
        # 64 bits are looked up: among 100 million rows two share them with a chance of .0003, and the content is
        # checked when it is read.
        digest = np.uint64(_digest(problem_id))
        place = int(np.searchsorted(self._digests, digest, sorter=self._sorter))
        if place < len(self) and self._digests[self._sorter[place]] == digest:
            return self[int(self._sorter[place])]
        raise InvalidValueError(
            f"problem_id {problem_id!r} is not in source {self.name!r}, which holds {len(self)} problems"
        )

    def _subset(self, positions: Sequence[int], name: str, split: str | None, *, shuffle: bool) -> StreamedFile:
        # Shares the file and what was left out of it; only the positions are its own.
        part = copy.copy(self)
        FiniteSource.__init__(part, name, split, shuffle=shuffle)
        chosen = np.asarray(positions, np.int64)
        part._starts, part._digests, part._marks = self._starts[chosen], self._digests[chosen], self._marks[chosen]
        part._sorter = None
        return part

    def _hashed_splits(self) -> list[str]:
        return [SPLITS[mark & _LOW] for mark in self._marks.tolist()]

    def _own_splits(self) -> list[str | None]:
        return [None if mark >> _BITS == _NONE else SPLITS[mark >> _BITS] for mark in self._marks.tolist()]

    def _problem(self, raw: bytes, line: int, reader: RowReader) -> tuple[Problem, Found] | BadRow:
        return problem_of(parse_line(raw, line), line, self._prefix, reader.read)

    def _scan(self) -> tuple[_Int64, npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
        """Where every row begins, the hash of its id, and its splits; without the rows that repeat an earlier one."""
        starts, digests, marks, owners = array("q"), array("Q"), array("B"), array("q")
        reader = RowReader(self._mapper)
        for line, start, raw in self._lines():
            if raw is None:
                made: tuple[Problem, Found] | BadRow = BadRow(line, "", f"is longer than {MAX_ROW:,} bytes")
            elif raw.strip():
                made = self._problem(raw, line, reader)
            else:
                continue
            if isinstance(made, BadRow):
                self._leave_out(made)
                continue
            problem, found = made
            starts.append(start)
            digests.append(_digest(problem.id))
            marks.append(_mark(problem))
            owners.append(0 if found.id is None else line)
        # Found by sorting at the end: a set of the ids seen would be larger than all that is kept of the file.
        firsts = np.sort(np.unique(np.array(digests, np.uint64), return_index=True)[1])
        for position in np.setdiff1d(np.arange(len(digests)), firsts).tolist():
            if owners[position]:
                self._leave_out(BadRow(owners[position], "id", "comes twice"))
            else:
                self.num_repeated += 1
        kept = np.array(starts, np.int64), np.array(digests, np.uint64), np.array(marks, np.uint8)
        return kept[0][firsts], kept[1][firsts], kept[2][firsts]

    def _lines(self) -> Iterator[tuple[int, int, bytes | None]]:
        """Number, place and bytes of every line; None for one that is too long."""
        try:
            with self.path.open("rb") as stream:
                start = 0
                for number, raw in numbered_lines(stream):
                    yield number, start, raw
                    start = stream.tell()
        except OSError as error:
            raise _cannot_read(self.path, error) from error


def _cannot_read(path: Path, error: OSError) -> ProblemFileError:
    return ProblemFileError(f"problems file {str(path)!r} cannot be read: {error.strerror or error}")


def _digest(problem_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(problem_id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _mark(problem: Problem) -> int:
    own = own_split(problem.metadata.get("split"))
    return SPLITS.index(split_of(problem.prompt)) | (_NONE if own is None else SPLITS.index(own)) << _BITS
