"""What a path holds: files of episodes, ours or another trainer's, and the curves beside them.

    RUN/episodes.jsonl, RUN/metrics.jsonl     a run of ours
    RUN/completions/*.parquet                 TRL
    RUN/10.jsonl, RUN/20.jsonl …              verl
    RUN/traces.jsonl, RUN/results.jsonl       verifiers
    RUN/*.eval                                Inspect

A file is recognized by what is in it, not by its name.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from mathturn_gym.base.files import bounded_lines, open_regular, parse_json, read_regular, reading
from mathturn_gym.base.parquet import bounded_batches
from mathturn_gym.episodes.trajectories import read_episodes
from mathturn_gym.episodes.trajectories.files import MAX_LINE
from mathturn_gym.episodes.trajectories.records import SCHEMA, episode_from_record
from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError
from mathturn_gym.show.view.adapters import ADAPTERS
from mathturn_gym.show.view.adapters._base import Adapter, number
from mathturn_gym.show.view.adapters.inspect import read_inspect
from mathturn_gym.show.view.adapters.trl import read_trl_table
from mathturn_gym.show.view.records import ViewEpisode, from_episodes
from mathturn_gym.types import Episode

OURS: Final = "mathturn_gym"
_PEEKED: Final = 20
_MOST_METRICS: Final = 1 << 30
_MOST_BAD: Final = 10_000
_MOST_SHOWN: Final = 1 << 31  # bytes of episodes, unpacked, that are kept for one page
# Episodes of a file that are kept for one page: each takes a kilobyte here, and nearly nothing in a file that is packed.
_MOST_EPISODES: Final = 1_000_000
# What reading fields raises where a line has a neighbor's fields and other types behind them than it writes.
_OTHER_SHAPE: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)


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
        with reading(self.path) as stream:
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
            if self._offset > _MOST_SHOWN and self.path.name.endswith(".gz"):
                raise InvalidValueError(
                    f"{self.path} unpacks to more than {_MOST_SHOWN:,} bytes, which no page can show"
                )
            self._line += 1
            _check_count(self._line, self.path)
            if line is None:
                self._leave_out(InvalidValueError(f"is longer than {MAX_LINE:,} bytes"))
            else:
                yield line

    def _leave_out(self, error: Exception) -> None:
        if len(self.left_out) >= _MOST_BAD and 2 * len(self.left_out) > self._line:
            raise InvalidValueError(
                f"{self.path} holds no episodes: {len(self.left_out):,} of its first {self._line:,} lines are none; the first:"
                f" {self.left_out[0]}"
            )
        self.left_out.append(f"{self.path.name}, line {self._line}: {error}")


def holds_episodes(path: Path) -> bool:
    """True where a file's first line that is JSON is an episode of a schema that is known."""
    return any(_is_ours(record) or _adapter_of(record) is not None for record in itertools.islice(_peek(path), 1))


def _peek(path: Path) -> Iterator[Any]:
    """The JSON of a file's lines; what is no JSON is passed over."""
    # a file that cannot be unpacked holds no episodes. Reading it by name raises an error that says why.
    with reading(path) as stream, contextlib.suppress(EOFError, gzip.BadGzipFile, zlib.error):
        for line in itertools.islice(bounded_lines(stream, MAX_LINE), _PEEKED):
            with contextlib.suppress(ValueError):
                yield parse_json(b"" if line is None else line)


def _is_ours(record: Any) -> bool:
    return isinstance(record, dict) and record.get("schema") == SCHEMA


def _adapter_of(record: Any) -> Adapter | None:
    if not isinstance(record, dict):
        return None
    return next((adapter for adapter in ADAPTERS if adapter.matches(record)), None)


# ---- what a path holds: files of episodes, ours or another trainer's, and the curves beside them


_LINES: Final = (".jsonl", ".jsonl.gz")
_NUMBERED: Final = re.compile(r"(\d+)\.jsonl")
# Before and after a training: in that order, not in the alphabet's.
_ORDER: Final = {"episodes_before": 0, "episodes_after": 1}


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeSet:
    """Episodes that belong together."""

    name: str  # what the page calls them
    path: str  # where they were read
    format: str  # who wrote them
    episodes: Sequence[ViewEpisode]  # in the order of the file
    left_out: Sequence[str] = ()  # what was no episode: a line each, saying where and why


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """A run's figures over its iterations."""

    name: str  # what the page calls the run
    # By the figure's name one value per line, None where a line had none.
    columns: Mapping[str, Sequence[float | None]] = field(default_factory=dict)


def read_sets(path: Path, name: str) -> list[EpisodeSet]:
    """Every set of episodes in a file or a run's folder."""
    if path.is_file():
        return [_read_file(path, name)]
    if not path.is_dir():
        raise InvalidValueError(f"{str(path)!r} is not there: name a run's folder or a file of episodes")
    parts = _parts(path)
    if not parts:
        raise InvalidValueError(
            f"{str(path)!r} holds no episodes: expected *.jsonl, *.jsonl.gz, *.parquet or *.eval in it, or completions/"
        )
    return [read(name if len(parts) == 1 else f"{name}: {part}") for part, read in parts]


def set_files(path: Path, name: str) -> list[tuple[str, Path]]:
    """The files of a run that can be followed while they grow, with the names of their sets."""
    if path.is_file():
        if path.suffix != ".jsonl":
            raise InvalidValueError(f"{str(path)!r} cannot be followed: only .jsonl files grow line by line")
        return [(name, path)]
    files = [file for file in sorted(path.glob("*.jsonl")) if not file.name.startswith(".") and holds_episodes(file)]
    files.sort(key=lambda file: _ORDER.get(_stem(file), 2))
    return [(name if len(files) == 1 else f"{name}: {_stem(file)}", file) for file in files]


def run_names(paths: Sequence[Path]) -> list[str]:
    """Returns short names of runs: as many last parts of their paths as tell them apart.

    Of `out/cells/grpo/lins/seed-0/run` and `out/cells/ppo/lins/seed-0/run` the parts that differ are kept, with what
    comes after them shortened: `grpo/…/run` and `ppo/…/run`.

    >>> run_names([Path("/a/grpo/lins/seed-0/run"), Path("/a/ppo/lins/seed-0/run")])
    ['grpo/…/run', 'ppo/…/run']
    """
    # `resolve` raises at links that lead in a circle.
    parts = [Path(os.path.abspath(path)).parts for path in paths]  # noqa: PTH100
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-length:]) if length < 3 else f"{part[-length:][0]}/…/{part[-1]}" for part in parts]
        if len(set(names)) == len(names):
            return names
    full = ["/".join(part[-3:]) for part in parts]  # the same path twice, or names that only the middle tells apart
    return [f"{name} ({full[: at + 1].count(name)})" if full.count(name) > 1 else name for at, name in enumerate(full)]


def _parts(folder: Path) -> list[tuple[str, Callable[[str], EpisodeSet]]]:
    """What a folder holds, each with the function that reads it under a name."""
    found: list[tuple[str, Callable[[str], EpisodeSet]]] = []
    # By number, not by name: verl's 9.jsonl comes before its 10.jsonl.
    numbered = sorted(
        (one for one in folder.glob("*.jsonl") if _NUMBERED.fullmatch(one.name) and one.is_file()),
        key=lambda one: int(one.stem),
    )
    if numbered:
        found.append(("steps", lambda name: _read_many(numbered, name, str(folder))))
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path in numbered or path.name.startswith("."):
            continue
        # Other files of lines, such as metrics.jsonl, may lie beside the episodes.
        if path.name.endswith((".parquet", ".eval")) or (path.name.endswith(_LINES) and holds_episodes(path)):
            found.append((_stem(path), lambda name, path=path: _read_file(path, name)))  # type: ignore[misc]
    tables = sorted((folder / "completions").glob("*.parquet"))
    if tables:
        found.append(("completions", lambda name: _read_many(tables, name, str(folder / "completions"))))
    return sorted(found, key=lambda part: _ORDER.get(part[0], 2))


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").rpartition(".")[0]


def _read_many(paths: Sequence[Path], name: str, place: str) -> EpisodeSet:
    """Files that are parts of one log, one after the other."""
    sets = [_read_file(path, name) for path in paths]
    return EpisodeSet(
        name,
        place,
        sets[0].format,
        [episode for one in sets for episode in one.episodes],
        [reason for one in sets for reason in one.left_out],
    )


def _read_file(path: Path, name: str) -> EpisodeSet:
    if path.name.endswith(".parquet"):
        return _read_parquet(path, name)
    if path.name.endswith(_LINES):
        log = LineLog(path)
        episodes = log.read()  # which also finds out who wrote the file, and what is left out
        return EpisodeSet(name, str(path), log.format, episodes, log.left_out)
    if path.name.endswith((".eval", ".json")):
        return EpisodeSet(name, str(path), "Inspect", *read_inspect(path))
    raise InvalidValueError(
        f"{str(path)!r} must end in .jsonl, .jsonl.gz, .parquet, .eval or .json to be read as episodes"
    )


def _read_parquet(path: Path, name: str) -> EpisodeSet:
    from mathturn_gym.episodes.trajectories.tables import require_pyarrow

    pyarrow = require_pyarrow()
    import pyarrow.parquet as pq

    try:
        with open_regular(path) as stream, pq.ParquetFile(stream) as file:
            rows, metadata = file.metadata.num_rows, file.schema_arrow.metadata or {}
    except (ValueError, OSError) as error:  # pyarrow's errors derive from these
        raise InvalidValueError(f"{path} is not a Parquet file: {error}") from error
    _check_count(rows, path)
    if metadata.get(b"schema") == SCHEMA.encode():
        reader = read_episodes(path)
        episodes = from_episodes(list(_at_most(reader, path)))
        return EpisodeSet(name, str(path), OURS, episodes, [str(bad) for bad in reader.bad_rows])
    try:
        batches = bounded_batches(path, batch_size=256, most=_MOST_SHOWN, total=_MOST_SHOWN)
        table = pyarrow.Table.from_batches([batch for batch in batches if batch is not None])
        episodes, left_out = read_trl_table(table, str(path))
    except InvalidValueError:
        raise
    except (ValueError, OSError, KeyError, OverflowError) as error:  # dates may be none that Python has
        raise InvalidValueError(f"{path} cannot be read to its end: {error}") from error
    return EpisodeSet(name, str(path), "TRL", episodes, left_out)


def _at_most(episodes: Iterable[Episode], path: Path) -> Iterator[Episode]:
    """The episodes, as long as they fit into the memory that a page may take."""
    size = 0
    for episode in episodes:
        size += 32 * len(episode.ids) + sum(map(len, (episode.prompt, *episode.feedbacks, *episode.responses)))
        if size > _MOST_SHOWN:
            raise InvalidValueError(f"{path} holds more than {_MOST_SHOWN:,} bytes of episodes, which no page can show")
        yield episode


def _check_count(rows: int, path: Path) -> None:
    if rows > _MOST_EPISODES:
        raise InvalidValueError(f"{path} has more than {_MOST_EPISODES:,} rows, which no page can show")


def read_curves(path: Path, name: str) -> list[Curves]:
    """The curves of a run: `metrics.jsonl` of ours, `trainer_state.json` of a Hugging Face trainer; none for a file."""
    if not path.is_dir():
        return []
    rows = _metrics(path / "metrics.jsonl")
    # A Hugging Face trainer keeps its history in its checkpoints, and at the end beside them: the longest is the last.
    states = [*sorted(path.glob("checkpoint-*/trainer_state.json")), *path.glob("trainer_state.json")]
    if not rows and states:
        rows = max(map(_history, states), key=len)
    if not rows:
        return []
    names = [key for key in dict.fromkeys(key for row in rows for key in row) if _is_curve(rows, key)]
    return [Curves(name, {key: [number(row.get(key)) for row in rows] for key in names})]


def _metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of metrics; a last line that is still being written is left for later."""
    if not path.is_file():
        return []
    try:
        lines = read_regular(path, _MOST_METRICS).splitlines()
    except OSError as error:
        raise InvalidValueError(f"{path} does not load: {error}") from error
    rows = []
    for place, line in enumerate(lines, 1):
        try:
            row = parse_json(line)
        except ValueError as error:
            if place == len(lines):
                break
            raise InvalidValueError(f"{path}, line {place} is not JSON: {error}") from error
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _history(path: Path) -> list[dict[str, Any]]:
    """`log_history` of a Hugging Face trainer's state."""
    try:
        history = parse_json(read_regular(path, _MOST_METRICS)).get("log_history", [])
        return [row for row in history if isinstance(row, dict)]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InvalidValueError(f"{path} does not load: {error}") from error


def _is_curve(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    return any(number(row.get(key)) is not None for row in rows)
