"""The factorial table of `factorial.toml`: group size x baseline x credit x rate, and what each is worth, paired by seed.

    mathturn compare experiments/factorial.toml
    python experiments/factorial.py [runs/factorial | docs/benchmarks/factorial.csv] [--figure acc@1]

Rows that have not been run are left out. Differences are between runs of the same seed; intervals are Student's, 95 %, over the
seeds that both rows have. Every difference is one of those that the table was made for: there are many, so that one in twenty
intervals misses 0 by chance.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

from seeds import shown

SIZES: Final = (1, 2, 4, 8)
KINDS: Final = ("running", "shrunk", "loo", "episode")
Scores = Mapping[str, Mapping[int, float]]


def scores(results: Path, figure: str) -> dict[str, dict[int, float]]:
    """A figure on the test split, by row and seed, of the runs that have one.

    Raises:
        ValueError: no run has the figure.
    """
    found: dict[str, dict[int, float]] = {}
    with results.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if value := row.get(f"test/{figure}"):
                found.setdefault(row["label"], {})[int(row["seed"])] = float(value)
    if not found:
        raise ValueError(f"{results}: no run has a test figure {figure!r}")
    return found


def grid(of: Scores, ending: str) -> list[str]:
    """Lines of the table: baselines by group sizes."""
    lines = [f"| | {' | '.join(f'groups of {size}' for size in SIZES)} |", "|---" * (1 + len(SIZES)) + "|"]
    for kind in KINDS:
        cells = (of.get(f"{kind}_{size}{ending}") for size in SIZES)
        lines.append(f"| {kind} | {' | '.join(shown(list(one.values())) if one else '' for one in cells)} |")
    return lines


def pairs() -> Iterator[tuple[str, str, str]]:
    """What is asked, and two rows that differ in it alone; the first minus the second."""
    for size in SIZES[1:]:
        yield f"baseline, groups of {size}: running mean, not the others' mean", f"running_{size}", f"loo_{size}"
        yield f"baseline, groups of {size}: shrunk, not the others' mean", f"shrunk_{size}", f"loo_{size}"
    for kind in ("running", "shrunk", "loo"):
        for small, large in pairwise(SIZES[kind == "loo" :]):  # no others in groups of one
            yield f"group size, {kind}: {small}, not {large}", f"{kind}_{small}", f"{kind}_{large}"
    yield "64 problems a batch, not 128, one episode each", "small_batch_1", "running_1"
    yield "32 problems a batch, not 128, one episode each", "small_batch_32", "running_1"
    yield "16 problems a batch, not 128, one episode each", "small_batch_16", "running_1"
    for problems, size in (("small_batch_1", 2), ("small_batch_32", 4), ("small_batch_16", 8)):
        yield f"the same number of problems a batch, one episode each, not {size}", problems, f"running_{size}"
    yield "groups of 2: 128 problems a batch, not 64", "large_batch_2", "running_2"
    for size in SIZES[1:]:
        yield f"credit, groups of {size}: per turn, not per episode", f"loo_{size}", f"episode_{size}"
    for row in ("running_1", "loo_2", "shrunk_2"):
        yield f"credit, {row}: of the turn alone, not of all that follow", row, f"{row}_togo"
    for kind in KINDS:
        for size in SIZES if kind in ("running", "shrunk") else SIZES[1:]:
            yield f"rate, {kind}_{size}: 1e-3, not 5e-4", f"{kind}_{size}", f"{kind}_{size}_half"


def differences(of: Scores) -> list[str]:
    """Lines of the table of differences."""
    lines = ["| | difference | seeds |", "|---|---|---|"]
    for what, one, other in pairs():
        if seeds := sorted(of.get(one, {}).keys() & of.get(other, {}).keys()):
            found = shown([of[one][seed] - of[other][seed] for seed in seeds], "+")
            lines.append(f"| {what} (`{one}` − `{other}`) | {found} | {len(seeds)} |")
    return lines


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "results",
        type=Path,
        nargs="?",
        default=Path("runs/factorial"),
        help="the comparison's folder, or its results.csv",
    )
    parser.add_argument("--figure", default="acc@1")
    options = parser.parse_args()
    results = options.results / "results.csv" if options.results.is_dir() else options.results
    if not results.exists():
        parser.error(f"{results} is not there: mathturn compare experiments/factorial.toml writes it")
    of = scores(results, options.figure)
    for rate, ending in (("1e-3", ""), ("5e-4", "_half")):
        print(f"{options.figure}, rate {rate}\n")
        print("\n".join(grid(of, ending)) + "\n")
    print("\n".join(differences(of)))


if __name__ == "__main__":
    main()
