"""What the built-in policy learns from its warm start, on held-out problems, over several seeds.

    python benchmarks/learning.py [--seeds 3] [--jobs 2] [--out runs/benchmarks/learning.json]

Linear equations (lins): accuracy at the first try and within four turns, before and after at most 15,000 episodes,
on test equations that neither warm start nor training ever showed (settings were chosen on validation equations).
`pass@4` is what four independent first tries reach: the reference for retrying.

A hidden number (guess8): solved within three turns, of which no policy that ignores feedback can reach more than 3/8,
and none at all more than 5/8. The policy trained with informative hints is also played with hints that lie, hints at
random and none: that it falls to below chance when they lie shows that it does what they say.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

from mathturn_gym.baselines import RunConfig, load_task, train
from mathturn_gym.baselines.session import cpu_threads
from mathturn_gym.env.feedback._registry import RIGHT_TEXT, WRONG_TEXT
from mathturn_gym.episodes.metrics import summarize
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Policy, TurnContext
from mathturn_gym.wrappers import load_policy
from mathturn_gym.wrappers.policy import CausalLMPolicy

# (figure, where, at least or at most, limit): what the figures of the mean over seeds are held to.
REQUIRED = (
    ("lins before acc@1", "<=", 0.45),
    ("lins after acc@1", ">=", 0.65),
    ("lins after acc@4", ">=", 0.82),
    ("guess8 before", "<=", 0.30),
    ("guess8 hint-trained, hint", ">=", 0.46),
    ("guess8 plain-trained, plain", "<=", 0.38),
    ("guess8 hint-trained, hint-flipped", "<=", 0.20),
)


def random_hint(context: TurnContext) -> str:
    """A hint that a coin chooses, true or false."""
    if context.judged.correct:
        return RIGHT_TEXT
    true, false = context.problem.hints[0], context.problem.false_hints[0]
    coin = derive_seed("coin", context.problem.id, context.turn) % 2
    return f"{WRONG_TEXT} Hint: {(true, false)[coin]}"


def play(policy: Policy, config: RunConfig, episodes: int, group: int = 1, **changes: Any) -> Any:
    """A report over test problems; the same problems and samples for every policy of a seed."""
    env: Any = config.env.make("test", 128, **changes)
    try:
        return summarize(collect(env, policy, episodes, seed=derive_seed("test", config.seed), group_size=group), by=())
    finally:
        env.close()


def lins(seed: int, episodes: int | None, played: int, run_dir: str, before: CausalLMPolicy) -> dict[str, float]:
    """Equations, before and after."""
    config = _config("lins", seed, episodes)
    policy, seconds = _train(config, run_dir)
    figures = {"lins seconds": seconds}
    for name, who in (("before", before), ("after", policy)):
        report = play(who, config, played)
        single = play(who, config, played, group=4, num_turns=1)
        figures[f"lins {name} acc@1"] = _value(report, "acc@1")
        figures[f"lins {name} acc@4"] = _value(report, "acc@4")
        figures[f"lins {name} pass@4"] = _value(single, "pass@4")
    return figures


def guess8(seed: int, episodes: int | None, played: int, run_dir: str, before: CausalLMPolicy) -> dict[str, float]:
    """A hidden number, with feedback that informs, is silent, lies, or is random."""
    told = _config("guess8", seed, episodes)
    untold = _config("guess8", seed, episodes, {"env.feedback": "plain"})
    (listener, seconds), (deaf, _) = _train(told, f"{run_dir}-hint"), _train(untold, f"{run_dir}-plain")
    feedbacks: Mapping[str, str | Callable[[TurnContext], str]] = {
        "hint": "hint",
        "hint-flipped": "hint-flipped",
        "random": random_hint,
        "plain": "plain",
    }
    figures = {"guess8 seconds": seconds}
    figures["guess8 before"] = _value(play(before, told, played), "acc@3")
    figures["guess8 plain-trained, plain"] = _value(play(deaf, untold, played), "acc@3")
    for name, feedback in feedbacks.items():
        figures[f"guess8 hint-trained, {name}"] = _value(play(listener, told, played, feedback=feedback), "acc@3")
    return figures


def main() -> int:
    """Runs, prints the table, writes the JSON; 1 where a required figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=None, help="of each training; the tasks' where not given")
    parser.add_argument("--played", type=int, default=1024, help="test episodes per figure")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time")
    parser.add_argument("--tasks", nargs="+", choices=("lins", "guess8"), default=("lins", "guess8"))
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/learning.json"))
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    # A process per seed; spawned, since torch's threads do not survive a fork.
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(one_seed, seeds, repeat(options)))
    return _report(rows, options.out)


def one_seed(seed: int, options: argparse.Namespace) -> dict[str, float]:
    """All figures of one seed."""
    before = load_policy("builtin")
    row: dict[str, float] = {}
    with cpu_threads(1):
        for name, task in (("lins", lins), ("guess8", guess8)):
            if name in options.tasks:
                run_dir = str(options.out.parent / f"learning-{name}-{seed}")
                row |= task(seed, options.episodes, options.played, run_dir, before)
                print(f"seed {seed}: " + ", ".join(f"{key} {value:.3f}" for key, value in row.items()), flush=True)
    return row


def _config(task: str, seed: int, episodes: int | None, settings: Mapping[str, Any] | None = None) -> RunConfig:
    quick = {} if episodes is None else {"evaluation.every": 0}
    given = {"seed": seed, "evaluation.test_episodes": 0, **quick, **(settings or {})}
    return load_task(task).config(settings=given, budget=None if episodes is None else {"episodes": episodes})


def _train(config: RunConfig, run_dir: str) -> tuple[CausalLMPolicy, float]:
    """The trained policy and the CPU seconds that it took, evaluations included."""
    began = time.process_time()
    return train(config, run_dir=run_dir, overwrite=True).policy, time.process_time() - began


def _value(report: Any, name: str) -> float:
    """A figure; where every episode ended sooner, that of the last turn there was."""
    while name not in report.figures and name.startswith("acc@"):
        name = f"acc@{int(name[4:]) - 1}"
    value = report[name].value
    assert value is not None
    return float(value)


def _report(rows: list[dict[str, float]], out: Path) -> int:
    """Table, JSON, exit status."""
    limits = {name: (sign, limit) for name, sign, limit in REQUIRED}
    missed = []
    print(f"\n{'figure':36} {'mean':>6}   {'by seed':24} required")
    for name in rows[0]:
        values = [row[name] for row in rows]
        text = ""
        if name in limits:
            sign, limit = limits[name]
            met = mean(values) <= limit if sign == "<=" else mean(values) >= limit
            text = f"{sign} {limit:.2f} {'met' if met else 'MISSED'}"
            missed += [] if met else [name]
        print(f"{name:36} {mean(values):6.3f}   {' '.join(f'{value:.3f}' for value in values):24} {text}")
    out.parent.mkdir(parents=True, exist_ok=True)
    facts = {"machine": platform.processor() or platform.machine(), "python": platform.python_version()}
    out.write_text(json.dumps({**facts, "seeds": rows, "missed": missed}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {out}")
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
