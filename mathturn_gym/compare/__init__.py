"""Algorithms compared: a matrix of algorithms x tasks x seeds, run within the cores, and what it shows with intervals.

`mathturn compare` is its command line; `Matrix`, `open_matrix`, `run_matrix` and `make_report` are the same from Python.
"""

from __future__ import annotations

from mathturn_gym.compare.cells import CellFolder, Outcome, Point
from mathturn_gym.compare.matrix import Cell, Matrix, load_matrix
from mathturn_gym.compare.report import Report, make_report
from mathturn_gym.compare.results import Results
from mathturn_gym.compare.runner import Observer, open_matrix, read_cells, run_matrix

__all__ = [
    "Cell",
    "CellFolder",
    "Matrix",
    "Observer",
    "Outcome",
    "Point",
    "Report",
    "Results",
    "load_matrix",
    "make_report",
    "open_matrix",
    "read_cells",
    "run_matrix",
]
