"""`mathturn compare`: trains algorithms side by side, and reports with intervals which is better."""

from __future__ import annotations

import logging
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mathturn_gym.base.terminal import say, terminal
from mathturn_gym.cli._options import TASKS, EnvOptions, grouped, with_env_options
from mathturn_gym.cli._runs import command_line
from mathturn_gym.errors import InvalidValueError

if TYPE_CHECKING:
    from mathturn_gym.compare import Matrix
    from mathturn_gym.compare.matrix import Cell
    from mathturn_gym.compare.report import Report


@with_env_options
@grouped({"Budget of each run": ("tokens", "total_tokens", "cpu_seconds"), "Report": ("figure", "against", "report")})
def compare(
    env: EnvOptions,
    config: Annotated[Path | None, typer.Argument(help="Configuration file (TOML); flags win over it.")] = None,
    algorithms: Annotated[
        str | None, typer.Option(help="Rows, as grpo,rloo,maskable_ppo; my_module:MyAlgorithm for one of your own.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help=f"Tasks, as add1,lins,guess8 (there are {TASKS}), or their files.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="How many (5), or which (3,7,11); 5 by default.")] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Budget of each run in environment tokens: ids that its policy samples.")
    ] = None,
    total_tokens: Annotated[
        int | None,
        typer.Option(help="Budget of each run in all tokens of its episodes: prompts, feedback and what is sampled."),
    ] = None,
    cpu_seconds: Annotated[
        float | None,
        typer.Option(help="Budget of each run in CPU seconds of training; a run ends at the first of its budgets."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time, one thread each; 2 by default.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write (runs/compare); alone: go on with the comparison in it.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="FIELD=VALUE or PART.FIELD=VALUE of every run; repeatable. Per task or algorithm: in the file.",
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Run nothing: make this folder's report again.")] = None,
    figure: Annotated[
        str, typer.Option(help="What is ranked and drawn: acc@1, acc@2, ..., or acc@K for all turns of a task.")
    ] = "acc@K",
    against: Annotated[
        str | None, typer.Option(help="The row that is subtracted from the others, seed by seed; the best by default.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Print every table, not only the verdict.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs, and what they may cost.")] = False,
) -> None:
    r"""Train several algorithms on several tasks with several seeds, and compare them with intervals.

    (`mathturn compare-eval` is something else: a paired test between two evaluations that exist already.)

    Every run gets the same budgets (environment tokens, all tokens, CPU seconds), and a process of its own. The report
    begins with the verdict: which row is ahead of which, by how much, seed by seed. Learning curves follow; tables at equal
    budgets, performance profiles and the rest are folded. Runs that failed, diverged or are missing are in it, and marked.

    The exit code is 1 where a run failed. Ctrl-C loses nothing that is finished; the same command, or `--out DIR` alone, goes on. More algorithms, tasks or
    seeds can be added to a folder at any time.

    For example:

    `mathturn compare --algorithms rloo,grpo --tasks lins --seeds 3 --tokens 200000 --cpu-seconds 60`

    `mathturn compare matrix.toml --jobs 4`

    `mathturn compare --report runs/compare --figure acc@1 --against grpo`
    """
    from mathturn_gym.baselines.overrides import parse_settings
    from mathturn_gym.compare import load_matrix, make_report, open_matrix
    from mathturn_gym.compare.cells import CellFolder
    from mathturn_gym.compare.runner import read_cells
    from mathturn_gym.errors import raise_unknown_name

    console = terminal()
    rows, columns = _names(algorithms), _names(tasks)
    if report is not None:
        if any((config, seeds, tokens, total_tokens, cpu_seconds, jobs, out, settings, dry_run, env.given)):
            raise InvalidValueError(
                "--report runs nothing: only --figure, --against, --algorithms and --tasks go with it"
            )
        made = make_report(report, figure=figure, algorithms=rows, tasks=columns, against=against)
        _show(console, made, full=full)
        return
    changes = {
        "algorithms": rows,
        "tasks": columns,
        "seeds": _seeds(seeds),
        "tokens": tokens,
        "total_tokens": total_tokens,
        "cpu_seconds": cpu_seconds,
        "jobs": jobs,
        "out": None if out is None else str(out),
        "settings": {**env.settings(), **parse_settings(settings or [])} or None,
    }
    # --out alone, or with other --jobs, goes on with the comparison that the folder holds.
    given = [name for name, value in changes.items() if value is not None and name not in ("out", "jobs")]
    going_on = config is None and not given and out is not None and (out / "matrix.json").exists()
    matrix = None if going_on else load_matrix(config, **changes)
    folder = Path(matrix.out) if matrix is not None else out
    assert folder is not None
    if against is not None:  # before hours of runs, not after them
        cells = [
            *(matrix.cells() if matrix else []),
            *(read_cells(folder) if (folder / "matrix.json").exists() else []),
        ]
        if against not in (labels := {cell.label for cell in cells}):
            raise_unknown_name("against", against, labels)
    if dry_run:
        _list(console, matrix.cells() if matrix else read_cells(folder), folder, _jobs(matrix, folder, jobs))
        return
    if matrix is not None:
        open_matrix(matrix, command=shlex.join(["mathturn", *sys.argv[1:]]), against=against)
    if not _run(console, folder, _jobs(matrix, folder, jobs)):
        done = [CellFolder(folder, cell).outcome().done for cell in read_cells(folder)]
        more = command_line("compare", "--out", folder)
        say(console, f"interrupted, with {sum(done)} of {len(done)} runs done. Go on: {more}")
        say(console, f"What there is so far: {command_line('compare', '--report', folder)}")
        raise typer.Exit(130)
    made = make_report(folder, figure=figure, against=against)
    _show(console, made, full=full)
    if any(one.status == "failed" for one in made.results.outcomes):
        raise typer.Exit(1)


def _run(console: Console, folder: Path, jobs: int) -> bool:
    from mathturn_gym.baselines.session import interrupt_flag
    from mathturn_gym.compare import run_matrix
    from mathturn_gym.compare.display import CompareDisplay

    # `interrupt_flag` would speak of an iteration of training; the display says which runs are stopped.
    logging.getLogger("mathturn_gym.baselines.session").setLevel(logging.ERROR)
    with CompareDisplay(console) as display, interrupt_flag() as interrupted:
        return run_matrix(folder, jobs=jobs, observer=display, interrupted=interrupted)


def _show(console: Console, report: Report, *, full: bool) -> None:
    """The verdict with its table, or every table but the longest, and where the rest is."""
    from mathturn_gym.compare.cells import CellFolder
    from mathturn_gym.compare.verdict import brief_table
    from mathturn_gym.show.tables import as_rich

    sentences = report.verdict if full else report.brief
    for place, sentence in enumerate(sentences):
        console.print(sentence, style="bold" if not place else "", markup=False, highlight=False)
    if report.differences is not None:
        shown = report.differences if full else brief_table(report.differences, console.width)
        console.print(as_rich(shown, console.width))
    for table in report.tables if full else ():
        console.print(as_rich(table, console.width))
    wrong = [one for one in report.results.outcomes if one.status == "failed" or (full and one.status == "diverged")]
    # A first look names two: hundreds of runs may have failed for one reason.
    for one in wrong if full else wrong[:2]:
        say(console, f"{one.status}: {one.cell}: {one.message} (log: {CellFolder(report.out, one.cell).log})", "red")
    if not full:
        say(console, "all tables and failures: --full, or the page", "dim")
    say(console, f"page: {report.out / 'report.html'}")
    say(console, f"raw numbers: {report.out / 'results.csv'}, {report.out / 'results.json'}")
    runs = (CellFolder(report.out, one.cell).run for one in report.results.outcomes)
    run = next((run for run in runs if any(run.glob("episodes_*.jsonl"))), None)
    if run is not None:
        say(console, f"to read a run's dialogues (several runs side by side): {command_line('view', run)}")


def _list(console: Console, cells: list[Cell], folder: Path, jobs: int) -> None:
    """Every run, and the most CPU time that training may take."""
    from mathturn_gym.compare.cells import CellFolder
    from mathturn_gym.compare.display import minutes
    from mathturn_gym.compare.matrix import check_cells

    # Listing what would run must not import the user's code.
    check_cells(cells, own=False)
    left = []
    for cell in cells:
        status = CellFolder(folder, cell).outcome().status
        budget = [] if cell.tokens is None else [f"{cell.tokens:,} tokens"]
        budget += [] if cell.total_tokens is None else [f"{cell.total_tokens:,} total tokens"]
        budget += [] if cell.cpu_seconds is None else [f"{cell.cpu_seconds:g} CPU s"]
        changed = ", ".join(f"{name}={value}" for name, value in cell.settings.items())
        texts = [str(cell), " or ".join(budget), changed, "" if status == "missing" else status]
        say(console, "  ".join(filter(None, texts)))
        if status not in ("finished", "stopped_early", "diverged"):
            left.append(cell)
    seconds = [cell.cpu_seconds for cell in left if cell.cpu_seconds is not None]
    say(console, f"{len(cells)} runs, {len(left)} of them to be run, {jobs} at a time, in {folder}")
    if len(seconds) == len(left):
        console.print(f"training ends within {minutes(sum(seconds) / jobs)}; starting and evaluating the runs is added")
    elif left:
        console.print("without --cpu-seconds there is no estimate of the time")


def _jobs(matrix: Matrix | None, folder: Path, given: int | None) -> int:
    """Processes at a time: what was asked for, and no more than there are cores."""
    from mathturn_gym.baselines.run_folder import read_object
    from mathturn_gym.compare.runner import cores
    from mathturn_gym.errors import check_int

    wanted = given or (matrix.jobs if matrix is not None else read_object(folder / "matrix.json").get("jobs"))
    # Each run has one thread: more runs than cores would take turns, and none would end earlier.
    return min(check_int("jobs", wanted, low=1), cores())


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _seeds(text: str | None) -> int | list[int] | None:
    """`5` is how many, `0,1,2` (or `7,`) is which."""
    if text is None:
        return None
    try:
        which = [int(part) for part in text.split(",") if part.strip()]
        return which if "," in text else int(text)
    except ValueError as error:
        raise InvalidValueError(f"--seeds must be how many (5) or which (3,7,11), got {text!r}") from error
