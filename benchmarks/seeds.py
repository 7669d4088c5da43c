"""Figures over seeds: mean and Student's 95 % interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats


def shown(values: Sequence[float], sign: str = "") -> str:
    """Mean and Student's interval, as "0.412 [0.380, 0.444]"; of a single seed the mean alone.

    Args:
        values: One per seed.
        sign: "+" writes it for positive numbers too: of differences.
    """
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:{sign}.3f}"
    half = float(stats.t.ppf(0.975, len(values) - 1)) * float(stats.sem(values))
    return f"{mean:{sign}.3f} [{mean - half:{sign}.3f}, {mean + half:{sign}.3f}]"
