"""Two policies on the same problems: paired differences with intervals and p-values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mathturn_gym.episodes.metrics.figures import Counts, count_by_problem, facts
from mathturn_gym.episodes.metrics.intervals import Bounds, Difference, Floats, check_confidence, difference_estimate
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.types import Episode


@dataclass(frozen=True, slots=True)
class Comparison:
    """All metrics that both policies have.

    Args:
        problems: Problems that both were tried on; only these count.
        only_a: Problems of the first alone.
        only_b: Problems of the second alone.
        confidence: Of the intervals.
        figures: By name.
    """

    problems: int
    only_a: int
    only_b: int
    confidence: float
    figures: Mapping[str, Difference]

    def __repr__(self) -> str:
        """`Comparison(16 problems, b - a: acc@1 0.125 [-0.020, 0.271], …)`."""
        shown = ", ".join(f"{name} {one.difference}" for name, one in self.figures.items() if name.startswith("acc@"))
        return f"Comparison({self.problems} problems, b - a: {shown})"

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "problems": self.problems,
            "only_a": self.only_a,
            "only_b": self.only_b,
            "confidence": self.confidence,
            "figures": {name: figure.to_dict() for name, figure in self.figures.items()},
        }


def compare(a: Sequence[Episode], b: Sequence[Episode], *, confidence: float = 0.95) -> Comparison:
    """Compares two policies on the problems that both were tried on.

    Intervals and p-values are paired by problem and come from one statistic (see `metrics.intervals`), so that an interval
    excludes 0 where its p-value is small. A permutation test of the plain difference is not used: two policies that differ
    in how many of their episodes a conditional metric is about may not change places, even where the metric is equal.

    Args:
        a: Episodes of the first policy.
        b: Episodes of the second.
        confidence: Of the intervals, in (0, 1).

    Raises:
        InvalidValueError: no problem in common, or an argument outside what is allowed.
    """
    check_confidence(confidence)
    ids_a, ids_b = {e.problem_id for e in a}, {e.problem_id for e in b}
    common = ids_a & ids_b
    if not common:
        raise InvalidValueError(
            f"the policies have no problem in common ({len(ids_a)} and {len(ids_b)} problems): evaluate both with the same"
            " problems, seed and number of episodes"
        )
    known = [[facts(e) for e in episodes if e.problem_id in common] for episodes in (a, b)]
    turns = max(len(fact.right) for part in known for fact in part)
    counts = [count_by_problem(part, turns) for part in known]
    order = sorted(common)
    names = [name for name in counts[0].names if name in counts[1].names]
    tops, bottoms = (np.stack([_aligned(c, part, order, names) for c in counts]) for part in ("tops_CF", "bottoms_CF"))
    bounds = dict(zip(counts[0].names, counts[0].bounds, strict=True))
    wider = dict(zip(counts[1].names, counts[1].bounds, strict=True))
    # A metric may have other bounds for each policy, where they had different numbers of turns.
    both = [_both(bounds[name], wider[name]) for name in names]
    figures = {}
    for f, name in enumerate(names):
        found = difference_estimate(tops[:, :, f], bottoms[:, :, f], both[f], confidence=confidence)
        if found.difference.value is not None:
            figures[name] = found
    return Comparison(len(common), len(ids_a - common), len(ids_b - common), confidence, figures)


def _both(a: Bounds, b: Bounds) -> Bounds:
    """Bounds that hold for both."""
    low, high = zip(a, b, strict=True)
    return (
        None if low[0] is None or low[1] is None else min(low[0], low[1]),
        None if high[0] is None or high[1] is None else max(high[0], high[1]),
    )


def _aligned(counts: Counts, part: str, order: Sequence[str], names: Sequence[str]) -> Floats:
    """Rows in the order of `order`, columns in that of `names`."""
    rows = {problem_id: i for i, problem_id in enumerate(counts.problem_ids)}
    columns = {name: i for i, name in enumerate(counts.names)}
    values: Floats = getattr(counts, part)
    return values[np.ix_([rows[problem_id] for problem_id in order], [columns[name] for name in names])]
