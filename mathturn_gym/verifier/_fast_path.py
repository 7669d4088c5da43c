"""The fast path: verdicts on a plain integer in a box, and `Verdict`s that are built without a frozen dataclass's checks."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from mathturn_gym.types import Status, Verdict
from mathturn_gym.verifier.reading._delimiters import WINDOW
from mathturn_gym.verifier.reading._extraction import MAX_RESPONSE

_MAX_DIGITS = 17
_RIGHT, _WRONG = Status.RIGHT, Status.WRONG


class _Draft:
    """A `Verdict` while it is being written: the same slots, and none of a frozen class's checks."""

    __slots__ = Verdict.__slots__


def quick_verdict(
    status: Status, reason: str, answer: str, span: tuple[int, int], gold: str, tier: str, rule: str, seconds: float
) -> Verdict:
    """`Verdict(...)` of a right or wrong answer at a sixth of the price.

    A frozen dataclass sets each field through `object.__setattr__`, which is most of what a verdict on an integer
    would cost. Python lets an object change its class where both have the same slots.

    >>> quick_verdict(Status.RIGHT, "equal", "7", (0, 1), "7", "exact", "box", 0.0).value
    1.0
    """
    draft: Any = _Draft()
    draft.status = status
    draft.reason = reason
    draft.score = 1.0 if status is _RIGHT else 0.0
    draft.answer = answer
    draft.span = span
    draft.gold = gold
    draft.tier = tier
    draft.rule = rule
    draft.seconds = seconds
    draft.__class__ = Verdict
    verdict: Verdict = draft
    return verdict


def quick_integer(response: object, gold: object, hashes: bool, start: float) -> Verdict | None:
    """The verdict where the last box (or `####`) holds a plain integer, and the gold is one: what the tiers would say.

    None wherever `extract` might find something else, or commas might make a list. Most answers that a training run
    verifies are of this kind, so that every function call counts here.

    Args:
        response: What the model wrote, or anything else, which is not for us.
        gold: What `Verifier.verify` was given.
        hashes: Whether what follows `####` counts as an answer.
        start: `time.perf_counter()` when it began.
    """
    if type(gold) is not str:
        if type(gold) is not tuple or len(gold) != 1 or type(gold[0]) is not str:
            return None
        gold = gold[0]
    if type(response) is not str or not gold.isdigit():
        return None
    command = response.rfind("\\boxed")
    if command >= 0:
        begin = command + 7
        end = response.find("}", begin)
        if end < 0 or response[begin - 1] != "{" or response.find("\\fbox", end) >= 0:
            return None
        # A box shortly before may belong to the same answer, and one around it hold more.
        before = command - WINDOW if command > WINDOW else 0
        if response.find("box", before, command) >= 0:
            return None
        if response.find("}", before, command) >= 0 and response.find("box", 0, before) >= 0:
            return None
    else:
        begin = response.rfind("####") + 4 if hashes else 0
        if begin < 4 or "\\fbox" in response:
            return None
        begin += response.startswith(" ", begin)
        end = len(response)
    # A thought may hide the box from the reader; a long response is only searched at its end.
    if "think>" in response or len(response) > MAX_RESPONSE:
        return None
    answer = response[begin:end]
    if answer == gold:
        status, tier = _RIGHT, "exact"
    else:
        digits = answer if answer.isdigit() else answer.replace(",", "")
        if not digits.isdigit() or len(digits) > _MAX_DIGITS or len(gold) > _MAX_DIGITS:
            return None
        if not digits.isascii() or not gold.isascii():
            return None
        if digits is not answer and answer != f"{int(gold):,}":
            return None
        status, tier = (_RIGHT, "rational") if int(digits) == int(gold) else (_WRONG, "rational")
    draft: Any = _Draft()
    draft.status = status
    draft.tier = tier
    if status is _RIGHT:
        draft.reason = "equal"
        draft.score = 1.0
    else:
        draft.reason = "different"
        draft.score = 0.0
    draft.answer = answer
    draft.span = begin, end
    draft.gold = gold
    draft.rule = "box" if command >= 0 else "hash"
    draft.seconds = perf_counter() - start
    draft.__class__ = Verdict
    verdict: Verdict = draft
    return verdict
