"""How often the intervals of `metrics.summarize` hold the truth, in simulation.

    python benchmarks/intervals.py

Problems have success rates of their own (Beta distributed with mean p); G episodes are drawn on each. The interval of
the overall rate is compared with the truth, beside the interval that forgets which episodes share a problem.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from mathturn_gym.metrics.bootstrap import Floats, ratio_estimates

SETTINGS = [(p, c, g, s) for p in (0.1, 0.4) for c in (20, 50, 200) for g, s in ((1, 1.0), (8, 1.0))]


def covered(right: Floats, group: int, truth: float, confidence: float, run: int) -> bool:
    """Whether the interval of one simulated evaluation holds the truth."""
    (found,) = ratio_estimates(
        right, np.full_like(right, group), [True], confidence=confidence, resamples=500, seed=run
    )
    return found.low is not None and found.high is not None and found.low <= truth <= found.high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/intervals.json"))
    options = parser.parse_args()
    rows = []
    print("| rate | problems | episodes a problem | interval holds the truth | forgetting the problems |")
    print("|---|---|---|---|---|")
    for p, clusters, group, spread in SETTINGS:
        rng = np.random.default_rng(0)
        held = np.zeros(2)
        for run in range(options.runs):
            rates = rng.beta(p * spread, (1 - p) * spread, size=clusters)
            tries = (rng.random((clusters, group)) < rates[:, None]).astype(np.float64)
            held[0] += covered(tries.sum(axis=1, keepdims=True), group, p, options.confidence, run)
            held[1] += covered(tries.reshape(-1, 1), 1, p, options.confidence, run)
        held /= options.runs
        rows.append({"rate": p, "problems": clusters, "group": group, "held": held[0], "held_naive": held[1]})
        print(f"| {p} | {clusters} | {group} | {held[0]:.3f} | {held[1]:.3f} |", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
