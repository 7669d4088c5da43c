"""Figures as tables in the terminal, in 80 columns, whatever the names of families and files say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from mathturn_gym.base.text import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.table import Table

    from mathturn_gym.episodes.metrics import Estimate
    from mathturn_gym.episodes.metrics.report import Report


_MOST_PARTS: Final = 40  # rows of a table by a metadata key; a key may have thousands of values


def plain_text(text: str, style: str = "") -> RenderableType:
    """A text that somebody else wrote: no markup is read in it, and nothing in it moves the cursor."""
    from rich.text import Text

    return Text(visible(text), style=style)


def counting(console: Console) -> Progress:
    """Returns a bar that counts what is done, with the time that is left."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)


def report_summary(report: Report, title: str = "Evaluation") -> RenderableType:
    """A report at a glance: what was found in a sentence, then the numbers to see first and what went wrong."""
    from rich.console import Group
    from rich.table import Table

    from mathturn_gym.show.evaluation import cards_of, verdict_of

    verdict, basis = verdict_of(report)
    cards = Table.grid(padding=(0, 2))
    for justify in ("right", "left", "left"):
        cards.add_column(justify=justify)
    for value, interval, words in cards_of(report):
        cards.add_row(plain_text(value, "bold"), plain_text(interval, "dim"), words)
    return Group(plain_text(verdict, "bold"), plain_text(f"{title}: {basis}", "dim"), "", cards, "")


def report_tables(report: Report, title: str = "Evaluation") -> RenderableType:
    """A report: every metric with its interval by the question that it answers, then a table per metadata key."""
    from rich.console import Group

    parts: list[RenderableType] = [plain_text(title, "bold"), _figures(report)]
    parts += [_parts_table(key, values) for key, values in report.by.items()]
    return Group(*parts, plain_text(_caption(report), "dim"))


def _figures(report: Report) -> Table:
    from mathturn_gym.show.evaluation import repeats_of

    table, repeats = _table("metric", "value", f"{report.confidence:.0%} interval"), repeats_of(report)
    for question, names in report.by_question().items():
        if table.row_count:
            table.add_row()  # an empty row between questions
        table.add_row(plain_text(question, "cyan"))
        for name in (name for name in names if name not in repeats):
            table.add_row(f"  {name}", _value(report[name]), _interval(report[name]))
    return table


def _parts_table(key: str, parts: Mapping[str, Report]) -> Table:
    """A row per value; the names of families fold where they are too long."""
    turns = max(part.turns for part in parts.values())
    names = list(dict.fromkeys(("acc@1", f"acc@{turns}")))
    table = _table(key, "episodes", *names)
    for value, part in list(parts.items())[:_MOST_PARTS]:
        # A part whose episodes had fewer turns gives the accuracy of its last.
        own = (part.figures.get(name) or part.figures.get(f"acc@{part.turns}") for name in names)
        table.add_row(
            plain_text(value), f"{part.episodes:,}", *("-" if one is None else plain_text(str(one)) for one in own)
        )
    if len(parts) > _MOST_PARTS:
        table.caption = plain_text(f"and {len(parts) - _MOST_PARTS} more: they are in the report's files")  # type: ignore[assignment]
    return table


def _table(first: str, *columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    table.add_column(plain_text(first), overflow="fold")
    for column in columns:
        table.add_column(plain_text(column), justify="right", no_wrap=True)
    return table


def _value(figure: Estimate) -> str:
    return "-" if figure.value is None else _number(figure.value)


def _interval(figure: Estimate) -> RenderableType:
    if figure.low is None or figure.high is None:
        return ""
    return plain_text(f"[{_number(figure.low)}, {_number(figure.high)}]", "dim")


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"


def _caption(report: Report) -> str:
    stops = ", ".join(f"{name} {count:,}" for name, count in sorted(report.stop_reasons.items()))
    verdicts = ", ".join(f"{name} {count:,}" for name, count in sorted(report.verdicts.items()))
    return f"{report.episodes:,} episodes on {report.problems:,} problems; ended: {stops}; turns: {verdicts}"


def comparison_table(reports: Mapping[str, Report], names: Sequence[str], title: str) -> RenderableType:
    """Several reports side by side: one row per figure, one column per report."""
    from rich.console import Group

    table = _table("figure", *reports)
    for name in names:
        figures = [report.figures[name] for report in reports.values()]
        table.add_row(name, *(plain_text(f"{_value(one)} {_interval(one)}".strip()) for one in figures))
    meanings = dict.fromkeys(_meaning(name) for name in names)
    return Group(plain_text(title, "bold"), table, *(plain_text(meaning, "dim") for meaning in meanings))


def _meaning(name: str) -> str:
    """`acc@k: …`: what a figure is; `acc@3` is explained as `acc@k`."""
    from mathturn_gym.episodes.metrics.figures import MEANING

    stem, at, _ = name.partition("@")
    known = f"{stem}@k" if at else name
    return f"{known}: {MEANING[known]}"
