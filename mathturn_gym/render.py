"""An episode as people read it: a dialogue with verdicts, in color where the terminal has it."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from mathturn_gym.types import Problem, Status, StopReason, TurnRecord

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_new", "render_dialogue"]

_STYLE: Final = {
    Status.RIGHT: "bold green",
    Status.WRONG: "bold red",
    Status.NO_ANSWER: "bold yellow",
    Status.UNDECIDED: "bold magenta",
}
_END: Final = {
    StopReason.SOLVED: "solved",
    StopReason.TURNS: "all turns used",
    StopReason.CONTEXT: "context budget used up",
}


def render_dialogue(
    problem: Problem,
    turns: Sequence[TurnRecord],
    stop_reason: StopReason | None,
    *,
    system_prompt: str | None = None,
    color: bool | None = None,
) -> str:
    """The whole dialogue as one text.

    Args:
        problem: Shown first.
        turns: Shown in order, each with its verdict and reward.
        stop_reason: Shown last.
        system_prompt: Shown before the problem, if any.
        color: With ANSI color codes; None asks the terminal.
    """
    from rich.console import Console

    color = sys.stdout.isatty() if color is None else color
    # `force_terminal` makes rich write color codes although it writes into a string.
    console = Console(
        file=io.StringIO(), force_terminal=color, color_system="standard" if color else None, width=100, highlight=False
    )
    _say_problem(console, problem, system_prompt)
    for index, turn in enumerate(turns):
        _say_turn(console, index, turn)
    _say_end(console, turns, stop_reason)
    text = console.file
    assert isinstance(text, io.StringIO)
    return text.getvalue()


def print_new(
    problem: Problem, turns: Sequence[TurnRecord], stop_reason: StopReason | None, *, system_prompt: str | None = None
) -> None:
    """Prints to the terminal what the last `reset` or `step` added."""
    from rich.console import Console

    console = Console(highlight=False)
    if turns:
        _say_turn(console, len(turns) - 1, turns[-1])
    else:
        _say_problem(console, problem, system_prompt)
    _say_end(console, turns, stop_reason)


def _say_problem(console: Console, problem: Problem, system_prompt: str | None) -> None:
    if system_prompt is not None:
        _say(console, "system", "dim", system_prompt)
    _say(console, f"problem {problem.id}", "bold cyan", problem.prompt)


def _say_turn(console: Console, index: int, turn: TurnRecord) -> None:
    _say(console, f"turn {index + 1}", "bold", turn.response or "(nothing)")
    verdict = turn.verdict
    answer = "" if verdict.answer is None else f" · answer {verdict.answer}"
    reason = f" ({verdict.reason})" if verdict.reason else ""
    _say(console, "  verdict", _STYLE[verdict.status], f"{verdict.status.value}{reason}{answer} · {turn.reward:+g}")
    if turn.feedback:
        _say(console, "feedback", "cyan", turn.feedback)


def _say_end(console: Console, turns: Sequence[TurnRecord], stop_reason: StopReason | None) -> None:
    if stop_reason is not None:
        total = sum(turn.reward for turn in turns)
        _say(console, "end", "dim", f"{_END[stop_reason]} · {len(turns)} turns · total reward {total:+g}")


def _say(console: Console, who: str, style: str, text: str) -> None:
    """One labeled line or block; a model's text is printed as it is, never as markup, without control codes."""
    from rich.text import Text

    console.print(Text(_visible(who), style=style) + Text(f": {_visible(text)}"), soft_wrap=True)


def _visible(text: str) -> str:
    """The text without characters that a terminal would obey instead of showing (escapes, changes of direction)."""
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)
