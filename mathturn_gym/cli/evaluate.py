"""`mathturn eval`: plays problems with a policy and reports accuracy by turn, with intervals."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer
from rich.console import Console

from mathturn_gym.base.files import locked, storage_errors, tidy, write_json
from mathturn_gym.base.terminal import say, terminal
from mathturn_gym.cli._options import (
    ENGINE,
    ENGINE_SETTINGS,
    TASKS,
    EnvOptions,
    grouped,
    ray_settings,
    with_env_options,
)
from mathturn_gym.cli._runs import OwnCode, check_counts, command_line, policy_settings, problems_of, start_of
from mathturn_gym.cli.report import counting
from mathturn_gym.errors import CheckpointError, InvalidValueError
from mathturn_gym.policies.config import POLICY_NAMES

if TYPE_CHECKING:
    from mathturn_gym.env.config import EnvConfig
    from mathturn_gym.neighbors.engines.ray_settings import RaySettings
    from mathturn_gym.policies import PolicyConfig
    from mathturn_gym.problems import ProblemSource
    from mathturn_gym.types import Episode


_PROBLEMS: Final = 512


@with_env_options
@grouped(
    {
        "Sampling and device": ("temperature", "grammar", "device", "dtype", "num_envs"),
        "A folder with an evaluation in it": ("resume", "overwrite", "own_code"),
        "Engine": ("engine", "engine_settings"),
    }
)
def evaluate(
    env: EnvOptions,
    policy: Annotated[str | None, typer.Option(help=f"{POLICY_NAMES}. By default the task's, else builtin.")] = None,
    task: Annotated[
        str | None,
        typer.Option(help=f"{TASKS}, or a TOML file: problems, prompt, budgets, sampling and policy of a task."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="train, validation, test or all; test by default, and all of a file.")
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(help="Episodes; by default every problem of a file once, or 512 of a generator.")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(help="Episodes per problem (pass@k and the like need several); the task's by default, else 1."),
    ] = None,
    num_envs: Annotated[int, typer.Option(help="Episodes played at once.")] = 64,
    temperature: Annotated[
        float | None, typer.Option(help="Of sampling; 0 is greedy. By default the task's, or a run's own, else 1.")
    ] = None,
    grammar: Annotated[
        str | None, typer.Option(help="boxed-integer masks all other answers, none masks none; a run's own by default.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …; by default what there is.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, …; by default the checkpoint's.")] = None,
    policy_set: Annotated[
        list[str] | None,
        typer.Option(
            "--policy-set",
            help="FIELD=VALUE of the policy, or an option of its engine: max_batch_size=64, cache_bytes=0, gpu_memory_utilization=.8,"
            " tensor_parallel_size=2; repeatable.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides problems and samples.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for report.html, report.json and episodes.jsonl.")] = Path(
        "runs/eval"
    ),
    engine: ENGINE = "local",
    engine_settings: ENGINE_SETTINGS = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted evaluation in the folder.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete an earlier evaluation in the folder.")] = False,
    own_code: OwnCode = False,
    full: Annotated[bool, typer.Option("--full", help="Print every metric, by question, family and level.")] = False,
) -> None:
    """Play problems with a policy and report accuracy by turn, each figure with an interval over its different problems.

    The folder of a training run brings back what it was trained and evaluated with: environment, problems, budgets,
    feedback, temperature and grammar; options that you give win. Every episode is written to OUT/episodes.jsonl as it
    ends, so Ctrl-C loses nothing: `--resume` plays the rest, and the report is the one that an uninterrupted evaluation
    would have given.

    Where more than 5 % of the turns are cut off, or have no answer, it says so and what to change. Accuracy is given for
    marked answers, and for those as well that stand unmarked at the end of a text.

    Examples: `mathturn eval`, `mathturn eval --policy runs/demo --samples 4`, `mathturn eval --task add1`,
    `mathturn eval --task gsm8k --policy Qwen/Qwen2.5-0.5B-Instruct`, and offline
    `mathturn eval --task gsm8k --policy smollm2 --data gsm8k_test.jsonl`.
    """
    check_counts(episodes=episodes, samples=samples, num_envs=num_envs, seed=seed)
    console, start = terminal(), start_of(policy, task, max_completion_tokens=64, given=env.given, own_code=own_code)
    config = env.config(start.env)
    source = problems_of(config, split, named="problems" in env.given)
    samples = start.samples if samples is None else samples
    total = episodes if episodes is not None else samples * (source.size or _PROBLEMS)
    more = policy_settings(start.policy, policy_set or [])
    sampling = {"temperature": temperature, "grammar": grammar, "dtype": dtype, **more}
    settings = {  # all that decides an episode, and nothing else
        "policy": start.name,
        "weights": start.fingerprint(),  # a folder keeps its name when its weights change
        **start.sampling(**sampling),
        "env": config.to_json(),
        "split": source.split,
        "episodes": total,
        "samples": samples,
        "seed": seed,
    }
    # Before the folder is made: a mistyped engine leaves nothing behind.
    workers = ray_settings(engine, engine_settings)
    with _opened(out, settings, resume=resume, overwrite=overwrite):
        problems, options = _different(source, total, samples, seed), {"seed": seed, "group_size": samples}
        if workers is not None:
            policy_config = start.config(device=device, seed=seed, **sampling)
            playing = _on_ray(config, policy_config, workers, problems, total, options)
        else:
            player = start.load(device=device, seed=seed, **sampling)
            playing = _here(config, player, max(1, min(num_envs, total)), problems, total, options)
        with playing as play:
            done = play_and_keep(play, total, out / "episodes.jsonl", console=console)
        feedback, turns = config.value("feedback"), config.value("num_turns")
        title = f"{start.name} on {source.name} ({feedback} feedback, {turns} turns)"
        _report(console, out, done, settings, config, title, full=full)


def _different(source: ProblemSource, total: int, samples: int, seed: int) -> ProblemSource:
    """Limits a generator to the number of different problems that the episodes need, or to all that it has."""
    from mathturn_gym.problems import distinct

    return source if source.size is not None else distinct(source, -(-total // samples), seed, fewer=True)


# Plays the episodes that are not done yet, and hands each on as it ends.
_Play: TypeAlias = "Callable[[Collection[int], Callable[[Episode], None]], None]"


@contextmanager
def _here(
    config: EnvConfig, policy: Any, num_envs: int, problems: ProblemSource, total: int, options: Mapping[str, Any]
) -> Iterator[_Play]:
    """Plays in this process."""
    from mathturn_gym.episodes.rollout import collect

    # The gold answers are for the file of episodes: no policy sees an info.
    env: Any = config.make("test", num_envs, policy=policy, problems=problems, gold_in_info=True)

    def play(done: Collection[int], keep: Callable[[Episode], None]) -> None:
        for first, count in missing_ranges(done, total):
            collect(env, policy, count, first_index=first, on_episode=keep, **options)

    try:
        yield play
    finally:
        env.close()


@contextmanager
def _on_ray(
    config: EnvConfig,
    policy: PolicyConfig,
    workers: RaySettings,
    problems: ProblemSource,
    total: int,
    options: Mapping[str, Any],
) -> Iterator[_Play]:
    """Plays on a cluster; the problems travel, the policy's folder must be there."""
    from mathturn_gym.neighbors.engines.ray import RayEngine

    with RayEngine(config, policy, workers) as engine:

        def play(done: Collection[int], keep: Callable[[Episode], None]) -> None:
            for episode in engine.begin(problems, total, done=done, gold_in_info=True, **options):
                keep(episode)

        yield play


def play_and_keep(play: _Play, total: int, path: Path, *, console: Console) -> list[Episode]:
    """Plays the episodes of 0..total-1 that `path` does not hold yet, adding each as it ends; returns them all."""
    from mathturn_gym.episodes.trajectories import EpisodeWriter, read_episodes

    with counting(console) as progress, EpisodeWriter(path) as writer:
        # The file of a longer evaluation, which was gone on with, holds more than are asked for now.
        done = {episode.index: episode for episode in read_episodes(path) if episode.index < total}
        task = progress.add_task("episodes", total=total, completed=len(done))

        def keep(episode: Episode) -> None:
            done[episode.index] = episode
            writer.write(episode)
            solved = sum(e.solved for e in done.values())
            progress.update(task, advance=1, description=f"solved {solved / len(done):.3f}")

        play(list(done), keep)
    # By number, however they ended: an interrupted evaluation has the report of an uninterrupted one.
    return [done[index] for index in range(total)]


def missing_ranges(done: Iterable[int], total: int) -> Iterator[tuple[int, int]]:
    """The runs of numbers of 0..total-1 that are not in `done`, as (first, count).

    >>> list(missing_ranges({0, 1, 4}, 7))
    [(2, 2), (5, 2)]
    """
    start = 0
    # By what is done, not by what is missing: that may be a billion.
    for index in [*sorted({one for one in done if 0 <= one < total}), total]:
        if index > start:
            yield start, index - start
        start = index + 1


@contextmanager
def _opened(out: Path, settings: dict[str, Any], *, resume: bool, overwrite: bool) -> Iterator[None]:
    """Holds an evaluation's folder, for one process at a time, with the settings that its episodes are played with."""
    if out.exists() and not out.is_dir():
        raise InvalidValueError(f"--out must be a folder, got the file {str(out)!r}")
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    # Two evaluations at once would each write every episode.
    with locked(out / ".lock"):
        tidy(out)
        episodes = out / "episodes.jsonl"
        # Not all of the folder: what else is in it is the user's.
        if episodes.exists() and overwrite:
            for name in ("episodes.jsonl", "report.json", "report.html"):
                (out / name).unlink(missing_ok=True)
        elif episodes.exists() and not resume:
            raise InvalidValueError(
                f"out {str(out)!r} holds an evaluation already: --resume goes on with it, --overwrite deletes it,"
                " --out chooses another folder"
            )
        elif episodes.exists():
            _check_same(out / "settings.json", settings)
        write_json(out / "settings.json", settings)
        yield


def _check_same(path: Path, settings: dict[str, Any]) -> None:
    """Refuses to mix episodes of different settings in one report; more episodes may be asked for."""
    from mathturn_gym.baselines.run_folder import flat, read_object

    try:
        # Through JSON, so that a tuple of now equals the list that was read.
        before, now = flat(read_object(path)), flat(json.loads(json.dumps(settings)))
    except CheckpointError as error:
        raise CheckpointError(f"{error}; --overwrite starts over") from error
    changed = [name for name in (*now, *before) if name != "episodes" and before.get(name) != now.get(name)]
    if changed:
        raise InvalidValueError(
            f"--resume: {changed[0]} was {before.get(changed[0])!r} and is now {now.get(changed[0])!r};"
            " an evaluation goes on with the settings it began with (--overwrite starts over)"
        )


def _report(
    console: Console,
    out: Path,
    episodes: Sequence[Episode],
    settings: dict[str, Any],
    config: EnvConfig,
    title: str,
    *,
    full: bool,
) -> None:
    """Writes report.json and report.html, and prints what they say in short."""
    from mathturn_gym.cli._advice import advice
    from mathturn_gym.cli.report import plain_text, report_summary, report_tables
    from mathturn_gym.episodes.metrics import read_leniently, summarize
    from mathturn_gym.show.view import write_report

    report = summarize(episodes)
    # A user's own verifier may read anything: only the built-in one can be asked to read again.
    again = read_leniently(episodes) if looks_for_marks(config) else None
    figures = {} if again is None else summarize(again, by=()).figures
    lenient = {name: figure for name, figure in figures.items() if name.startswith("acc@")}
    warnings = advice(episodes, again, config)
    read_again = {"lenient": {name: figure.to_dict() for name, figure in lenient.items()}, "warnings": warnings}
    write_json(out / "report.json", {"settings": settings, **report.to_dict(), **read_again})
    unmarked = [
        f"{name} with unmarked answers too: {figure}" for name, figure in lenient.items() if figure != report[name]
    ]
    notes = [*warnings, *unmarked]
    page = write_report(out / "report.html", episodes, title=title, settings=settings, notes=notes)
    console.print(report_summary(report, title))
    if full:
        console.print(report_tables(report, title))
    for line in unmarked if full else unmarked[-1:]:
        say(console, line)
    for warning in warnings:
        console.print(plain_text(f"warning: {warning}", "yellow"))
    if not full:
        say(console, "every metric: --full, or the page")
    say(console, f"page: {page}")
    say(console, f"metrics: {out / 'report.json'}")
    say(console, f"episodes: {out / 'episodes.jsonl'}")
    say(console, f"to read them: {command_line('view', out)}")


def looks_for_marks(config: EnvConfig) -> bool:
    """True where the verifier is the built-in one, reading marked answers alone."""
    from mathturn_gym.verifier import Verifier

    verifier = config.value("verifier")
    if isinstance(verifier, Verifier):
        return verifier.extract != "lenient"
    return verifier in (None, "boxed", "marked")
