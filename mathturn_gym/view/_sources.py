"""What a path holds: files of episodes, ours or another trainer's, and the curves beside them.

    RUN/episodes.jsonl, RUN/metrics.jsonl     a run of ours
    RUN/completions/*.parquet                 TRL
    RUN/10.jsonl, RUN/20.jsonl …              verl
    RUN/traces.jsonl, RUN/results.jsonl       verifiers
    RUN/*.eval                                Inspect

A file is recognized by what is in it, not by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mathturn_gym._json import parse_json
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.trajectories import SCHEMA, read_episodes
from mathturn_gym.view._lines import OURS, LineLog, holds_episodes
from mathturn_gym.view._records import ViewEpisode, from_episodes
from mathturn_gym.view.adapters import read_inspect, read_trl_table
from mathturn_gym.view.adapters._base import number

__all__ = ["Curves", "EpisodeSet", "read_curves", "read_sets", "run_names", "set_files"]

_LINES: Final = (".jsonl", ".jsonl.gz")
_NUMBERED: Final = re.compile(r"(\d+)\.jsonl")
_ORDER: Final = {"episodes_before": 0, "episodes_after": 1}
"""Before and after a training: in that order, not in the alphabet's."""


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeSet:
    """Episodes that belong together.

    Args:
        name: What the page calls them.
        path: Where they were read.
        format: Who wrote them.
        episodes: In the order of the file.
        left_out: What was no episode: a line each, saying where and why.
    """

    name: str
    path: str
    format: str
    episodes: Sequence[ViewEpisode]
    left_out: Sequence[str] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """A run's figures over its iterations.

    Args:
        name: What the page calls the run.
        columns: By the figure's name one value per line, None where a line had none.
    """

    name: str
    columns: Mapping[str, Sequence[float | None]] = field(default_factory=dict)


def read_sets(path: Path, name: str) -> list[EpisodeSet]:
    """Every set of episodes in a file or a run's folder.

    Args:
        path: The file or folder.
        name: What to call them.

    Raises:
        InvalidValueError: nothing is there, or nothing that holds episodes.
        MissingDependencyError: Parquet without pyarrow, Inspect logs without inspect_ai.
    """
    if path.is_file():
        return [_read_file(path, name)]
    if not path.is_dir():
        raise InvalidValueError(f"{str(path)!r} is not there: name a run's folder or a file of episodes")
    parts = _parts(path)
    if not parts:
        raise InvalidValueError(
            f"{str(path)!r} holds no episodes: expected *.jsonl, *.jsonl.gz, *.parquet or *.eval in it, or completions/"
        )
    single = len(parts) == 1
    return [read(name if single else f"{name}: {part}") for part, read in parts]


def set_files(path: Path, name: str) -> list[tuple[str, Path]]:
    """The files of a run that can be followed while they grow, with the names of their sets.

    Raises:
        InvalidValueError: a file that is no `.jsonl`.
    """
    if path.is_file():
        if path.suffix != ".jsonl":
            raise InvalidValueError(f"{str(path)!r} cannot be followed: only .jsonl files grow line by line")
        return [(name, path)]
    files = [file for file in sorted(path.glob("*.jsonl")) if not file.name.startswith(".") and holds_episodes(file)]
    files.sort(key=lambda file: _ORDER.get(_stem(file), 2))
    return [(name if len(files) == 1 else f"{name}: {_stem(file)}", file) for file in files]


def run_names(paths: Sequence[Path]) -> list[str]:
    """What the page calls the runs: their last names, with the folder before where two are the same."""
    last = [path.resolve().name for path in paths]
    if len(set(last)) == len(last):
        return last
    return ["/".join(path.resolve().parts[-2:]) for path in paths]


def _parts(folder: Path) -> list[tuple[str, Callable[[str], EpisodeSet]]]:
    """What a folder holds, each with the function that reads it under a name."""
    found: list[tuple[str, Callable[[str], EpisodeSet]]] = []
    numbered = sorted((p for p in folder.glob("*.jsonl") if _NUMBERED.fullmatch(p.name)), key=_number)
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


def _number(path: Path) -> int:
    return int(path.name.partition(".")[0])


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
    if path.name.endswith(".eval"):
        return EpisodeSet(name, str(path), "Inspect", *read_inspect(path))
    if path.name.endswith(_LINES):
        return _read_lines(path, name)
    if path.name.endswith(".json"):
        return EpisodeSet(name, str(path), "Inspect", *read_inspect(path))
    raise InvalidValueError(
        f"{str(path)!r} must end in .jsonl, .jsonl.gz, .parquet, .eval or .json to be read as episodes"
    )


def _read_parquet(path: Path, name: str) -> EpisodeSet:
    from mathturn_gym.trajectories.tables import require_pyarrow

    require_pyarrow()
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata or {}
    except (ValueError, OSError) as error:  # pyarrow's errors derive from these
        raise InvalidValueError(f"{path} is not a Parquet file: {error}") from error
    if metadata.get(b"schema") == SCHEMA.encode():
        reader = read_episodes(path)
        episodes = from_episodes(list(reader))
        return EpisodeSet(name, str(path), OURS, episodes, [str(bad) for bad in reader.bad_rows])
    try:
        table = pq.read_table(path)
    except (ValueError, OSError, KeyError, OverflowError) as error:
        raise InvalidValueError(f"{path} cannot be read to its end: {error}") from error
    return EpisodeSet(name, str(path), "TRL", *read_trl_table(table, str(path)))


def _read_lines(path: Path, name: str) -> EpisodeSet:
    log = LineLog(path)
    episodes = log.read()
    return EpisodeSet(name, str(path), log.format, episodes, log.left_out)


def read_curves(path: Path, name: str) -> list[Curves]:
    """The curves of a run: `metrics.jsonl` of ours, `trainer_state.json` of a Hugging Face trainer; none for a file.

    Raises:
        InvalidValueError: a file of curves that does not load.
    """
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
    lines = path.read_bytes().splitlines()
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
        history = parse_json(path.read_bytes()).get("log_history", [])
        return [row for row in history if isinstance(row, dict)]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InvalidValueError(f"{path} does not load: {error}") from error


def _is_curve(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    return any(number(row.get(key)) is not None for row in rows)
