"""Reads rows from files, one at a time: JSON lines, JSON, CSV (each also gzipped) and Parquet.

JSON is parsed here and not by `datasets` or pyarrow: the former reads a document whole, the latter reads lines only, and
both give all rows one inferred schema, so that a row of another shape changes or fails the others and cannot be named.
Parquet is pyarrow's, within the bounds of `base.parquet`.

Nothing is silently misread: text that is not UTF-8, a truncated archive, a line without end, NaN or a row of the wrong
shape is a `BadRow` or an exception that names the place. Memory is bounded: a row has at most `MAX_ROW` bytes, documents
are read in pieces, and archives are unpacked as they are read.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

from mathturn_gym.base.files import bounded_lines, reading
from mathturn_gym.base.parquet import bounded_batches
from mathturn_gym.errors import MathTurnError, ProblemFileError, raise_unknown_name
from mathturn_gym.problems._values import short

_CHUNK: Final = 1 << 16
_SPACE: Final = " \t\r\n"
_ESCAPE: Final = 12  # an escape of two surrogates: \ud83d\ude00


class JsonText:
    """A streaming JSON reader: a UTF-8 document and a position that only moves forward.

    Args:
        stream: Where its bytes come from.
        where: What messages call it.
        most: Characters that one value may have.
        refuse_constant: Called with NaN and the infinities; it must raise `ValueError`.
    """

    def __init__(self, stream: IO[bytes], where: str, most: int, refuse_constant: Callable[[str], None]) -> None:
        self._stream, self._where, self._most = stream, where, most
        self._decoder = json.JSONDecoder(parse_constant=refuse_constant)
        # Incremental: a piece may end within a character.
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at = "", 0
        self._bytes = self._gone = 0
        self._ended = False

    def error(self, reason: str) -> ProblemFileError:
        """An error about the document."""
        return ProblemFileError(f"{self._where}: {reason}")

    def peek(self) -> str:
        """The next character that is no white space, or "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, expected: str) -> str:
        """Consumes the next character, which must be one of those expected."""
        found = self.peek()
        if not found or found not in expected:
            raise self.error(
                f"is not JSON: expected one of {' '.join(expected)}, got {found or 'the end'!r}{self._place()}"
            )
        self._at += 1
        return found

    def value(self) -> Any:
        """Parses the next value."""
        self.peek()
        while True:
            try:
                found, end = self._decoder.raw_decode(self._text, self._at)
                # A number at the end of what was read may go on.
                if end < len(self._text) or not self._more():
                    self._at = end
                    return found
            except json.JSONDecodeError as error:
                if len(self._text) - self._at > self._most:
                    raise self.error(f"a value is longer than {self._most:,} characters{self._place()}") from error
                if not self._may_be_cut(error) or not self._more():
                    raise self.error(f"is not JSON: {error.msg}{self._place(error.pos)}") from error
            except RecursionError as error:
                raise self.error(f"is not JSON that can be read: it is nested too deeply{self._place()}") from error
            except ValueError as error:
                raise self.error(f"is not JSON: {error}{self._place()}") from error

    def _may_be_cut(self, error: json.JSONDecodeError) -> bool:
        """True where the error may come from text that is not read yet."""
        return error.pos >= len(self._text) - _ESCAPE or error.msg.startswith("Unterminated string")

    def elements(self) -> Iterator[Any]:
        """The values of a list."""
        self.take("[")
        if self.peek() == "]":
            self.take("]")
            return
        while True:
            yield self.value()
            if self.take(",]") == "]":
                return

    def members(self) -> Iterator[str]:
        """Yields the keys of an object; the caller must read each value before it asks for the next key."""
        self.take("{")
        if self.peek() == "}":
            self.take("}")
            return
        while True:
            if self.peek() != '"':
                raise self.error(f"is not JSON: a key must be a text{self._place()}")
            key = self.value()
            self.take(":")
            yield str(key)
            if self.take(",}") == "}":
                return

    def _more(self) -> bool:
        """Reads more text: as much as is already waiting, so that a long value is reparsed only a logarithmic number of times."""
        if self._ended:
            return False
        # Doubling: a value of n characters is parsed log n times and not n times.
        waiting = len(self._text) - self._at
        raw = self._stream.read(max(_CHUNK, waiting))
        self._ended = not raw
        try:
            added = self._utf8.decode(raw, final=self._ended)
        except UnicodeDecodeError as error:
            raise self.error(f"is not UTF-8 at byte {self._bytes + error.start}") from error
        self._bytes += len(raw)
        self._gone += self._at
        self._text, self._at = self._text[self._at :] + added, 0
        return bool(added) or not self._ended

    def _place(self, at: int | None = None) -> str:
        """Where, counted in characters of the document."""
        return f" (character {self._gone + (self._at if at is None else at) + 1:,})"


# ---- rows of any file


# A row of 4 MiB has room for most of a million words. Without a bound, a file of one line fills the memory (issue 31).
MAX_ROW: Final = 4 * 2**20
"""Bytes that one row of a file may have; what is longer is not read into memory."""

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

    def __str__(self) -> str:
        """`line 3: field 'answer' is missing`."""
        return f"line {self.line}: {f'field {self.field!r}' if self.field else 'the row'} {self.reason}"


Rows: TypeAlias = Iterator["tuple[int, Mapping[str, Any] | BadRow]"]


def read_rows(path: Path) -> Rows:
    """The rows of a file with their numbers (lines, for formats that have lines), from 1.

    Raises:
        InvalidValueError: the ending is unknown.
        ProblemFileError: the file cannot be read, or cannot be read to its end.
    """
    ending = _ending(path)
    if ending == ".parquet":
        return parquet_rows(path)
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
        with reading(path) as stream:
            for number, row in read(stream, path):
                yield number, row
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ProblemFileError(f"{path}: the gzip archive is broken or cut off after row {number}: {error}") from error
    except OSError as error:
        raise ProblemFileError(
            f"problems file {str(path)!r} cannot be read: {error.strerror or error}{_near(path)}"
        ) from error
    except ValueError as error:  # a path with a NUL in it
        if isinstance(error, MathTurnError):
            raise
        raise ProblemFileError(f"problems file {short(str(path))} cannot be read: {error}") from error


def _near(path: Path) -> str:
    """` (did you mean …)` where a file beside it has nearly the same name."""
    import difflib

    try:
        names = [one.name for one in path.parent.iterdir()] if not path.exists() else []
    except (OSError, ValueError):
        return ""
    near = difflib.get_close_matches(path.name, names, n=1)
    return f" (did you mean {str(path.parent / near[0])!r}?)" if near else ""


def numbered_lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines; None stands for one that is too long, the rest of which is read past, not kept."""
    return enumerate(bounded_lines(stream, MAX_ROW), start=1)


def _json_lines(stream: IO[bytes], path: Path) -> Rows:
    for number, raw in numbered_lines(stream):
        if raw is None:
            yield number, BadRow(number, "", f"is longer than {MAX_ROW:,} bytes; is the file JSON lines?")
        elif raw.strip():
            yield number, parse_line(raw, number)


def parse_line(raw: bytes, number: int) -> Mapping[str, Any] | BadRow:
    """One line of JSON as a row, or what is wrong with it."""
    try:
        row = json.loads(raw.decode("utf-8-sig" if number == 1 else "utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        return BadRow(number, "", f"is not UTF-8 at byte {error.start}")
    except RecursionError:
        return BadRow(number, "", "is not JSON that can be read: it is nested too deeply")
    except ValueError as error:
        return BadRow(number, "", f"is not JSON: {error}")
    return _as_row(row, number)


def _as_row(row: object, number: int) -> Mapping[str, Any] | BadRow:
    return row if isinstance(row, dict) else BadRow(number, "", f"is a {type(row).__name__}, not an object")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _json(stream: IO[bytes], path: Path) -> Rows:
    """A list of objects, an object that holds one list, or (as often under this ending) JSON lines."""
    # Two lines that begin with "{" are JSON lines: a document has one opening brace, at its start.
    begun: list[bytes] = []
    while len(begun) < 2 and stream.tell() <= MAX_ROW and (line := stream.readline(MAX_ROW + 1)):
        begun += [line.lstrip(b"\xef\xbb\xbf \t\r")[:1]] if line.strip() else []
    stream.seek(0)
    if begun == [b"{", b"{"]:
        return _json_lines(stream, path)
    return _json_document(JsonText(stream, str(path), MAX_ROW, _refuse_constant))


def _json_document(text: JsonText) -> Rows:
    """The elements of the list, one by one."""
    opening = text.peek()
    if opening == "[":
        yield from _elements(text)
    elif opening == "{":
        lists: list[str] = []
        for key in text.members():
            if text.peek() == "[":
                lists.append(key)
                if len(lists) > 1:
                    break
                yield from _elements(text)
            else:
                text.value()
        if len(lists) != 1:
            raise text.error(f"must be a list of objects, or an object with one list in it; lists: {short(lists)}")
    else:
        raise text.error(f"must be a list of objects, got {short(text.value()) if opening else 'nothing'}")
    # Two documents in one file, or a file cut and pasted: better refused than half read.
    if text.peek():
        raise text.error("goes on after its end")


def _elements(text: JsonText) -> Rows:
    for number, row in enumerate(text.elements(), start=1):
        yield number, _as_row(row, number)


def _csv(stream: IO[bytes], path: Path) -> Rows:
    # strict: a quote that is never closed would otherwise swallow the rest of the file as one field.
    reader = csv.DictReader(_checked_lines(stream, path), strict=True)
    last = 0
    try:
        names = reader.fieldnames or ()
        doubled = sorted({name for name in names if list(names).count(name) > 1})
        if doubled:
            raise ProblemFileError(f"{path}, line 1: two columns have the name {short(doubled[0])}")
        for row in reader:
            last = reader.line_num
            if None in row or None in row.values():
                found = len(row.get(None) or []) + sum(value is not None for key, value in row.items() if key)
                yield last, BadRow(last, "", f"has {found} fields, the header has {len(names)}")
            elif bad := [name for name, value in row.items() if not _is_unicode(name + value)]:
                yield last, BadRow(last, "", f"is not UTF-8 in column {short(bad[0])}")
            else:
                yield last, {key: value for key, value in row.items() if value != ""}
    except csv.Error as error:
        raise ProblemFileError(f"{path}, after line {last}: is not CSV: {error}") from error


def _checked_lines(stream: IO[bytes], path: Path) -> Iterator[str]:
    """Lines as text; bytes that are not UTF-8 become surrogates, which the row that they are in is refused for."""
    for number, raw in numbered_lines(stream):
        if raw is None:
            raise ProblemFileError(f"{path}, line {number}: is longer than {MAX_ROW:,} bytes")
        # Only the row with the bad bytes is to be refused, and csv reads text: the bytes travel as surrogates.
        yield raw.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# ---- Parquet


_BATCH: Final = 256
_AT_ONCE: Final = 16 * MAX_ROW


def parquet_rows(path: Path) -> Rows:
    """The rows with their numbers, from 1; fields that are null are left out."""
    number = 0
    try:
        for batch in bounded_batches(path, batch_size=_BATCH, most=_AT_ONCE):
            for row in [None] if batch is None else batch.to_pylist():
                number += 1
                if row is None:
                    yield number, BadRow(number, "", f"may have more than {_AT_ONCE:,} bytes")
                else:
                    yield number, {key: value for key, value in row.items() if value is not None}
    except OSError as error:
        raise ProblemFileError(f"problems file {str(path)!r} cannot be read: {error.strerror or error}") from error
    # pyarrow's errors are subclasses of these or of OSError
    except (ValueError, KeyError, TypeError, OverflowError, NotImplementedError, MemoryError) as error:
        if isinstance(error, MathTurnError):
            raise
        raise ProblemFileError(
            f"{path}: is not a Parquet file that can be read, after row {number}: {error}"
        ) from error
