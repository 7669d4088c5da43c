"""`mathturn problems`: what problems there are, how many, what they look like, and whether their answers can be judged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mathturn_gym.base.terminal import say, terminal
from mathturn_gym.cli._options import PROBLEMS_HELP, AnswerColumn, QuestionColumn, SkipBadRows, load_source
from mathturn_gym.errors import InvalidValueError

if TYPE_CHECKING:
    from mathturn_gym.problems import ProblemSource
    from mathturn_gym.problems.rows import GoldFailure
    from mathturn_gym.types import Problem


problems_app = typer.Typer(
    name="problems", help="Problems: list them, count them, show some, check gold answers.", no_args_is_help=True
)

Named = Annotated[str, typer.Argument(help=PROBLEMS_HELP)]


@problems_app.command("list")
def list_families() -> None:
    """The built-in sources and the procedural families."""
    from mathturn_gym.problems.families.registry import GENERATORS, LEVELS, REGISTRY

    table = Table("name", "about")
    for _, generator in sorted(GENERATORS.items()):
        table.add_row(_plain(", ".join(generator.shown)), _plain(generator.about))
    for name, spec in sorted(REGISTRY.items()):
        table.add_row(name, _plain(spec.about))
    console = terminal()
    console.print(table)
    say(
        console,
        "Every name takes a split (:train, :validation, :test, :all); a family also a level and a form:"
        f" quadratic@{LEVELS[1]}:test:latex (levels {LEVELS[0]} to {LEVELS[-1]}); 'families' is all of them;"
        " '3*linear@1+primes' mixes.",
    )


@problems_app.command()
def show(
    problems: Named = "families",
    count: Annotated[int, typer.Option("--count", "-n", help="How many.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the stream.")] = 0,
    gold: Annotated[bool, typer.Option(help="Show the accepted answers.")] = True,
    question_column: QuestionColumn = None,
    answer_column: AnswerColumn = None,
    skip_bad_rows: SkipBadRows = False,
) -> None:
    """The first problems of a source, and how many different ones it has."""
    from mathturn_gym.problems import count_distinct

    source = load_source(problems, question_column, answer_column, skip_bad_rows=skip_bad_rows)
    table = Table("id", "prompt", *(["gold"] if gold else []))
    for problem in _first(source, count, seed):
        cells = (problem.id, problem.prompt, " | ".join(problem.gold))
        table.add_row(*(_plain(cell) for cell in cells[: 3 if gold else 2]))
    console = terminal()
    console.print(table)
    say(console, f"different problems: {count_distinct(source)}")


@problems_app.command()
def count(
    problems: Named,
    draws: Annotated[int, typer.Option(help="Problems to draw from each split of a generator.")] = 20_000,
    question_column: QuestionColumn = None,
    answer_column: AnswerColumn = None,
    skip_bad_rows: SkipBadRows = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """How many different problems each split of a source has.

    Lists are counted. Of a generator a sample is drawn: "more than 4,812 (about 31,000)" counts the different ones among
    them, and estimates the rest from those that came once and twice. Example: `mathturn problems count quadratic@3`.
    """
    from dataclasses import asdict

    from mathturn_gym.problems import count_distinct
    from mathturn_gym.problems.base import SPLITS

    source = load_source(problems, question_column, answer_column, skip_bad_rows=skip_bad_rows)
    # A source without a split has three; the user may have named one of them.
    if source.split is None:
        counts = {split: count_distinct(source.part(split), draws) for split in SPLITS}
    else:
        counts = {source.split: count_distinct(source, draws)}
    if as_json:
        typer.echo(json.dumps({split: asdict(found) for split, found in counts.items()}))
        return
    table = Table("split", "different problems", title=_plain(problems), title_justify="left")
    for split, found in counts.items():
        table.add_row(split, str(found))
    terminal().print(table)


@problems_app.command()
def check(
    problems: Named,
    items: Annotated[int, typer.Option(help="How many items of an endless source.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of an endless source.")] = 0,
    question_column: QuestionColumn = None,
    answer_column: AnswerColumn = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the result as JSON to this file.")] = None,
) -> None:
    """Lists rows that cannot be used, and gold answers that are not right when judged against themselves.

    Exit code 1 where there are any. Examples:
    `mathturn problems check gsm8k_test.jsonl`, `mathturn problems check quadratic@3`.
    """
    from mathturn_gym.problems import check_gold
    from mathturn_gym.verifier import Verifier

    try:
        source = load_source(problems, question_column, answer_column, skip_bad_rows=True)
    except InvalidValueError:  # not a file: nothing to skip
        source = load_source(problems, question_column, answer_column)
    checked = list(_first(source, items if source.size is None else source.size, seed))
    with Verifier() as verifier:
        failures = check_gold(checked, verifier)
    result = {
        "problems": problems,
        "checked": len(checked),
        # Only files have rows that can be left out.
        "skipped": [str(bad) for bad in getattr(source, "skipped", [])],
        "contradictory": _contradictory(checked),
        "not_self_verified": [_described(source, failure) for failure in failures if not failure.as_text],
        "only_as_text": [_described(source, failure) for failure in failures if failure.as_text],
    }
    if out is not None:
        out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(result))
    else:
        _print(terminal(), result)
    if any(result[key] for key in ("skipped", "contradictory", "not_self_verified")):
        raise typer.Exit(1)


def _first(source: ProblemSource, count: int, seed: int) -> Iterator[Problem]:
    """The first problems, each of a list once."""
    return (source.get(seed, index) for index in range(count if source.size is None else min(count, source.size)))


def _contradictory(problems: Sequence[Problem]) -> list[str]:
    """Prompts that come with different accepted answers, unless these are what the family hides."""
    golds: dict[str, set[tuple[str, ...] | str]] = {}
    for problem in problems:
        # In a guessing game the answer is what the prompt hides: equal prompts have many.
        if not problem.hints:
            golds.setdefault(problem.prompt, set()).add(problem.gold)
    return [f"{prompt[:80]!r} has {len(found)} different answers" for prompt, found in golds.items() if len(found) > 1]


def _described(source: ProblemSource, failure: GoldFailure) -> dict[str, str]:
    from mathturn_gym.problems.rows import RowProblems

    verdict = failure.verdict
    line = f"line {source.line_of(failure.problem_id)}" if isinstance(source, RowProblems) else failure.problem_id
    return {
        "id": failure.problem_id,
        "where": line,
        "gold": failure.gold,
        "status": verdict.status.value,
        "reason": verdict.reason,
    }


def _print(console: Console, result: dict[str, Any]) -> None:
    bad = len(result["not_self_verified"])
    say(
        console,
        f"{result['problems']}: {result['checked']} problems checked, {len(result['skipped'])} rows left out, {bad} gold"
        f" answers that are not right when judged against themselves, {len(result['only_as_text'])} known only as text,"
        f" {len(result['contradictory'])} prompts with different answers",
    )
    for title, key in (("left out", "skipped"), ("contradictory", "contradictory")):
        for row in result[key]:
            say(console, f"  {title}: {row}")
    for title, key in (("not right", "not_self_verified"), ("only as text", "only_as_text")):
        for row in result[key]:
            say(console, f"  {title}: {row['where']}  {row['gold']!r}  {row['status']}: {row['reason']}")


def _plain(text: str) -> str:
    """For a table cell: brackets are the text's own, not markup; control characters are shown, not obeyed."""
    from rich.markup import escape

    return escape("".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text))
