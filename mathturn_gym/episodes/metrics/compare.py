"""Two policies on the same problems: paired differences with intervals and a permutation test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mathturn_gym.episodes.metrics.figures import Counts, count_by_problem, facts
from mathturn_gym.episodes.metrics.intervals import Bounds, Estimate, Floats, check_confidence, difference_estimate
from mathturn_gym.errors import InvalidValueError, check_int
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Episode

_CHUNK = 1 << 21


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two policies.

    Args:
        a: The first policy's.
        b: The second's.
        difference: b minus a, with its interval.
        p_value: How often a difference of this size or more comes about when, problem by problem, it is left to chance
            which policy is called a.
    """

    a: float
    b: float
    difference: Estimate
    p_value: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {"a": self.a, "b": self.b, "difference": self.difference.to_dict(), "p_value": self.p_value}


@dataclass(frozen=True, slots=True)
class Comparison:
    """All figures that both policies have.

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


def compare(
    a: Sequence[Episode],
    b: Sequence[Episode],
    *,
    confidence: float = 0.95,
    permutations: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compares two policies on the problems that both were tried on.

    Intervals are paired by problem (see `metrics.intervals`). The p-value is that of a paired permutation test (Good,
    *Permutation, Parametric and Bootstrap Tests of Hypotheses*, 2005): under the hypothesis that the policies do not
    differ, the two sets of episodes on a problem may change places.

    Args:
        a: Episodes of the first policy.
        b: Episodes of the second.
        confidence: Of the intervals, in (0, 1).
        permutations: Random swaps of the test.
        seed: Decides them; the intervals do not depend on it.

    Raises:
        InvalidValueError: no problem in common, or an argument outside what is allowed.
    """
    check_confidence(confidence)
    check_int("permutations", permutations, low=1)
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
    both = [_both(bounds[name], wider[name]) for name in names]
    figures = _differences(names, tops, bottoms, both, confidence, permutations, seed)
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


def _differences(
    names: Sequence[str],
    tops_2CF: Floats,
    bottoms_2CF: Floats,
    bounds: Sequence[Bounds],
    confidence: float,
    permutations: int,
    seed: int,
) -> dict[str, Difference]:
    with np.errstate(invalid="ignore", divide="ignore"):
        values = tops_2CF.sum(axis=1) / bottoms_2CF.sum(axis=1)
        gaps = values[1] - values[0]  # of a figure that nobody has, infinity less infinity
    p_values = _permutation(tops_2CF, bottoms_2CF, gaps, permutations, seed)
    differences = {}
    for f, name in enumerate(names):
        a, b, found = difference_estimate(tops_2CF[:, :, f], bottoms_2CF[:, :, f], bounds[f], confidence=confidence)
        if found.value is not None:
            differences[name] = Difference(a, b, found, float(p_values[f]))
    return differences


def _permutation(tops_2CF: Floats, bottoms_2CF: Floats, found_F: Floats, permutations: int, seed: int) -> Floats:
    """The share of random swaps whose difference is as large; the real order counts as one of them."""
    rng = np.random.Generator(np.random.Philox(key=derive_seed("permutation", seed)))
    clusters = tops_2CF.shape[1]
    as_large = np.zeros(found_F.shape[0])
    step = max(1, _CHUNK // clusters)
    for start in range(0, permutations, step):
        kept = rng.integers(0, 2, size=(min(step, permutations - start), clusters)).astype(np.float64)
        sums = [
            [kept @ part[side] + (1 - kept) @ part[1 - side] for part in (tops_2CF, bottoms_2CF)] for side in (0, 1)
        ]
        with np.errstate(invalid="ignore", divide="ignore"):
            difference = sums[1][0] / sums[1][1] - sums[0][0] / sums[0][1]
        # A hair of rounding must not make the real order smaller than itself.
        as_large += (np.abs(difference) >= np.abs(found_F) - 1e-12).sum(axis=0)
    return (as_large + 1) / (permutations + 1)
