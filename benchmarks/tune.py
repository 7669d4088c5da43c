"""The search behind `mathturn_gym.baselines.tasks.TUNED`: a small grid per algorithm, judged on validation problems.

    python benchmarks/tune.py --task lins --algorithms grpo gspo --tokens 40000 --seeds 2

Every cell of `GRIDS` is trained within the same budget of sampled ids; none of them sees the test split. What is
compared is the mean, over seeds, of accuracy at turn 1 and at the last turn in the last evaluation.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any, Final

from mathturn_gym.baselines.config import ALGORITHM_NAMES, PRESETS, preset
from mathturn_gym.baselines.training import train

_GROUPS: Final[Mapping[str, Sequence[Any]]] = {"group_size": (2, 4), "entropy_weight": (0.001, 0.005)}
GRIDS: Final[Mapping[str, Mapping[str, Sequence[Any]]]] = {
    "reinforce": {"learning_rate": (5e-4, 1e-3)},
    "reinforce_pp": {"learning_rate": (5e-4, 1e-3)},
    "rloo": {"group_size": (2, 4), "learning_rate": (5e-4, 1e-3)},
    "grpo": _GROUPS,
    "dr_grpo": _GROUPS,
    "gspo": {"group_size": (2,), "entropy_weight": (0.001, 0.005), "clip": (0.02, 0.2)},
    "ppo": {"critic_learning_rate": (1e-3, 3e-3), "gae_lambda": (0.95, 1.0)},
    "turn_ppo": {"critic_learning_rate": (1e-3, 3e-3), "gae_lambda": (0.5, 0.95)},
    "rft": {"entropy_weight": (0.0, 0.005), "learning_rate": (5e-4, 1e-3)},
}


def trial(task: str, algorithm: str, changes: dict[str, Any], seed: int, tokens: int, out: Path) -> dict[str, Any]:
    """One run; its last evaluation."""
    name = "-".join([task, algorithm, *(f"{key}={value}" for key, value in changes.items()), str(seed)])
    settings = {"episodes": None, "budget_tokens": tokens, "eval_every": 0, "eval_episodes": 512, **changes}
    done = train(preset(task, str(out / name), algorithm=algorithm, seed=seed, **settings), overwrite=True)
    last = {name: value for name, value in done.history[-1].items() if name.startswith("validation/")}
    turns = [last[name] for name in sorted(last)] or [0.0]
    row = {"algorithm": algorithm, "changes": changes, "seed": seed, "status": done.status}
    row |= {"first": turns[0], "last": turns[-1], "cpu_s": done.cpu_s}
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    """Runs the grids and prints each algorithm's ranking."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(PRESETS), default="lins")
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHM_NAMES, default=list(ALGORITHM_NAMES))
    parser.add_argument("--tokens", type=int, default=40_000, help="budget of a run")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/tune"))
    options = parser.parse_args()
    jobs = []
    for algorithm in options.algorithms:
        grid = GRIDS[algorithm]
        for values in itertools.product(*grid.values()):
            jobs += [(algorithm, dict(zip(grid, values, strict=True)), seed) for seed in range(options.seeds)]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        found = [pool.submit(trial, options.task, *job, options.tokens, options.out) for job in jobs]
        rows = [one.result() for one in found]
    print(f"\n{'algorithm':14}{'acc@1':>7}{'last':>7}  settings (task {options.task}, {options.tokens} ids)")
    for algorithm in options.algorithms:
        own = [row for row in rows if row["algorithm"] == algorithm]
        cells = {json.dumps(row["changes"]): [r for r in own if r["changes"] == row["changes"]] for row in own}
        ranked = sorted(cells.items(), key=lambda cell: -mean(r["first"] + r["last"] for r in cell[1]))
        for settings, cell in ranked:
            print(
                f"{algorithm:14}{mean(r['first'] for r in cell):7.3f}{mean(r['last'] for r in cell):7.3f}  {settings}"
            )
    out = options.out / f"{options.task}.json"
    out.write_text(json.dumps({"tokens": options.tokens, "rows": rows}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {out}")


if __name__ == "__main__":
    main()
