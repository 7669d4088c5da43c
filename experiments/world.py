"""What the small world's policy solves after its warm start, and what reinforcement learning adds.

    python experiments/world.py [--policy runs/world] [--episodes 38400] [--played 512] [--out runs/benchmarks/world.json]

The policy (`python experiments/warmup.py FOLDER --recipe world`; made where the folder does not exist) is played on the test split
of each of its families, two turns, temperature 1, and again after training on the mixture of all of them, with
REINFORCE or (`--algorithms reinforce rft`) with rejection-sampling fine-tuning as well. Differences are paired by
problem. No test problem is in the warm start or in the training, and settings were chosen on validation problems. An
interrupted benchmark goes on from its trainings' checkpoints when it is started again.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from warmup import WORLD, warmup

from mathturn_gym.baselines import (
    Algorithm,
    Budget,
    ClippedREINFORCE,
    EnvConfig,
    Evaluation,
    OnlineRFT,
    Optimization,
    PolicyConfig,
    RunConfig,
    train,
)
from mathturn_gym.baselines.session import cpu_threads
from mathturn_gym.episodes.metrics import compare, summarize
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.types import Episode
from mathturn_gym.wrappers.policy import CausalLMPolicy

SETTINGS: Final[Mapping[str, tuple[Algorithm[Any], float]]] = {
    "clipped_reinforce": (ClippedREINFORCE(discount=0.0, entropy_weight=0.005), 1.5e-4),
    "online_rft": (OnlineRFT(), 3e-4),
}
"""Algorithms with their learning rates."""
TURNS: Final = 2
ENV: Final = EnvConfig(problems="+".join(WORLD.problems), num_turns=TURNS, max_completion_tokens=8)
FAMILIES_NEEDED: Final = 4
"""So many families must be solved to 30-60 % at the first try after the warm start."""


def main() -> int:
    """Runs, prints the table, writes the JSON; 1 where what is required is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, default=Path("runs/world"), help="the warm start's folder")
    parser.add_argument("--algorithms", nargs="*", choices=tuple(SETTINGS), default=("clipped_reinforce",))
    parser.add_argument("--episodes", type=int, default=38_400, help="of each training")
    parser.add_argument("--played", type=int, default=512, help="test episodes per family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/world.json"))
    options = parser.parse_args()
    with cpu_threads(1):
        if not options.policy.exists():
            began = time.process_time()
            warmup(options.policy, WORLD)
            print(f"warm start: {time.process_time() - began:.0f} CPU seconds", flush=True)
        before = play(CausalLMPolicy.from_pretrained(options.policy), options.played)
        rows = [{"after": "warm start", **figures(before)}]
        show("warm start", rows[0])
        for algorithm in options.algorithms:
            folder = options.out.parent / f"world-{algorithm}-{options.seed}"
            result = train(config_of(algorithm, options), run_dir=folder, resume=True)
            after = play(result.policy, options.played)
            rows.append({"after": algorithm, "cpu_s": result.cpu_s, **figures(after), **gains(before, after)})
            show(f"{algorithm}, {result.episodes} episodes, {result.cpu_s:.0f} CPU seconds", rows[-1])
    return report(rows, options)


def config_of(algorithm: str, options: argparse.Namespace) -> RunConfig:
    """A training on the mixture of all families. One pass over each batch: a second one took accuracy away."""
    chosen, rate = SETTINGS[algorithm]
    return RunConfig(
        env=ENV,
        policy=PolicyConfig(str(options.policy)),
        algorithm=chosen,
        budget=Budget(episodes=options.episodes),
        optimization=Optimization(learning_rate=rate, schedule="linear", warmup=10, batch_episodes=128, minibatches=4),
        evaluation=Evaluation(every=30, episodes=512),
        seed=options.seed,
    )


def play(policy: CausalLMPolicy, episodes: int) -> dict[str, list[Episode]]:
    """Test episodes by family; the same problems for every policy."""
    played = {}
    for name in WORLD.problems:
        env: Any = ENV.replace(problems=name).make("test", min(episodes, 128), policy=policy)
        played[name] = list(collect(env, policy, episodes, seed=0))
        env.close()
    return played


def figures(played: Mapping[str, Sequence[Episode]]) -> dict[str, Any]:
    """acc@1 and acc@2 by family, and of all."""
    groups = {**played, "all": list(chain(*played.values()))}
    reports = {name: summarize(part, by=()) for name, part in groups.items()}
    return {"by_family": {n: {f: r[f].to_dict() for f in ("acc@1", "acc@2")} for n, r in reports.items()}}


def gains(before: Mapping[str, Sequence[Episode]], after: Mapping[str, Sequence[Episode]]) -> dict[str, Any]:
    """How much acc@1 rose, paired by problem, by family and over all."""
    pairs = {name: (before[name], after[name]) for name in before}
    pairs["all"] = (list(chain(*before.values())), list(chain(*after.values())))
    return {"gain": {name: compare(*pair).figures["acc@1"].to_dict() for name, pair in pairs.items()}}


def show(title: str, row: Mapping[str, Any]) -> None:
    """Prints a row as a table."""
    print(f"\n{title}\n{'problems':18} {'acc@1':22} {'acc@2':22} gain of acc@1")
    for name, found in row["by_family"].items():
        cells = [_interval(found[figure]) for figure in ("acc@1", "acc@2")]
        gain = _interval(row["gain"][name]["difference"], sign="+") if "gain" in row else ""
        print(f"{name:18} {cells[0]:22} {cells[1]:22} {gain}", flush=True)


def _interval(figure: Mapping[str, float], sign: str = "") -> str:
    return f"{figure['value']:{sign}.3f} [{figure['low']:{sign}.3f}, {figure['high']:{sign}.3f}]"


def report(rows: Sequence[Mapping[str, Any]], options: argparse.Namespace) -> int:
    """What is required, JSON, exit status."""
    start = {n: f["acc@1"]["value"] for n, f in rows[0]["by_family"].items() if n != "all"}
    between = [name for name, value in start.items() if 0.3 <= value <= 0.6]
    missed = [] if len(between) >= FAMILIES_NEEDED else [f"only {len(between)} families at 30-60 %"]
    missed += [f"{r['after']} gains nothing" for r in rows[1:] if r["gain"]["all"]["difference"]["low"] <= 0]
    print(f"\nat 30-60 % after the warm start: {', '.join(between)}; missed: {', '.join(missed) or 'nothing'}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    facts = {"machine": platform.processor() or platform.machine(), "python": platform.python_version()}
    options.out.write_text(json.dumps({**facts, "rows": rows, "missed": missed}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {options.out}")
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
