"""`mathturn demo`: the whole story in minutes: train the tiny policy, and see on held-out problems what it learned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from mathturn_gym.cli._env_options import EnvOptions, with_env_options
from mathturn_gym.cli._runs import command_line

if TYPE_CHECKING:
    from mathturn_gym.baselines.settings import RunConfig
    from mathturn_gym.types import Episode

__all__ = ["demo"]

_TEST_EPISODES: Final = 512
_TEST_SEED: Final = 1_000_000
_TRANSCRIPTS: Final = 12


@with_env_options
def demo(
    env: EnvOptions,
    run_dir: Annotated[Path, typer.Option(help="Folder to write; an earlier demo there is replaced.")] = Path(
        "runs/demo"
    ),
    episodes: Annotated[int | None, typer.Option(help="Episodes to train on; the task's by default.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed draws the same curve.")] = 0,
) -> None:
    """Train the tiny policy on linear equations, offline, in a few minutes, and compare it with where it started.

    It answers up to four times per equation and is told each time whether it was right. What you see at the end is
    measured on equations that it has never been trained on.
    """
    from mathturn_gym.cli.report import comparison_table
    from mathturn_gym.cli.train import run_training
    from mathturn_gym.metrics import summarize
    from mathturn_gym.tasks import load_task
    from mathturn_gym.trajectories import write_episodes

    console = Console()
    settings = {"seed": seed, "evaluation.test_episodes": 0, **env.settings()}  # tested below, before and after
    config = load_task("lins").config(None, settings, budget=None if episodes is None else {"episodes": episodes})
    console.print(
        "A policy of 0.1M parameters solves equations such as [bold]Solve 3x+4=19 for x.[/], is told whether it was"
        " right, and tries again, up to four times."
    )
    before = _held_out(config, "builtin")
    result = run_training(console, config, run_dir, resume=False, overwrite=True)
    if result.interrupted:
        going_on = command_line("train", "--run-dir", run_dir, "--resume")
        console.print(f"interrupted; go on with: {going_on}", markup=False, soft_wrap=True)
        raise typer.Exit(130)
    after = _held_out(config, str(run_dir))
    write_episodes(run_dir / "episodes_before.jsonl", before)
    write_episodes(run_dir / "episodes_after.jsonl", after)
    _write_transcripts(run_dir / "transcripts.txt", config, before, after)
    names = [
        *(f"acc@{k}" for k in range(1, config.env.value("num_turns") + 1)),
        "corrected",
        "turns",
        "tokens_per_solved",
    ]
    reports = {"before": summarize(before), "after": summarize(after)}
    console.print(comparison_table(reports, names, f"{_TEST_EPISODES} episodes on held-out equations"))
    console.print(f"In {run_dir}: {', '.join(sorted(p.name for p in run_dir.iterdir()))}", markup=False, soft_wrap=True)
    console.print("[bold]Next:[/]")
    for command, why in (
        (command_line("view", run_dir), "for a page with every dialogue and token, before and after"),
        (command_line("play", "--watch", run_dir), "to see it think"),
        (command_line("eval", "--policy", run_dir, "--out", run_dir / "eval"), "for a full report"),
        (command_line("train", "guess8"), "for a task where feedback carries information"),
    ):
        console.print(f"  {command}   {why}", markup=False, highlight=False, soft_wrap=True)
    console.print("  notebooks/03_train_a_policy.ipynb   to look inside", highlight=False)


def _held_out(config: RunConfig, policy: str) -> list[Episode]:
    """Episodes on the test split, the same problems and seeds for every policy."""
    from mathturn_gym.decoding import load_policy
    from mathturn_gym.rollout import collect

    player = load_policy(policy)
    env: Any = config.env.make("test", 128, policy=player, gold_in_info=True)
    try:
        return collect(env, player, _TEST_EPISODES, seed=_TEST_SEED)
    finally:
        env.close()


def _write_transcripts(path: Path, config: RunConfig, before: list[Episode], after: list[Episode]) -> None:
    """The first held-out problems as dialogues, before and after training, one below the other."""
    from mathturn_gym.dialogue import Dialogue

    dialogue = Dialogue("builtin")
    blocks = []
    for old, new in zip(before[:_TRANSCRIPTS], after[:_TRANSCRIPTS], strict=True):
        for label, episode in (("before", old), ("after", new)):
            verdicts = ", ".join(verdict.status.value for verdict in episode.verdicts)
            blocks.append(f"=== {episode.problem_id} · {label} · {verdicts}\n{dialogue.decode(episode.ids)}\n")
    path.write_text("\n".join(blocks), encoding="utf-8")
