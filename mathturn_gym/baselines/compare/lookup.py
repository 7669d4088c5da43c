"""From an algorithm's name to the function that runs it, with everything checked that can be checked beforehand."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from mathturn_gym.baselines.compare.matrix import Cell
from mathturn_gym.errors import InvalidValueError, raise_unknown_name

__all__ = ["check_cells", "resolve"]


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

    Raises:
        InvalidValueError: an algorithm or a built-in algorithm's task is unknown, or a language-model trainer has no
            such setting, or not such a value.
    """
    from mathturn_gym.baselines.algorithms import ALGORITHMS
    from mathturn_gym.baselines.config import PRESETS, preset

    for cell in cells:
        resolve(cell.algorithm)
        if cell.algorithm not in ALGORITHMS:
            continue
        if cell.task not in PRESETS:
            raise_unknown_name("task", cell.task, PRESETS)
        if ALGORITHMS[cell.algorithm].kind == "language model":
            changes = {"budget_tokens": cell.tokens, "budget_cpu_s": cell.cpu_seconds, "episodes": None}
            try:
                preset(cell.task, "-", algorithm=cell.algorithm, **{**changes, **cell.settings})
            except InvalidValueError as error:
                raise InvalidValueError(f"{cell}: {error}") from error
