"""A gold or an answer in all the ways it can be read, made once per text."""

from __future__ import annotations

import contextlib
import functools
import re
from fractions import Fraction

from mathturn_gym.verifier.reading._cleaning import clean, squeeze
from mathturn_gym.verifier.reading._delimiters import boxed
from mathturn_gym.verifier.reading._nodes import ParseError
from mathturn_gym.verifier.reading._numbers import literal_value, summed
from mathturn_gym.verifier.reading._parser import Parsed, parse
from mathturn_gym.verifier.reading._phrases import worded_value
from mathturn_gym.verifier.reading._words import choice, spelt_out, word

MAX_ANSWER = 2_000
"""Characters of an answer that is looked into; a longer one can only be equal to its gold as text."""

MAX_GOLD = 4_000
"""Characters of a gold that is looked into; Python itself refuses to read numbers of more than 4,300 digits."""

_MAX_DIGITS = 640
# A gold whose box was never closed; a response's is no answer, and does not come this far.
_OPEN_BOX = re.compile(r"\\boxed\s*\{")
_PLAIN = re.compile(
    r"\$?(-?)(?:(\d{0,18})(?:\.(\d{0,18}))?|\\[dtc]?frac\s{0,3}\{\s{0,3}(\d{1,18})\s{0,3}\}\s{0,3}\{\s{0,3}(\d{1,18})\s{0,3}\})\$?\.?",
    re.ASCII,
)
_MEASURES = re.compile(r"\d\D*[a-z]\D*\d+(?:\.\d+)?\D*[a-z]")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_BOXES = re.compile(r"\\(?:boxed|fbox)(?=\s*\{)")
_OUTSIDE = re.compile(r"\\(?:boxed|fbox)\s*\{[^{}]*\}")
_OPERATOR = re.compile(
    r"[-+*/^_\d!%]|\\(?:[dt]?frac|sqrt|ln|log|sin|cos|tan|sum|int|binom|left|[lr]floor|[lr]ceil|overline)(?![a-z])"
)
_WORDS = re.compile(r"(?<!\\)\b[a-zA-Z]{2,}")


class Prepared:
    """An answer or a gold, in all the ways it can be read; made once per text.

    Args:
        source: The text as it was given.
        text: The text in one spelling.
        value: Its value where it is a literal number.
    """

    __slots__ = ("_labels", "_readings", "source", "squeezed", "text", "value")

    def __init__(self, source: str, text: str, value: Fraction | None) -> None:
        self.source = source
        self.text = text
        self.squeezed = squeeze(text)
        self.value = value
        # What a number never needs is read when it is first asked for.
        self._labels: tuple[str | None, str | None] | None = (None, None) if value is not None else None
        self._readings: tuple[Parsed, ...] | None = None

    @property
    def word(self) -> str | None:
        """Its words in lower case where it is text."""
        return self._named()[0]

    @property
    def choice(self) -> str | None:
        """Its letter where it is a choice."""
        return self._named()[1]

    def _named(self) -> tuple[str | None, str | None]:
        if self._labels is None:
            self._labels = word(self.text), choice(self.text)
        return self._labels

    @property
    def readings(self) -> tuple[Parsed, ...]:
        """The trees that the text may stand for; none where it is not covered by the grammar."""
        if self._readings is None:
            self._readings = _read(self.text)
        return self._readings


_COMMA = re.compile(r"[1-9]\d{0,2},\d{3}(?!\d)")


def _read(text: str) -> tuple[Parsed, ...]:
    readings: list[Parsed] = []
    if _COMMA.search(text) is None:
        with contextlib.suppress(ParseError):
            readings.append(parse(text))
        return tuple(readings)
    for thousands in (True, False):
        with contextlib.suppress(ParseError):
            readings.append(parse(text, thousands=thousands))
            readings[-1].commas = thousands
    if len(readings) == 2 and readings[0].node == readings[1].node:
        # Between brackets a comma separates, and there is nothing to choose.
        readings = readings[:1]
        readings[0].commas = None
    return tuple(readings)


def prepare(text: str) -> Prepared:
    """Reads a text once, for every comparison to come, as long as memory allows."""
    return _short(text) if len(text) <= 128 else _long(text)


def _prepare(text: str) -> Prepared:
    source = text
    digits = text[1:] if text[:1] == "-" else text
    # Python reads no more digits than `sys.set_int_max_str_digits` allows, which is never less than 640.
    if digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS:
        return Prepared(source, text, Fraction(int(text)))
    # Most answers are numbers in a usual spelling, which nothing below would change.
    if (plain := _PLAIN.fullmatch(text)) is not None:
        sign, whole, decimals, top, bottom = plain.groups("")
        if top and int(bottom):
            return Prepared(source, f"{sign}\\frac{{{top}}}{{{bottom}}}", Fraction(int(sign + top), int(bottom)))
        if decimals:
            value = Fraction(int(f"{sign}{whole}{decimals}"), 10 ** len(decimals))
            return Prepared(source, f"{sign}{whole}.{decimals}", value)
        if whole:
            return Prepared(source, sign + whole, Fraction(int(sign + whole)))
    places = boxed(text)
    if places is not None and _WORDS.search(_BOXES.sub("", text)) is None and _OPERATOR.search(_OUTSIDE.sub("", text)):
        # A box inside a formula is a part of it.
        text = _BOXES.sub("", text)
    elif places is not None:
        text = ", ".join(text[start:end].strip() for start, end in places)
    elif (cut_off := _OPEN_BOX.search(text)) is not None:
        text = text[cut_off.end() :]
    text = clean(text)
    if (text.count("\\text") > 1 or (" " in text and "\\" not in text)) and _MEASURES.search(text) is not None:
        text = summed(" ".join(_TEXT.sub(r" \1 ", text).split())) or text
    text = worded_value(text) or spelt_out(text) or text
    return Prepared(source, text, literal_value(text))


# A tree takes some 150 bytes for each character of its text: 4096 short ones and 128 of any length stay below 80 MB.
_short = functools.lru_cache(maxsize=4096)(_prepare)
_long = functools.lru_cache(maxsize=128)(_prepare)


def answer_key(answer: str) -> str:
    r"""The canonical form of an answer: two texts with one key are one answer.

    The value of a literal number as a reduced fraction, the words of a text in lower case, the letter of a choice, and
    otherwise the text in one spelling without the spaces that separate nothing. Answers with different keys may still
    be equal as mathematics: that is a verifier's work, not a key's.

    Args:
        answer: The answer as it was taken from a response (`Verdict.answer`).

    >>> [answer_key(text) for text in (" 0.50", "\\frac{1}{2}", "1,234", "1234.0", "x + 1", "\\text{Yes}")]
    ['1/2', '1/2', '1234', '1234', 'x+1', 'yes']
    """
    if len(answer) > MAX_ANSWER:
        return "".join(answer.split())
    read = prepare(answer)
    if read.value is not None:
        return str(read.value)
    return read.choice or read.word or read.squeezed


def is_readable(answer: str) -> bool:
    """Whether a text is mathematics, words or a choice to us, whatever the gold answer is."""
    if len(answer) > MAX_ANSWER:
        return False
    read = prepare(answer)
    return read.value is not None or bool(read.readings) or read.word is not None or read.choice is not None
