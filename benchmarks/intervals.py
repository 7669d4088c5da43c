"""How often every interval that the package prints covers the true value, and how often every p-value is small by chance.

    python benchmarks/intervals.py     # 1,000 simulations a row, 15 CPU minutes; writes benchmarks/intervals.md

Rows that an earlier call has simulated are read from its JSON: what changes an interval deletes that file first.

Each row simulates evaluations (or comparisons of training runs) whose true value is known, and counts how often a 95 %
interval covers it: the package's, and for comparison the percentiles of the bootstrap that the package used before, and
the same interval when it is ignored which episodes share a problem. For p-values, the true difference is 0, and the
share of simulations with p at most .05 is counted.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from scipy.stats import beta

from mathturn_gym.base.files import write_json
from mathturn_gym.compare.statistics import AGGREGATES, aggregate, difference, improvement, profile
from mathturn_gym.episodes.metrics import Estimate
from mathturn_gym.episodes.metrics.figures import pass_at_k
from mathturn_gym.episodes.metrics.intervals import Bounds, Floats, difference_estimate, ratio_estimate

CONFIDENCE: Final = 0.95
RATE, SIGNED, POSITIVE = (0.0, 1.0), (-1.0, 1.0), (0.0, None)
BEGIN, END = "<!-- benchmarks/intervals.py writes from here -->", "<!-- to here -->"
Rng: TypeAlias = np.random.Generator
Ends: TypeAlias = "tuple[float | None, float | None]"


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Args:
        cells: What is simulated, in words.
        draw: One simulation: the truth, the package's interval, the percentiles', and that which forgets the problems (or
            None for what has no such).
    """

    cells: tuple[str, ...]
    draw: Callable[[Rng], tuple[float, Ends, Ends, Ends | None]]


def percentiles(values: Floats) -> Ends:
    low, high = np.nanquantile(values, [0.025, 0.975])
    return float(low), float(high)


def ends(found: Estimate) -> Ends:
    return found.low, found.high


def resampled(tops: Floats, bottoms: Floats, rng: Rng) -> Floats:
    """Ratios of sums over problems drawn again, float64 (400,)."""
    weights = rng.multinomial(len(tops), np.full(len(tops), 1 / len(tops)), size=400)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((weights @ tops) / (weights @ bottoms))


def rate(rng: Rng, mean: float, spread: float, problems: int, group: int) -> tuple[float, Ends, Ends, Ends | None]:
    """Success rates of problems are Beta(mean * spread, (1 - mean) * spread)."""
    rates = rng.beta(mean * spread, (1 - mean) * spread, problems)
    right = (rng.random((problems, group)) < rates[:, None]).astype(float)
    tops, bottoms = right.sum(axis=1), np.full(problems, float(group))
    found = ratio_estimate(tops, bottoms, RATE, units=right.size, confidence=CONFIDENCE)
    flat = right.reshape(-1)
    alone = ratio_estimate(flat, np.ones_like(flat), RATE, units=flat.size, confidence=CONFIDENCE)
    return mean, ends(found), percentiles(resampled(tops, bottoms, rng)), ends(alone)


def dialogues(rng: Rng, problems: int, group: int, mean: float) -> dict[str, Floats]:
    """Episodes of at most four turns that end when solved, and their tokens: (P, G) arrays."""
    rates = rng.beta(mean, 1 - mean, problems)[:, None]
    right = rng.random((problems, group, 4)) < rates[..., None]
    solved = right.any(axis=2)
    first = np.where(solved, right.argmax(axis=2) + 1, 5)
    turns = np.minimum(first, 4).astype(float)
    tokens = np.round(rng.lognormal(2.0, 0.5, (problems, 1)) * rng.lognormal(0.0, 0.3, (problems, group)) * turns)
    return {"solved": solved.astype(float), "first": first.astype(float), "turns": turns, "tokens": tokens}


def of_figure(name: str, episodes: dict[str, Floats]) -> tuple[Floats, Floats, Bounds]:
    """Numerators and denominators by problem, and bounds."""
    solved, first = episodes["solved"], episodes["first"]
    one = np.ones_like(solved)
    tops, bottoms, bounds = {
        "turns": (episodes["turns"], one, (1.0, 4.0)),
        "tokens": (episodes["tokens"], one, POSITIVE),
        "tokens_per_solved": (episodes["tokens"], solved, POSITIVE),
        "tokens_to_success": (episodes["tokens"] * solved, solved, POSITIVE),
        "corrected": (((first > 1) & (first < 5)).astype(float), (first > 1).astype(float), RATE),
        "delta_1_2": ((first == 2).astype(float), one, SIGNED),
    }[name]
    return tops.sum(axis=1), bottoms.sum(axis=1), bounds


def figure(
    rng: Rng, name: str, truth: float, problems: int, group: int, mean: float
) -> tuple[float, Ends, Ends, Ends | None]:
    tops, bottoms, bounds = of_figure(name, dialogues(rng, problems, group, mean))
    found = ratio_estimate(tops, bottoms, bounds, units=float(bottoms.sum()), confidence=CONFIDENCE)
    return truth, ends(found), percentiles(resampled(tops, bottoms, rng)), None


def of_samples(
    rng: Rng, name: str, truth: float, problems: int, group: int, mean: float
) -> tuple[float, Ends, Ends, Ends | None]:
    """pass@4, and retry_gain@4 where a second kind of tries is a little better."""
    rates = rng.beta(mean, 1 - mean, problems)
    right = rng.binomial(group, rates)
    passes = np.array([pass_at_k(group, int(c), 4) for c in right])
    if name == "pass@4":
        tops, bounds = passes, RATE
    else:
        tops, bounds = rng.binomial(group, 1 - (1 - rates) ** 5) / group - passes, SIGNED
    ones = np.ones(problems)
    found = ratio_estimate(tops, ones, bounds, units=problems * group, confidence=CONFIDENCE)
    return truth, ends(found), percentiles(resampled(tops, ones, rng)), None


def truth_of_samples(name: str, mean: float) -> float:
    rates = np.random.default_rng(1).beta(mean, 1 - mean, 4_000_000)
    passes = float(np.mean(1 - (1 - rates) ** 4))
    return passes if name == "pass@4" else float(np.mean(1 - (1 - rates) ** 5)) - passes


def paired(
    rng: Rng, kind: str, mean: float, better: float, problems: int, group: int
) -> tuple[float, Ends, Ends, Ends | None]:
    """Two policies on the same problems.

    "gain": the second solves a share `better` of what the first fails. "rare": they do the same, but on a share `better` of
    the problems, where the second alone is right.
    """
    if kind == "gain":
        rates = rng.beta(mean, 1 - mean, problems)
        tops = np.stack([rng.binomial(group, rates), rng.binomial(group, rates + better * (1 - rates))]).astype(float)
        truth = better * (1 - mean)
    else:
        right = np.where(rng.random(problems) < mean, float(group), 0.0)
        changed = rng.random(problems) < better
        tops = np.stack([np.where(changed, 0.0, right), np.where(changed, float(group), right)])
        truth = better
    bottoms = np.full((2, problems), float(group))
    found = difference_estimate(tops, bottoms, RATE, confidence=CONFIDENCE).difference
    drawn = resampled(tops[1] - tops[0], bottoms[0], rng)
    return truth, ends(found), percentiles(drawn), None


def scores(rng: Rng, shape: str, tasks: int, runs: int, alike: float = 0.0) -> Floats:
    """Scores of training runs, float64 (tasks, runs); `alike` correlates the runs of a seed."""
    if shape == "one task varies most":
        return np.stack(
            [np.clip(rng.normal(0.3 + 0.12 * k, 0.06 if not k else 0.01, runs), 0, 1) for k in range(tasks)]
        )
    if shape == "one run in four fails":
        return np.stack(
            [np.where(rng.random(runs) < 0.75, 0.85, 0.3) + rng.normal(0, 0.03, runs) for _ in range(tasks)]
        )
    levels = np.linspace(1.2, 0.0, tasks)[:, None]
    noise = alike**0.5 * rng.normal(0, 1, runs) + (1 - alike) ** 0.5 * rng.normal(0, 1, (tasks, runs))
    return np.asarray(1 / (1 + np.exp(-(levels + 0.7 * noise))))


def each_task_alone(own: Floats, rng: Rng) -> Floats:
    """Samples that draw the runs of each task by themselves, as the package did before: float64 (tasks, 400, runs)."""
    runs = own.shape[1]
    return np.stack([task[rng.integers(0, runs, (400, runs))] for task in own])


def over_seeds(
    rng: Rng, name: str, truth: float, shape: str, tasks: int, runs: int, alike: float
) -> tuple[float, Ends, Ends, Ends | None]:
    own = scores(rng, shape, tasks, runs, alike)
    found = aggregate(own, name, resamples=400, seed=int(rng.integers(2**31)))
    return truth, ends(found), percentiles(AGGREGATES[name](each_task_alone(own, rng))), None


def two_rows(rng: Rng, shape: str, runs: int, tasks: int = 1) -> tuple[Floats, Floats]:
    """Scores of two rows' runs, the second's with the seeds of the first's."""
    if shape == "seeds share their luck":
        luck = rng.normal(0, 1, runs)
        one, other = (
            1 / (1 + np.exp(-(level + luck + 0.5 * rng.standard_t(5, (tasks, runs))))) for level in (0.8, 0.0)
        )
        return one, other
    first = "one run in four fails" if shape == "one run in four of the first fails" else "alike"
    one, other = scores(rng, first, 2, runs)[-1:], scores(rng, "alike", 1, runs)
    return one, other


def by_seed(rng: Rng, shape: str, truth: float, runs: int, tasks: int) -> tuple[float, Ends, Ends, Ends | None]:
    one, other = two_rows(rng, shape, runs, tasks)
    drawn = each_task_alone(one - other, rng).mean(axis=(0, 2))
    return truth, ends(difference(one, other).difference), percentiles(drawn), None


def better(rng: Rng, shift: float, tasks: int, runs: int, alike: float) -> tuple[float, Ends, Ends, Ends | None]:
    x, y = (
        alike**0.5 * rng.normal(0, 1, runs) + (1 - alike) ** 0.5 * rng.normal(0, 1, (tasks, runs)) + level
        for level in (shift, 0.0)
    )
    truth = 0.5 * (1 + math.erf(shift / 2))
    drawn = [
        np.mean(
            [(rng.choice(a, runs)[:, None] > rng.choice(b, runs)[None, :]).mean() for a, b in zip(x, y, strict=True)]
        )
        for _ in range(100)
    ]
    return truth, ends(improvement(x, y)), percentiles(np.array(drawn)), None


def share(rng: Rng, level: float, tasks: int, runs: int) -> tuple[float, Ends, Ends, Ends | None]:
    own = np.stack([rng.beta(2 + k, 2, runs) for k in range(tasks)])
    exact = np.mean([beta.sf(level, 2 + k, 2) for k in range(tasks)])
    _, low, high = profile(own, np.array([level]))
    drawn = (each_task_alone(own, rng) > level).mean(axis=(0, 2))
    return float(exact), (float(low[0]), float(high[0])), percentiles(drawn), None


def conditional(
    rng: Rng, problems: int, groups: tuple[int, int], asked: tuple[float, float], rate: float
) -> tuple[Floats, Floats, Bounds]:
    """A conditional metric (`corrected`, say) that is equal for two policies, over different numbers of turns."""
    rates = rng.beta(rate, 1 - rate, problems)
    bottoms = [rng.binomial(group, share, problems) for group, share in zip(groups, asked, strict=True)]
    return (
        np.stack([rng.binomial(count, rates) for count in bottoms]).astype(float),
        np.stack(bottoms).astype(float),
        RATE,
    )


def costs(rng: Rng, problems: int, groups: tuple[int, int]) -> tuple[Floats, Floats, Bounds]:
    """`tokens_per_solved` of two equal policies with different numbers of episodes."""
    rates = rng.beta(1, 1, problems).clip(0.02)
    tokens = [rng.lognormal(2, 0.3, (problems, group)).sum(axis=1) for group in groups]
    solved = [rng.binomial(group, rates) for group in groups]
    return np.stack(tokens), np.stack(solved).astype(float), POSITIVE


def sizes(runs: int) -> list[tuple[tuple[str, str, str], float]]:
    """Per row its cells, and the share of simulations of equal policies with p at most .05."""
    rows: list[tuple[tuple[str, str, str], Callable[[Rng], tuple[Floats, Floats, Bounds]]]] = []
    for problems in (20, 60, 200):
        for groups in ((1, 1), (8, 8), (8, 2)):
            each = " and ".join(map(str, groups))
            for rate in (0.1, 0.4):
                accuracy = partial(conditional, problems=problems, groups=groups, asked=(1.0, 1.0), rate=rate)
                rows.append(((f"`acc@k`, {rate}", str(problems), each), accuracy))
            for asked in ((0.5, 0.5), (0.8, 0.2)):
                label = f"conditional, .3, on {asked[0]:g} and {asked[1]:g} of the turns"
                rows.append(
                    (
                        (label, str(problems), each),
                        partial(conditional, problems=problems, groups=groups, asked=asked, rate=0.3),
                    )
                )
            rows.append(
                (("`tokens_per_solved`", str(problems), each), partial(costs, problems=problems, groups=groups))
            )
    found = []
    for cells, draw in rows:
        rng = np.random.default_rng(20_24)
        p_values = [difference_estimate(*draw(rng), confidence=CONFIDENCE).p_value for _ in range(runs)]
        known = [p for p in p_values if p is not None]
        found.append((cells, float(np.mean(np.array(known) <= 0.05))))
    return found


def tables() -> Iterator[tuple[str, list[str], list[Row]]]:
    """Title, heads of the first columns, and rows."""
    yield (
        "Rates (`acc@k` and its like), by the number of problems and of episodes on each",
        ["rate", "problems", "episodes a problem"],
        [
            Row(
                (f"{mean}", f"{problems:,}", str(group)),
                partial(rate, mean=mean, spread=1.0, problems=problems, group=group),
            )
            for mean in (0.02, 0.1, 0.4)
            for problems in (10, 20, 50, 200, 2_000)
            for group in (1, 8)
        ],
    )
    rows = []
    for name in ("corrected", "turns", "delta_1_2", "tokens", "tokens_per_solved", "tokens_to_success"):
        for mean in (0.1, 0.4):
            tops, bottoms, _ = of_figure(name, dialogues(np.random.default_rng(0), 400_000, 8, mean))
            truth = float(tops.sum() / bottoms.sum())
            for problems in (20, 50, 200):
                cells = (f"`{name}`", f"{mean}", str(problems))
                rows.append(Row(cells, partial(figure, name=name, truth=truth, problems=problems, group=1, mean=mean)))
    for name in ("pass@4", "retry_gain@4"):
        for mean in (0.1, 0.4):
            for problems in (20, 50, 200):
                given = partial(
                    of_samples, name=name, truth=truth_of_samples(name, mean), problems=problems, group=8, mean=mean
                )
                rows.append(Row((f"`{name}`, 8 episodes", f"{mean}", str(problems)), given))
    yield "Other figures, four turns, one episode a problem", ["figure", "first-turn rate", "problems"], rows
    yield (
        "Differences of two policies on the same problems (`mathturn compare-eval`)",
        ["policies", "problems", "episodes a problem"],
        [
            Row(
                (label, f"{problems:,}", str(group)),
                partial(paired, kind=kind, mean=mean, better=gain, problems=problems, group=group),
            )
            for label, kind, mean, gain in (
                ("equally good, .4", "gain", 0.4, 0.0),
                ("the second solves a tenth of the rest, .4", "gain", 0.4, 0.1),
                ("the second solves a twentieth of the rest, .05", "gain", 0.05, 0.05),
                ("the same but on one problem in ten", "rare", 0.5, 0.1),
                ("the same but on one problem in fifty", "rare", 0.5, 0.02),
            )
            for problems in (20, 50, 200, 2_000)
            for group in (1, 8)
            if kind == "gain" or group == 1
        ],
    )
    rows = []
    for name in AGGREGATES:
        for shape, alike in (
            ("alike", 0.0),
            ("runs of a seed correlate at .5", 0.5),
            ("runs of a seed correlate at .8", 0.8),
            ("one task varies most", 0.0),
            ("one run in four fails", 0.0),
        ):
            for count in (1, 3):
                if count == 1 and (name == "median" or alike):
                    continue  # the mean; a single task has nothing to share
                many = scores(np.random.default_rng(0), shape, count, 400_000)
                truth = float(AGGREGATES[name](many[:, None, :])[0])
                for runs in (3, 5, 10):
                    given_seeds = partial(
                        over_seeds, name=name, truth=truth, shape=shape, tasks=count, runs=runs, alike=alike
                    )
                    rows.append(Row((f"{name}, {shape}", str(count), str(runs)), given_seeds))
    for shape, count in (
        ("seeds share their luck", 1),
        ("seeds share their luck", 3),
        ("seeds share nothing", 1),
        ("one run in four of the first fails", 1),
    ):
        one, other = two_rows(np.random.default_rng(0), shape, 400_000, count)
        for runs in (3, 5, 10):
            given_pairs = partial(by_seed, shape=shape, truth=float((one - other).mean()), runs=runs, tasks=count)
            rows.append(Row((f"difference, {shape}", str(count), str(runs)), given_pairs))
    for shift in (0.0, 0.7, 3.0):
        for count, alike in ((1, 0.0), (3, 0.0), (3, 0.8)):
            for runs in (5, 10):
                label = f"probability of improvement, {0.5 * (1 + math.erf(shift / 2)):.3f}"
                label += ", runs of a seed correlate at .8" if alike else ""
                rows.append(
                    Row(
                        (label, str(count), str(runs)),
                        partial(better, shift=shift, tasks=count, runs=runs, alike=alike),
                    )
                )
    for level in (0.3, 0.9):
        for runs in (5, 10):
            rows.append(
                Row((f"profile, share above {level}", "3", str(runs)), partial(share, level=level, tasks=3, runs=runs))
            )
    yield "Over training seeds (`mathturn compare`)", ["figure", "tasks", "seeds"], rows


def simulate(row: Row, runs: int) -> dict[str, Any]:
    """Coverage, and the mean width of the package's interval; a simulation without an interval is counted by itself."""
    rng = np.random.default_rng(20_24)
    held, none = np.zeros(3), 0
    widths: list[float] = []
    for _ in range(runs):
        truth, *found = row.draw(rng)
        for k, interval in enumerate(found):
            if interval is not None and interval[0] is not None and interval[1] is not None:
                held[k] += interval[0] - 1e-9 <= truth <= interval[1] + 1e-9
        assert found[0] is not None
        low, high = found[0]
        if low is None or high is None:
            none += 1
        else:
            widths.append(high - low)
    shown = runs - none
    return {
        "cells": row.cells,
        "covered": held[0] / shown if shown else None,
        "percentiles": held[1] / runs,
        "forgetting": None if found[2] is None else held[2] / runs,
        "width": float(np.mean(widths)) if widths else None,
        "without": none / runs,
    }


def markdown(title: str, heads: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    forgetting = any(row["forgetting"] is not None for row in rows)
    columns = [
        *heads,
        "coverage",
        "mean width",
        "percentiles",
        *(["by episode"] if forgetting else []),
    ]
    lines = [f"**{title}**", "", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row in rows:
        none = f" (none in {row['without']:.0%})" if row["without"] > 0.005 else ""
        covered = "–" if row["covered"] is None else f"{row['covered']:.3f}"
        width = "–" if row["width"] is None else f"{row['width']:.3g}"
        cells = [*row["cells"], covered + none, width, f"{row['percentiles']:.3f}"]
        if forgetting:
            cells.append("–" if row["forgetting"] is None else f"{row['forgetting']:.3f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def kept_rows(file: Path, runs: int) -> dict[tuple[str, tuple[str, ...]], dict[str, Any]]:
    """What an earlier call has simulated, by the table's title and the row's cells; every row has a stream of its own."""
    if not file.exists():
        return {}
    before = json.loads(file.read_text(encoding="utf-8"))
    if before["runs"] != runs:
        return {}
    return {(row["title"], tuple(row["cells"])): row for row in before["rows"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000, help="simulations a row")
    parser.add_argument(
        "--docs", type=Path, default=Path("benchmarks/intervals.md"), help="the page whose tables are replaced"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/intervals.json"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    kept = kept_rows(options.out, options.runs)
    written = []
    for title, heads, rows in tables():
        for row in rows:
            if (title, row.cells) not in kept:
                kept[title, row.cells] = {"title": title, **simulate(row, options.runs)}
                write_json(options.out, {"runs": options.runs, "rows": list(kept.values())})
            print(title[:20], kept[title, row.cells], flush=True)
        written.append(markdown(title, heads, [kept[title, row.cells] for row in rows]))
    lines = ["| metric | problems | episodes a problem | p at most .05 |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(cells)} | {found:.3f} |" for cells, found in sizes(2 * options.runs)]
    written.append("**p-values of equal policies (`mathturn compare-eval`)**\n\n" + "\n".join(lines))
    page = options.docs.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    middle = "\n\n".join(written)
    options.docs.write_text(f"{before}{BEGIN}\n\n{middle}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
