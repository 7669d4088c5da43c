"""Answers that are words: names, yes and no, numbers spelt out, letters of a multiple choice."""

from __future__ import annotations

import re

from mathturn_gym.verifier.lexer import FUNCTIONS

__all__ = ["choice", "number_word", "word"]

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_NUMBERS = {name: value for value, name in enumerate(_ONES)}
_NUMBERS |= {name: 10 * value for value, name in enumerate(_TENS, 2)}
_NUMBERS |= {f"{ten}-{_ONES[one]}": 10 * value + one for value, ten in enumerate(_TENS, 2) for one in range(1, 10)}
_NUMBERS |= {"hundred": 100, "one hundred": 100, "thousand": 1000, "one thousand": 1000}

_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_WORD = re.compile(r"[a-z][a-z '’.,;:!?\-]*")
_CHOICE = re.compile(r"[{(\[]*\s*([A-Z])\s*[)}\].:]*")
_LABELLED = re.compile(r"(?:\{?\(([A-J])\)\}?|([A-J])[).:])\s*\S.*", re.DOTALL)


def _unwrapped(text: str) -> str:
    return " ".join(_TEXT.sub(r" \1 ", text).split())


def word(text: str) -> str | None:
    r"""A text's words in lower case, or None where it is mathematics.

    >>> word("\\text{Evelyn}"), word("No solution"), word("xy"), word("\\sin x")
    ('evelyn', 'no solution', None, None)
    """
    plain = _unwrapped(text)
    lower = plain.lower().strip(" .,;:!?'")
    if not _WORD.fullmatch(lower):
        return None
    parts = re.findall(r"[a-z]+", lower)
    if any(part in FUNCTIONS or part in ("pi", "infinity", "inf") for part in parts):
        return None
    if "\\text" in text:
        return lower if len(lower) > 1 else None
    # Few letters without spaces may be a product of unknowns.
    return lower if len(parts) > 1 and max(map(len, parts)) > 2 or (len(parts) == 1 and len(lower) > 3) else None


def choice(text: str) -> str | None:
    r"""The letter of a multiple choice, with or without what it stands for.

    >>> choice("(B)"), choice("(B) 12"), choice("x"), choice("BC")
    ('B', 'B', None, None)
    """
    plain = _unwrapped(text)
    match = _CHOICE.fullmatch(plain) or _LABELLED.fullmatch(plain)
    if match is None:
        return None
    return next(letter for letter in match.groups() if letter)


def number_word(text: str) -> str | None:
    """The digits of a number that is spelt out, or None.

    >>> number_word("Twenty-one"), number_word("someone")
    ('21', None)
    """
    if not text or not text[0].isalpha() and text[0] != "\\":
        return None
    value = _NUMBERS.get(_unwrapped(text).lower())
    return None if value is None else str(value)
