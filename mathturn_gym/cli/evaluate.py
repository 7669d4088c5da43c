"""`mathturn eval`: plays problems with a policy and reports accuracy by turn, with intervals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from mathturn_gym._files import write_atomically
from mathturn_gym.decoding import POLICY_NAMES
from mathturn_gym.errors import CheckpointError, InvalidValueError

if TYPE_CHECKING:
    from mathturn_gym.metrics import Report
    from mathturn_gym.types import Episode

__all__ = ["evaluate", "missing_ranges", "play_and_keep"]

_PROBLEMS: Final = 512


def evaluate(
    policy: Annotated[str, typer.Option(help=POLICY_NAMES)] = "builtin",
    problems: Annotated[str, typer.Option(help="Built-in name (lins:test, add1:test, guess8) or a .jsonl file.")] = (
        "lins:test"
    ),
    env_id: Annotated[str, typer.Option("--env", help="Environment id.")] = "MathMultiTurnUntilCorrect-v0",
    num_turns: Annotated[int, typer.Option(help="Turns of an episode.")] = 4,
    episodes: Annotated[
        int | None, typer.Option(help="Episodes; by default every problem of a file once, or 512 of a generator.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Episodes per problem (pass@k and the like need several).")] = 1,
    feedback: Annotated[str, typer.Option(help="Feedback mode.")] = "plain",
    tokenizer: Annotated[str | None, typer.Option(help="Folder or hub name; by default the policy's own.")] = None,
    system_prompt: Annotated[str | None, typer.Option(help="Text of a system message.")] = None,
    max_completion_tokens: Annotated[int, typer.Option(help="The most ids of one answer.")] = 64,
    max_context_tokens: Annotated[int | None, typer.Option(help="Budget for the whole context.")] = None,
    num_envs: Annotated[int, typer.Option(help="Episodes played at once.")] = 64,
    temperature: Annotated[
        float | None, typer.Option(help="Of sampling; 0 is greedy. By default a run's own, else 1.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …; by default what there is.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, …; by default the checkpoint's.")] = None,
    seed: Annotated[int, typer.Option(help="Decides problems and samples.")] = 0,
    skip_bad_rows: Annotated[bool, typer.Option(help="Leave broken rows of a problem file out, and say which.")] = (
        False
    ),
    out: Annotated[Path, typer.Option(help="Folder for report.json and episodes.jsonl.")] = Path("runs/eval"),
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted evaluation in the same folder.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Delete an earlier evaluation in the folder.")] = False,
) -> None:
    """Play problems with a policy and report accuracy by turn, each figure with an interval over its different problems.

    Every episode is written to OUT/episodes.jsonl as it ends, so Ctrl-C loses nothing: `--resume` plays the rest,
    and the report is the one that an uninterrupted evaluation would have given.

    Examples: `mathturn eval`, `mathturn eval --policy runs/demo --problems lins:test --samples 4`,
    `mathturn eval --policy Qwen/Qwen2.5-0.5B-Instruct --problems gsm8k_test.jsonl --max-completion-tokens 512`.
    """
    import gymnasium as gym
    from gymnasium.vector import AutoresetMode

    from mathturn_gym.decoding import load_policy
    from mathturn_gym.problems import distinct, load_problems

    console = Console()
    source = load_problems(problems, skip_bad_rows=skip_bad_rows)
    total = episodes if episodes is not None else samples * (source.size or _PROBLEMS)
    if source.size is None:  # different problems, or all there are, again and again
        source = distinct(source, -(-total // samples), seed, fewer=True)
    settings = {  # all that decides an episode, and nothing else
        "policy": policy,
        "problems": problems,
        "env": env_id,
        "num_turns": num_turns,
        "episodes": total,
        "samples": samples,
        "feedback": feedback,
        "tokenizer": tokenizer,
        "system_prompt": system_prompt,
        "max_completion_tokens": max_completion_tokens,
        "max_context_tokens": max_context_tokens,
        "temperature": temperature,
        "dtype": dtype,
        "seed": seed,
        "skip_bad_rows": skip_bad_rows,
    }
    folder = _Folder(out, settings, resume=resume, overwrite=overwrite)
    player = load_policy(policy, tokenizer=tokenizer, temperature=temperature, device=device, dtype=dtype, seed=seed)
    env = gym.make_vec(
        env_id,
        num_envs=max(1, min(num_envs, total)),
        vectorization_mode="vector_entry_point",
        autoreset_mode=AutoresetMode.DISABLED,
        problems=source,
        tokenizer=player.tokenizer,
        system_prompt=system_prompt,
        num_turns=num_turns,
        feedback=feedback,
        max_completion_tokens=max_completion_tokens,
        max_context_tokens=max_context_tokens,
    )
    try:
        done = play_and_keep(
            env,
            player,
            total,
            folder.episodes_path,
            console=console,
            seed=seed,
            group_size=samples,
        )
    finally:
        env.close()
    _report(console, folder, done, settings, title=f"{policy} on {problems} ({feedback} feedback, {num_turns} turns)")


def play_and_keep(
    env: Any, policy: Any, total: int, path: Path, *, console: Console, seed: int, **kwargs: Any
) -> list[Episode]:
    """Plays the episodes of 0..total-1 that `path` does not hold yet, adding each as it ends; returns them all.

    Args:
        env: Vector environment.
        policy: The policy.
        total: Episodes in all.
        path: JSON-lines file, which may exist.
        console: Shows progress.
        seed: Of the collection.
        **kwargs: Of `collect`.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from mathturn_gym.rollout import collect
    from mathturn_gym.trajectories import EpisodeWriter, read_episodes

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress, EpisodeWriter(path) as writer:
        done = {episode.index: episode for episode in read_episodes(path) if episode.index < total}
        task = progress.add_task("episodes", total=total, completed=len(done))

        def keep(episode: Episode) -> None:
            done[episode.index] = episode
            writer.write(episode)
            solved = sum(e.solved for e in done.values())
            progress.update(task, advance=1, description=f"solved {solved / len(done):.3f}")

        for first, count in missing_ranges(done, total):
            collect(env, policy, count, seed=seed, first_index=first, on_episode=keep, **kwargs)
    return [done[index] for index in range(total)]


def missing_ranges(done: Iterable[int], total: int) -> Iterator[tuple[int, int]]:
    """The runs of numbers of 0..total-1 that are not in `done`, as (first, count).

    >>> list(missing_ranges({0, 1, 4}, 7))
    [(2, 2), (5, 2)]
    """
    have, start = set(done), None
    for index in range(total + 1):
        missing = index < total and index not in have
        if missing and start is None:
            start = index
        elif not missing and start is not None:
            yield start, index - start
            start = None


class _Folder:
    """Where an evaluation is written: settings.json, episodes.jsonl, report.json."""

    def __init__(self, path: Path, settings: dict[str, Any], *, resume: bool, overwrite: bool) -> None:
        self.path = path
        self.episodes_path = path / "episodes.jsonl"
        settings_path = path / "settings.json"
        if self.episodes_path.exists() and overwrite:
            self.episodes_path.unlink()
            (path / "report.json").unlink(missing_ok=True)
        elif self.episodes_path.exists() and not resume:
            raise InvalidValueError(
                f"out {str(path)!r} holds an evaluation already: --resume goes on with it, --overwrite deletes it,"
                " --out chooses another folder"
            )
        elif self.episodes_path.exists():
            self._check_same(settings_path, settings)
        path.mkdir(parents=True, exist_ok=True)
        write_json(settings_path, settings)

    def _check_same(self, path: Path, settings: dict[str, Any]) -> None:
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} does not load ({error}); --overwrite begins anew") from error
        changed = [k for k in settings if k != "episodes" and before.get(k) != settings[k]]
        if changed:
            raise InvalidValueError(
                f"--resume: {changed[0]} was {before.get(changed[0])!r} and is now {settings[changed[0]]!r};"
                " an evaluation goes on with the settings it began with (--overwrite begins anew)"
            )


def write_json(path: Path, data: Any) -> None:
    """Writes JSON; a reader never meets half of it."""
    write_atomically(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def _report(
    console: Console, folder: _Folder, episodes: Sequence[Episode], settings: dict[str, Any], title: str
) -> Report:
    from mathturn_gym.cli.report import report_table
    from mathturn_gym.metrics import summarize

    report = summarize(episodes)
    write_json(folder.path / "report.json", {"settings": settings, **report.to_dict()})
    console.print(report_table(report, title))
    console.print(
        f"report: {folder.path / 'report.json'}   episodes: {folder.episodes_path}", markup=False, soft_wrap=True
    )
    return report
