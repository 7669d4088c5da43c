"""Answers that are words: names, yes and no, numbers spelt out, letters of a multiple choice."""

from __future__ import annotations

import re

from mathturn_gym.verifier.reading._lexer import FUNCTIONS

__all__ = ["NOT_A_UNIT", "choice", "clock", "has_prose", "spelt_out", "word"]

_ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_NUMBERS = {name: value for value, name in enumerate(_ONES)}
_NUMBERS |= {name: 10 * value for value, name in enumerate(_TENS, 2)}
_NUMBERS |= {f"{ten}-{_ONES[one]}": 10 * value + one for value, ten in enumerate(_TENS, 2) for one in range(1, 10)}
_NUMBERS |= {"hundred": 100, "one hundred": 100, "thousand": 1000, "one thousand": 1000}

_PHRASES = {
    "\\emptyset": "no solution;no solutions;no real solution;no real solutions;none;empty set;the empty set;no such numbers",
    "\\mathbb{R}": "all real numbers;all reals;the real numbers;real numbers;the set of all real numbers",
    "\\infty": "infinity;positive infinity",
    "-\\infty": "negative infinity;minus infinity",
}
_SAME_AS = {phrase: latex for latex, phrases in _PHRASES.items() for phrase in phrases.split(";")}
_SAME_AS |= {name: str(value) for name, value in _NUMBERS.items()}

NOT_A_UNIT = re.compile(
    r"\d|\b(?:is|are|not|no|wrong|but|if|it|instead|where|when|for|to|than|either|neither|all|some|any one)\b"
)
"""What occurs in sentences, and in no unit."""

_SHORT_WORDS = frozenset(("yes", "no", "odd", "true", "all"))

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})\s*([ap])\.?\s*m\.?", re.IGNORECASE)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_WORD = re.compile(r"[a-z][a-z '’.,;:!?\-]*")
_CHOICE = re.compile(r"[{(\[]*\s*([A-Z])\s*[)}\].:]*")
_LABELLED = re.compile(r"(?:\{?\(([A-J])\)\}?|([A-J])[).:])\s*\S.*", re.DOTALL)


def _unwrapped(text: str) -> str:
    if "\\text" not in text:
        return " ".join(text.split())
    return " ".join(_TEXT.sub(r" \1 ", text).split())


def word(text: str) -> str | None:
    r"""A text's words in lower case, or None where it is mathematics.

    >>> word("\\text{Evelyn}"), word("No solution"), word("xy"), word("\\sin x")
    ('evelyn', 'no solution', None, None)
    """
    if (time := clock(text)) is not None:
        return time
    plain = _unwrapped(text)
    lower = plain.lower().strip(" .,;:!?'")
    if not _WORD.fullmatch(lower):
        return None
    parts = re.findall(r"[a-z]+", lower)
    if any(part in FUNCTIONS or part in ("pi", "infinity", "inf") for part in parts):
        return None
    if "\\text" in text and not all(len(part) == 1 or part in ("and", "or") for part in parts):
        return lower
    # Few letters without spaces may be a product of unknowns, and `B and C` is a list.
    longest = max((len(part) for part in parts if part not in ("and", "or")), default=0)
    return lower if longest > 3 or (longest == 3 and len(parts) > 1) or lower in _SHORT_WORDS else None


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


def has_prose(text: str) -> bool:
    r"""Whether an answer talks: text that is neither a unit nor a name, such as `7\\text{ is wrong, it is 8}`."""
    return any(NOT_A_UNIT.search(content.lower()) for content in _TEXT.findall(text))


def clock(text: str) -> str | None:
    r"""A time of day with its half, in one spelling.

    >>> clock("\\text{4:30 p.m.}"), clock("4:30")
    ('4:30pm', None)
    """
    match = _CLOCK.fullmatch(_unwrapped(text))
    return None if match is None else f"{int(match[1])}:{match[2]}{match[3].lower()}m"


def spelt_out(text: str) -> str | None:
    r"""What words that stand for mathematics stand for: numbers, infinity, the empty set, all real numbers.

    >>> spelt_out("Twenty-one"), spelt_out("\\text{no solution}"), spelt_out("someone")
    ('21', '\\emptyset', None)
    """
    if not text or not (text[0].isalpha() or text.startswith("\\text")):
        return None
    return _SAME_AS.get(_unwrapped(text).lower())
