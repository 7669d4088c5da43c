"""Problems per second, per family and level, on one core.

    python benchmarks/problems.py

The reference in the same run is drawing from `lins`, the simplest generator; the ratio to it is printed beside each rate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from mathturn_gym.problems import ProblemSource, load_problems
from mathturn_gym.problems.families import FAMILIES, Family
from mathturn_gym.problems.families.registry import LEVELS

ARITHMETIC = (
    "integers",
    "rationals",
    "multiplication",
    "division",
    "modular",
    "gcd-lcm",
    "primes",
    "bases",
    "percentages",
)
FLOOR_ARITHMETIC, FLOOR = 5_000, 300


def rate(source: ProblemSource, items: int, repeats: int) -> float:
    """Items per second of process time: the median of some repeats."""
    rates = []
    for repeat in range(repeats):
        start = time.process_time()
        for index in range(items):
            source.get(repeat, index)
        rates.append(items / (time.process_time() - start))
    return statistics.median(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/problems.json"))
    arguments = parser.parse_args()
    reference = rate(load_problems("lins"), arguments.items, arguments.repeats)
    print(f"reference lins: {reference:,.0f} items/s")
    rows = {}
    for family in FAMILIES:
        rates = {level: rate(Family(family, level), arguments.items, arguments.repeats) for level in LEVELS}
        floor = FLOOR_ARITHMETIC if family in ARITHMETIC else FLOOR
        worst = min(rates.values())
        rows[family] = {"rates": rates, "floor": floor, "met": worst >= floor, "ratio_to_lins": worst / reference}
        shown = " · ".join(f"{value:,.0f}" for value in rates.values())
        print(f"{family:15s} {shown}   slowest {worst / reference:.2f} of lins, floor {floor}: {worst >= floor}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"lins": reference, "families": rows}, indent=1))


if __name__ == "__main__":
    main()
