"""Rows out of files: JSON lines, JSON, CSV (each also gzipped) and Parquet, one at a time.

Nothing is loaded silently wrong: text that is not UTF-8, a truncated archive, a line without end, NaN or a row of the
wrong shape is a `BadRow` or an exception, with its place.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, TypeAlias, cast

from mathturn_gym.errors import MissingDependencyError, ProblemFileError, raise_unknown_name

__all__ = ["FORMATS", "MAX_LINE", "BadRow", "Rows", "parse_line", "read_rows"]

MAX_LINE: Final = 32 * 2**20
"""Bytes that one line may have; a longer one is not read into memory."""

_MAX_JSON: Final = 2**31
FORMATS: Final = (".jsonl", ".ndjson", ".json", ".csv", ".parquet")
"""Endings of files that can be read; the first four may be followed by `.gz`."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be used.

    Args:
        line: Line or row number, from 1.
        field: The field that is wrong, or "" for the row as a whole.
        reason: What is wrong with it.
    """

    line: int
    field: str
    reason: str


Rows: TypeAlias = Iterator["tuple[int, Mapping[str, Any] | BadRow]"]


def read_rows(path: Path) -> Rows:
    """The rows of a file with their numbers (lines, for formats that have lines), from 1.

    Raises:
        InvalidValueError: the ending is unknown.
        ProblemFileError: the file cannot be read, or cannot be read to its end.
        MissingDependencyError: Parquet without pyarrow.
    """
    ending = _ending(path)
    if ending == ".parquet":
        return _parquet(path)
    read = {".jsonl": _json_lines, ".ndjson": _json_lines, ".json": _json, ".csv": _csv}[ending]
    return _guarded(path, read)


def _ending(path: Path) -> str:
    name = path.name.lower()
    bare = name.removesuffix(".gz")
    for ending in FORMATS:
        if bare.endswith(ending) and not (ending == ".parquet" and bare != name):
            return ending
    raise_unknown_name("ending of a problem file", path.name, FORMATS)


def _guarded(path: Path, read: Callable[[IO[bytes], Path], Rows]) -> Rows:
    """Reads, and turns what goes wrong on the way into errors that name the file and the place."""
    number = 0
    try:
        packed = path.name.lower().endswith(".gz")
        with cast("IO[bytes]", gzip.open(path, "rb")) if packed else path.open("rb") as stream:
            for number, row in read(stream, path):
                yield number, row
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ProblemFileError(f"{path}: the gzip archive is broken or cut off after row {number}: {error}") from error
    except OSError as error:
        raise ProblemFileError(f"problems file {str(path)!r} cannot be read: {error.strerror or error}") from error


def _json_lines(stream: IO[bytes], path: Path) -> Rows:
    number = 0
    while raw := stream.readline(MAX_LINE + 1):
        number += 1
        if len(raw) > MAX_LINE:
            raise ProblemFileError(f"{path}, line {number}: is longer than {MAX_LINE} bytes; is the file JSON lines?")
        if raw.strip():
            yield number, parse_line(raw, number)


def parse_line(raw: bytes, number: int) -> Mapping[str, Any] | BadRow:
    """One line of JSON as a row, or what is wrong with it."""
    try:
        row = json.loads(raw.decode("utf-8-sig" if number == 1 else "utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        return BadRow(number, "", f"is not UTF-8 at byte {error.start}")
    except (ValueError, RecursionError) as error:
        return BadRow(number, "", f"is not JSON: {error}")
    return row if isinstance(row, dict) else BadRow(number, "", f"is a {type(row).__name__}, not an object")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _json(stream: IO[bytes], path: Path) -> Rows:
    """A list of objects, an object that holds one list, or (as often under this ending) JSON lines."""
    raw = stream.read(_MAX_JSON + 1)
    if len(raw) > _MAX_JSON:
        raise ProblemFileError(
            f"{path}: is larger than {_MAX_JSON} bytes; JSON lines (.jsonl) can be read line by line"
        )
    try:
        data = json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise ProblemFileError(f"{path}: is not UTF-8 at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            yield from _json_lines(io.BytesIO(raw), path)
            return
        raise ProblemFileError(f"{path}: is not JSON: {error}") from error
    if isinstance(data, dict):
        lists = [key for key, value in data.items() if isinstance(value, list)]
        if len(lists) != 1:
            raise ProblemFileError(
                f"{path}: must be a list of objects, or an object with one list in it; lists: {lists}"
            )
        data = data[lists[0]]
    if not isinstance(data, list):
        raise ProblemFileError(f"{path}: must be a list of objects, got a {type(data).__name__}")
    for number, row in enumerate(data, start=1):
        yield number, row if isinstance(row, dict) else BadRow(number, "", f"is a {type(row).__name__}, not an object")


def _csv(stream: IO[bytes], path: Path) -> Rows:
    reader = csv.DictReader(_checked_lines(stream, path), strict=True)
    last = 0
    try:
        for row in reader:
            last = reader.line_num
            if None in row or None in row.values():
                found = len(row.get(None) or []) + sum(value is not None for key, value in row.items() if key)
                yield last, BadRow(last, "", f"has {found} fields, the header has {len(reader.fieldnames or ())}")
            else:
                yield last, {key: value for key, value in row.items() if value != ""}
    except csv.Error as error:
        raise ProblemFileError(f"{path}, after line {last}: is not CSV: {error}") from error


def _checked_lines(stream: IO[bytes], path: Path) -> Iterator[str]:
    number = 0
    while raw := stream.readline(MAX_LINE + 1):
        number += 1
        if len(raw) > MAX_LINE:
            raise ProblemFileError(f"{path}, line {number}: is longer than {MAX_LINE} bytes")
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ProblemFileError(f"{path}, line {number}: is not UTF-8 at byte {error.start}") from error


def _parquet(path: Path) -> Rows:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError("Parquet files need pyarrow: pip install 'mathturn-gym[data]'") from error
    try:
        number = 0
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield number, {key: value for key, value in row.items() if value is not None}
    except OSError as error:
        raise ProblemFileError(f"problems file {str(path)!r} cannot be read: {error.strerror or error}") from error
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise ProblemFileError(f"{path}: is not a Parquet file that can be read: {error}") from error
