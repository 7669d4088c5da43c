"""What the environment says after a turn: from a verdict to a text (pure functions).

A feedback is any callable `FeedbackContext -> str`; the names in `FEEDBACK` are the built-in ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from mathturn_gym.errors import InvalidValueError, raise_unknown_name
from mathturn_gym.types import Problem, Verdict

__all__ = ["FEEDBACK", "RIGHT_TEXT", "WRONG_TEXT", "Feedback", "FeedbackContext", "get_feedback"]

RIGHT_TEXT: Final = "Congratulations! You are correct!"
"""What AReaL's `MathMultiTurnAgent` says after a right answer."""

WRONG_TEXT: Final = "Unfortunately your answer is wrong. Let's try again."
"""What it says after any other."""


@dataclass(frozen=True, slots=True)
class FeedbackContext:
    """What a feedback may look at.

    Args:
        problem: The problem, gold answer included: a feedback decides what to reveal.
        verdict: Of the turn that was just played.
        turn: Its index, from 0.
        num_turns: Turns of the whole episode.
        response: The text that was verified.
    """

    problem: Problem
    verdict: Verdict
    turn: int
    num_turns: int
    response: str


Feedback: TypeAlias = Callable[[FeedbackContext], str]


def plain(context: FeedbackContext) -> str:
    """Right or wrong, in the original agent's two sentences; undecided and no answer are told as wrong."""
    return RIGHT_TEXT if context.verdict.correct else WRONG_TEXT


def areal(context: FeedbackContext) -> str:
    """The original agent's choice between its two sentences: any score above 0 is congratulated."""
    return RIGHT_TEXT if context.verdict.value else WRONG_TEXT


def hint(context: FeedbackContext) -> str:
    """`plain`, and after a wrong answer the problem's next hint (its last one again when they run out)."""
    return _with_hint(context, context.problem.hints)


def hint_flipped(context: FeedbackContext) -> str:
    """`hint` with the problem's false hints: the control that shows whether a policy listens."""
    return _with_hint(context, context.problem.false_hints)


def _with_hint(context: FeedbackContext, hints: tuple[str, ...]) -> str:
    if context.verdict.correct or not hints:
        return plain(context)
    return f"{WRONG_TEXT} Hint: {hints[min(context.turn, len(hints) - 1)]}"


FEEDBACK: Final[dict[str, Feedback]] = {
    "areal-v0.3": areal,  # in the environment this name also chooses the original's ids (`dialogue_areal`)
    "hint": hint,
    "hint-flipped": hint_flipped,
    "plain": plain,
}


def get_feedback(feedback: str | Feedback) -> Feedback:
    """The feedback behind a name; a callable is returned as it is.

    Raises:
        InvalidValueError: the name is unknown (the nearest one is suggested), or the value is no callable.

    >>> get_feedback("plain") is plain
    True
    """
    if isinstance(feedback, str):
        if feedback not in FEEDBACK:
            raise_unknown_name("feedback", feedback, FEEDBACK)
        return FEEDBACK[feedback]
    if not callable(feedback):
        raise InvalidValueError(f"feedback must be a name or a callable FeedbackContext -> str, got {feedback!r}")
    return feedback
