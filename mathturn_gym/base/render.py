"""An episode as a dialogue with verdicts and rewards: as text (colored in a terminal) and as HTML.

    problem and turns, or an Episode ─► lines (who, what kind, text) ─► text, HTML

Text of a model is never interpreted: markup is shown as text, control characters are made visible.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from mathturn_gym.base.text import html_text, visible
from mathturn_gym.types import Episode, Problem, Status, StopReason, TurnRecord, Verdict

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class StatusStyle(NamedTuple):
    """How a verdict's status is shown, everywhere: terminal, notebooks, reports and the viewer.

    Args:
        words: In words.
        letter: In the viewer's data.
        mark: In a list.
        color: On light and on dark pages.
        ansi: In a terminal.
    """

    words: str
    letter: str
    mark: str
    color: str
    ansi: str


STATUSES: Final = {
    Status.RIGHT: StatusStyle("right", "r", "✓", "#15803d", "1;32"),
    Status.WRONG: StatusStyle("wrong", "w", "✗", "#dc2626", "1;31"),
    Status.NO_ANSWER: StatusStyle("no answer", "n", "∅", "#b45309", "1;33"),
    Status.UNDECIDED: StatusStyle("undecided", "u", "?", "#9333ea", "1;35"),
}
"""Every status, in the order in which charts show them. The viewer's page gets the list with its data."""

ENDINGS: Final = {
    StopReason.SOLVED: "solved",
    StopReason.TURNS: "all turns used",
    StopReason.CONTEXT: "context budget used up",
    StopReason.TOKENS: "token budget used up",
    StopReason.TIME: "time budget used up",
}
"""Every reason why an episode ends, in words."""

_ANSI: Final[dict[str, str]] = {
    "system": "2",
    "problem": "1;36",
    "turn": "1",
    "feedback": "36",
    "end": "2",
    **{status: style.ansi for status, style in STATUSES.items()},
}

COLORS: Final = {
    "problem": "#0e7490",
    "feedback": "#0e7490",
    **{status.value: style.color for status, style in STATUSES.items()},
}
"""Colors that can be read on light and on dark pages."""


class Line(NamedTuple):
    """A line of a dialogue: the speaker, the kind that decides its color (a status, or a key of `COLORS`), the text."""

    who: str
    kind: str
    text: str


def dialogue_html(lines: Iterable[Line]) -> str:
    """Returns a dialogue as two columns: the speaker, and what was said."""
    rows = []
    for who, kind, text in lines:
        style = f"color:{COLORS[kind]};" if kind in COLORS else ""
        rows.append(
            f'<div style="opacity:.65;padding:.15em 1em .15em 0">{html_text(who.strip())}</div>'
            f'<div style="{style}white-space:pre-wrap;overflow-wrap:anywhere;padding:.15em 0;'
            f'unicode-bidi:isolate">{html_text(text)}</div>'
        )
    grid = "display:grid;grid-template-columns:max-content 1fr;text-align:left;max-width:60em"
    return f'<div style="{grid}">{"".join(rows)}</div>'


class RenderedDialogue(str):
    """A dialogue as text, which a notebook shows as HTML."""

    _page: str

    def __new__(cls, text: str, page: str = "") -> RenderedDialogue:  # noqa: D102 - the class docstring has the Args
        rendered = super().__new__(cls, text)
        rendered._page = page
        return rendered

    @property
    def html(self) -> str:
        """The dialogue as HTML."""
        return self._page

    def _repr_html_(self) -> str:
        return self._page


def verdict_text(verdict: Verdict) -> str:
    """Returns a verdict in a line: `wrong (different) · answer 41`."""
    answer = "" if verdict.answer is None else f" · answer {verdict.answer}"
    reason = f" ({verdict.reason})" if verdict.reason else ""
    return f"{verdict.status.value}{reason}{answer}"


def render_dialogue(
    problem: Problem,
    turns: Sequence[TurnRecord],
    stop_reason: StopReason | None,
    *,
    system_prompt: str | None = None,
    color: bool | None = None,
) -> RenderedDialogue:
    """Returns the whole dialogue as one text, which a notebook shows as HTML.

    `color` adds ANSI color codes; None asks the terminal.
    """
    return _render(_dialogue(problem, turns, stop_reason, system_prompt), color)


def draw_dialogue(
    problem: Problem, turns: Sequence[TurnRecord], stop_reason: StopReason | None, *, system_prompt: str | None = None
) -> npt.NDArray[np.uint8]:
    """Returns the dialogue as a picture, uint8 (H, W, 3); see `render_dialogue` and `base.picture`."""
    from mathturn_gym.base.picture import draw_lines

    return draw_lines(_dialogue(problem, turns, stop_reason, system_prompt), COLORS)


def _dialogue(
    problem: Problem, turns: Sequence[TurnRecord], stop_reason: StopReason | None, system_prompt: str | None
) -> list[Line]:
    return [
        *_head(problem.id, problem.prompt, system_prompt),
        *(line for index, turn in enumerate(turns) for line in _turn(index, turn)),
        *_end(stop_reason, [turn.reward for turn in turns]),
    ]


def render_episode(episode: Episode, *, color: bool | None = None) -> RenderedDialogue:
    """Returns an episode's dialogue, as `print(episode)` shows it; token counts stand for texts that were not kept."""
    prompt = episode.prompt or f"({episode.prompt_length} tokens; this episode was kept without its texts)"
    lines = _head(episode.problem_id, prompt, None)
    for turn in episode.turns:
        text = f"({len(turn.ids)} tokens)" if turn.response is None else turn.response
        lines += _said(turn.index, text, turn.verdict, turn.reward, turn.feedback)
    lines += _end(episode.stop_reason, episode.rewards.tolist(), episode.gold)
    return _render(lines, color)


def print_new(
    problem: Problem, turns: Sequence[TurnRecord], stop_reason: StopReason | None, *, system_prompt: str | None = None
) -> None:
    """Prints to the terminal what the last `reset` or `step` added."""
    lines = list(_turn(len(turns) - 1, turns[-1])) if turns else _head(problem.id, problem.prompt, system_prompt)
    lines += _end(stop_reason, [turn.reward for turn in turns])
    sys.stdout.write(_as_text(lines, _wants_color()))
    sys.stdout.flush()


def _head(problem_id: str, prompt: str, system_prompt: str | None) -> list[Line]:
    system = [] if system_prompt is None else [Line("system", "system", system_prompt)]
    return [*system, Line(f"problem {problem_id}", "problem", prompt)]


def _turn(index: int, turn: TurnRecord) -> Iterator[Line]:
    return _said(index, turn.response, turn.verdict, turn.reward, turn.feedback)


def _said(index: int, response: str, verdict: Verdict, reward: float, feedback: str) -> Iterator[Line]:
    yield Line(f"turn {index + 1}", "turn", response or "(nothing)")
    yield Line("  verdict", verdict.status, f"{verdict_text(verdict)} · {reward:+g}")
    if feedback:
        yield Line("feedback", "feedback", feedback)


def _end(stop_reason: StopReason | None, rewards: Sequence[float], gold: Sequence[str] = ()) -> list[Line]:
    lines = [Line("gold", "end", " or ".join(gold))] if gold else []
    if stop_reason is not None:
        turns = f"{len(rewards)} turn{'' if len(rewards) == 1 else 's'}"
        lines.append(Line("end", "end", f"{ENDINGS[stop_reason]} · {turns} · total reward {sum(rewards):+g}"))
    return lines


def _render(lines: Sequence[Line], color: bool | None) -> RenderedDialogue:
    return RenderedDialogue(_as_text(lines, _wants_color() if color is None else color), dialogue_html(lines))


def _as_text(lines: Sequence[Line], color: bool) -> str:
    shown = []
    for who, kind, text in lines:
        label, said = visible(who), visible(text)
        if color:
            label = f"\x1b[{_ANSI[kind]}m{label}\x1b[0m"
            said = f"\x1b[{_ANSI[kind]}m{said}\x1b[0m" if isinstance(kind, Status) else said
        shown.append(f"{label}: {said}\n")
    return "".join(shown)


def _wants_color() -> bool:
    """A terminal that was not asked to stay plain (see no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
