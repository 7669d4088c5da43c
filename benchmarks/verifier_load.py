"""The same verdicts on an idle and on an overloaded machine: limits are processor time, and a busy machine changes none.

    python benchmarks/verifier_load.py [--cases 300] [--times 8] [--out runs/benchmarks/verifier_load.json]

Cases that need symbolic work, endless ones among them, are judged twice: as the machine is, and beside `times` busy processes for
each core. Exit code 1 where a verdict differs, or where one ended at the wall-clock backstop.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

from mathturn_gym.verifier import Verifier

ENDLESS = "\\prod_{k=1}^{10000000} k + %d"


def cases(count: int) -> list[tuple[str, str]]:
    """Pairs of gold and answer that only a symbolic worker can decide; every fiftieth never ends."""
    made = []
    for n in range(count):
        if n % 50 == 49:
            made.append(("42", ENDLESS % n))
        elif n % 2:
            made.append((str(n * (n + 1) // 2 + n % 3), f"\\sum_{{k=1}}^{{{n}}} k"))
        else:
            made.append((f"\\frac{{x^{{{n % 7 + 2}}}}}{{{n % 7 + 2}}} + C", f"\\int x^{{{n % 7 + 1}}} dx + {n % 2}"))
    return made


def judge(pairs: list[tuple[str, str]], timeout: float) -> tuple[list[tuple[str, str]], float]:
    """Status and reason of each, and the seconds for all."""
    with Verifier(form="equivalent", timeout=timeout) as verifier:
        verifier.warm()
        start = time.perf_counter()
        verdicts = verifier.verify_batch([answer for _, answer in pairs], [gold for gold, _ in pairs], kind="answer")
        return [(verdict.status.value, verdict.reason) for verdict in verdicts], time.perf_counter() - start


def _spin() -> None:
    while True:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--times", type=int, default=8)
    parser.add_argument("--timeout", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/verifier_load.json"))
    arguments = parser.parse_args()
    pairs, busy = cases(arguments.cases), arguments.times * len(os.sched_getaffinity(0))
    load_before = os.getloadavg()[0]
    alone, seconds_alone = judge(pairs, arguments.timeout)
    spinning = [multiprocessing.get_context("fork").Process(target=_spin, daemon=True) for _ in range(busy)]
    for process in spinning:
        process.start()
    try:
        crowded, seconds_crowded = judge(pairs, arguments.timeout)
    finally:
        for process in spinning:
            process.kill()
            process.join()
    differ = [(pair, one, other) for pair, one, other in zip(pairs, alone, crowded, strict=True) if one != other]
    found: dict[str, Any] = {
        "cases": len(pairs),
        "busy_processes": busy,
        "cores": len(os.sched_getaffinity(0)),
        "load_before": load_before,
        "seconds": {"as_it_is": seconds_alone, "overloaded": seconds_crowded},
        "undecided": sum(status == "undecided" for status, _ in alone),
        "wall_clock": sum(reason == "wall-clock limit" for _, reason in crowded),
        "differ": differ,
    }
    print(json.dumps(found))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if differ or found["wall_clock"] else 0)


if __name__ == "__main__":
    main()
