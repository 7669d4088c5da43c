"""What a person sees while a comparison runs: every run with its latest figures, and how long it may still take."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mathturn_gym.base.terminal import terminal
from mathturn_gym.base.text import visible
from mathturn_gym.compare.cells import Outcome
from mathturn_gym.compare.matrix import Cell
from mathturn_gym.compare.runner import Observer

_MOST_LINES: Final = 10


class CompareDisplay(Observer):
    """A live view of `run_matrix`: use it as a context, and give it as the observer.

    Args:
        console: Where to draw; None is standard output. Without a terminal it prints a line per finished run.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or terminal()
        # Transient: finished runs print lines of their own, which stay.
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._started = time.monotonic()
        self._jobs = 1
        self._total = self._done = self._failed = 0
        self._at_start = 0

    def __enter__(self) -> CompareDisplay:
        """Starts drawing."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Takes the live part away; the lines of finished runs stay."""
        self._live.stop()

    def begin(self, outcomes: Sequence[Outcome], jobs: int) -> None:
        """Says what there is already."""
        self._total, self._jobs, self._started = len(outcomes), jobs, time.monotonic()
        self._at_start = self._done = sum(one.done for one in outcomes)
        unfinished = sum(one.status in ("unfinished", "failed") for one in outcomes)
        parts = [f"{self._total} runs", f"{self._done} done already" * (self._done > 0)]
        parts += [f"{unfinished} to go on with" * (unfinished > 0), f"{jobs} at a time"]
        self._console.print(", ".join(filter(None, parts)))

    def tick(self, running: Sequence[tuple[Cell, Mapping[str, Any]]]) -> None:
        """Updates the live part."""
        if self._console.is_terminal:
            self._live.update(self._picture(running))

    def finished(self, outcome: Outcome) -> None:
        """Prints a line that stays: of every run where there are few, else of those that went wrong and every tenth part."""
        self._done += outcome.done
        self._failed += outcome.status == "failed"
        ended, part = self._done + self._failed, -(-self._total // _MOST_LINES)
        plain = outcome.status in ("finished", "stopped_early")
        if plain and self._total > _MOST_LINES and ended % part and ended < self._total:
            return
        sign, style = {
            "finished": ("done", "green"),
            "stopped_early": ("done", "green"),
            "unfinished": ("saved", "yellow"),
            "missing": ("stopped", "yellow"),
        }.get(outcome.status, (outcome.status, "bold red"))
        place = f"{self._done + self._failed}/{self._total}"
        used = f"{outcome.tokens:,.0f} tokens, {outcome.cpu_s:,.1f} CPU s"
        figures = outcome.test or {}
        shown = "  ".join(f"{name} {value:.3f}" for name, value in figures.items() if name.startswith("acc@"))
        message = "" if outcome.status in ("finished", "unfinished", "missing") else outcome.message
        texts = [f"{place:>7} {sign:<8} {outcome.cell}", used, f"test {shown}" * bool(shown), message]
        self._console.print(Text(visible("  ".join(filter(None, texts))), style=style), soft_wrap=True)

    def stopping(self, running: int) -> None:
        """Says why it does not end at once."""
        runs = f"{running} run{'s' * (running != 1)}"
        self._console.print(f"stopping: {runs} will save and end (Ctrl-C again kills them)", style="yellow")

    def _picture(self, running: Sequence[tuple[Cell, Mapping[str, Any]]]) -> Group:
        table = Table(box=None, pad_edge=False)
        for name in ("running", "budget", "tokens", "CPU s", "validation"):
            table.add_column(name, justify="left" if name in ("running", "budget", "validation") else "right")
        for cell, row in running:
            table.add_row(
                escape(str(cell)),
                ProgressBar(total=1.0, completed=share_of(cell, row), width=24),
                f"{row.get('tokens', 0):,.0f}",
                f"{row.get('cpu_s', 0):,.1f}",
                _validation(row) or "[dim]starting[/dim]",
            )
        failed = f", [bold red]{self._failed} failed[/]" if self._failed else ""
        head = f"[bold]{self._done}/{self._total} runs done[/]{failed}{self._rest(running)}"
        return Group(Text.from_markup(head), table)

    def _rest(self, running: Sequence[tuple[Cell, Mapping[str, Any]]]) -> str:
        """How long it may still take, if what is left goes as what was done since the start."""
        elapsed = time.monotonic() - self._started
        now = sum(share_of(cell, row) for cell, row in running)
        done = self._done + self._failed - self._at_start + now
        left = self._total - self._at_start - done
        # Too early: what was done so far is mostly the start of processes.
        if done < 0.05 or elapsed < 5:
            return ""
        return f", {minutes(elapsed)} so far, about {minutes(elapsed * left / done)} to go"


def share_of(cell: Cell, row: Mapping[str, Any]) -> float:
    """How much of a run lies behind, by the budget that ends it first; in [0, 1].

    >>> share_of(Cell("a", "a", "t", 0, 1000, 10.0, {}), {"tokens": 100, "cpu_s": 4.0})
    0.4
    """
    shares, budgets = [0.0], {"tokens": cell.tokens, "total_tokens": cell.total_tokens, "cpu_s": cell.cpu_seconds}
    for name, budget in budgets.items():
        used = row.get(name)
        if budget is not None and isinstance(used, (int, float)):
            shares.append(used / budget)
    return min(1.0, max(shares))


def _validation(row: Mapping[str, Any]) -> str:
    """The first turn's accuracy, and that of all turns."""
    names = sorted((name for name in row if name.startswith("validation/acc@")), key=lambda name: (len(name), name))
    ends = dict.fromkeys(names[:1] + names[-1:])
    return "  ".join(f"{name.removeprefix('validation/')} {row[name]:.3f}" for name in ends)


def minutes(seconds: float) -> str:
    """`45 s`, `12 min` or `3 h 05 min`.

    >>> minutes(45), minutes(720), minutes(11100)
    ('45 s', '12 min', '3 h 05 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
