"""`mathturn demo`: the whole story in minutes: train a policy, and see what it learned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mathturn_gym.base.terminal import say, terminal
from mathturn_gym.cli._options import EnvOptions, with_env_options
from mathturn_gym.cli._runs import command_line

if TYPE_CHECKING:
    from mathturn_gym.baselines.settings import RunConfig
    from mathturn_gym.policies import PolicyConfig
    from mathturn_gym.types import Episode


_TEST_EPISODES: Final = 512  # the most that are played; fewer where the task says so
_TEST_SEED: Final = 1_000_000
_TRANSCRIPTS: Final = 12


@with_env_options
def demo(
    env: EnvOptions,
    task: Annotated[
        str,
        typer.Argument(
            help="lins (the tiny policy, offline), smol-add1 (SmolLM2, a real chat model), or another task."
        ),
    ] = "lins",
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder to write; an earlier demo there is replaced. By default runs/demo-TASK.")
    ] = None,
    episodes: Annotated[int | None, typer.Option(help="Episodes to train on; the task's by default.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed draws the same curve.")] = 0,
) -> None:
    """Train a policy on a task in a few minutes, and compare it with where it started.

    By default that is the tiny policy on linear equations, offline. It answers up to four times per equation and is told
    each time whether it was right; what you see at the end is measured on equations that it has never been trained on.
    """
    from mathturn_gym.baselines.tasks import load_task
    from mathturn_gym.cli.report import comparison_table, plain_text
    from mathturn_gym.cli.train import run_training
    from mathturn_gym.episodes.metrics import summarize
    from mathturn_gym.episodes.trajectories import write_episodes
    from mathturn_gym.policies import PolicyConfig

    console = terminal()
    settings = {"seed": seed, "evaluation.test_episodes": 0, **env.settings()}  # tested below, before and after
    found = load_task(task)
    config = found.config(None, settings, budget=None if episodes is None else {"episodes": episodes})
    run_dir = run_dir or Path("runs") / ("demo" if task == "lins" else f"demo-{Path(task).stem}")
    count = min(_TEST_EPISODES, found.config().evaluation.test_episodes or _TEST_EPISODES)
    console.print(plain_text(f"{config.policy.model}: {found.about}"))
    say(console, f"It is told whether it was right, and tries again, up to {config.env.value('num_turns')} times.")
    # The same problems and seeds before and after: only the weights differ.
    before = _played(config, config.policy, count)
    result = run_training(console, config, run_dir, resume=False, overwrite=True)
    if result.interrupted:
        say(console, f"interrupted; go on with: {command_line('train', '--run-dir', run_dir, '--resume')}")
        raise typer.Exit(130)
    after = _played(config, PolicyConfig(str(run_dir)), count)
    write_episodes(run_dir / "episodes_before.jsonl", before)
    write_episodes(run_dir / "episodes_after.jsonl", after)
    _write_transcripts(run_dir / "transcripts.txt", config, before, after)
    accuracies = [f"acc@{k}" for k in range(1, config.env.value("num_turns") + 1)]
    names = [*accuracies, "corrected", "repeated_answer", "turns", "tokens_per_solved"]
    reports = {"before": summarize(before), "after": summarize(after)}
    console.print(comparison_table(reports, names, f"{count} episodes of the test split"))
    say(console, f"In {run_dir}: {', '.join(sorted(p.name for p in run_dir.iterdir()))}")
    console.print("[bold]Next:[/]")
    for command, why in (
        (command_line("view", run_dir), "for a page with every dialogue and token, before and after"),
        (command_line("play", "--watch", run_dir), "to see it think"),
        (command_line("eval", "--policy", run_dir, "--out", run_dir / "eval"), "for a full report"),
        (command_line("train", "guess8"), "for a task where feedback carries information"),
    ):
        say(console, f"  {command}   {why}")
    say(console, "  notebooks/03_train_a_policy.ipynb   to look inside")


def _played(config: RunConfig, policy: PolicyConfig, count: int) -> list[Episode]:
    """Episodes on the test split, the same problems and seeds for every policy."""
    from mathturn_gym.baselines.session import cpu_threads
    from mathturn_gym.episodes.rollout import collect
    from mathturn_gym.wrappers import load_policy

    player = load_policy(policy)
    env: Any = config.env.make("test", min(128, count), policy=player, gold_in_info=True)
    try:
        # As many threads as in training: sums, and so samples, depend on their number.
        with cpu_threads(config.threads):
            return collect(env, player, count, seed=_TEST_SEED)
    finally:
        env.close()


def _write_transcripts(path: Path, config: RunConfig, before: list[Episode], after: list[Episode]) -> None:
    """The first held-out problems as dialogues, before and after training, one below the other."""
    from mathturn_gym.env.dialogue import Dialogue

    dialogue = Dialogue(config.policy.tokenizer or config.policy.model)
    blocks = []
    for old, new in zip(before[:_TRANSCRIPTS], after[:_TRANSCRIPTS], strict=True):
        for label, episode in (("before", old), ("after", new)):
            verdicts = ", ".join(verdict.status.value for verdict in episode.verdicts)
            blocks.append(f"=== {episode.problem_id} · {label} · {verdicts}\n{dialogue.decode(episode.ids)}\n")
    path.write_text("\n".join(blocks), encoding="utf-8")
