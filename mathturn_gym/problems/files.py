"""Problems from files and data sets, in memory or read on demand.

A broken row is an error that names file, line and field; with `skip_bad_rows=True` it is left out, kept in `skipped`,
and counted in a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from mathturn_gym.errors import InvalidValueError, MissingDependencyError, ProblemFileError
from mathturn_gym.problems.base import FiniteSource, ProblemSource
from mathturn_gym.problems.readers import MAX_LINE, BadRow, Rows, parse_line, read_rows
from mathturn_gym.problems.schemas import KNOWN, Mapper, RowError, read_row, text_field
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Problem

__all__ = ["BadRow", "DataSet", "ProblemFile", "RowError", "StreamedFile", "text_field"]

_LOG = logging.getLogger(__name__)


class RowSource(FiniteSource):
    """Problems made of rows, wherever these come from; ids are `NAME/ROW` unless a row has its own.

    Args:
        rows: Numbered rows.
        where: What messages call the whole.
        name: Begins the ids.
        fields: See `schemas.Mapper`; None recognises the schema of each row.
        skip_bad_rows: Leave broken rows out instead of raising at the first.

    Attributes:
        skipped: The rows that were left out.

    Raises:
        ProblemFileError: there is no usable problem, a row is broken, or an id comes twice (file, row, field).
    """

    schemas: str = KNOWN

    def __init__(
        self, rows: Rows, where: str, name: str, fields: Mapping[str, str] | None = None, skip_bad_rows: bool = False
    ) -> None:
        self.where = where
        self.skipped: list[BadRow] = []
        self._mapper = None if fields is None else Mapper(fields)
        self._lines: dict[str, int] = {}
        problems = list(self._usable(rows, name, skip_bad_rows))
        if self.skipped:
            _LOG.warning("%s", self.skipped_report())
        if not problems:
            raise ProblemFileError(f"{where}: no usable problem; known schemas: {self.schemas}")
        super().__init__(problems, name)

    def to_problem(self, row: Mapping[str, Any], problem_id: str) -> Problem:
        """One row as a problem; a subclass for another schema replaces this (and `schemas`).

        Raises:
            RowError: a field is unusable.
        """
        return read_row(row, problem_id, self._mapper)

    def skipped_report(self) -> str:
        """One line: how many rows were left out, and which."""
        rows = "; ".join(f"line {bad.line}: {bad.field or 'row'} {bad.reason}" for bad in self.skipped[:10])
        more = f"; and {len(self.skipped) - 10} more" if len(self.skipped) > 10 else ""
        return f"{self.where}: {len(self.skipped)} rows left out ({rows}{more})" if self.skipped else ""

    def _usable(self, rows: Rows, name: str, skip_bad_rows: bool) -> Iterator[Problem]:
        for line, row in rows:
            found = self._problem(line, row, name)
            if isinstance(found, Problem):
                yield found
            elif skip_bad_rows:
                self.skipped.append(found)
            else:
                raise _error(self.where, found, " (skip_bad_rows=True leaves such rows out)")

    def _problem(self, line: int, row: Mapping[str, Any] | BadRow, name: str) -> Problem | BadRow:
        if isinstance(row, BadRow):
            return row
        try:
            problem = self.to_problem(row, f"{name}/{line}")
        except RowError as error:
            return BadRow(line, error.field, error.reason)
        first = self._lines.setdefault(problem.id, line)
        return problem if first == line else BadRow(line, "id", f"{problem.id!r} comes twice, in line {first} first")


def _error(where: str, bad: BadRow, help_text: str = "") -> ProblemFileError:
    field = f"field {bad.field!r}" if bad.field else "the row"
    return ProblemFileError(f"{where}, line {bad.line}: {field} {bad.reason}{help_text}")


class ProblemFile(RowSource):
    """A file of problems: JSON lines, JSON, CSV (each also gzipped) or Parquet.

    Ids are `STEM/LINE` (lines from 1, as editors count them; rows where the format has no lines), unless the schema has
    ids of its own.

    Args:
        path: The file; text in UTF-8.
        skip_bad_rows: Leave broken rows out instead of raising at the first.
        name: Begins the ids; the file's stem by default.
        fields: Which fields hold prompt and gold answer, for schemas that are not recognised (see `schemas.Mapper`).

    Attributes:
        skipped: The rows that were left out.

    Raises:
        ProblemFileError: the file cannot be read, holds no problem, or a row is broken (file, line, field).
        InvalidValueError: unknown ending, or `fields` that cannot be.
        MissingDependencyError: Parquet without pyarrow.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        skip_bad_rows: bool = False,
        name: str | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> None:
        self.path = Path(path)
        super().__init__(read_rows(self.path), str(self.path), name or _stem(self.path), fields, skip_bad_rows)


def _stem(path: Path) -> str:
    return path.name.split(".")[0] or path.name


class StreamedFile(ProblemSource):
    """A JSON-lines file too large for memory: only the place of each line is kept, rows are read when asked for.

    Rows are checked when they are read, so a broken one raises at `get`. Same ids and order as `ProblemFile`, except that
    schemas with ids of their own are found by `STEM/LINE` alone.

    Args:
        path: An uncompressed `.jsonl` file.
        name: Begins the ids; the file's stem by default.
        fields: See `schemas.Mapper`.

    Raises:
        ProblemFileError: the file cannot be read, has no line, or one that is too long.
    """

    def __init__(self, path: str | Path, *, name: str | None = None, fields: Mapping[str, str] | None = None) -> None:
        self.path = Path(path)
        self.name = name or _stem(self.path)
        self._mapper = None if fields is None else Mapper(fields)
        places = [(number, start) for number, start in self._scan()]
        if not places:
            raise ProblemFileError(f"{self.path}: has no line")
        self._lines = np.array([number for number, _ in places], np.int64)
        self._starts = np.array([start for _, start in places], np.int64)
        self._order: tuple[tuple[int, int], np.ndarray[Any, np.dtype[np.int64]]] | None = None

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._lines)

    def get(self, seed: int, index: int) -> Problem:
        """Problem `index % n` of shuffle number `index // n`."""
        epoch, place = divmod(index, len(self))
        if self._order is None or self._order[0] != (seed, epoch):
            rng = np.random.Generator(np.random.Philox(key=derive_seed("order", seed, epoch)))
            self._order = (seed, epoch), rng.permutation(len(self))
        return self._read(int(self._order[1][place]))

    def by_id(self, problem_id: str) -> Problem:
        """The problem on the line that the id names."""
        name, _, line = problem_id.rpartition("/")
        if name == self.name and line.isdecimal():
            place = int(np.searchsorted(self._lines, int(line)))
            if place < len(self) and self._lines[place] == int(line):
                return self._read(place)
        raise InvalidValueError(
            f"problem_id {problem_id!r} is not in source {self.name!r}, whose ids are '{self.name}/LINE'"
        )

    def _read(self, place: int) -> Problem:
        line = int(self._lines[place])
        with self.path.open("rb") as stream:
            stream.seek(int(self._starts[place]))
            row = parse_line(stream.readline(MAX_LINE), line)
        if isinstance(row, BadRow):
            raise _error(str(self.path), row)
        problem_id = f"{self.name}/{line}"
        try:
            problem = read_row(row, problem_id, self._mapper)
        except RowError as error:
            raise _error(str(self.path), BadRow(line, error.field, error.reason)) from error
        return Problem(problem_id, problem.prompt, problem.gold, metadata=problem.metadata)

    def _scan(self) -> Iterator[tuple[int, int]]:
        """Line numbers and byte offsets of the lines that are not empty."""
        try:
            with self.path.open("rb") as stream:
                number, start = 0, 0
                while raw := stream.readline(MAX_LINE + 1):
                    number += 1
                    if len(raw) > MAX_LINE:
                        raise ProblemFileError(f"{self.path}, line {number}: is longer than {MAX_LINE} bytes")
                    if raw.strip():
                        yield number, start
                    start += len(raw)
        except OSError as error:
            raise ProblemFileError(f"problems file {str(self.path)!r} cannot be read: {error.strerror}") from error


_LOCAL: Final = ("dataset_info.json", "dataset_dict.json", "state.json")


class DataSet(RowSource):
    """A Hugging Face data set: a hub name, or a folder written by `save_to_disk`.

    Args:
        dataset: `"openai/gsm8k"`, or a folder.
        config: The hub's configuration, e.g. "main".
        split: Its split, e.g. "test"; a folder may hold one data set without splits.
        fields: See `schemas.Mapper`.
        skip_bad_rows: Leave broken rows out instead of raising at the first.
        name: Begins the ids; the last part of the name by default.

    Raises:
        ProblemFileError: it cannot be loaded, or a row is broken.
        MissingDependencyError: `datasets` is not installed.
    """

    def __init__(
        self,
        dataset: str | Path,
        config: str | None = None,
        split: str = "train",
        *,
        fields: Mapping[str, str] | None = None,
        skip_bad_rows: bool = False,
        name: str | None = None,
    ) -> None:
        rows = _data_set_rows(str(dataset), config, split)
        stem = name or f"{Path(str(dataset)).name}-{split}"
        super().__init__(rows, f"data set {dataset} ({split})", stem, fields, skip_bad_rows)


def _data_set_rows(dataset: str, config: str | None, split: str) -> Rows:
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError(
            "Hugging Face data sets need datasets: pip install 'mathturn-gym[data]'"
        ) from error
    try:
        if any((Path(dataset) / file).is_file() for file in _LOCAL):
            loaded = datasets.load_from_disk(dataset)
            if isinstance(loaded, datasets.DatasetDict):
                loaded = loaded[split]
        else:
            loaded = datasets.load_dataset(dataset, config, split=split)
    except Exception as error:  # the library raises whatever its back ends raise
        raise ProblemFileError(f"data set {dataset!r} ({config}, {split}) cannot be loaded: {error}") from error
    for number, row in enumerate(loaded, start=1):
        yield number, {key: value for key, value in row.items() if value is not None}
