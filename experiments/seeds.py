"""Figures over seeds: mean and Student's 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mathturn_gym.episodes.metrics.intervals import Pivot


def shown(values: Sequence[float], sign: str = "") -> str:
    """Mean and Student's interval, as "0.412 [0.380, 0.444]".

    The mean alone, as `mathturn compare` writes it, of a single seed, and where all seeds agree: a few seeds that happen to
    agree do not make a figure certain, which an interval without width would say.

    Args:
        values: One per seed.
        sign: "+" writes it for positive numbers too: of differences.
    """
    mean = float(np.mean(values))
    if len(values) < 2 or np.ptp(values) <= 1e-12:
        return f"{mean:{sign}.3f}"
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    low, high = Pivot(mean, error, len(values) - 1).interval(0.95)
    return f"{mean:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"
