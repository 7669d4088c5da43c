"""`mathturn train`: trains a policy on a preset task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from mathturn_gym.baselines.config import TrainConfig, preset
from mathturn_gym.errors import CheckpointError, InvalidValueError

if TYPE_CHECKING:
    from mathturn_gym.baselines.training import TrainResult

__all__ = ["parse_settings", "run_training", "train"]


def train(
    task: Annotated[str, typer.Argument(help="Preset: add1, lins, guess8, mul2 or mixed.")] = "lins",
    algorithm: Annotated[
        str, typer.Option(help="reinforce, reinforce_pp, rloo, grpo, dr_grpo, gspo, ppo, turn_ppo or rft.")
    ] = "reinforce",
    run_dir: Annotated[Path | None, typer.Option(help="Folder to write; runs/TASK by default.")] = None,
    episodes: Annotated[int | None, typer.Option(help="Episodes in all; the preset's by default.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same curve; 0 by default.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="FIELD=VALUE of the config, e.g. --set discount=1.0; repeatable.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run in the folder, with its own config.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Delete an earlier run in the folder.")] = False,
) -> None:
    """Train a policy with REINFORCE or another algorithm, from the warm start or another model (`--set model=FOLDER`).

    The run folder holds config.json, metrics.jsonl, TensorBoard events, curve.png and a checkpoint, which is a
    Hugging Face folder. Ctrl-C ends the run with a checkpoint; `--resume` draws the curve on as if nothing had been.

    Examples: `mathturn train lins`, `mathturn train guess8 --seed 3`, `mathturn train lins --algorithm ppo`,
    `mathturn train lins --set learning_rate=5e-4`. `mathturn compare` runs many and compares them.
    """
    console, folder = Console(), run_dir or Path("runs") / (task if algorithm == "reinforce" else f"{task}-{algorithm}")
    given = {"seed": seed, "episodes": episodes}
    changes = {**{k: v for k, v in given.items() if v is not None}, **parse_settings(settings or [])}
    config = _config_of_run(folder, changes) if resume else preset(task, str(folder), algorithm=algorithm, **changes)
    result = run_training(console, config, resume=resume, overwrite=overwrite)
    if result.interrupted:
        console.print(
            f"interrupted after {int(result.history[-1]['episodes'])} episodes; go on with:"
            f" mathturn train --run-dir {config.run_dir} --resume",
            markup=False,
            soft_wrap=True,
        )
        raise typer.Exit(130)
    if result.status != "finished":
        console.print(f"[yellow]{result.status}[/yellow]: {result.message}")
    console.print(f"run folder: {config.run_dir}", markup=False, soft_wrap=True)
    if not set(config.problems) & set(":+"):
        console.print(f"next: mathturn eval --policy {config.run_dir} --problems {config.problems}:test", markup=False)


def _config_of_run(folder: Path, changes: dict[str, Any]) -> TrainConfig:
    """The config that a run folder was begun with.

    Raises:
        InvalidValueError: other settings were asked for: a run goes on as it began.
        CheckpointError: the folder holds no run.
    """
    if changes:
        raise InvalidValueError(
            f"--resume goes on with the run's own config: leave out {', '.join(changes)}, or begin another run"
        )
    try:
        data = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"--resume: no run in {str(folder)!r} to go on with ({error})") from error
    return TrainConfig.from_json(data)


def run_training(console: Console, config: TrainConfig, *, resume: bool, overwrite: bool) -> TrainResult:
    """Trains with a live display."""
    from mathturn_gym.baselines import training
    from mathturn_gym.baselines.display import TrainingDisplay

    with TrainingDisplay(config, console) as display:
        return training.train(config, resume=resume, overwrite=overwrite, on_progress=display)


def parse_settings(settings: list[str]) -> dict[str, Any]:
    """`FIELD=VALUE` texts as a dictionary; a value is JSON where it is, else a text.

    Raises:
        InvalidValueError: a text without "=".

    >>> parse_settings(["discount=0.5", "feedback=hint"])
    {'discount': 0.5, 'feedback': 'hint'}
    """
    found: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise InvalidValueError(f"--set must be FIELD=VALUE, got {setting!r}")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
