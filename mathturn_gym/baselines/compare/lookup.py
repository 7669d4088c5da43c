"""From an algorithm's name to the function that runs it, with everything checked that can be checked beforehand."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mathturn_gym.baselines.compare.matrix import Cell
from mathturn_gym.errors import InvalidValueError, raise_unknown_name

__all__ = ["check_cells", "config_of", "resolve"]


def resolve(algorithm: str) -> Callable[..., Any]:
    """The function that runs an algorithm, with the arguments of `mathturn_gym.baselines.algorithms.run`.

    Args:
        algorithm: A key of `mathturn_gym.baselines.algorithms.ALGORITHMS`, or "module:function" for one of your own.

    Raises:
        InvalidValueError: an unknown name (the nearest is suggested), or nothing callable can be imported there.
    """
    from mathturn_gym.baselines import algorithms

    module_name, colon, name = algorithm.partition(":")
    if not colon:
        if algorithm not in algorithms.ALGORITHMS:
            raise_unknown_name("algorithm", algorithm, algorithms.ALGORITHMS)
        return algorithms.run
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidValueError(f"algorithm {algorithm!r} cannot be imported: {error}") from error
    if not callable(found):
        raise InvalidValueError(f"algorithm {algorithm!r} must be a function, got {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def check_cells(cells: Iterable[Cell]) -> None:
    """Finds a mistyped name or setting before hours of other runs, as far as that is possible without running.

    Modules of the current folder are found, as with `python -m`: that is where the runs' processes are started.

    Raises:
        InvalidValueError: an algorithm or a built-in algorithm's task is unknown, or it has no such setting.
        MissingDependencyError: an algorithm's library is not installed.
    """
    different = {(c.algorithm, c.task, json.dumps(dict(c.settings), sort_keys=True)): c for c in reversed(list(cells))}
    for cell in reversed(different.values()):
        with _modules_of_this_folder():
            resolve(cell.algorithm)
        try:
            config_of(cell)
        except InvalidValueError as error:
            raise InvalidValueError(f"{cell}: {error}") from error


def config_of(cell: Cell) -> dict[str, Any] | None:
    """The config, in plain JSON types, that a run of the cell would write to its folder now.

    None for an algorithm of the user's own, whose settings are its own affair.

    Raises:
        InvalidValueError: an unknown task or setting, or a value outside its range.
        MissingDependencyError: the algorithm's library is not installed.
    """
    from mathturn_gym.baselines.algorithms import ALGORITHMS
    from mathturn_gym.baselines.config import PRESETS, preset

    if cell.algorithm not in ALGORITHMS:
        return None
    if cell.task not in PRESETS:
        raise_unknown_name("task", cell.task, PRESETS)
    if ALGORITHMS[cell.algorithm].kind == "classic":
        from mathturn_gym.baselines.classic.settings import ClassicConfig

        budgets = (cell.tokens, cell.cpu_seconds)
        return ClassicConfig(cell.algorithm, cell.task, "-", cell.seed, *budgets, cell.settings).to_json()
    budget = {"budget_tokens": cell.tokens, "budget_cpu_s": cell.cpu_seconds, "episodes": None}
    return preset(cell.task, "-", algorithm=cell.algorithm, **{"seed": cell.seed, **budget, **cell.settings}).to_json()


@contextmanager
def _modules_of_this_folder() -> Iterator[None]:
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        yield
    finally:
        if added:
            sys.path.remove(here)
