"""Checks every answer of the procedural families by an independent route, and counts duplicates.

    python benchmarks/check_families.py --items 10000

For each family, `items` problems over its five levels, half of them in LaTeX: the question's text is solved again with
sympy (`oracle`), and the gold answer must be right when the verifier judges it against itself.
Writes JSON and a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from oracle import disagreement

from mathturn_gym.problems.families import FAMILIES, FORMS, Family
from mathturn_gym.problems.families.registry import LEVELS
from mathturn_gym.verifier import Verifier


def check(family: str, items: int, seed: int, verifier: Verifier) -> dict[str, Any]:
    """Checks one family."""
    start = time.perf_counter()
    wrong: list[str] = []
    unverified: list[str] = []
    distinct: dict[int, int] = {}
    per_level = items // len(LEVELS)
    for level in LEVELS:
        problems = [Family(family, level, "all", FORMS[i % 2]).get(seed, i) for i in range(per_level)]
        plain = Family(family, level, "all")
        distinct[level] = len({plain.get(seed, i).prompt for i in range(per_level)})
        wrong += [found for found in map(disagreement, problems) if found is not None]
        boxed = [rf"\boxed{{{problem.gold[0]}}}" for problem in problems]
        verdicts = verifier.verify_batch(boxed, [problem.gold for problem in problems])
        unverified += [p.id for p, verdict in zip(problems, verdicts, strict=True) if not verdict.correct]
    return {
        "family": family,
        "items": per_level * len(LEVELS),
        "wrong": wrong,
        "not_self_verified": unverified,
        "distinct_by_level": distinct,
        "seconds": time.perf_counter() - start,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "| family | items | wrong | gold not verified | distinct questions per level |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        distinct = " · ".join(str(count) for count in row["distinct_by_level"].values())
        lines.append(
            f"| {row['family']} | {row['items']} | {len(row['wrong'])} | {len(row['not_self_verified'])} | {distinct} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--out", type=Path, default=Path("runs/check_families.json"))
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    with Verifier() as verifier:
        for family in arguments.families:
            rows.append(check(family, arguments.items, arguments.seed, verifier))
            last = rows[-1]
            print(
                f"{family}: {last['items']} items, {len(last['wrong'])} wrong, {len(last['not_self_verified'])} not"
                f" self-verified, {last['seconds']:.0f} s",
                flush=True,
            )
            arguments.out.write_text(json.dumps(rows, indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
