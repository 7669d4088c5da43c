"""Writing and streaming files of episodes; bad rows are named and kept apart, the rest load."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import logging
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from mathturn_gym.base.files import bounded_lines, open_regular, parse_json, reading, replacing, storage_errors
from mathturn_gym.base.parquet import bounded_batches
from mathturn_gym.episodes.trajectories.records import episode_from_record, episode_to_record
from mathturn_gym.episodes.trajectories.tables import (
    check_table_schema,
    episodes_from_table,
    episodes_to_table,
    require_pyarrow,
    table_schema,
)
from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError, check_int
from mathturn_gym.types import Episode

logger = logging.getLogger(__name__)

_SUFFIXES: Final = (".jsonl", ".jsonl.gz", ".parquet")
_BLOCK: Final = 1 << 16

MAX_LINE: Final = 64 * 2**20
"""Bytes that a line of a file of episodes may have, unpacked: about two million tokens. Longer ones are not read into memory."""

# Bytes that are kept of a line that is no episode.
_KEPT: Final = 1 << 16

# Bytes that a batch of rows may have.
_AT_ONCE: Final = 256 * 2**20

# Bad rows after which a file that holds more of them than of episodes is given up: 20 million fit into 234 kB of gzip.
_MOST_BAD: Final = 10_000

# Bad rows that are logged one by one, and whose content is kept.
_SHOWN: Final = 100

_END: Final = object()


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is no episode.

    Args:
        path: The file.
        row: From 0 (line `row + 1` of a JSON-lines file).
        reason: What is wrong, naming the field.
        content: The line, or its first 64 KiB, undecodable bytes escaped; None for Parquet, where the row stays in the file.
    """

    path: Path
    row: int
    reason: str
    content: str | None = None

    def __str__(self) -> str:
        return f"{self.path}, row {self.row}: {self.reason}"


class EpisodeReader(Iterable[Episode]):
    """A file's episodes, one at a time; every iteration starts at the beginning.

    Memory is that of one line (JSON-lines, of at most 64 MiB) or of `batch_size` rows (Parquet), and 64 KiB of each bad row.

    Args:
        path: `*.jsonl`, `*.jsonl.gz` or `*.parquet`.
        strict: Raise at the first bad row instead of keeping it apart.
        batch_size: Rows of a Parquet file decoded at a time.

    Attributes:
        bad_rows: What the latest iteration has found so far that was no episode; each is logged as a warning too.
    """

    def __init__(self, path: str | os.PathLike[str], *, strict: bool, batch_size: int) -> None:
        self.path = Path(path)
        self.strict = strict
        self.batch_size = check_int("batch_size", batch_size, low=1)
        self.bad_rows: list[BadRow] = []
        self._suffix = _suffix(self.path)
        if not self.path.is_file():
            raise InvalidValueError(f"path must be a file of episodes, got {str(self.path)!r}, which is not there")

    def __iter__(self) -> Iterator[Episode]:
        bad: list[BadRow] = []
        self.bad_rows = bad
        for row, result in enumerate(self._parquet() if self._suffix == ".parquet" else self._json_lines()):
            if isinstance(result, Episode):
                yield result
                continue
            error, content = result
            # The first hundred keep their content: a file of another kind is not kept in memory line by line (issue
            # 31).
            found = BadRow(self.path, row, str(error), content if len(bad) < _SHOWN else None)
            if self.strict:
                raise InvalidEpisodeError(str(found)) from error
            bad.append(found)
            if len(bad) <= _SHOWN:
                logger.warning("left out %s%s", found, " (the last that is named)" if len(bad) == _SHOWN else "")
            elif len(bad) > _MOST_BAD and 2 * len(bad) > row:
                raise InvalidEpisodeError(
                    f"{self.path} is no file of episodes: {len(bad):,} of its first {row + 1:,} rows are none; the first:"
                    f" {bad[0]}"
                )

    def _json_lines(self) -> Iterator[Episode | tuple[Exception, str | None]]:
        with reading(self.path) as stream:
            lines = bounded_lines(stream, MAX_LINE)
            while True:
                try:
                    line = next(lines)
                except StopIteration:
                    return
                except (EOFError, OSError, zlib.error) as error:  # a compressed file that was cut off or damaged
                    yield error, None
                    return
                if line is None:
                    yield InvalidEpisodeError(f"the line is longer than {MAX_LINE:,} bytes"), None
                    continue
                try:
                    yield episode_from_record(parse_json(line))
                # A line nested beyond Python's stack is a bad row, not the end of the file.
                except (InvalidEpisodeError, ValueError, RecursionError) as error:
                    yield error, line[:_KEPT].decode("utf-8", errors="backslashreplace").rstrip("\n")

    def _parquet(self) -> Iterator[Episode | tuple[Exception, str | None]]:
        require_pyarrow()
        import pyarrow.parquet as pq

        try:
            with open_regular(self.path) as stream, pq.ParquetFile(stream) as file:
                schema = file.schema_arrow
        except (ValueError, OSError) as error:  # pyarrow's errors derive from these
            raise InvalidValueError(f"{self.path} is not a Parquet file: {error}") from error
        check_table_schema(schema, str(self.path))
        # Other columns may be as large as their writer likes: they are not even read.
        columns = [name for name in table_schema().names if name in schema.names]
        batches = bounded_batches(self.path, batch_size=self.batch_size, most=_AT_ONCE, columns=columns)
        while True:
            try:
                batch = next(batches, _END)
            # What pyarrow raises; a page that does not decode takes those behind it along.
            except (ValueError, OSError, KeyError, OverflowError, MemoryError) as error:
                yield error, None
                return
            if batch is _END:
                return
            if batch is None:
                yield InvalidEpisodeError(f"the row has more than {_AT_ONCE:,} bytes"), None
                continue
            for result in episodes_from_table(batch):
                yield (result, None) if isinstance(result, InvalidEpisodeError) else result


def read_episodes(path: str | os.PathLike[str], *, strict: bool = False, batch_size: int = 256) -> EpisodeReader:
    """A streaming reader of a file that `write_episodes` (or anybody, see `docs/trajectories.md`) wrote.

    >>> reader = read_episodes("episodes.parquet")  # doctest: +SKIP
    >>> solved = [episode for episode in reader if episode.solved]; reader.bad_rows  # doctest: +SKIP
    []

    Raises:
        InvalidValueError: no such file, or a suffix that is not known.
    """
    return EpisodeReader(path, strict=strict, batch_size=batch_size)


def write_episodes(path: str | os.PathLike[str], episodes: Iterable[Episode], *, row_group_size: int = 1024) -> int:
    """Writes episodes, streaming; the file appears under its name only when it is whole.

    Args:
        path: `*.jsonl`, `*.jsonl.gz` or `*.parquet`; replaced if it is there.
        episodes: Any iterable; at most `row_group_size` of them are held.
        row_group_size: Rows of a Parquet row group.

    Returns:
        How many were written.

    Raises:
        InvalidValueError: a suffix that is not known, or a folder that is not there.
        InvalidEpisodeError: an episode that cannot be stored without loss.
        StorageError: the disk is full, or the folder read-only; an old file stands.
        MissingDependencyError: Parquet without pyarrow.
    """
    target = Path(path)
    suffix = _suffix(target)
    size = check_int("row_group_size", row_group_size, low=1)
    if not target.parent.is_dir():
        raise InvalidValueError(f"path must be in a folder that is there, got {str(target)!r}")
    # Under its name only when it is whole: readers of a run folder never see half a file.
    with replacing(target) as scratch:
        if suffix == ".parquet":
            return _write_parquet(scratch, episodes, size)
        with _open_text(scratch, compressed=suffix == ".jsonl.gz") as stream:
            return _write_lines(stream, episodes)


class EpisodeWriter:
    """A JSON-lines file that grows while a run goes on, a line per episode; what was written so far always loads.

    Args:
        path: `*.jsonl`; where it is there, it is continued. A last line that a killed process left unfinished is cut off.

    Raises:
        InvalidValueError: another suffix, or a folder that is not there.
        StorageError: it cannot be written.

    >>> with EpisodeWriter("run/episodes.jsonl") as writer:  # doctest: +SKIP
    ...     collect(env, policy, 100, on_episode=writer.write)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.suffix != ".jsonl":
            raise InvalidValueError(f"path must end in .jsonl, which can be continued, got {self.path.name!r}")
        if not self.path.parent.is_dir():
            raise InvalidValueError(f"path must be in a folder that is there, got {str(self.path)!r}")
        with storage_errors(self.path):
            # A killed process leaves half a line: appended to, it would spoil the next episode, too.
            _cut_torn_line(self.path)
            self._stream = io.TextIOWrapper(open_regular(self.path, "ab"), encoding="utf-8", newline="")

    def write(self, episode: Episode) -> None:
        """Appends an episode; a reader of the file finds it from now on.

        Raises:
            StorageError: the disk is full; what was written before is there.
        """
        with storage_errors(self.path):
            _write_lines(self._stream, [episode])
            self._stream.flush()

    def close(self) -> None:
        """Closes the file."""
        with storage_errors(self.path):
            self._stream.close()

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _cut_torn_line(path: Path) -> None:
    """Cuts off what follows the last line end; the file is read from its end, since it may be large."""
    if not path.exists():
        return
    with open_regular(path, "r+b") as stream:
        end = stream.seek(0, os.SEEK_END)
        while end > 0:
            begin = max(0, end - _BLOCK)
            stream.seek(begin)
            at = stream.read(end - begin).rfind(b"\n")
            if at >= 0:
                stream.truncate(begin + at + 1)
                return
            end = begin
        stream.truncate(0)


def _write_lines(stream: IO[str], episodes: Iterable[Episode]) -> int:
    count = 0
    for episode in episodes:
        try:
            line = json.dumps(episode_to_record(episode), allow_nan=False, separators=(",", ":"))
        except ValueError as error:  # NaN, which a file from elsewhere may have held
            raise InvalidEpisodeError(f"episode {episode.index} has no place in JSON: {error}") from error
        # In one call: Ctrl-C comes between calls, and must not leave half a line.
        stream.write(line + "\n")
        count += 1
    return count


def _write_parquet(path: Path, episodes: Iterable[Episode], row_group_size: int) -> int:
    require_pyarrow()
    import pyarrow.parquet as pq

    rest, count = iter(episodes), 0
    with pq.ParquetWriter(path, table_schema(), compression="zstd") as writer:
        while chunk := list(itertools.islice(rest, row_group_size)):
            writer.write_table(episodes_to_table(chunk), row_group_size=row_group_size)
            count += len(chunk)
    return count


@contextlib.contextmanager
def _open_text(path: Path, *, compressed: bool) -> Iterator[IO[str]]:
    if not compressed:
        with path.open("w", encoding="utf-8") as stream:
            yield stream
        return
    # No time stamp and no name: equal episodes give equal files.
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8") as stream,
    ):
        yield stream


def _suffix(path: Path) -> str:
    for suffix in _SUFFIXES:
        if path.name.endswith(suffix):
            return suffix
    raise InvalidValueError(f"path must end in {', '.join(_SUFFIXES)}, got {path.name!r}")
