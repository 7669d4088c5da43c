"""Figures as tables in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mathturn_gym.metrics import Report

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["report_table"]


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


def _cell(figure: object) -> str:
    value, low, high = (getattr(figure, name) for name in ("value", "low", "high"))
    return f"{_number(value)} [dim]\\[{_number(low)}, {_number(high)}][/dim]"


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"


def _caption(report: Report) -> str:
    stops = ", ".join(f"{name} {count}" for name, count in sorted(report.stop_reasons.items()))
    verdicts = ", ".join(f"{name} {count}" for name, count in sorted(report.verdicts.items()))
    return f"{report.episodes} episodes on {report.problems} problems; ended: {stops}; turns: {verdicts}"
