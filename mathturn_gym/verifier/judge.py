r"""The tiers that work in the calling process: each answers only when it is certain, and passes the rest on.

exact       the same text, once both are spelt alike
text        words, names and multiple choice
rational    literal numbers
structure   trees: lists, sets, intervals, matrices, relations, with scalars compared in exact, modular, floating
            or 60-digit arithmetic
"""

from __future__ import annotations

import functools
import re
from fractions import Fraction
from typing import NamedTuple

from mathturn_gym.types import Status
from mathturn_gym.verifier.clean import clean, squeeze
from mathturn_gym.verifier.compare import same
from mathturn_gym.verifier.extract import extract
from mathturn_gym.verifier.literal import is_literal
from mathturn_gym.verifier.nodes import Node, ParseError, number, symbols
from mathturn_gym.verifier.parser import Parsed, parse
from mathturn_gym.verifier.rational import rational
from mathturn_gym.verifier.relations import is_equation, named_value
from mathturn_gym.verifier.scalar import Rounding
from mathturn_gym.verifier.units import different_units
from mathturn_gym.verifier.words import choice, clock, has_prose, spelt_out, word

__all__ = ["MAX_ANSWER", "Finding", "Prepared", "judge", "prepare"]

MAX_ANSWER = 2_000
"""Characters of an answer that is looked into; a longer one can only be equal to its gold as text."""


class Finding(NamedTuple):
    """What a tier says; `status` is None where the case is passed on."""

    status: Status | None
    reason: str
    tier: str


_OPEN = Finding(None, "", "")
# What most findings are, made once.
_FOUND = {
    (tier, equal): Finding(Status.RIGHT, "equal", tier) if equal else Finding(Status.WRONG, "different", tier)
    for tier in ("exact", "rational", "text", "structure")
    for equal in (True, False)
}


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

    @property
    def literal(self) -> bool:
        """Whether the text is a literal number, whatever its units."""
        if self.value is not None and (self.value.denominator != 1 or self.text.lstrip("-").isdigit()):
            return True
        return any(is_literal(reading.node) for reading in self.readings)

    @property
    def asks_for_number(self) -> bool:
        """Whether the text, as a gold, is one literal number."""
        if self.value is not None and "," not in self.text:
            return self.literal
        return self.literal and not any(reading.node.op == "list" for reading in self.readings[:1])


_COMMA = re.compile(r"\d,\d{3}(?!\d)")
_DECIMAL_COMMA = re.compile(r"([-+]?\d+),(\d+)")


def _read(text: str) -> tuple[Parsed, ...]:
    readings: list[Parsed] = []
    for thousands in (True, False) if _COMMA.search(text) else (True,):
        try:
            readings.append(parse(text, thousands=thousands))
        except ParseError:
            continue
    return tuple(readings)


def prepare(text: str) -> Prepared:
    """Reads a text once, for every comparison to come, as long as memory allows."""
    return _short(text) if len(text) <= 128 else _long(text)


def _prepare(text: str) -> Prepared:
    source = text
    digits = text[1:] if text[:1] == "-" else text
    if digits.isascii() and digits.isdigit():
        return Prepared(source, text, Fraction(int(text)))
    if "\\boxed" in text or "\\fbox" in text:
        found = extract(text)
        text = text if found is None else found.text
    text = clean(text)
    text = spelt_out(text) or text
    return Prepared(source, text, rational(text))


# A tree takes some 150 bytes for each character of its text: 4096 short ones and 128 of any length stay below 80 MB.
_short = functools.lru_cache(maxsize=4096)(_prepare)
_long = functools.lru_cache(maxsize=128)(_prepare)


def judge(gold: Prepared, answer: Prepared, *, evaluated: bool, rounding: Rounding) -> Finding:
    """What the tiers in this process find.

    Args:
        gold: The accepted answer.
        answer: The answer.
        evaluated: Whether arithmetic that is left to do makes an answer to a literal gold wrong.
        rounding: What counts as the same number.
    """
    if answer.squeezed == gold.squeezed and answer.squeezed:
        return _FOUND["exact", True]
    if gold.value is not None and answer.value is not None:
        return _rational(gold, answer, evaluated, rounding)
    if _decimal_comma(gold, answer):
        return _FOUND["rational", True]
    if (finding := _text(gold, answer)) is not None:
        return finding
    if gold.asks_for_number and answer.readings and all(_unknowns(reading.node) for reading in answer.readings):
        return Finding(Status.WRONG, "names an unknown", "structure")
    found = _structure(gold, answer, rounding)
    if found is False:
        return _FOUND["structure", False]
    if found is None and not answer.readings and has_prose(answer.text) and not has_prose(gold.text):
        return Finding(Status.WRONG, "text in the answer", "text")
    if evaluated and gold.asks_for_number and not answer.literal:
        return Finding(Status.WRONG, "unevaluated" if found else "not a literal number", "structure")
    if found:
        return _FOUND["structure", True]
    return _OPEN


def _unknowns(node: Node) -> bool:
    """Whether a value depends on an unknown, even one that cancels: a number was asked for."""
    value = named_value(node) if is_equation(node) else node
    return value is not None and value.op not in ("rel", "list") and bool(symbols(value))


def _rational(gold: Prepared, answer: Prepared, evaluated: bool, rounding: Rounding) -> Finding:
    assert gold.value is not None
    assert answer.value is not None
    equal = gold.value == answer.value
    if not equal and not rounding.exact:
        try:
            equal = rounding.near(float(gold.value), float(answer.value))
        except OverflowError:
            equal = False
    if equal and evaluated and not answer.literal:
        return Finding(Status.WRONG, "unevaluated", "rational")
    if not equal and "," in gold.text + answer.text:
        # 1,234 may be a list, and 1,5 a decimal: the trees know more readings.
        found = _decimal_comma(gold, answer) or _structure(gold, answer, rounding)
        return _FOUND["structure", bool(found)]
    return _FOUND["rational", equal]


def _text(gold: Prepared, answer: Prepared) -> Finding | None:
    if gold.choice is not None and answer.choice is not None:
        equal = gold.choice == answer.choice
    elif (gold.choice is None) != (answer.choice is None) and "=" in gold.text + answer.text:
        # `B=C` does not choose C.
        equal = False
    elif gold.word is not None and answer.word is not None:
        equal = gold.word == answer.word
    elif gold.word is not None or answer.word is not None:
        words, other = (gold, answer) if gold.word is not None else (answer, gold)
        # Letters without a space may be a word too; anything with signs or digits is mathematics, and no word.
        equal = other.text.isalpha() and other.text.lower() == words.word
        # 10:30 is 10:30 a.m. where nothing is said of the half of the day.
        equal |= clock(words.text) is not None and words.word is not None and other.squeezed == words.word[:-2]
    elif not all(any(char.isalnum() or char == "\\" for char in side.text) for side in (gold, answer)):
        equal = False
    else:
        return None
    return _FOUND["text", equal]


def _structure(gold: Prepared, answer: Prepared, rounding: Rounding) -> bool | None:
    """True where one reading of the answer is one reading of the gold, False where none can be."""
    found: list[bool | None] = []
    for first in gold.readings:
        for second in answer.readings:
            found.append(_same_reading(first, second, rounding))
            if found[-1]:
                return True
    return None if None in found or not found else False


def _same_reading(gold: Parsed, answer: Parsed, rounding: Rounding) -> bool | None:
    if different_units(gold.units, answer.units):
        return False
    found = same(gold.node, answer.node, rounding)
    if not found and gold.degrees != answer.degrees:
        # 30 degrees are 30, and pi/6.
        first, second = (_radians(side.node) if side.degrees else side.node for side in (gold, answer))
        return True if same(first, second, rounding) else found
    return found


def _radians(node: Node) -> Node:
    return Node("mul", (node, Node("const", (), "pi"), number(Fraction(1, 180))))


def _decimal_comma(gold: Prepared, answer: Prepared) -> bool:
    """Whether one side is written with a decimal comma, and the other, with a point, is the same number."""
    for one, other in ((gold, answer), (answer, gold)):
        match = _DECIMAL_COMMA.fullmatch(one.squeezed)
        if match is not None and other.value is not None and "." in other.text:
            return Fraction(f"{match[1]}.{match[2]}") == other.value
    return False
