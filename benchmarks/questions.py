"""Three questions about training over turns, answered with intervals over seeds.

    python benchmarks/questions.py                # both tasks, 5 seeds

1. Does multi-turn training beat single-turn training at equal sampled ids?
2. Does answering over turns beat as many independent answers (acc@k against pass@k)?
3. Which discount moves success to the first turn?

Each is asked on `lins`, where feedback says no more than "wrong", and on `guess8`, where it informs. All policies are
trained by clipped REINFORCE within the same budget of ids, and play the same test problems: dialogues over all turns, and as
many answers to the first turn alone. Differences are paired by seed; intervals are Student's, 95 %, over the seeds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy import stats

from mathturn_gym.baselines import RunConfig, load_task, train
from mathturn_gym.baselines._process import cpu_threads
from mathturn_gym.metrics import pass_at_k, summarize
from mathturn_gym.rollout import collect
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Episode, Policy

TOKENS: Final = {"lins": 60_000, "guess8": 30_000}
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    # On validation problems, at this budget, better than .005 and no worse than .01 for both kinds of training.
    "lins": {"entropy_weight": 0.02},
    "guess8": {},
}
TRAINED: Final[Mapping[str, Mapping[str, Any]]] = {
    "single-turn": {"num_turns": 1},
    "discount 0": {"discount": 0.0},
    "discount 1": {"discount": 1.0},
}
PLAYED: Final = 512


def play(policy: Policy, config: RunConfig, group: int = 1, **changes: Any) -> list[Episode]:
    """Episodes on the test problems; the same problems and samples for every policy of a seed."""
    env: Any = config.env.make("test", 128, **changes)
    try:
        return collect(env, policy, PLAYED * group, seed=derive_seed(config.seed, "test"), group_size=group)
    finally:
        env.close()


def passes(episodes: list[Episode], k: int) -> float:
    """pass@k of episodes of one turn: the unbiased estimate, mean over problems weighted by their episodes."""
    groups: dict[str, list[bool]] = {}
    for episode in episodes:
        groups.setdefault(episode.problem_id, []).append(any(v.correct for v in episode.verdicts))
    known = [(len(right), pass_at_k(len(right), sum(right), k)) for right in groups.values() if len(right) >= k]
    return sum(n * value for n, value in known) / sum(n for n, _ in known)


def one(task: str, trained: str, seed: int, out: Path) -> dict[str, Any]:
    """Trains one policy and plays it both ways; what an earlier call has done with the same settings is read."""
    run_dir = out / f"{task}-{trained.replace(' ', '-')}-{seed}"
    unseen = {"evaluation.every": 0, "evaluation.episodes": 0, "evaluation.test_episodes": 0}
    changes = {"seed": seed, **unseen, **SETTINGS[task], **TRAINED[trained]}
    config = load_task(task).config("clipped_reinforce", changes, budget={"tokens": TOKENS[task]})
    file = run_dir / "row.json"
    if file.exists() and (before := json.loads(file.read_text(encoding="utf-8")))["config"] == config.to_json():
        found: dict[str, Any] = before["row"]
        return found
    with cpu_threads(1):
        done = train(config, run_dir=run_dir, overwrite=True)
        whole = load_task(task).config(settings={"seed": seed})
        turns = int(whole.env.value("num_turns"))
        dialogue = summarize(play(done.policy, whole), by=()).figures
        alone = play(done.policy, whole, group=turns, num_turns=1)
    reached = [dialogue[f"acc@{k}"].value for k in range(turns, 0, -1) if f"acc@{k}" in dialogue]
    row = {
        "task": task,
        "trained": trained,
        "seed": seed,
        "acc@1": dialogue["acc@1"].value,
        "acc@K": reached[0],  # where all had ended sooner, that of the last turn there was
        "pass@K": passes(alone, turns),
        "tokens": done.tokens,
        "episodes": done.episodes,
    }
    file.write_text(json.dumps({"row": row, "config": config.to_json()}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(row), flush=True)
    return row


def interval(values: list[float]) -> tuple[float, float, float]:
    """Mean and Student's 95 % interval."""
    mean, error = float(np.mean(values)), float(stats.sem(values))
    half = float(stats.t.ppf(0.975, len(values) - 1)) * error
    return mean, mean - half, mean + half


def shown(values: list[float]) -> str:
    """As "+.012 (-.003 to +.027)"."""
    return "{:+.3f} ({:+.3f} to {:+.3f})".format(*interval(values))


def answers(rows: list[dict[str, Any]], task: str) -> list[tuple[str, str, list[float]]]:
    """Question, comparison, and the differences by seed."""
    of = {(row["trained"], row["seed"]): row for row in rows if row["task"] == task}
    seeds = sorted({seed for _, seed in of})

    def minus(a: tuple[str, str], b: tuple[str, str]) -> list[float]:
        return [of[a[0], seed][a[1]] - of[b[0], seed][b[1]] for seed in seeds]

    best = max((t for t in TRAINED if t != "single-turn"), key=lambda t: np.mean([of[t, s]["acc@K"] for s in seeds]))
    return [
        ("1 training", f"acc@1: multi-turn ({best}) - single-turn", minus((best, "acc@1"), ("single-turn", "acc@1"))),
        ("1 training", f"acc@K: multi-turn ({best}) - single-turn", minus((best, "acc@K"), ("single-turn", "acc@K"))),
        ("2 answering", f"own acc@K - own pass@K ({best})", minus((best, "acc@K"), (best, "pass@K"))),
        ("2 answering", f"acc@K ({best}) - pass@K (single-turn)", minus((best, "acc@K"), ("single-turn", "pass@K"))),
        ("3 discount", "acc@1: discount 0 - discount 1", minus(("discount 0", "acc@1"), ("discount 1", "acc@1"))),
        ("3 discount", "acc@K: discount 0 - discount 1", minus(("discount 0", "acc@K"), ("discount 1", "acc@K"))),
    ]


def main() -> None:
    """Trains, plays, prints the tables, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=sorted(TOKENS), default=["lins", "guess8"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/questions"))
    options = parser.parse_args()
    jobs = [(task, trained, seed) for task in options.tasks for seed in range(options.seeds) for trained in TRAINED]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        rows = [f.result() for f in [pool.submit(one, *job, options.out) for job in jobs]]
    facts: dict[str, Any] = {"rows": rows, "differences": []}
    for task in options.tasks:
        print(f"\n{task}: mean and 95 % interval over {options.seeds} seeds, {TOKENS[task]} ids each")
        for trained in TRAINED:
            own = [row for row in rows if (row["task"], row["trained"]) == (task, trained)]
            figures = "   ".join(f"{name} {shown([row[name] for row in own])}" for name in ("acc@1", "acc@K", "pass@K"))
            print(f"  {trained:14} {figures}")
        for question, what, differences in answers(rows, task):
            print(f"  {question:12} {what:58} {shown(differences)}")
            facts["differences"].append(
                {
                    "task": task,
                    "question": question,
                    "what": what,
                    "by seed": differences,
                    "mean": interval(differences),
                }
            )
    out = options.out / "questions.json"
    out.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    print(f"written to {out}")


if __name__ == "__main__":
    main()
