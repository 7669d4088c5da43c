"""Does a policy listen, and does trying again beat starting afresh? The built-in policy, three seeds.

    python benchmarks/feedback.py [--seeds 3] [--jobs 1] [--out runs/benchmarks/feedback.json] [--picture feedback.svg]

A hidden number (guess8, three turns): one policy is trained with each kind of feedback (informative hints, plain verdicts,
hints of which half lie, hints that all lie), and each is then played under every kind. A policy that ignores feedback
solves at most 3/8; one that listens to true hints up to 5/8. What a policy gains by its turns is compared with its own
independent first tries on the same problems, at the same number of tries (`retry_gain`, with an interval).

Linear equations (lins, four turns): the warm start and a trained policy, plain feedback, against four first tries.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any, Final

from mathturn_gym.baselines import RunConfig, load_task, train
from mathturn_gym.baselines.session import cpu_threads
from mathturn_gym.episodes.metrics import summarize
from mathturn_gym.episodes.metrics.report import Report
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Policy
from mathturn_gym.wrappers import load_policy

KINDS: Final = {"informative": "hint", "plain": "plain", "random": "hint-random", "flipped": "hint-flipped"}
DEAF, BEST = 3 / 8, 5 / 8
GROUP = 4


def play(policy: Policy, config: RunConfig, episodes: int, feedback: str) -> Report:
    """A report over test problems, `GROUP` episodes on each; the same problems and seeds for every policy."""
    env: Any = config.env.make("test", 128, feedback=feedback)
    try:
        seed = derive_seed("feedback", config.seed)
        return summarize(collect(env, policy, episodes, seed=seed, group_size=GROUP), by=())
    finally:
        env.close()


def figures_of(report: Report, turns: int) -> dict[str, Any]:
    """What is kept of a report."""
    kept = {
        "solved": f"acc@{turns}",
        "first": "acc@1",
        "pass": f"pass@{turns}",
        "gain": f"retry_gain@{turns}",
        "repeated": "repeated_answer",
    }
    return {name: report.figures[figure].to_dict() for name, figure in kept.items() if figure in report.figures}


def one_seed(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one seed."""
    folder = options.out.parent
    before = load_policy("builtin")
    row: dict[str, Any] = {"seed": seed}
    with cpu_threads(1):
        changes = {"seed": seed, "evaluation.every": 0, "evaluation.test_episodes": 0}
        budget = None if options.episodes is None else {"episodes": options.episodes}
        for trained, feedback in KINDS.items():
            config = load_task("guess8").config(settings={**changes, "env.feedback": feedback}, budget=budget)
            # A run that was interrupted goes on, a finished one is loaded.
            policy = train(config, run_dir=folder / f"feedback-{trained}-{seed}", resume=True).policy
            for played, other in KINDS.items():
                row[f"{trained} / {played}"] = figures_of(play(policy, config, options.played, other), 3)
            print(f"seed {seed}: trained {trained}: " + _line(row, trained), flush=True)
        row["before / informative"] = figures_of(play(before, config, options.played, "hint"), 3)
        config = load_task("lins").config(settings=changes, budget=budget)
        row["lins before"] = figures_of(play(before, config, options.played, "plain"), 4)
        if options.lins:
            after = train(config, run_dir=folder / f"feedback-lins-{seed}", resume=True).policy
            row["lins after"] = figures_of(play(after, config, options.played, "plain"), 4)
    return row


def _line(row: dict[str, Any], trained: str) -> str:
    return ", ".join(f"{played} {row[f'{trained} / {played}']['solved']['value']:.3f}" for played in KINDS)


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown: means over seeds, and each seed's figure."""
    lines = [
        "| trained with | " + " | ".join(f"played with {kind}" for kind in KINDS) + " |",
        "|---|" + "---|" * len(KINDS),
    ]
    for trained in KINDS:
        cells = []
        for played in KINDS:
            values = [row[f"{trained} / {played}"]["solved"]["value"] for row in rows]
            cells.append(f"{mean(values):.3f} ({' / '.join(f'{value:.3f}' for value in values)})")
        lines.append(f"| {trained} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "| policy | k turns | k first tries | gain by seed [95 % interval] | retry beats resampling |",
        "|---|---|---|---|---|",
    ]
    for name in [f"{kind} / {kind}" for kind in KINDS] + [
        name for name in ("lins before", "lins after") if name in rows[0]
    ]:
        found = [row[name] for row in rows]
        gains = [figures["gain"] for figures in found]
        shown = "; ".join(f"{gain['value']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]" for gain in gains)
        solved, passed = (mean(figures[key]["value"] for figures in found) for key in ("solved", "pass"))
        lines.append(f"| {name} | {solved:.3f} | {passed:.3f} | {shown} | {_verdict(gains)} |")
    return "\n".join(lines)


def _verdict(gains: list[dict[str, float]]) -> str:
    if all(gain["low"] > 0 for gain in gains):
        return "yes, in every seed"
    if all(gain["high"] < 0 for gain in gains):
        return "no: worse in every seed"
    return "not shown"


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """A picture of the first table."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "mathturn"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4))
    for k, played in enumerate(KINDS):
        for i, trained in enumerate(KINDS):
            values = [row[f"{trained} / {played}"]["solved"]["value"] for row in rows]
            place = i + (k - 1.5) * 0.2
            axes.bar(place, mean(values), 0.18, color=f"C{k}", label=f"played with {played}" if not i else None)
            axes.plot([place] * len(values), values, "k.", markersize=4)
    axes.axhline(DEAF, color="grey", linestyle="--", linewidth=1)
    axes.axhline(BEST, color="grey", linestyle=":", linewidth=1)
    axes.text(3.55, DEAF, "3/8: the best\nwithout listening", fontsize=7, va="center")
    axes.text(3.55, BEST, "5/8: the best\nwith true hints", fontsize=7, va="center")
    axes.set_xticks(range(len(KINDS)), [f"trained with\n{kind}" for kind in KINDS])
    axes.set_ylabel("solved within three turns")
    axes.set_xlim(-0.6, 4.4)
    axes.legend(fontsize=7, ncols=2, loc="upper right")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=None, help="of each training; the tasks' where not given")
    parser.add_argument("--played", type=int, default=1024, help="test episodes per figure")
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--lins", action=argparse.BooleanOptionalAction, default=True, help="train on equations too")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/feedback.json"))
    parser.add_argument("--picture", type=Path, default=None)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    # A process per seed; spawned, since torch's threads do not survive a fork.
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(one_seed, range(options.first_seed, options.first_seed + options.seeds), repeat(options)))
    options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table(rows))
    if options.picture is not None:
        draw(rows, options.picture)
    print(f"{time.perf_counter() - began:.0f} s; written to {options.out}")


if __name__ == "__main__":
    main()
