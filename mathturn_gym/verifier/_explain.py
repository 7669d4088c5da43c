"""A verdict in words."""

from __future__ import annotations

from mathturn_gym.types import Status, Verdict

__all__ = ["explain"]

_WORDS = {
    Status.RIGHT: "Right",
    Status.WRONG: "Wrong",
    Status.NO_ANSWER: "No answer",
    Status.UNDECIDED: "Undecided (not counted as right)",
}


def explain(verdict: Verdict) -> str:
    """A verdict in one or two sentences for people.

    >>> explain(Verdict(Status.WRONG, "different", answer="41", span=(7, 9), gold="42", tier="rational"))
    "Wrong: '41' (characters 7 to 9) against '42': different. Decided by the rational tier in 0.00 ms."
    """
    text = _WORDS[verdict.status]
    if verdict.answer is not None and verdict.span is not None:
        text += f": {verdict.answer!r} (characters {verdict.span[0]} to {verdict.span[1]}) against {verdict.gold!r}"
    text += f": {verdict.reason}."
    if verdict.tier is not None:
        text += f" Decided by the {verdict.tier} tier in {verdict.seconds * 1e3:.2f} ms."
    return text
