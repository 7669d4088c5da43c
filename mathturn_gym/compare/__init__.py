"""Algorithms compared: a matrix of algorithms x tasks x seeds, run within the cores, and what it shows with intervals.

`mathturn compare` is its command line; `Matrix`, `open_matrix`, `run_matrix` and `make_report` are the same from Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mathturn_gym.base.lazy import lazy_exports

if TYPE_CHECKING:
    from mathturn_gym.compare.matrix import Matrix, load_matrix
    from mathturn_gym.compare.report import make_report
    from mathturn_gym.compare.results import Results
    from mathturn_gym.compare.runner import open_matrix, run_matrix

__all__ = ["Matrix", "Results", "load_matrix", "make_report", "open_matrix", "run_matrix"]

# The processes that run cells import this package, and need no page and no statistics.
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "matrix": "Matrix load_matrix",
            "report": "make_report",
            "results": "Results",
            "runner": "open_matrix run_matrix",
        },
    )
