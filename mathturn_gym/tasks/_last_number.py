"""Verifiers for models that say a sum and its result: the last number counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from mathturn_gym.types import Status, TurnContext, Verdict

__all__ = ["ended_number", "last_number"]

_NUMBER: Final = re.compile(r"-?\d{1,20}")
_SAYS: Final = re.compile(r"(?:[=:≈]|\b(?:is|are))$")
_OPERATORS: Final = tuple("+-*/×÷·^(")


def last_number(response: str, gold: str | Sequence[str]) -> Verdict:
    """Right where the last whole number of a response is an accepted answer.

    `4 + 1 = 5` is an equation, which the built-in verifier takes for work left undone. A small chat model answers sums in
    just this way; here what stands last is what it says the result is.

    Args:
        response: What the model wrote.
        gold: The accepted answer, or several; whole numbers.

    Returns:
        The verdict, with the number as its answer: which answers a model gives again is measured.

    >>> last_number("4 + 1 = 5", "5").answer, last_number("It is 4+1.", "5").status.value, last_number("No idea", "5").reason
    ('5', 'wrong', 'no number')
    """
    numbers = list(_NUMBER.finditer(response))
    if not numbers:
        return Verdict(Status.NO_ANSWER, "no number")
    value = int(numbers[-1][0])
    accepted = [one for one in ((gold,) if isinstance(gold, str) else gold) if _NUMBER.fullmatch(one)]
    match = next((one for one in accepted if int(one) == value), None)
    return Verdict(
        Status.WRONG if match is None else Status.RIGHT,
        "different" if match is None else "equal",
        answer=str(value),
        span=numbers[-1].span(),
        gold=match or (accepted[-1] if accepted else None),
        tier="custom",
        rule="number",
    )


def ended_number(context: TurnContext) -> Verdict:
    """`last_number` where it is said to be the result, by a turn that ended before its budget did; any other has no answer.

    "To solve the equation 7x+8 = 15, we need" ends, where the budget is small, at "To solve the equation 7x+8 = 1", whose last
    number is the answer to that very equation. A policy that is rewarded for this learns to copy equations; and one whose texts
    must end learns to end them at "7x + 8", which is right wherever the answer is 8. So the number must stand behind "=", ":" or
    "is", or be the only one, and belong to no formula that goes on.

    Args:
        context: The turn. One whose last token came just in time has used its whole budget, and counts as cut off; where a text is
            judged without its tokens (`max_tokens` is 0), nothing is known to have been cut off.

    >>> from dataclasses import replace
    >>> import numpy as np
    >>> from mathturn_gym.types import Problem
    >>> turn = TurnContext(Problem("p/1", "Solve 7x+8=15 for x.", "1"), 0, 4, "x = 1", ids=np.arange(4), max_tokens=12)
    >>> ended_number(turn).status.value, ended_number(replace(turn, max_tokens=4)).reason
    ('right', 'cut off')
    >>> ended_number(replace(turn, response="7x + 1")).reason
    'not said to be the result'
    """
    if 0 < context.max_tokens <= len(context.ids):
        return Verdict(Status.NO_ANSWER, "cut off")
    found = last_number(context.response, context.problem.gold)
    if found.span is not None and not _is_said(context.response, *found.span):
        return Verdict(Status.NO_ANSWER, "not said to be the result")
    return found


def _is_said(text: str, start: int, end: int) -> bool:
    """Whether the number at a place is said to be a result, as far as its neighbours tell."""
    before = text[:start].rstrip(" *$")
    if text[end : end + 1].isalpha() or before.endswith(_OPERATORS):
        return False
    return _SAYS.search(before) is not None or len(_NUMBER.findall(text)) == 1
