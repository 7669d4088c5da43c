"""`mathturn compare-eval A B`: a paired test between two evaluations on the same problems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from mathturn_gym.base.files import write_json
from mathturn_gym.base.terminal import terminal
from mathturn_gym.errors import InvalidValueError

if TYPE_CHECKING:
    from mathturn_gym.episodes.metrics import Estimate
    from mathturn_gym.episodes.metrics.report import Comparison
    from mathturn_gym.types import Episode


def compare_eval(
    a: Annotated[Path, typer.Argument(help="An evaluation's folder, or its file of episodes.")],
    b: Annotated[Path, typer.Argument(help="Another, on the same problems.")],
    figures: Annotated[
        list[str] | None, typer.Option("--figure", help="Only these figures (acc@1, pass@4, …); several times.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the result as JSON to this file.")] = None,
) -> None:
    """Compare two evaluations, problem by problem.

    Differences are b minus a, over the problems that both were tried on, with an interval and a p-value that are paired by
    problem. Examples: `mathturn compare-eval runs/eval-before runs/eval-after`, `mathturn
    compare-eval a.jsonl b.jsonl --figure acc@1 --figure acc@4`.
    """
    from mathturn_gym.episodes.metrics import compare

    found = compare(_episodes("a", a), _episodes("b", b), confidence=confidence)
    chosen = _chosen(found, figures or [])
    result = {"a": str(a), "b": str(b), **found.to_dict()}
    result["figures"] = {name: result["figures"][name] for name in chosen}
    if out is not None:
        write_json(out, result)
    if as_json:
        typer.echo(json.dumps(result))
        return
    console = terminal()
    console.print(_table(found, chosen, str(a), str(b)))
    if found.only_a or found.only_b:
        console.print(
            f"left out, since only one of them was tried on them: {found.only_a} problems of a, {found.only_b} of b",
            style="yellow",
        )


def _episodes(name: str, path: Path) -> list[Episode]:
    from mathturn_gym.episodes.trajectories import read_episodes

    file = path / "episodes.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise InvalidValueError(f"{name} must be an evaluation's folder or a file of episodes, got {str(path)!r}")
    episodes = list(read_episodes(file))
    if not episodes:
        raise InvalidValueError(f"{name}: {str(file)!r} holds no episode")
    return episodes


def _chosen(found: Comparison, figures: list[str]) -> list[str]:
    from mathturn_gym.errors import raise_unknown_name

    for name in figures:
        if name not in found.figures:
            raise_unknown_name("figure", name, found.figures)
    return figures or list(found.figures)


def _difference(found: Estimate) -> str:
    """The difference with its interval, bold where the interval excludes 0."""
    if found.low is None or found.high is None:
        return f"{found.value:+.3f}"
    shown = f"{found.value:+.3f} \\[{found.low:+.3f}, {found.high:+.3f}]"  # an open bracket would be markup
    return f"[bold]{shown}[/bold]" if found.low > 0 or found.high < 0 else shown


def _table(found: Comparison, names: list[str], a: str, b: str) -> Table:
    from rich import box

    from mathturn_gym.cli.report import plain_text

    title = f"a = {a}, b = {b}: {found.problems} problems in common"
    table = Table(
        title=plain_text(title, "bold"),  # type: ignore[arg-type]  # a text is one, whatever paths are called
        title_justify="left",
        caption="p: paired by problem, not corrected for the number of metrics",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for column in ("figure", "a", "b", f"b - a [{found.confidence:.0%} interval]", "p"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for name in names:
        figure = found.figures[name]
        table.add_row(
            name,
            f"{figure.a:.3f}",
            f"{figure.b:.3f}",
            _difference(figure.difference),
            "–" if figure.p_value is None else f"{figure.p_value:.4f}",
        )
    return table
