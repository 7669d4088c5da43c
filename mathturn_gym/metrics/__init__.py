"""Figures of episodes: accuracy by turn, correction against luck, cost, each with a bootstrap interval.

>>> sorted(MEANING)[:3]
['acc@k', 'corrected', 'cut_off']
"""

from __future__ import annotations

from mathturn_gym.metrics.bootstrap import Estimate
from mathturn_gym.metrics.compare import Comparison, Difference, compare
from mathturn_gym.metrics.figures import MEANING
from mathturn_gym.metrics.report import Report, summarize
from mathturn_gym.metrics.samples import majority_at_k, pass_at_k

__all__ = [
    "MEANING",
    "Comparison",
    "Difference",
    "Estimate",
    "Report",
    "compare",
    "majority_at_k",
    "pass_at_k",
    "summarize",
]
