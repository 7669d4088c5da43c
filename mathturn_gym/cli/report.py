"""Figures as tables in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mathturn_gym.metrics import MEANING, Estimate, Report

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["comparison_table", "report_table"]


def report_table(report: Report, title: str = "Evaluation") -> Table:
    """A report as a table: one row per figure, one column overall and one per part.

    Args:
        report: From `metrics.summarize`.
        title: Above the table.
    """
    from rich.table import Table

    parts = [(f"{key} {value}", part) for key, values in report.by.items() for value, part in values.items()]
    table = Table(title=title, caption=_caption(report), title_justify="left", caption_justify="left")
    table.add_column("figure")
    table.add_column(f"all [{report.confidence:.0%} interval]", justify="right")
    for name, _ in parts:
        table.add_column(name, justify="right")
    for name, figure in report.figures.items():
        if figure.value is None:
            continue
        values = [part.figures[name].value if name in part.figures else None for _, part in parts]
        table.add_row(name, _cell(figure), *("-" if value is None else _number(value) for value in values))
    return table


def _cell(figure: Estimate) -> str:
    value, low, high = figure.value, figure.low, figure.high
    if value is None:
        return "-"
    if low is None or high is None:
        return _number(value)
    return f"{_number(value)} [dim]\\[{_number(low)}, {_number(high)}][/dim]"


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"


def _caption(report: Report) -> str:
    stops = ", ".join(f"{name} {count}" for name, count in sorted(report.stop_reasons.items()))
    verdicts = ", ".join(f"{name} {count}" for name, count in sorted(report.verdicts.items()))
    return f"{report.episodes} episodes on {report.problems} problems; ended: {stops}; turns: {verdicts}"


def comparison_table(reports: Mapping[str, Report], names: Sequence[str], title: str) -> Table:
    """Several reports side by side: one row per figure, one column per report.

    Args:
        reports: By the heading of their column.
        names: The figures to show, in order.
        title: Above the table.
    """
    from rich.table import Table

    meanings = dict.fromkeys(_meaning(name) for name in names)
    table = Table(title=title, caption="\n".join(meanings), title_justify="left", caption_justify="left")
    table.add_column("figure", no_wrap=True)
    for heading in reports:
        table.add_column(heading, justify="right", no_wrap=True)
    for name in names:
        cells = (report.figures[name] for report in reports.values())
        table.add_row(name, *("-" if f.value is None else _cell(f) for f in cells))
    return table


def _meaning(name: str) -> str:
    """`acc@k: …`: what a figure is; `acc@3` is explained as `acc@k`."""
    stem, at, _ = name.partition("@")
    known = f"{stem}@k" if at else name
    return f"{known}: {MEANING[known]}"
