"""What of a wrong answer is wrong, without saying what is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from mathturn_gym.verifier import answer_key, literal_value

__all__ = ["grade"]

_BRACKETS = {"(": ")", "[": "]"}


def grade(answer: str, gold: Sequence[str], texts: Mapping[str, str]) -> list[str]:
    """Sentences about a wrong answer; none where there is nothing to compare.

    Of a number: its sign, or else its size, a factor above ten, and how many of its digits stand where they should (for
    whole numbers of the same length, of two digits or more). Of a tuple or list: how many elements there should be, or
    else which are right. Only the first accepted answer is looked at.

    >>> from mathturn_gym.feedback.texts import TEXTS
    >>> grade("-41", ["42"], TEXTS["en"]), grade("41", ["42"], TEXTS["en"])
    (['Its sign is wrong.'], ['It is too small in size.', '1 of its 2 digits are right.'])
    >>> grade("(1, 3)", ["(1, 2)"], TEXTS["en"])
    ['These of its elements are right: 1.']
    """
    ours, theirs = _elements(answer), _elements(gold[0])
    if theirs is not None and len(theirs) > 1:
        return _tuple(ours or [answer], theirs, texts)
    value, wanted = literal_value(answer), literal_value(gold[0])
    return [] if value is None or wanted is None else _number(value, wanted, texts)


def _number(value: Fraction, wanted: Fraction, texts: Mapping[str, str]) -> list[str]:
    if value * wanted < 0:
        return [texts["sign"]]
    if abs(value) == abs(wanted):
        return []
    said = [texts["small" if abs(value) < abs(wanted) else "large"]]
    low, high = sorted((abs(value), abs(wanted)))
    if low and high > 10 * low:
        said.append(texts["far"])
    if value.denominator == wanted.denominator == 1:
        digits, goal = str(abs(int(value))), str(abs(int(wanted)))
        if len(digits) == len(goal) > 1:
            right = sum(a == b for a, b in zip(digits, goal, strict=True))
            said.append(texts["digits"].replace("{right}", str(right)).replace("{count}", str(len(goal))))
    return said


def _tuple(ours: Sequence[str], theirs: Sequence[str], texts: Mapping[str, str]) -> list[str]:
    if len(ours) != len(theirs):
        return [texts["count"].replace("{count}", str(len(theirs)))]
    right = [
        str(k) for k, (a, b) in enumerate(zip(ours, theirs, strict=True), start=1) if answer_key(a) == answer_key(b)
    ]
    return [texts["elements"].replace("{which}", ", ".join(right))] if right else [texts["no_element"]]


def _elements(text: str) -> list[str] | None:
    """The elements of a flat tuple or list; None for anything else."""
    text = text.replace(r"\left", "").replace(r"\right", "").strip()
    if len(text) > 1 and _BRACKETS.get(text[0]) == text[-1]:
        text = text[1:-1]
    if "," not in text or any(bracket in text for bracket in "()[]{}"):
        return None
    return [part.strip() for part in text.split(",")]
