"""From a cell to its run's config, with everything checked that can be checked beforehand."""

from __future__ import annotations

import json
from collections.abc import Iterable

from mathturn_gym.baselines.compare.matrix import Cell
from mathturn_gym.baselines.settings import RunConfig
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.tasks import load_task

__all__ = ["check_cells", "config_of"]


def config_of(cell: Cell) -> RunConfig:
    """The run of a cell.

    Raises:
        InvalidValueError: an unknown algorithm, task or setting (the nearest is suggested), or a value outside its range.
        MissingDependencyError: the algorithm's library is not installed.
    """
    budget = {"tokens": cell.tokens, "total_tokens": cell.total_tokens, "cpu_seconds": cell.cpu_seconds}
    return load_task(cell.task).config(cell.algorithm, {**cell.settings, "seed": cell.seed}, budget=budget)


def check_cells(cells: Iterable[Cell], *, own: bool = True) -> None:
    """Finds a mistyped name or setting before hours of other runs, as far as that is possible without running.

    Args:
        cells: To check.
        own: Also those of the user's own algorithms, whose modules are imported for that.

    Raises:
        InvalidValueError: an unknown algorithm, task or setting, or a value outside its range; the cell is named.
        MissingDependencyError: an algorithm's library is not installed.
    """
    different = {(c.algorithm, c.task, json.dumps(dict(c.settings), sort_keys=True)): c for c in reversed(list(cells))}
    for cell in reversed(different.values()):
        if ":" in cell.algorithm and not own:
            continue
        try:
            config_of(cell)
        except InvalidValueError as error:
            raise InvalidValueError(f"{cell}: {error}") from error
