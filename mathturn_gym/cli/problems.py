"""`mathturn problems`: what problems there are, what they look like, and whether their answers can be judged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mathturn_gym.errors import InvalidValueError

if TYPE_CHECKING:
    from mathturn_gym.problems import GoldFailure, ProblemFile, ProblemSource
    from mathturn_gym.types import Problem

__all__ = ["problems_app"]

problems_app = typer.Typer(
    name="problems", help="Problems: list them, show some, check a file's gold answers.", no_args_is_help=True
)


@problems_app.command("list")
def list_families() -> None:
    """The built-in sources and the procedural families."""
    from mathturn_gym.problems import LEVELS, NAMES
    from mathturn_gym.problems.families.registry import REGISTRY

    table = Table("name", "about")
    for name in NAMES:
        table.add_row(name, "built-in; splits by :train, :validation, :test")
    for name, spec in sorted(REGISTRY.items()):
        table.add_row(name, spec.about)
    console = Console()
    console.print(table)
    console.print(
        f"A family's name takes a level, a split and a form: quadratic@{LEVELS[1]}:test:latex (levels {LEVELS[0]} to"
        f" {LEVELS[-1]}); 'families' is all of them; '3*linear@1+primes' mixes.",
        markup=False,
    )


@problems_app.command()
def show(
    problems: Annotated[str, typer.Argument(help="A name, or a file.")] = "families",
    count: Annotated[int, typer.Option("--count", "-n", help="How many.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the stream.")] = 0,
    gold: Annotated[bool, typer.Option(help="Show the accepted answers.")] = True,
) -> None:
    """The first problems of a source."""
    from mathturn_gym.problems import load_problems

    table = Table("id", "prompt", *(["gold"] if gold else []))
    for problem in _first(load_problems(problems), count, seed):
        cells = (problem.id, problem.prompt, " | ".join(problem.gold))
        table.add_row(*(_plain(cell) for cell in cells[: 3 if gold else 2]))
    Console().print(table)


@problems_app.command()
def check(
    problems: Annotated[str, typer.Argument(help="A file, or the name of a family or another source.")],
    fields: Annotated[
        list[str] | None, typer.Option("--field", help="For unknown schemas: prompt=FIELD, gold=FIELD, id=FIELD.")
    ] = None,
    items: Annotated[int, typer.Option(help="How many items of an endless source.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of an endless source.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the result as JSON to this file.")] = None,
) -> None:
    """Lists rows that cannot be used, and gold answers that are not right when judged against themselves.

    Exit code 1 where there are any. Families are also solved again by an independent route. Example:
    `mathturn problems check gsm8k_test.jsonl`, `mathturn problems check quadratic@3`.
    """
    from mathturn_gym.problems import FiniteSource, check_gold
    from mathturn_gym.verifier import Verifier

    source = _load(problems, fields or [])
    checked: Sequence[Problem] = (
        source.problems if isinstance(source, FiniteSource) else list(_first(source, items, seed))
    )
    with Verifier() as verifier:
        failures = check_gold(checked, verifier)
    result = {
        "problems": problems,
        "checked": len(checked),
        "skipped": [f"line {bad.line}: {bad.field or 'row'} {bad.reason}" for bad in getattr(source, "skipped", [])],
        "not_self_verified": [_described(failure) for failure in failures if not failure.as_text],
        "only_as_text": [_described(failure) for failure in failures if failure.as_text],
        "disagree": _disagreements(checked),
    }
    if out is not None:
        out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(result, ensure_ascii=False))
    else:
        _print(Console(), result)
    if result["skipped"] or result["not_self_verified"] or result["disagree"]:
        raise typer.Exit(1)


def _load(problems: str, fields: Sequence[str]) -> ProblemSource:
    """The source; broken rows of a file are listed, not raised."""
    from mathturn_gym.problems import load_problems
    from mathturn_gym.problems.readers import FORMATS

    name = problems.lower().removesuffix(".gz")
    if not name.endswith(FORMATS):
        if fields:
            raise InvalidValueError(f"--field is for files, got it with {problems!r}")
        return load_problems(problems)
    return _file(problems, dict(_pair(field) for field in fields))


def _file(path: str, fields: dict[str, str]) -> ProblemFile:
    from mathturn_gym.problems import ProblemFile

    return ProblemFile(path, skip_bad_rows=True, fields=fields or None)


def _pair(field: str) -> tuple[str, str]:
    key, mark, value = field.partition("=")
    if not (key and mark and value):
        raise InvalidValueError(f"--field must be KEY=FIELD, for example prompt=text, got {field!r}")
    return key, value


def _first(source: ProblemSource, count: int, seed: int) -> Iterator[Problem]:
    from mathturn_gym.problems import FiniteSource

    if isinstance(source, FiniteSource):
        yield from source.problems[:count]
    else:
        yield from (source.get(seed, index) for index in range(count))


def _described(failure: GoldFailure) -> dict[str, str]:
    verdict = failure.verdict
    return {"id": failure.problem_id, "gold": failure.gold, "status": verdict.status.value, "reason": verdict.reason}


def _disagreements(problems: Sequence[Problem]) -> list[str]:
    from mathturn_gym.problems import FAMILIES

    ours = [p for p in problems if p.metadata.get("family") in FAMILIES and "form" in p.metadata]
    if not ours:
        return []
    from mathturn_gym.problems.oracle import disagreement

    return [found for found in map(disagreement, ours) if found is not None]


def _print(console: Console, result: dict[str, Any]) -> None:
    bad = len(result["not_self_verified"])
    console.print(
        f"{result['problems']}: {result['checked']} problems checked, {len(result['skipped'])} rows left out, {bad} gold"
        f" answers that are not right when judged against themselves, {len(result['only_as_text'])} known only as text,"
        f" {len(result['disagree'])} solved otherwise by the independent route",
        markup=False,
        soft_wrap=True,
    )
    for title, rows in (("left out", result["skipped"]), ("solved otherwise", result["disagree"])):
        for row in rows:
            console.print(f"  {title}: {row}", markup=False, soft_wrap=True)
    for title, key in (("not right", "not_self_verified"), ("only as text", "only_as_text")):
        for row in result[key]:
            console.print(
                f"  {title}: {row['id']}  {row['gold']!r}  {row['status']}: {row['reason']}",
                markup=False,
                soft_wrap=True,
            )


def _plain(text: str) -> str:
    """For a table cell: brackets are the text's own, not markup."""
    from rich.markup import escape

    return escape(text)
