"""Answers that are words: names, yes and no, numbers spelt out, letters of a multiple choice."""

from __future__ import annotations

import re

from mathturn_gym.verifier.reading._lexer import FUNCTIONS
from mathturn_gym.verifier.reading._phrases import PARTS, SCALES, may_follow

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen"
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SMALL = {name: value for value, name in enumerate(_ONES.split())} | {
    name: 10 * value for value, name in enumerate(_TENS, 2)
}
_MAX_NUMBER_WORDS = 24

_PHRASES = {
    "\\text{does not exist}": "dne;d.n.e;does not exist;it does not exist;the limit does not exist;undefined",
    "\\emptyset": "no solution;no solutions;no real solution;no real solutions;there is no solution;there are no solutions;no solution exists;no solutions exist;none;empty set;the empty set;no such numbers",
    "\\mathbb{R}": "all real numbers;all reals;the real numbers;real numbers;the set of all real numbers",
    "\\infty": "infinity;positive infinity",
    "-\\infty": "negative infinity;minus infinity",
}
_SAME_AS = {phrase: latex for latex, phrases in _PHRASES.items() for phrase in phrases.split(";")}

_SHORT_WORDS = frozenset(("yes", "no", "odd", "true", "all"))

_AND_A_PART = re.compile(r"\d{1,9} and (?:a|one|two|three) [a-z]+")
_CLOCK = re.compile(r"0?(\d{1,2}):(\d{2})\s*([ap])\.?\s*m\.?", re.IGNORECASE)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_WORD = re.compile(r"[a-z][a-z '’.,;:!?\-]*")
_CHOICE = re.compile(r"(?:(?:[Oo]ption|[Cc]hoice)\s)?[{(\[]{0,4}\s?([A-Z])\s?[)}\].:]{0,4}")
_CHOICE_LETTER = re.compile(r"\(([A-J])\)")
# `(B) is wrong` says something of B.
_LABELLED = re.compile(
    r"(?:\{?\(([A-J])\)\}?|([A-J])[).:])\s*(?!(?:is|are|was|isn['’]t|cannot|can['’]t|would|should|may|might|could|seems|fails|or|and|not|"
    r"but|if|unless|contradicts)\b)\S.*",
    re.DOTALL,
)


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
    lower = plain.lower().strip(" .,;:!'")
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
    letter = next(letter for letter in match.groups() if letter)
    # `(A), (B)` chooses none.
    others = _CHOICE_LETTER.findall(plain[match.end(1) if match[1] else 0 :]) if match.re is _LABELLED else []
    return None if set(others) - {letter} else letter


def has_prose(text: str) -> bool:
    r"""Whether an answer talks: text that is neither a unit nor a name, such as `7\\text{ is wrong, it is 8}`."""
    return any(not may_follow(content) for content in _TEXT.findall(text))


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
    if not text or not (text[0].isalpha() or text.startswith("\\text") or _AND_A_PART.fullmatch(text)):
        return None
    plain = _unwrapped(text).lower().rstrip(".")
    if plain in _SINGLE:
        return _SINGLE[plain]
    counted, _, noun = plain.rpartition(" ")
    # `three apples` are three of them.
    if noun in ("dozen", "dozens") and (dozens := _number_in_words(counted or "one")) is not None:
        return str(12 * int(dozens)) if dozens.isdigit() else None
    named = noun.isalpha() and may_follow(noun)
    return _SAME_AS.get(plain) or _number_in_words(plain) or (_number_in_words(counted) if named else None)


_ROMAN = re.compile(r"(?=[IVXLCDM]*[IVX])(M{0,3})(CM|CD|D?C{0,3})(XC|XL|L?X{0,3})(IX|IV|V?I{0,3})")
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def roman(text: str) -> int | None:
    r"""The value of a Roman numeral of two letters or more, one of them I, V or X (CD is rather a segment); else None.

    >>> [roman(text) for text in ("XIV", "\\text{MCMXC}", "XIIII", "CD", "V")]
    [14, 1990, None, None, None]
    """
    plain = _unwrapped(text).strip("{} ")
    if len(plain) < 2 or _ROMAN.fullmatch(plain) is None:
        return None
    values = [_ROMAN_VALUES[letter] for letter in plain]
    return sum(-one if one < after else one for one, after in zip(values, [*values[1:], 0], strict=True))


_SINGLE = {"a dozen": "12", "one dozen": "12", "half": "\\frac{1}{2}"}
_SIGNED = re.compile(r"(?:^|\s)-\s*\d")


def _number_in_words(text: str) -> str | None:
    """A number that is spelt out, as digits: `one thousand and six`, `minus two thirds`, `three and a half`."""
    if _SIGNED.search(text):
        # `minus -7` is 7, and `negative -7` is unclear.
        return None
    words = text.replace("-", " ").rstrip(".").split()
    sign = "-" if words[:1] in (["minus"], ["negative"]) else ""
    words = words[1:] if sign else words
    if not 0 < len(words) <= _MAX_NUMBER_WORDS:
        return None
    part = PARTS.get(words[-1])
    if part is None:
        whole = _whole_in_words(words)
        return None if whole is None else f"{sign}{whole}"
    before = words[:-1]
    joined = len(before) - 1 - before[::-1].index("and") if "and" in before else -1
    counted = _whole_in_words(before[joined + 1 :]) if before[joined + 1 :] != ["a"] else 1
    whole = _whole_in_words(before[:joined]) if joined > 0 else 0
    if counted is None or whole is None or (words[-1] in ("second", "hundredth") and not before):
        return None
    return f"{sign}\\frac{{{whole * part + counted}}}{{{part}}}"


def _whole_in_words(words: list[str]) -> int | None:
    """A whole number that is spelt out; None for anything else."""
    total = group = 0
    last = 10**15
    known = False
    if len(words) == 1 and words[0].isascii() and words[0].isdigit():
        return int(words[0])
    for index, word in enumerate(words):
        if word in _SMALL:
            group += _SMALL[word]
            # "twenty one" is 21, "one twenty" and "two three" are no numbers.
            if known and words[index - 1] in _SMALL and not (words[index - 1] in _TENS and 0 < _SMALL[word] < 10):
                return None
        elif word == "hundred" and (known or not index):
            group = max(group, 1) * 100
        elif word in SCALES and SCALES[word] < last:
            last = SCALES[word]
            total, group = total + max(group, 1) * last, 0
        elif word != "and" or not known or index == len(words) - 1:
            return None
        known = True
    return total + group if known else None
