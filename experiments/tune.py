r"""The search behind the settings in `mathturn_gym/baselines/tasks/*.toml` and `experiments/matrix.toml`, on validation problems.

    python experiments/tune.py --tasks add1 lins guess8        # 22 algorithms x 6 cells x 2 seeds x 3 tasks: 8 CPU hours
    python experiments/tune.py --tasks experiments/tasks/smollm2_mixed.toml --rates 0.5 1 2 4 --tokens 10000 --seeds 1 \
        --episodes 256 --algorithms clipped_reinforce turn_rloo shrunk_rloo grpo reinforce_pp_baseline online_rft
    python experiments/tune.py --tasks experiments/tasks/calculator.toml --tokens 30000 --cpu-seconds 15 --seeds 1 --first-seed 10

A search is of the rate and of what is most an algorithm's own (`GRIDS`). The same command with `--passes` then searches epochs,
minibatches and entropy (`PASSES`) around the best cell that it found for each algorithm; the rows of `experiments/matrix.toml`
have such a second search.

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
_CLASSIC_PPO: Final[Sequence[Mapping[str, Sequence[Any]]]] = (
    {"n_epochs": (1, 2), "batch_size": (128, 256)},
    {"ent_coef": (0.0, 0.01)},
)
PASSES: Final[Mapping[str, Sequence[Mapping[str, Sequence[Any]]]]] = {
    "clipped_reinforce": (_EPOCHS_AND_PARTS, {"entropy_weight": (0.0, 0.0025)}),
    **dict.fromkeys(
        ("shrunk_rloo", "grpo", "ppo", "online_rft", "rft_episodes"),
        (_EPOCHS_AND_PARTS, {"entropy_weight": (0.001, 0.005)}),
    ),
    **dict.fromkeys(("maskable_ppo", "sb3_ppo", "recurrent_ppo"), _CLASSIC_PPO),
    "sb3_a2c": ({"n_steps": (4, 8, 16, 32)}, {"ent_coef": (0.0, 0.01)}),
    "trpo": ({"n_critic_updates": (2, 4), "sub_sampling_factor": (4, 16)}, {"cg_max_steps": (2, 10)}),
    "sb3_dqn": ({"gradient_steps": (1, 2), "batch_size": (64, 128)}, {"exploration_final_eps": (0.02, 0.1)}),
}
"""Six cells for each row of `experiments/matrix.toml`. Four are of passes over a batch and of the parts that it is split into, or of
what comes nearest to them (A2C: ids before a step; TRPO: passes of its critic, and the share of a batch that its curvature is
taken from; DQN: steps to a step of the environment, and their batch). Two are of an entropy bonus that the first grid does not
have, or of exploration (TRPO has no bonus: of the steps to its direction)."""
VARIANTS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "single_turn": ("clipped_reinforce", {"num_turns": 1}),
    "multi_turn": ("clipped_reinforce", {}),
    "rft_episodes": ("online_rft", {"selection": "episode"}),
}
"""What `experiments/questions.py` and `experiments/matrix.toml` compare besides the algorithms themselves."""
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


def passes_of(algorithm: str, best: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cells of a second search: the best of a first one, with the settings of `PASSES` in place of its own."""
    return [{**best, **changes} for grid in PASSES[algorithm] for changes in _product(grid)]


def best_of(rows: Sequence[Mapping[str, Any]], algorithm: str) -> dict[str, Any]:
    """What an algorithm's best cell changes."""
    (best, _), *_ = ranking(rows, algorithm)
    return best


def ranking(rows: Sequence[Mapping[str, Any]], algorithm: str) -> list[tuple[dict[str, Any], list[Mapping[str, Any]]]]:
    """An algorithm's cells, the best first, each with its runs."""
    own = [row for row in rows if row["algorithm"] == algorithm]
    cells = {json.dumps(row["changes"]): [r for r in own if r["changes"] == row["changes"]] for row in own}
    ranked = sorted(cells.values(), key=lambda cell: -mean(r["first"] + r["last"] for r in cell))
    return [(dict(cell[0]["changes"]), cell) for cell in ranked]


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


def results_of(task: str, out: Path, *, passes: bool = False) -> Path:
    """Where a search's rows are kept."""
    return out / f"{Path(task).stem}{'-passes' if passes else ''}.json"


def _rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a search; none where it has not been run."""
    found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    return found


def search(task: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All cells of a task."""
    tokens = options.tokens or TOKENS[task]
    rates = [{"rate": rate} for rate in options.rates or ()]
    found = _rows(results_of(task, options.out)) if options.passes else []

    def cells(algorithm: str) -> list[dict[str, Any]]:
        return passes_of(algorithm, best_of(found, algorithm)) if options.passes else rates or cells_of(task, algorithm)

    jobs = [
        (algorithm, cell, seed)
        for algorithm in options.algorithms
        for cell in cells(algorithm)
        for seed in range(options.first_seed, options.first_seed + options.seeds)
    ]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        rest = tokens, options.episodes, options.out, options.cpu_seconds
        trials = [pool.submit(trial, task, *job, *rest) for job in jobs]
        return [one.result() for one in trials]


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
        "--passes", action="store_true", help="after a search: epochs, minibatches and entropy around each best cell"
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
    for task in options.tasks if options.passes else ():
        known = {row["algorithm"] for row in _rows(results_of(task, options.out))}
        if others := [name for name in options.algorithms if name not in known]:
            parser.error(
                f"--passes needs a search before it: {results_of(task, options.out)} has no {', '.join(others)}"
            )
    for task in options.tasks:
        rows = search(task, options)
        print(f"\n{task}, {options.tokens or TOKENS[task]} ids, {options.seeds} seeds")
        print(f"{'algorithm':14}{'acc@1':>7}{'last':>7}  settings")
        for algorithm in options.algorithms:
            for settings, cell in ranking(rows, algorithm):
                first, last = (mean(row[name] for row in cell) for name in ("first", "last"))
                print(f"{algorithm:14}{first:7.3f}{last:7.3f}  {json.dumps(settings)}")
        out = results_of(task, options.out, passes=options.passes)
        others = [row for row in _rows(out) if row["algorithm"] not in options.algorithms]  # of an earlier call
        out.write_text(json.dumps({"rows": [*others, *rows]}, indent=2) + "\n", encoding="utf-8")
        print(f"written to {out}", flush=True)


if __name__ == "__main__":
    main()
