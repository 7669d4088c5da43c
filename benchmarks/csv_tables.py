"""Prints the verdict and the tables of a comparison from its `results.csv`, such as those in `docs/benchmarks`.

    python benchmarks/csv_tables.py docs/benchmarks/matrix.csv --against clipped_reinforce

Final policies on the test split: differences seed by seed with Holm's correction, aggregates over all tasks with seeds
drawn jointly, and what seeds share. Every number of a page that comes from such a file is printed by this.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.compare import Results
from mathturn_gym.compare.cells import Outcome
from mathturn_gym.compare.matrix import Cell
from mathturn_gym.compare.summary import aggregate_table, planning_table, seed_table
from mathturn_gym.compare.verdict import difference_table, paired_differences, verdict
from mathturn_gym.show.tables import as_markdown


def read_results(path: Path, algorithms: list[str] | None = None, tasks: list[str] | None = None) -> Results:
    """Returns the runs of a comparison's `results.csv`, with their final policies alone.

    Args:
        path: The file.
        algorithms: Only these rows; None for all.
        tasks: Only these tasks, by their short names; None for all.
    """
    outcomes, scales = [], {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            task = Path(row["task"]).stem
            if (algorithms and row["label"] not in algorithms) or (tasks and task not in tasks):
                continue
            label = f"{row['label']}, {row['set']}" if "set" in row else row["label"]
            scales[task] = dict(load_task(row["task"]).scale)
            budgets = [float(row[name]) if row[name] else None for name in ("budget_tokens", "budget_cpu_s")]
            tokens = None if budgets[0] is None else int(budgets[0])
            cell = Cell(label, row["algorithm"], task, int(row["seed"]), tokens, budgets[1], {})
            test = {
                name.removeprefix("test/"): float(value)
                for name, value in row.items()
                if name.startswith("test/") and value
            }
            used = (float(row["tokens"]), float(row["cpu_s"]), float(row["episodes"]))
            outcomes.append(Outcome(cell, row["status"], row.get("message", ""), *used, test=test or None))
    return Results(outcomes, scales=scales)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--against", help="the row to subtract; the best by default")
    parser.add_argument("--algorithms", type=lambda text: text.split(","), help="only these rows")
    parser.add_argument("--tasks", type=lambda text: text.split(","), help="only these tasks")
    options = parser.parse_args()
    results = read_results(options.csv, options.algorithms, options.tasks)
    found = paired_differences(results, options.against)
    print("\n\n".join(verdict(results, found)), end="\n\n")
    if found is not None:
        print(as_markdown(difference_table(results, found)))
        print("| differences | p | p, corrected |\n|---|---:|---:|")
        for (label, column), one in found.found.items():
            if one.p_value is not None:
                print(f"| {label} on {column} | {one.p_value:.2g} | {found.corrected[label, column]:.2g} |")
        print()
    print(as_markdown(aggregate_table(results, "test", resamples=10_000, seed=0)))
    print(as_markdown(seed_table(results)))
    if found is not None:
        print(as_markdown(planning_table(results, found.reference)))


if __name__ == "__main__":
    main()
