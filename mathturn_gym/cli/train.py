"""`mathturn train`: trains a policy on a task."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from mathturn_gym.base.terminal import say, terminal
from mathturn_gym.cli._options import (
    ENGINE,
    ENGINE_SETTINGS,
    TASKS,
    EnvOptions,
    grouped,
    is_silent_rank,
    training_engine,
    with_env_options,
)
from mathturn_gym.cli._runs import OwnCode, command_line
from mathturn_gym.cli.report import plain_text
from mathturn_gym.errors import InvalidValueError

if TYPE_CHECKING:
    from mathturn_gym.baselines.session import Engine
    from mathturn_gym.baselines.settings import RunConfig
    from mathturn_gym.baselines.training import TrainResult


@with_env_options
@grouped(
    {
        "Budget, in place of the task's": ("tokens", "total_tokens", "episodes", "cpu_seconds"),
        "A folder with a run in it": ("resume", "overwrite", "own_code"),
        "Engine": ("engine", "engine_settings"),
    }
)
def train(
    env: EnvOptions,
    task: Annotated[str, typer.Argument(help=f"{TASKS}, or the TOML file of a task of your own.")] = "lins",
    algorithm: Annotated[
        str | None,
        typer.Option(help="A name (`mathturn info` lists them), or my_module:MyAlgorithm; the task's by default."),
    ] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Folder to write; runs/TASK by default.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Budget in tokens that the policy samples.")] = None,
    total_tokens: Annotated[
        int | None, typer.Option(help="Budget in all tokens of the episodes: prompts, feedback and what is sampled.")
    ] = None,
    episodes: Annotated[int | None, typer.Option(help="Budget in episodes.")] = None,
    cpu_seconds: Annotated[float | None, typer.Option(help="Budget in CPU seconds of training.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same curve; the task's by default.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="FIELD=VALUE or PART.FIELD=VALUE of the run, e.g. --set env.num_turns=2; repeatable."
        ),
    ] = None,
    keep: Annotated[int | None, typer.Option(help="Checkpoints that are kept; 2 by default.")] = None,
    engine: ENGINE = "local",
    engine_settings: ENGINE_SETTINGS = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run in the folder, as it began; a larger budget may be given."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete an earlier run in the folder.")] = False,
    own_code: OwnCode = False,
) -> None:
    """Train a policy on a task, from the built-in warm start or another model (`--set policy.model=FOLDER`).

    The budgets that are given replace the task's. The run folder holds config.json, metrics.jsonl, TensorBoard events,
    curve.png and checkpoints, which are Hugging Face folders. Ctrl-C ends the run with a checkpoint; `--resume` draws
    the curve on as if nothing had been.

    Examples: `mathturn train lins`, `mathturn train guess8 --seed 3`, `mathturn train lins --algorithm ppo`,
    `mathturn train lins --set learning_rate=5e-4`, `mathturn train mine.toml`. `mathturn compare` runs many and compares
    them.
    """
    from mathturn_gym.baselines.overrides import parse_settings
    from mathturn_gym.baselines.run_folder import code_named_in, read_config, read_metrics
    from mathturn_gym.baselines.settings import Budget
    from mathturn_gym.baselines.tasks import load_task

    console = terminal(quiet=is_silent_rank(engine))  # of several ranks, the first one prints
    limits: dict[str, Any] = {
        "tokens": tokens,
        "total_tokens": total_tokens,
        "episodes": episodes,
        "cpu_seconds": cpu_seconds,
    }
    budget = {name: value for name, value in limits.items() if value is not None}
    named = {"seed": seed, "keep": keep}
    given = {name: value for name, value in named.items() if value is not None}
    changes = {**given, **env.settings(), **parse_settings(settings or [])}
    # Two algorithms on one task must not share a folder by default.
    folder = run_dir or _folder(task, algorithm)
    if resume:
        if refused := [*changes, *(["algorithm"] if algorithm else [])]:
            raise InvalidValueError(
                f"--resume goes on with the run's own config: leave out {', '.join(refused)}, or begin another run"
                " (a larger budget can be given: --episodes, --tokens, --total-tokens, --cpu-seconds)"
            )
        config = read_config(folder, own_code=own_code, resume=True)
        # All limits are replaced: an old one that is used up would end the run at once.
        config = dataclasses.replace(config, budget=Budget(**budget)) if budget else config
    else:
        config = load_task(task).config(algorithm, changes, budget=budget or None)
    chosen = training_engine(engine, engine_settings)
    # To notice that a resumed run had nothing left to do.
    lines = len(read_metrics(folder)) if resume and (folder / "metrics.jsonl").exists() else -1
    result = run_training(console, config, folder, chosen, resume=resume, overwrite=overwrite)
    # The commands that are suggested meet the gate for code again.
    own = ["--own-code"] if code_named_in(folder, resume=True) else []
    if result.interrupted:
        going_on = command_line("train", "--run-dir", folder, "--resume", *own)
        say(console, f"interrupted after {result.episodes} episodes; go on with: {going_on}")
        raise typer.Exit(130)
    if result.status != "finished":
        console.print(plain_text(f"{result.status}: {result.message}", "yellow"))
    if len(result.history) == lines:
        more = command_line("train", "--run-dir", folder, "--resume", "--episodes", 2 * result.episodes, *own)
        say(
            console,
            f"nothing new: this run had used its budget up ({result.episodes:,} episodes, {result.tokens:,} tokens; an"
            f" iteration takes {config.optimization.batch_episodes:,} episodes); to train on: {more}",
        )
    if result.test is not None:
        figures = "  ".join(f"{name} {value:.3f}" for name, value in result.test.items() if name.startswith("acc@"))
        played = f"{result.test['episodes']:,} episodes of {result.test['problems']:,} different problems"
        say(console, f"test split, {played}: {figures}")
    say(console, f"run folder: {folder}")
    say(console, f"next: {command_line('eval', '--policy', folder, '--out', folder / 'eval', *own)}")


def _folder(task: str, algorithm: str | None) -> Path:
    name = Path(task).stem if task.endswith(".toml") else task
    return Path("runs") / (name if algorithm is None else f"{name}-{algorithm.replace(':', '-')}")


def run_training(
    console: Console, config: RunConfig, run_dir: Path, engine: Engine | None = None, *, resume: bool, overwrite: bool
) -> TrainResult:
    """Trains with a live display."""
    from mathturn_gym.baselines import training
    from mathturn_gym.baselines.progress import TrainingDisplay

    with TrainingDisplay(config, console) as display:
        return training.train(
            config, run_dir=run_dir, engine=engine, resume=resume, overwrite=overwrite, on_progress=display
        )
