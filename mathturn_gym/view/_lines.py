"""A file of JSON lines, of whatever schema its first line has, that can be read on from where it was left."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

from mathturn_gym._files import bounded_lines
from mathturn_gym._json import parse_json
from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError
from mathturn_gym.trajectories import SCHEMA, episode_from_record
from mathturn_gym.trajectories.files import MAX_LINE
from mathturn_gym.view._records import ViewEpisode, from_episodes
from mathturn_gym.view.adapters import ADAPTERS, Adapter

__all__ = ["OURS", "LineLog", "holds_episodes"]

OURS: Final = "mathturn_gym"
_PEEKED: Final = 20
_OTHER_SHAPE: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)
"""What reading fields raises where a line has a neighbor's fields and other types behind them than it writes."""


class LineLog:
    """A file of episodes, a line each.

    Args:
        path: `*.jsonl` or `*.jsonl.gz`.

    Attributes:
        format: Who wrote it; ours while nothing is known.
        left_out: What was no episode so far: a line each, saying where and why.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.format = OURS
        self.left_out: list[str] = []
        self._adapter: Adapter | None = None
        self._known = False
        self._offset = self._line = self._episodes = 0

    @property
    def shrunk(self) -> bool:
        """True where the file is shorter than what was read of it: another run has taken its place."""
        return not self.path.exists() or self.path.stat().st_size < self._offset

    def read(self, *, growing: bool = False) -> Sequence[ViewEpisode]:
        """The episodes that were not read yet.

        Args:
            growing: The file is still written: a last line without an end is left for later, and advantages are not
                made up from groups of which more may come.

        Raises:
            InvalidValueError: the first line has a schema that is not known.
        """
        rows: list[Any] = []
        for record in self._records(growing):
            if not self._known:
                self._adapter, self._known = self._recognize(record), True
                self.format = OURS if self._adapter is None else self._adapter.name
            try:
                rows.append(self._one(record))
                self._episodes += 1
            except (InvalidEpisodeError, InvalidValueError) as error:
                self._leave_out(error)
            except _OTHER_SHAPE as error:
                self._leave_out(InvalidValueError(f"it is no row of {self.format}: {type(error).__name__}: {error}"))
        if self._adapter is None:
            return from_episodes(rows, credit=not growing)
        return list(itertools.chain.from_iterable(rows))

    def _one(self, record: Any) -> Any:
        """An `Episode` of ours, or what an adapter makes of another's line."""
        if self._adapter is None:
            return episode_from_record(record)
        if not isinstance(record, dict):
            raise InvalidValueError(f"a record must be an object, got {type(record).__name__}")
        return self._adapter.read(record, self._episodes, self.path.name)

    def _recognize(self, record: Any) -> Adapter | None:
        """Who wrote a line: None for us."""
        if _is_ours(record):
            return None
        adapter = _adapter_of(record)
        if adapter is not None:
            return adapter
        fields = ", ".join(list(map(str, record))[:12]) if isinstance(record, dict) else type(record).__name__
        raise InvalidValueError(
            f"{self.path} holds no episodes that are known here: its first line has the fields {fields}; known are"
            f" {', '.join(dict.fromkeys([OURS, *(adapter.name for adapter in ADAPTERS)]))}, tables of TRL (.parquet) and"
            " logs of Inspect (.eval)"
        )

    def _records(self, growing: bool) -> Iterator[Any]:
        """The JSON of the lines from where the last reading ended."""
        packed = self.path.name.endswith(".gz")
        opener: Any = gzip.open if packed else open
        with opener(self.path, "rb") as stream:
            stream.seek(self._offset)
            for line in self._lines(stream, growing):
                if line.strip():
                    try:
                        yield parse_json(line)
                    except ValueError as error:
                        self._leave_out(error)

    def _lines(self, stream: IO[bytes], growing: bool) -> Iterator[bytes]:
        lines = bounded_lines(stream, MAX_LINE)
        while True:
            try:
                line = next(lines, b"")
            except (EOFError, OSError, zlib.error) as error:  # a compressed file that was cut off
                self._line += 1
                self._leave_out(error)
                return
            if line == b"" or (growing and line is not None and not line.endswith(b"\n")):
                return
            self._offset = stream.tell()
            self._line += 1
            if line is None:
                self._leave_out(InvalidValueError(f"is longer than {MAX_LINE:,} bytes"))
            else:
                yield line

    def _leave_out(self, error: Exception) -> None:
        self.left_out.append(f"{self.path.name}, line {self._line}: {error}")


def holds_episodes(path: Path) -> bool:
    """True where a file's first line that is JSON is an episode of a schema that is known."""
    return any(_is_ours(record) or _adapter_of(record) is not None for record in itertools.islice(_peek(path), 1))


def _peek(path: Path) -> Iterator[Any]:
    """The JSON of a file's lines; what is no JSON is passed over."""
    opener: Any = gzip.open if path.name.endswith(".gz") else open
    # A file that cannot be unpacked holds no episodes; who asks for it by name is told why.
    with opener(path, "rb") as stream, contextlib.suppress(EOFError, gzip.BadGzipFile, zlib.error):
        for line in itertools.islice(bounded_lines(stream, MAX_LINE), _PEEKED):
            with contextlib.suppress(ValueError):
                yield parse_json(b"" if line is None else line)


def _is_ours(record: Any) -> bool:
    return isinstance(record, dict) and record.get("schema") == SCHEMA


def _adapter_of(record: Any) -> Adapter | None:
    if not isinstance(record, dict):
        return None
    return next((adapter for adapter in ADAPTERS if adapter.matches(record)), None)
