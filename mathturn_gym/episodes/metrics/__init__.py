"""Figures of episodes: accuracy by turn, correction against luck, cost, each with an interval that covers.

`figures.MEANING` says what each is.
"""

from __future__ import annotations

from mathturn_gym.episodes.metrics.intervals import Estimate
from mathturn_gym.episodes.metrics.report import compare, read_leniently, summarize

__all__ = ["Estimate", "compare", "read_leniently", "summarize"]
