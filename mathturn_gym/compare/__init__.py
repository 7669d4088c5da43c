"""Algorithms compared: a matrix of algorithms x tasks x seeds, run within the cores, and what it shows with intervals.

`mathturn compare` is its command line; `Matrix`, `open_matrix`, `run_matrix` and `make_report` are the same from Python.
"""

from __future__ import annotations

from mathturn_gym.compare.matrix import Matrix, load_matrix
from mathturn_gym.compare.report import make_report
from mathturn_gym.compare.results import Results
from mathturn_gym.compare.runner import open_matrix, run_matrix

__all__ = ["Matrix", "Results", "load_matrix", "make_report", "open_matrix", "run_matrix"]
