r"""The search behind the settings in `mathturn_gym/tasks/*.toml` and `benchmarks/matrix.toml`, on validation problems.

    python benchmarks/tune.py --tasks add1 lins guess8        # 22 algorithms x 6 cells x 2 seeds x 3 tasks: 8 CPU hours
    python benchmarks/tune.py --tasks benchmarks/tasks/smollm2_mixed.toml --rates 0.5 1 2 4 --tokens 10000 --seeds 1 \
        --episodes 256 --algorithms clipped_reinforce turn_rloo shrunk_rloo grpo reinforce_pp_baseline online_rft
    python benchmarks/tune.py --tasks benchmarks/tasks/calculator.toml --tokens 30000 --cpu-seconds 15 --seeds 1 --first-seed 10
    python benchmarks/tune.py --passes benchmarks/matrix.toml --tasks benchmarks/tasks/calculator.toml --algorithms ppo sb3_ppo \
        --tokens 30000 --cpu-seconds 15 --seeds 1 --first-seed 10 --out runs/benchmarks/passes

A first search is of the rate and of what is most an algorithm's own (`GRIDS`), a second one, with `--passes`, of epochs and
minibatches (`PASSES`), around the settings that a comparison has from the first.

Every algorithm gets the same number of cells in `GRIDS` (or the same learning rates, with `--rates`), and every cell the same
budget of sampled ids (and of CPU seconds, with `--cpu-seconds`: whichever is used up first); none of them sees the test split.
Seeds from `--first-seed` on that no comparison has keep its warm starts out of the search. What is finished is not run again.
Cells are ranked by the mean, over seeds, of accuracy at turn 1 and at the last turn in the last evaluation.
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

from rows import kept_row

from mathturn_gym.baselines import RunConfig, load_task, train
from mathturn_gym.baselines.compare import load_matrix

RATES: Final = (0.5, 1.0, 2.0)
_GROUPS: Final[Mapping[str, Sequence[Any]]] = {"rate": RATES, "group_size": (2, 4)}
_STEPS: Final[Mapping[str, Sequence[Any]]] = {"rate": (1.0, 2.0, 4.0), "batch_episodes": (8, 16)}
_ACTOR_CRITIC: Final[Mapping[str, Sequence[Any]]] = {"rate": (0.3, 1.0, 3.0), "ent_coef": (0.005, 0.02)}
_VALUE_BASED: Final[Mapping[str, Sequence[Any]]] = {
    "rate": (0.1, 0.5, 1.0),
    "exploration_steps": (5_000, 20_000),
}
GRIDS: Final[Mapping[str, Mapping[str, Sequence[Any]]]] = {
    "reinforce": _STEPS,
    "clipped_reinforce": {"rate": RATES, "entropy_weight": (0.001, 0.005)},
    "reinforce_pp": {"rate": RATES, "entropy_weight": (0.001, 0.005)},
    "turn_reinforce_pp": {"rate": RATES, "entropy_weight": (0.001, 0.005)},
    "rloo": _STEPS,
    "turn_rloo": _GROUPS,
    "shrunk_rloo": _GROUPS,
    "reinforce_pp_baseline": _GROUPS,
    "grpo": _GROUPS,
    "dr_grpo": _GROUPS,
    "scaled_dr_grpo": _GROUPS,
    "gspo": {"rate": RATES, "clip": (0.02, 0.2)},
    "ppo": {"rate": RATES, "gae_lambda": (0.95, 1.0)},
    "turn_ppo": {"rate": RATES, "critic_learning_rate": (1e-3, 3e-3)},
    "sb3_ppo": _ACTOR_CRITIC,
    "maskable_ppo": _ACTOR_CRITIC,
    "recurrent_ppo": _ACTOR_CRITIC,
    "sb3_a2c": _ACTOR_CRITIC,
    "trpo": {"learning_rate": (3e-4, 1e-3), "target_kl": (0.003, 0.01, 0.03)},
    "sb3_dqn": _VALUE_BASED,
    "qr_dqn": _VALUE_BASED,
    "online_rft": {"rate": (0.125, 0.25, *RATES, 4.0)},
    "rft_episodes": {"rate": (0.125, 0.25, *RATES, 4.0)},
    "single_turn": {"entropy_weight": (0.0, 0.001, 0.0025, 0.005, 0.01, 0.02)},
    "multi_turn": {"entropy_weight": (0.0, 0.001, 0.0025, 0.005, 0.01, 0.02)},
}
"""Six cells for each: three learning rates ("rate" times the task's, of a classic algorithm its own there; of TRPO two of
the critic's), and two values of what is most its own. `reinforce` and `rloo` take one step per batch, on-policy: they want
smaller batches than the others, and larger steps."""
_EPOCHS_AND_PARTS: Final[Mapping[str, Sequence[Any]]] = {
    "optimization.epochs": (1, 2),
    "optimization.minibatches": (4, 8),
}
_CLASSIC_PPO: Final[Mapping[str, Sequence[Any]]] = {"n_epochs": (1, 2), "batch_size": (128, 256)}
PASSES: Final[Mapping[str, Mapping[str, Sequence[Any]]]] = {
    **dict.fromkeys(
        ("clipped_reinforce", "shrunk_rloo", "grpo", "ppo", "online_rft", "rft_episodes"), _EPOCHS_AND_PARTS
    ),
    **dict.fromkeys(("maskable_ppo", "sb3_ppo", "recurrent_ppo"), _CLASSIC_PPO),
    "sb3_a2c": {"n_steps": (4, 8, 16, 32)},
    "trpo": {"n_critic_updates": (2, 4), "sub_sampling_factor": (4, 16)},
    "sb3_dqn": {"gradient_steps": (1, 2), "batch_size": (64, 128)},
}
"""Four cells for each row of `benchmarks/matrix.toml`: passes over a batch, and the parts that it is split into; what comes
nearest to them where an algorithm has neither (A2C: ids before a step; TRPO: passes of its critic, and the share of a batch that
its curvature is taken from; DQN: steps to a step of the environment, and their batch)."""
VARIANTS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "single_turn": ("clipped_reinforce", {"num_turns": 1}),
    "multi_turn": ("clipped_reinforce", {}),
    "rft_episodes": ("online_rft", {"selection": "episode"}),
}
"""What `benchmarks/questions.py` and `benchmarks/matrix.toml` compare besides the algorithms themselves."""
TOKENS: Final[Mapping[str, int]] = {"add1": 30_000, "lins": 40_000, "guess8": 20_000, "mul2": 40_000, "mixed": 40_000}


def config_of(
    task: str,
    algorithm: str,
    changes: Mapping[str, Any],
    tokens: int = 1,
    *,
    episodes: int = 512,
    cpu_seconds: float | None = None,
    **others: Any,
) -> RunConfig:
    """A cell's run, evaluated on so many validation episodes; without changes, the task's own settings."""
    own = dict(changes)
    run, fixed = VARIANTS.get(algorithm, (algorithm, {}))
    if "rate" in own:
        classic = load_task(task).config(run, budget={"tokens": 1}).algorithm.to_json().get("learning_rate")
        name = "optimization.learning_rate" if classic is None else "learning_rate"
        own[name] = (classic or load_task(task).tables["optimization"]["learning_rate"]) * own.pop("rate")
    measured = {"evaluation.every": 0, "evaluation.episodes": episodes, "evaluation.test_episodes": 0}
    budget = {"tokens": tokens} if cpu_seconds is None else {"tokens": tokens, "cpu_seconds": cpu_seconds}
    return load_task(task).config(run, {**own, **fixed, **measured, **others}, budget=budget)


def _product(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def passes_of(task: str, algorithm: str, matrix: Path) -> list[dict[str, Any]]:
    """The cells of a row's second search: its settings in a comparison's file with those of `PASSES` in their place."""
    (cell,) = load_matrix(matrix, algorithms=[algorithm], tasks=[task], seeds=[0]).cells()
    return [{**cell.settings, **changes} for changes in _product(PASSES[algorithm])]


def cells_of(task: str, algorithm: str) -> list[dict[str, Any]]:
    """The cells of an algorithm's grid, and the task's own settings where the grid does not hold it."""
    cells = _product(GRIDS[algorithm])
    return (
        cells
        if config_of(task, algorithm, {}) in [config_of(task, algorithm, cell) for cell in cells]
        else [*cells, {}]
    )


def trial(
    task: str,
    algorithm: str,
    changes: dict[str, Any],
    seed: int,
    tokens: int,
    episodes: int,
    out: Path,
    cpu_seconds: float | None = None,
) -> dict[str, Any]:
    """One run; its last evaluation."""
    name = "-".join([Path(task).stem, algorithm, *(f"{key}={value}" for key, value in changes.items()), str(seed)])
    config = config_of(task, algorithm, changes, tokens, episodes=episodes, cpu_seconds=cpu_seconds, seed=seed)

    def make() -> dict[str, Any]:
        done = train(config, run_dir=out / name, overwrite=True)
        last = {name: value for name, value in done.history[-1].items() if name.startswith("validation/")}
        turns = [last[name] for name in sorted(last)] or [0.0]
        row = {"algorithm": algorithm, "changes": changes, "seed": seed, "status": done.status}
        return {**row, "first": turns[0], "last": turns[-1], "tokens": done.tokens, "cpu_s": done.cpu_s}

    return kept_row(out / name, config.to_json(), make)


def search(task: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All cells of a task."""
    tokens = options.tokens or TOKENS[task]
    rates = [{"rate": rate} for rate in options.rates or ()]

    def cells(algorithm: str) -> list[dict[str, Any]]:
        return passes_of(task, algorithm, options.passes) if options.passes else rates or cells_of(task, algorithm)

    jobs = [
        (algorithm, cell, seed)
        for algorithm in options.algorithms
        for cell in cells(algorithm)
        for seed in range(options.first_seed, options.first_seed + options.seeds)
    ]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        rest = tokens, options.episodes, options.out, options.cpu_seconds
        found = [pool.submit(trial, task, *job, *rest) for job in jobs]
        return [one.result() for one in found]


def main() -> None:
    """Runs the grids and prints each algorithm's ranking."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["lins"], help="names, or files of tasks of your own")
    parser.add_argument(
        "--algorithms", nargs="+", choices=list(GRIDS), default=[name for name in GRIDS if name not in VARIANTS]
    )
    parser.add_argument("--tokens", type=int, help="budget of a run (default: by task)")
    parser.add_argument(
        "--rates", type=float, nargs="+", help="search the learning rate alone: so many times the task's"
    )
    parser.add_argument(
        "--passes", type=Path, metavar="MATRIX", help="search epochs and minibatches, around this comparison's settings"
    )
    parser.add_argument("--episodes", type=int, default=512, help="of the validation split, at the end of a run")
    parser.add_argument("--cpu-seconds", type=float, help="another budget of a run: the first that is used up ends it")
    parser.add_argument("--seeds", type=int, default=2, help="how many")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/tune"))
    options = parser.parse_args()
    for task in options.tasks:
        if options.tokens is None and task not in TOKENS:
            parser.error(f"--tokens must be given for task {task!r}")
    if options.passes and (others := sorted(set(options.algorithms) - set(PASSES))):
        parser.error(f"--passes is for {', '.join(PASSES)}; --algorithms has {', '.join(others)}")
    if options.passes and options.rates:
        parser.error("--passes and --rates are two searches: give one of them")
    for task in options.tasks:
        rows = search(task, options)
        print(f"\n{task}, {options.tokens or TOKENS[task]} ids, {options.seeds} seeds")
        print(f"{'algorithm':14}{'acc@1':>7}{'last':>7}  settings")
        for algorithm in options.algorithms:
            own = [row for row in rows if row["algorithm"] == algorithm]
            cells = {json.dumps(row["changes"]): [r for r in own if r["changes"] == row["changes"]] for row in own}
            ranked = sorted(cells.items(), key=lambda cell: -mean(r["first"] + r["last"] for r in cell[1]))
            for settings, cell in ranked:
                first, last = (mean(row[name] for row in cell) for name in ("first", "last"))
                print(f"{algorithm:14}{first:7.3f}{last:7.3f}  {settings}")
        out = options.out / f"{Path(task).stem}.json"
        out.write_text(json.dumps({"rows": rows}, indent=2) + "\n", encoding="utf-8")
        print(f"written to {out}", flush=True)


if __name__ == "__main__":
    main()
