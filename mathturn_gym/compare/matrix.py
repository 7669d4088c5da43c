"""What is compared: algorithms x tasks x seeds, from a TOML file or from Python, checked before anything runs.

    algorithms = ["ppo", "grpo", "one_turn"]            # rows; "module:Class" is an algorithm of your own
    tasks = ["add1", "lins"]                            # names, or the files of tasks of your own
    seeds = 5                                           # 0 to 4; or [3, 7, 11]
    tokens = 200_000                                    # a run ends at the first of its two budgets
    cpu_seconds = 120
    jobs = 2                                            # runs at a time
    against = "grpo"                                    # the row that is subtracted from the others, seed by seed
    out = "runs/compare"

    [settings]                                          # of every run: FIELD, or PART.FIELD
    evaluation.every = 10

    [task.lins]                                         # budgets and settings of one task
    tokens = 300_000
    settings = { num_turns = 3 }

    [algorithm.one_turn]                                # a row under a name of its own
    run = "clipped_reinforce"                           # which algorithm it is
    settings = { num_turns = 1 }

    [algorithm.grpo.task.lins]                          # where all three meet
    settings = { group_size = 8 }

A later table wins over an earlier one, in this order: every run, task, algorithm, both.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mathturn_gym.baselines.overrides import dotted
from mathturn_gym.baselines.settings import RunConfig
from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.errors import InvalidValueError, check_float, check_int, raise_unknown_name

_BUDGETS: Final = ("tokens", "total_tokens", "cpu_seconds")
_KEYS: Final = ("algorithms", "tasks", "seeds", *_BUDGETS, "jobs", "out", "against", "settings", "task", "algorithm")
_MOST_SEEDS: Final = 10_000  # upper limit on seeds, so that a typo does not allocate millions of cells


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the matrix; equal cells are the same run."""

    label: str  # the row it belongs to
    algorithm: str  # a registered name, or "module:Class"
    task: str  # the task's name, or the path of its file
    seed: int  # the run's seed
    tokens: int | None  # budget in tokens that the policy samples in training; None for none
    cpu_seconds: float | None  # budget in CPU seconds of training; None for none
    settings: Mapping[str, Any]  # what differs from the task's run, by "FIELD" or "PART.FIELD"
    total_tokens: int | None = None  # budget in all tokens of the episodes, with prompts and feedback; None for none

    @property
    def key(self) -> str:
        """Its place in the matrix, and below `OUT/cells`: `LABEL/TASK/seed-N`."""
        return f"{_folder_name(self.label)}/{_folder_name(self.task)}/seed-{self.seed}"

    def __str__(self) -> str:
        """`LABEL on TASK, seed N`."""
        return f"{self.label} on {self.task}, seed {self.seed}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        names = ("label", "algorithm", "task", "seed", *_BUDGETS)
        return {**{name: getattr(self, name) for name in names}, "settings": dict(self.settings)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cell:
        """The cell that `to_json` gave."""
        names = ("label", "algorithm", "task", "seed", *_BUDGETS, "settings")
        for name in data:
            if name not in names:
                raise_unknown_name("cell field", name, names)
        if missing := [name for name in names if name not in data and name != "total_tokens"]:  # older cells lack it
            raise InvalidValueError(f"a cell lacks {', '.join(missing)}")
        for name in ("label", "algorithm", "task"):
            _check_text(f"cell {name}", data[name])
        check_int("cell seed", data["seed"], low=0)
        _check_budgets("cell ", data)
        return cls(**{**data, "settings": _check_settings("cell settings", data["settings"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Algorithms x tasks x seeds, with their budgets and settings.

    Args:
        algorithms: The rows: names of algorithms, "module:Class", or labels that `algorithm` explains.
        tasks: Names of tasks, or paths of their files.
        seeds: How many (0, 1, ...), or which.
        tokens: Budget of each run in environment tokens; None for no such limit.
        total_tokens: Budget of each run in all tokens of its episodes, with prompts and feedback; None for no such
            limit.
        cpu_seconds: Budget of each run in CPU seconds of training; None for no such limit. One of the three is
            needed; a run ends at the first, and the report compares at equal amounts of each.
        jobs: Runs at a time; no more than the machine has cores are started.
        out: The folder to write.
        against: The row that the report subtracts from the others, paired by seed; None for the best row.
        settings: Of every run.
        task: By task: "tokens", "total_tokens", "cpu_seconds", "settings".
        algorithm: By label: "run" (the algorithm's name, the label by default), "settings", and "task" (by task:
            "settings").

    Raises:
        InvalidValueError: a key is unknown (the nearest is suggested), or a value outside its range.

    >>> matrix = Matrix(algorithms=["rloo", "grpo"], tasks=["lins"], seeds=2, tokens=1000)
    >>> [str(cell) for cell in matrix.cells()][:2]
    ['rloo on lins, seed 0', 'grpo on lins, seed 0']
    """

    algorithms: Sequence[str]
    tasks: Sequence[str]
    seeds: int | Sequence[int] = 5
    tokens: int | None = None
    total_tokens: int | None = None
    cpu_seconds: float | None = None
    jobs: int = 2
    out: str = "runs/compare"
    against: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    task: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    algorithm: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks every field."""
        for name in ("algorithms", "tasks"):
            _check_names(name, getattr(self, name))
        check_int("jobs", self.jobs, low=1)
        _check_text("out", self.out)
        if self.against is not None and self.against not in self.algorithms:
            raise_unknown_name("against", self.against, self.algorithms)
        _check_budgets("", {name: getattr(self, name) for name in _BUDGETS})
        _check_settings("settings", self.settings)
        for label, table in _tables("task", self.task, self.tasks, (*_BUDGETS, "settings")):
            _check_budgets(f"task.{label}.", table)
        for label, table in _tables("algorithm", self.algorithm, self.algorithms, ("run", "settings", "task")):
            if "run" in table:
                _check_text(f"algorithm.{label}.run", table["run"])
            list(_tables(f"algorithm.{label}.task", table.get("task", {}), self.tasks, ("settings",)))
        cells = self.cells()
        if len({cell.key for cell in cells}) < len(cells):
            raise InvalidValueError(
                "algorithms and tasks must differ in more than punctuation: their folders would not"
            )
        for cell in cells:
            if cell.tokens is cell.total_tokens is cell.cpu_seconds is None:
                raise InvalidValueError(
                    f"{cell}: tokens, total_tokens or cpu_seconds must be given, or the run would never end"
                )

    def seed_numbers(self) -> list[int]:
        """The seeds, one by one.

        Raises:
            InvalidValueError: no seed, one that is no number >= 0, or one twice.
        """
        if isinstance(self.seeds, int) and not isinstance(self.seeds, bool):
            return list(range(check_int("seeds", self.seeds, low=1, high=_MOST_SEEDS)))
        if isinstance(self.seeds, (str, bytes)) or not isinstance(self.seeds, Sequence) or not self.seeds:
            raise InvalidValueError(f"seeds must be how many (5) or which ([0, 1, 2]), got {self.seeds!r}")
        numbers = [check_int("seeds", seed, low=0) for seed in self.seeds]
        if len(set(numbers)) < len(numbers):
            raise InvalidValueError(f"seeds must differ, got {numbers}")
        return numbers

    def cells(self) -> list[Cell]:
        """Every run, seed by seed: after the first seed there is something of everything to look at."""
        return [
            self._cell(label, task, seed)
            for seed in self.seed_numbers()
            for task in self.tasks
            for label in self.algorithms
        ]

    def _cell(self, label: str, task: str, seed: int) -> Cell:
        of_task, of_label = self.task.get(task, {}), self.algorithm.get(label, {})
        of_both = of_label.get("task", {}).get(task, {})
        settings = dotted(self.settings)
        # From the general to the special: the later table wins.
        for table in (of_task, of_label, of_both):
            settings.update(dotted(table.get("settings", {})))
        budget = {**{name: getattr(self, name) for name in _BUDGETS}, **of_task}
        seconds = budget["cpu_seconds"]
        return Cell(
            label=label,
            algorithm=of_label.get("run", label),
            task=task,
            seed=seed,
            tokens=budget["tokens"],
            cpu_seconds=None if seconds is None else float(seconds),
            settings=settings,
            total_tokens=budget["total_tokens"],
        )


def load_matrix(path: str | Path | None = None, **changes: Any) -> Matrix:
    """A matrix from a TOML file, from keywords, or from a file with keywords that win over it.

    Args:
        path: The file, see the module's docstring; None for keywords alone.
        **changes: Fields of `Matrix`; those that are None are left out. "settings" are added to the file's. A part of the
            file's "algorithms" and "tasks" takes what the file says of these.

    Raises:
        InvalidValueError: the file cannot be read, a key is unknown (the nearest is suggested), or a value is
            outside its range.
    """
    data: dict[str, Any] = {}
    if path is not None:
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidValueError(f"config {str(path)!r} cannot be read: {error}") from error
        except (ValueError, RecursionError) as error:  # integers of too many digits are no TOML errors
            raise InvalidValueError(f"config {str(path)!r} is no TOML: {error}") from error
    try:
        return _matrix(data, changes)
    except InvalidValueError as error:
        if path is None:
            raise
        raise InvalidValueError(f"config {str(path)!r}: {error}") from error


def _matrix(data: dict[str, Any], changes: Mapping[str, Any]) -> Matrix:
    """The matrix of a file's tables and of keywords that win over them."""
    given = {name: value for name, value in changes.items() if value is not None}
    if "settings" in given and isinstance(data.get("settings", {}), Mapping):
        given["settings"] = {**dotted(data.get("settings", {})), **dotted(given["settings"])}
    # What a file says of rows and tasks that are left out is left out with them.
    rows, tasks = (
        set(_listed(data.get(names))) - set(_listed(given.get(names, data.get(names))))
        for names in ("algorithms", "tasks")
    )
    for name, left_out in (("algorithm", rows), ("task", tasks)):
        if name in data:
            data[name] = _without(data[name], left_out)
    if isinstance(data.get("algorithm"), Mapping):
        for label, table in data["algorithm"].items():
            if isinstance(table, Mapping) and "task" in table:
                data["algorithm"][label] = {**table, "task": _without(table["task"], tasks)}
    if isinstance(data.get("against"), str) and data["against"] in rows:
        del data["against"]
    data |= given
    for name in data:
        if name not in _KEYS:
            raise_unknown_name("key", name, _KEYS)
    for name in ("algorithms", "tasks"):
        if name not in data:
            raise InvalidValueError(f"{name} must be given: in the configuration file, or as --{name} A,B")
    return Matrix(**data)


def _without(tables: object, left_out: set[str]) -> object:
    """Returns tables by name without those that are left out. Anything but tables is refused by the checks."""
    if not isinstance(tables, Mapping):
        return tables
    return {name: table for name, table in tables.items() if name not in left_out}


def _listed(names: object) -> list[str]:
    """Returns a file's list as far as it is a list of texts. Anything else is refused by the checks."""
    return [one for one in names if isinstance(one, str)] if isinstance(names, (list, tuple)) else []


def _folder_name(text: str) -> str:
    # No slash, and no dot in front: a label cannot lead out of the folder, or hide in it.
    return re.sub(r"[^\w.+-]", "-", text).lstrip(".") or "-"


def _check_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidValueError(f"{name} must be a non-empty text, got {value!r}")
    return value


def _check_names(name: str, value: object) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise InvalidValueError(f"{name} must be a list of at least one name, got {value!r}")
    for one in value:
        _check_text(name, one)
    if twice := sorted({one for one in value if list(value).count(one) > 1}):
        raise InvalidValueError(f"{name} must differ, got {', '.join(twice)} more than once")


def _check_budgets(prefix: str, data: Mapping[str, Any]) -> None:
    for name in ("tokens", "total_tokens"):
        if data.get(name) is not None:
            check_int(f"{prefix}{name}", data[name], low=1)
    seconds = data.get("cpu_seconds")
    if seconds is not None and check_float(f"{prefix}cpu_seconds", seconds, low=0.0) == 0.0:
        raise InvalidValueError(f"{prefix}cpu_seconds must be above 0, got {seconds!r}")


def _check_settings(name: str, value: object) -> Mapping[str, Any]:
    """Checks that settings survive JSON, in which they are kept: a resumed run gets the same settings."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidValueError(f"{name} must be a table of FIELD = VALUE, got {value!r}")
    try:
        same = json.loads(json.dumps(dict(value), allow_nan=False)) == dict(value)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"{name} must be plain numbers, texts, lists and tables: {error}") from error
    if not same:
        raise InvalidValueError(f"{name} must be plain numbers, texts, lists and tables, got {value!r}")
    return value


def _tables(
    name: str, tables: object, labels: Sequence[str], keys: Sequence[str]
) -> list[tuple[str, Mapping[str, Any]]]:
    """The tables of `[NAME.LABEL]`, with their labels and keys checked, and their settings."""
    if not isinstance(tables, Mapping):
        raise InvalidValueError(f"{name} must be a table of tables, as [{name}.NAME], got {tables!r}")
    for label, table in tables.items():
        if label not in labels:
            raise_unknown_name(f"[{name}] table", label, labels)
        if not isinstance(table, Mapping):
            raise InvalidValueError(f"{name}.{label} must be a table, as [{name}.{label}], got {table!r}")
        for key in table:
            if key not in keys:
                raise_unknown_name(f"key of [{name}.{label}]", key, keys)
        _check_settings(f"{name}.{label}.settings", table.get("settings", {}))
    return list(tables.items())


# ---- from a cell to its run's config, with everything checked that can be checked beforehand


def config_of(cell: Cell) -> RunConfig:
    """The run of a cell."""
    budget = {"tokens": cell.tokens, "total_tokens": cell.total_tokens, "cpu_seconds": cell.cpu_seconds}
    return load_task(cell.task).config(cell.algorithm, {**cell.settings, "seed": cell.seed}, budget=budget)


def check_cells(cells: Iterable[Cell], *, own: bool = True) -> None:
    """Finds a mistyped name or setting before hours of other runs, as far as that is possible without running.

    `own=False` passes over the user's own algorithms, whose modules would be imported.
    """
    # One cell of each kind is enough: nothing that is checked here depends on the seed.
    different = {(c.algorithm, c.task, json.dumps(dict(c.settings), sort_keys=True)): c for c in reversed(list(cells))}
    for cell in reversed(different.values()):
        if ":" in cell.algorithm and not own:
            continue
        try:
            config_of(cell)
        except InvalidValueError as error:
            raise InvalidValueError(f"{cell}: {error}") from error
