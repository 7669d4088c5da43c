r"""The tiers that work in the calling process: each answers only when it is certain, and passes the rest on.

exact       the same text, once both are spelt alike
text        words, names and multiple choice
rational    literal numbers
structure   trees: lists, sets, intervals, matrices, relations, with scalars compared in exact, modular, floating
            or 60-digit arithmetic
"""

from __future__ import annotations

import itertools
import re
from fractions import Fraction
from typing import NamedTuple

from mathturn_gym.types import Status
from mathturn_gym.verifier.reading._nodes import Node, number, symbols, walk
from mathturn_gym.verifier.reading._numbers import literal_value
from mathturn_gym.verifier.reading._parser import Parsed
from mathturn_gym.verifier.reading._prepared import Prepared
from mathturn_gym.verifier.reading._units import different_units
from mathturn_gym.verifier.reading._words import clock, has_prose
from mathturn_gym.verifier.tiers._literal import asks_for_number, is_literal_text
from mathturn_gym.verifier.tiers._relations import is_equation, named_value, undefined
from mathturn_gym.verifier.tiers._scalar import Rounding
from mathturn_gym.verifier.tiers._structure import same

__all__ = ["Finding", "decide"]

# `1,234` is a thousand and more, to whoever writes golds with a point; `0,125` and `12,5` are not.
_DECIMAL_COMMA = re.compile(r"(?![-+]?[1-9]\d{0,2},\d{3}$)([-+]?\d+),(\d+)")


_SIDE_BY_SIDE = re.compile(r"\d\s+\d")


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


def decide(gold: Prepared, answer: Prepared, *, evaluated: bool, rounding: Rounding) -> Finding:
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
    if asks_for_number(gold) and answer.readings and all(_unknowns(reading.node) for reading in answer.readings):
        return Finding(Status.WRONG, "names an unknown", "structure")
    found = _structure(gold, answer, rounding)
    if found is False:
        return _FOUND["structure", False]
    if found is None and _undefined(answer) and not _undefined(gold):
        # A matrix one entry of which divides by zero, say: others leave such an entry out.
        return _FOUND["structure", False]
    if found is None and not answer.readings and has_prose(answer.text) and not has_prose(gold.text):
        return Finding(Status.WRONG, "text in the answer", "text")
    if found is None and not answer.readings and _false_chain(answer.text):
        # Whoever takes the last side of a chain never looks at the others.
        return Finding(Status.WRONG, "different", "structure")
    if found is None and not answer.readings and _SIDE_BY_SIDE.search(answer.text):
        # 7 85 is no number to us; whoever joins the two may be told any number in pieces.
        return Finding(Status.WRONG, "two numbers side by side", "structure")
    if evaluated and asks_for_number(gold) and not is_literal_text(answer):
        return Finding(Status.WRONG, "unevaluated" if found else "not a literal number", "structure")
    if found and evaluated and _unsolved(answer) and not _unsolved(gold):
        return Finding(Status.WRONG, "unevaluated", "structure")
    if found:
        return _FOUND["structure", True]
    return _OPEN


def _undefined(read: Prepared) -> bool:
    """Whether every reading of a text has a part that certainly has no value."""
    return bool(read.readings) and all(undefined(reading.node) for reading in read.readings)


def _false_chain(text: str) -> bool:
    """Whether two numbers that stand side by side in a chain of equations differ by more than rounding."""
    sides = [side.strip() for side in text.split("=")]
    for one, other in itertools.pairwise(sides):
        first, second = literal_value(one), literal_value(other)
        if first is None or second is None:
            continue
        places = max((len(side.partition(".")[2]) for side in (one, other) if "." in side), default=0)
        if abs(first - second) > (Fraction(1, 10**places) if places else 0):
            return True
    return False


def _unsolved(read: Prepared) -> bool:
    """Whether an inequality of an absolute value stands there as it may have stood in the question.

    `|AB| = 5` is no inequality: it names a length.
    """
    return any(
        item.kind == "rel" and item.value != ("=",) and any(arg.kind == "abs" and symbols(arg) for arg in item.args)
        for reading in read.readings
        for item in walk(reading.node)
    )


def _unknowns(node: Node) -> bool:
    """Whether a value depends on an unknown, even one that cancels: a number was asked for."""
    value = named_value(node) if is_equation(node) else node
    return value is not None and value.kind not in ("rel", "list") and bool(symbols(value))


def _rational(gold: Prepared, answer: Prepared, evaluated: bool, rounding: Rounding) -> Finding:
    assert gold.value is not None
    assert answer.value is not None
    equal = gold.value == answer.value
    if not equal and not rounding.exact:
        try:
            equal = rounding.near(float(gold.value), float(answer.value))
        except OverflowError:
            equal = False
    if equal and evaluated and not is_literal_text(answer):
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
    for first, second in itertools.product(gold.readings, answer.readings):
        if _may_be_compared(first, second):
            found.append(_same_reading(first, second, rounding))
            if found[-1]:
                return True
    return None if None in found or not gold.readings or not answer.readings else False


_COLLECTIONS = ("list", "tuple", "set", "interval", "union", "matrix")


def _may_be_compared(gold: Parsed, answer: Parsed) -> bool:
    """Whether two readings go together: a comma before three digits separates items only where the other side has items.

    `1,234` is 1234; it is the list of 1 and 234 where the other side is a list that nobody can take for a number. Where
    both are written that way, both are numbers.
    """
    if gold.commas is False:
        return answer.commas is None and answer.node.kind in _COLLECTIONS
    return answer.commas is not False or (gold.commas is None and gold.node.kind in _COLLECTIONS)


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
        if match is not None and other.value is not None and other.value.denominator != 1 and "," not in other.text:
            return Fraction(f"{match[1]}.{match[2]}") == other.value
    return False
