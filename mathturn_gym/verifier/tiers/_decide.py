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
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from mathturn_gym.types import Status
from mathturn_gym.verifier.reading._cleaning import ROW
from mathturn_gym.verifier.reading._lexer import FUNCTIONS, listed
from mathturn_gym.verifier.reading._nodes import Node, UndefinedError, Visitor, number, symbols, walk
from mathturn_gym.verifier.reading._numbers import conversion, is_angle, literal_value, unit_of
from mathturn_gym.verifier.reading._parser import GREEK, Parsed
from mathturn_gym.verifier.reading._prepared import Prepared, prepare
from mathturn_gym.verifier.reading._statements import has_prose as has_words
from mathturn_gym.verifier.reading._words import clock, has_prose, roman
from mathturn_gym.verifier.tiers._fields import FloatField, exact
from mathturn_gym.verifier.tiers._relations import is_equation, mixes_and_with_or, named_value, undefined
from mathturn_gym.verifier.tiers._scalar import Rounding, same_scalar
from mathturn_gym.verifier.tiers._structure import same


def _whole(node: Node) -> Fraction | None:
    """A literal number with its sign."""
    if node.kind == "neg":
        inner = _whole(node.args[0])
        return None if inner is None else -inner
    return node.value if node.kind == "num" and isinstance(node.value, Fraction) else None


def _power_of_ten(node: Node, least: int) -> bool:
    """Whether a tree is a power of ten that is large or small enough to be a way of writing, not a task."""
    if node.kind != "pow" or _whole(node.args[0]) != 10:
        return False
    power = _whole(node.args[1])
    return power is not None and power.denominator == 1 and abs(power) >= least


class _IsLiteral(Visitor[bool]):
    def visit_num(self, node: Node) -> bool:
        return True

    visit_mixed = visit_num

    def visit_neg(self, node: Node) -> bool:
        return all(map(self.visit, node.args))

    visit_percent = visit_neg
    visit_list = visit_neg

    def visit_div(self, node: Node) -> bool:
        # A fraction whose value is an integer is a division that was not done.
        top, bottom = _whole(node.args[0]), _whole(node.args[1])
        return top is not None and bottom is not None and bool(bottom) and (top / bottom).denominator != 1

    def visit_mul(self, node: Node) -> bool:
        return len(node.args) == 2 and _whole(node.args[0]) is not None and _power_of_ten(node.args[1], 1)

    def visit_rel(self, node: Node) -> bool:
        value = named_value(node) if is_equation(node) else None
        # `5+2=7` is a statement about numbers, and names nothing.
        return len(node.args) == 2 and value is not None and bool(symbols(node)) and self.visit(value)

    def visit_other(self, node: Node) -> bool:
        return _power_of_ten(node, 6)


_IS_LITERAL = _IsLiteral()


def is_literal(node: Node) -> bool:
    r"""Whether a tree is an integer, a decimal, a fraction, a mixed or a scientific number, perhaps named or in percent.

    >>> from mathturn_gym.verifier.reading._parser import parse
    >>> [is_literal(parse(text).node) for text in ("-3/4", "18/2", "12+34", "6.02\\cdot 10^{23}", "x=5")]
    [True, False, False, True, True]
    """
    return _IS_LITERAL.visit(node)


def is_literal_text(read: Prepared) -> bool:
    """Whether a text is a literal number, whatever its units."""
    if read.value is not None and (read.value.denominator != 1 or read.text.lstrip("-").isdigit()):
        return True
    return any(is_literal(reading.node) for reading in read.readings)


def asks_for_number(gold: Prepared) -> bool:
    """Whether a gold is one literal number."""
    if gold.value is not None and "," not in gold.text:
        return is_literal_text(gold)
    return is_literal_text(gold) and not any(reading.node.kind == "list" for reading in gold.readings[:1])


# In golds with a decimal point `1,234` is a number above a thousand; `0,125` and `12,5` are not.
_DECIMAL_COMMA = re.compile(r"(?![-+]?[1-9]\d{0,2},\d{3}$)([-+]?\d+),(\d+)")


# `1.234,5`, and `1,00,000` as India writes it: numbers where the other side is that number, and lists elsewhere.
_POINT_GROUPS = re.compile(r"-?[1-9]\d{0,2}(?:\.\d{3})+,\d+")
_INDIAN_GROUPS = re.compile(r"-?[1-9]\d?(?:,\d{2})+,\d{3}")
_DATE = re.compile(r"\d{1,4}-(?:0\d-\d{1,4}|\d\d?-0\d)")
_SIDE_BY_SIDE = re.compile(r"\d\s+\d")


# `[1, 2[` is a half-open interval.
_BROKEN_OFF = re.compile(r"(?:\\(?:ldots|cdot|times|frac|sqrt)|[-+*/^_=<>{(]|\A[^\[\]]*\[)\s*\Z")


def _is_broken_off(text: str) -> bool:
    """Whether a text ends in an operator or in dots, or before a brace was closed."""
    return _BROKEN_OFF.search(text) is not None or text.count("{") > text.count("}")


_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")


# What only symbolic workers can work out to a number.
_WORKED_OUT_ELSEWHERE = re.compile(
    r"\\(?:int|sum|prod|lim|choose|over|det|infty|frac|sqrt|log|ln|sin|cos|tan|begin|binom|lvert|left)"
)


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


def decide(gold: Prepared, answer: Prepared, *, evaluated: bool, rounding: Rounding, units: bool = False) -> Finding:
    """What the tiers in this process find.

    Args:
        gold: The accepted answer.
        answer: The answer.
        evaluated: Whether arithmetic that is left to do makes an answer to a literal gold wrong.
        rounding: What counts as the same number.
        units: Whether an answer needs the unit that the gold has.
    """
    if units and _unit_is_missing(gold, answer):
        return Finding(Status.WRONG, "unit missing", "structure")
    # `1, 234` is no number, though it is `1,234` without its space.
    if answer.squeezed == gold.squeezed and answer.squeezed and not (answer.value is None and gold.value is not None):
        return _FOUND["exact", True]
    if gold.value is not None and answer.value is not None:
        return _rational(gold, answer, evaluated, rounding)
    if _DATE.fullmatch(answer.text):
        # 2020-01-02 is a day, and no difference.
        return _FOUND["text", False]
    if _is_broken_off(answer.text) and not _is_broken_off(gold.text):
        return Finding(Status.WRONG, "broken off", "text")
    if _false_approximation(answer.text):
        return Finding(Status.WRONG, "different", "structure")
    if _decimal_comma(gold, answer):
        return _FOUND["rational", True]
    if _roman(gold, answer):
        return _FOUND["text", True]
    if (finding := _text(gold, answer)) is not None:
        return finding
    if asks_for_number(gold) and answer.readings and all(_unknowns(reading.node) for reading in answer.readings):
        # One that cancels (2x/x for 2) leaves the value, where that is shown; the answer is not worked out.
        shown = not _states(answer) and _structure(gold, answer, rounding)
        if shown and not evaluated:
            return _FOUND["structure", True]
        return Finding(Status.WRONG, "unevaluated" if shown else "names an unknown", "structure")
    found = _structure(gold, answer, rounding)
    if found is False:
        return _FOUND["structure", False]
    if found is None and _equations(gold) and _equations(answer):
        # Others solve both, and two equations without solutions would be one.
        return Finding(Status.UNDECIDED, "equations not shown to be the same", "structure")
    if found is None and any(mixes_and_with_or(item) for item in _lists(gold, answer)):
        # Others read such a list as one of values.
        return Finding(Status.UNDECIDED, "and beside or", "structure")
    if found is None and _undefined(answer) and not _undefined(gold):
        # A matrix one entry of which divides by zero, say: others leave such an entry out.
        return _FOUND["structure", False]
    if found is None and not answer.readings and _talks(answer.text) and not _talks(gold.text):
        return Finding(Status.WRONG, "text in the answer", "text")
    if found is None and not answer.readings and _false_chain(answer.text):
        # A verifier that takes the last side of a chain ignores the others.
        return Finding(Status.WRONG, "different", "structure")
    if found is None and not answer.readings and _SIDE_BY_SIDE.search(answer.text):
        # `7 85` is not one number: if the two were joined, any number could be given in pieces.
        return Finding(Status.WRONG, "two numbers side by side", "structure")
    if (
        found is None
        and not answer.readings
        and asks_for_number(gold)
        and not _WORKED_OUT_ELSEWHERE.search(answer.text)
    ):
        # Others drop a sign that they do not know: `8'` and `5 feet 3 inches` are read as 8 and 5.
        return Finding(Status.WRONG, "not understood", "structure")
    if found is None and any(_of_whole_numbers(reading.node) for side in (gold, answer) for reading in side.readings):
        return Finding(Status.UNDECIDED, "not shown to be equal", "structure")
    if evaluated and asks_for_number(gold) and not is_literal_text(answer):
        return Finding(Status.WRONG, "unevaluated" if found else "not a literal number", "structure")
    if found and evaluated and _unsolved(answer) and not _unsolved(gold):
        return Finding(Status.WRONG, "unevaluated", "structure")
    if found:
        return _FOUND["structure", True]
    if not _is_read_by_others(gold.text, answer.text):
        return Finding(Status.WRONG, "not understood", "structure")
    if gold.readings and answer.readings and (has_words(answer.text) or has_words(gold.text)):
        # Others read words as products of letters, as we do.
        return Finding(Status.UNDECIDED, "not shown to be equal", "structure")
    if "\\ldots" in gold.text + answer.text:
        # Others leave the dots out.
        return Finding(Status.UNDECIDED, "not shown to be equal", "structure")
    return _OPEN


# What the symbolic tier reads; it drops other signs, and would compare the rest.
_READ_BY_OTHERS = listed(
    r"""
    + - * / ^ _ = < > ( ) [ ] { } | ! , : . & % \text \frac \sqrt \int \iint \oint \sum \prod \lim \infty \to
    \partial \binom \choose \over \cdot \times \div \pm \mp \le \leq \ge \geq \lt \gt \ne \neq \in \cup \cap
    \setminus \mathbb \begin \end \{ \} \degree \lfloor \rfloor \lceil \rceil \emptyset \ldots \pi \limits \bar
    \overline \hbar \det \mid \quad \lor \land \forall \exp \max \min \gcd
    """
) | {ROW, *(f"\\{name}" for name in (*FUNCTIONS, *GREEK))}
_SIGN = re.compile(r"\\[a-zA-Z]+|\\.|[^\sa-zA-Z0-9]")


# A subscript behind a bracket, which others drop: `(5/2)_2`.
_BEHIND_BRACKETS = re.compile(r"[)\]}|]\s*_")


def _is_read_by_others(gold: str, answer: str) -> bool:
    """Whether the symbolic tier reads every sign of an answer: those that it knows, and those that the gold has as often."""
    if len(_BEHIND_BRACKETS.findall(answer)) > len(_BEHIND_BRACKETS.findall(gold)):
        return False
    signs, known = Counter(_SIGN.findall(answer)), Counter(_SIGN.findall(gold))
    return all(sign in _READ_BY_OTHERS or known[sign] == count for sign, count in signs.items())


def _talks(text: str) -> bool:
    """Whether a text that we cannot read holds words: others take the number among them."""
    return has_prose(text) or has_words(_TEXT.sub(r" \1 ", text))


def _lists(*sides: Prepared) -> Iterator[Node]:
    for side in sides:
        for reading in side.readings:
            yield from (item for item in walk(reading.node) if item.kind == "list")


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


_ABOUT = re.compile(r"\\(?:approx|simeq)(?![a-zA-Z])")


def _false_approximation(text: str) -> bool:
    r"""Whether two numbers that are said to be about equal differ by more than a twentieth: `6 \\approx 7` is no 6."""
    if "\\approx" not in text and "\\simeq" not in text:
        return False
    values: list[float] = []
    for side in _ABOUT.split(text):
        read = prepare(side.rpartition("=")[2])
        try:
            values.append(abs(FloatField({}).visit(read.readings[0].node)[0]))
        except (IndexError, UndefinedError, ValueError):
            continue
    return any(abs(a - b) > 0.05 * max(a, b) for a, b in itertools.pairwise(values))


def _unsolved(read: Prepared) -> bool:
    """Whether an inequality stands there as it may have stood in the question: not solved for its unknown.

    `|AB| = 5` is no inequality: it names a length.
    """
    return any(
        item.kind == "rel"
        and item.value != ("=",)
        and any(part.kind in ("abs", "pow") and symbols(part) for arg in item.args for part in walk(arg))
        for reading in read.readings
        for item in walk(reading.node)
    )


def _unknowns(node: Node) -> bool:
    """Whether a value depends on an unknown, even one that cancels: a number was asked for."""
    value = named_value(node) if is_equation(node) else node
    return value is not None and value.kind not in ("rel", "list") and bool(symbols(value))


def _of_whole_numbers(node: Node) -> bool:
    """Whether a tree has a greatest common divisor or the like of an unknown, which others take for polynomials'."""
    return any(
        item.kind == "fn" and item.value in ("gcd", "lcm", "max", "min") and symbols(item) for item in walk(node)
    )


def _unit_is_missing(gold: Prepared, answer: Prepared) -> bool:
    """Whether the gold is told in a known unit, and the answer in none."""
    told = [any(reading.units for reading in side.readings) for side in (gold, answer)]
    # 30 degrees are pi/6, which has no unit.
    known = any(unit_of(reading.units) is not None and not reading.degrees for reading in gold.readings)
    return told == [True, False] and known


def _equations(read: Prepared) -> bool:
    return bool(read.readings) and all(is_equation(reading.node) for reading in read.readings)


def _states(answer: Prepared) -> bool:
    """Whether an answer is an equation, which a number is not, or nothing times an unknown, which names it for no reason."""
    return any(
        item.kind == "rel" or (item.kind == "mul" and any(exact(arg) == 0 for arg in item.args))
        for reading in answer.readings
        for item in walk(reading.node)
    )


def _applied_to_zero(node: Node) -> bool:
    """Whether a zero stands behind a letter, as an argument does."""
    return any(
        item.kind == "mul"
        and any(a.kind == "sym" and b.kind == "num" and not b.value for a, b in itertools.pairwise(item.args))
        for item in walk(node)
    )


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


_DECIMAL = re.compile(r"-?\d*\.(\d{2,15})")


def is_rounded(gold: Prepared, answer: Prepared) -> bool:
    """Whether one of two numbers is a decimal of two places or more, and the other one correctly rounded to its places.

    Of two decimals the gold must be the shorter one: an answer with fewer digits than the gold says less.
    """
    places = [_DECIMAL.fullmatch(side.text) for side in (gold, answer)]
    sizes = [len(match[1]) if match is not None else 99 for match in places]
    if min(sizes) == 99 or (max(sizes) < 99 and sizes[0] > sizes[1]):
        return False
    rounded, other = (gold, answer) if sizes[0] < sizes[1] else (answer, gold)
    value = other.value if other.value is not None else _real_value(other)
    assert rounded.value is not None
    return value is not None and abs(value - rounded.value) <= Fraction(1, 2 * 10 ** min(sizes))


def _real_value(read: Prepared) -> Fraction | None:
    """The value of a number without units to the precision of floats; None for anything else."""
    for reading in read.readings:
        try:
            value, error = FloatField({}).visit(reading.node)
        except UndefinedError:
            continue
        if not reading.units and not value.imag and error <= 1e-12 * max(1.0, abs(value)):
            return Fraction(value.real)
    return None


def _roman(gold: Prepared, answer: Prepared) -> bool:
    """Whether the gold is a Roman numeral, and the answer the same number in digits."""
    return answer.value is not None and gold.text[-1:] in _ROMAN_ENDS and roman(gold.text) == answer.value


_ROMAN_ENDS = frozenset("IVXLCDM}")


def _text(gold: Prepared, answer: Prepared) -> Finding | None:
    if gold.choice is not None and answer.choice is not None:
        equal = gold.choice == answer.choice
    elif gold.choice is not None and answer.text[:1] in ("+", "-"):
        equal = False
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
        equal |= (
            clock(words.text) is not None
            and words.word is not None
            and other.squeezed.removeprefix("0") == words.word[:-2]
        )
    elif not all(any(char.isalnum() or char == "\\" for char in side.text) for side in (gold, answer)):
        equal = False
    else:
        return None
    return _FOUND["text", equal]


def _structure(gold: Prepared, answer: Prepared, rounding: Rounding) -> bool | None:
    """True where one reading of the answer is one reading of the gold, False where none can be."""
    found: list[bool | None] = []
    # A gold that is one number with commas between thousands has one reading.
    readings = [reading for reading in gold.readings if reading.commas is not False or gold.value is None]
    for first, second in itertools.product(readings, answer.readings):
        if _may_be_compared(first, second):
            found.append(_same_reading(first, second, rounding))
            if found[-1]:
                return True
    return None if None in found or not gold.readings or not answer.readings else False


_COLLECTIONS = ("list", "tuple", "set", "interval", "union", "matrix")


def _may_be_compared(gold: Parsed, answer: Parsed) -> bool:
    """Whether two readings go together: a comma before three digits separates items only where the other side has items.

    `1,234` is 1234; it is the list of 1 and 234 where the other side is a list that cannot be read as a number. Where
    both are written that way, both are numbers.
    """
    if gold.commas is False:
        return answer.commas is None and answer.node.kind in _COLLECTIONS
    return answer.commas is not False or (gold.commas is None and gold.node.kind in _COLLECTIONS)


def _same_reading(gold: Parsed, answer: Parsed, rounding: Rounding) -> bool | None:
    if _applied_to_zero(answer.node) and not _applied_to_zero(gold.node):
        # `x + 1 + f(0)` is read as a product, and f(0) is no zero.
        return False
    if answer.approximate and not gold.approximate and is_equation(gold.node):
        # AB is 5: that it is about 5 says less.
        return False
    factor = conversion(gold.units, answer.units)
    if factor is None:
        if not is_angle(gold.units) or not is_angle(answer.units):
            return False
        first, second = (_radians(side.node) if side.degrees else side.node for side in (gold, answer))
        return same(first, second, rounding)
    if factor != 1:
        # 50 mm are 5 cm.
        converted = Node("mul", (number(factor), answer.node))
        return same_scalar(gold.node, converted, rounding) if answer.node.kind not in _COLLECTIONS else None
    found = same(gold.node, answer.node, rounding)
    if not found and gold.degrees != answer.degrees:
        # 30 degrees are 30, and pi/6.
        first, second = (_radians(side.node) if side.degrees else side.node for side in (gold, answer))
        return True if same(first, second, rounding) else found
    return found


def _radians(node: Node) -> Node:
    return Node("mul", (node, Node("const", (), "pi"), number(Fraction(1, 180))))


def _decimal_comma(gold: Prepared, answer: Prepared) -> bool:
    """Whether one side is written with other signs for decimals or thousands, and the other in plain digits is the same number."""
    for one, other in ((gold, answer), (answer, gold)):
        if other.value is None or "," in other.text:
            continue
        # With a space behind it, a comma separates: `2, 3` is a list.
        match = _DECIMAL_COMMA.fullmatch(one.text)
        if match is not None and other.value.denominator != 1:
            return Fraction(f"{match[1]}.{match[2]}") == other.value
        if _POINT_GROUPS.fullmatch(one.text) is not None:
            return Fraction(one.text.replace(".", "").replace(",", ".")) == other.value
        if _INDIAN_GROUPS.fullmatch(one.text) is not None:
            return Fraction(one.text.replace(",", "")) == other.value
    return False
