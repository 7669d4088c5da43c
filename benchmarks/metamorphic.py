r"""Half a million changed answers: a change that must not matter keeps the verdict right, one that must makes it not right.

    python benchmarks/metamorphic.py [--cases 500000] [--seed 0] [--state runs/metamorphic.jsonl] [--golds FILE ...]

The oracle is how a case is made, never a verifier. A *base* is an answer whose meaning is known: numbers, lists, points, sets,
intervals, polynomials, equations, inequalities, matrices, words, choices, measures, and the golds of labeled files. A change
that must not matter writes the same answer otherwise (spacing, fonts, colors, order where there is none, units, names, sentences
around it, other forms of its numbers); a change that must gives another answer of the same kind (a digit, a sign, an item, an
end point, an unknown, a unit, a name, a relation). Each case goes through the verifier as a bare answer, in a box, or in a
sentence.

Batches of 1,000 cases are written to the state file as they are done, so that a run goes on where it stopped; case i depends
on the seed and i alone. Exit code 1 where a verdict was not as made.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from mathturn_gym.types import Status
from mathturn_gym.verifier import Verifier
from mathturn_gym.verifier.audit import load_cases

BATCH = 1_000
LE, GE = "\\le", "\\ge"
NAMES = ["x", "y", "n", "k", "t", "a", "AB", "V", "S_n", "\\theta", "f(2)"]
UNITS = ["cm", "m", "km", "kg", "g", "s", "minutes", "hours", "dollars", "inches", "feet", "liters"]
PEOPLE = ["Evelyn", "Carlos", "Friday", "parallelogram", "no solution", "yes", "Ellipse", "blue", "increasing"]


@dataclass(frozen=True)
class Case:
    """One changed answer."""

    base: str
    change: str
    matters: bool
    gold: str
    response: str
    kind: str


# --- numbers and how they are written -------------------------------------------------------------------------------------


def plain(value: Fraction) -> str:
    """A number as golds write it."""
    if value.denominator == 1:
        return str(value.numerator)
    sign = "-" if value < 0 else ""
    return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def terminating(value: Fraction) -> str | None:
    """A decimal, where it ends within nine places."""
    scaled = value * 10**9
    if scaled.denominator != 1:
        return None
    digits = f"{abs(scaled.numerator):010d}"
    whole, places = digits[:-9], digits[-9:].rstrip("0")
    return ("-" if value < 0 else "") + whole + (f".{places}" if places else "")


def another_form(rng: random.Random, value: Fraction) -> str:
    """The same number, written otherwise."""
    top, bottom = abs(value.numerator), value.denominator
    sign = "-" if value < 0 else ""
    forms = []
    if bottom == 1:
        forms += [
            f"{value}.0",
            f"{value}.",
            f"+{top}" if value >= 0 else f"-{top}",
            f"{sign}{top:,}",
            f"{{{value}}}",
            f"({value})",
        ]
        if top >= 1000:
            forms += [f"{sign}{top:,}".replace(",", sep) for sep in ("{,}", "\\,", ",\\!", " ")]
    else:
        forms += [
            f"{sign}{top}/{bottom}",
            f"{sign}\\dfrac{{{top}}}{{{bottom}}}",
            f"\\frac{{{sign}{top}}}{{{bottom}}}",
            f"{sign}\\tfrac {{{top}}} {{{bottom}}}",
            f"{sign}\\frac{{{3 * top}}}{{{3 * bottom}}}",
        ]
        if top > bottom:
            forms.append(f"{sign}{top // bottom}\\frac{{{top % bottom}}}{{{bottom}}}")
    decimal = terminating(value)
    if decimal is not None:
        forms += [decimal, decimal + ("0" if "." in decimal else ".00")]
    forms.append(str(value).replace("-", "−") if bottom == 1 else f"{sign}{top} / {bottom}")
    return rng.choice(forms)


def another_number(rng: random.Random, value: Fraction) -> Fraction:
    """Another number, near this one."""
    bottom = value.denominator
    others = [
        value + 1,
        value - 1,
        value + Fraction(1, 10),
        -value,
        value * 10,
        value / 10,
        value * 2,
        value + Fraction(1, bottom),
    ]
    if bottom != 1:
        others += [
            1 / value if value else value + 2,
            Fraction(value.numerator, bottom + 1),
            Fraction(round(value * 1000), 1000),
        ]
    digits = list(str(abs(value.numerator)))
    place = rng.randrange(len(digits))
    digits[place] = str((int(digits[place]) + rng.randrange(1, 10)) % 10)
    others.append(Fraction(int("".join(digits)) * (1 if value >= 0 else -1), bottom))
    digits = list(str(abs(value.numerator)))
    rng.shuffle(digits)
    others.append(Fraction(int("".join(digits)) * (1 if value >= 0 else -1), bottom))
    return rng.choice([other for other in others if other != value])


def number(rng: random.Random) -> Fraction:
    """A number as answers are: mostly small, mostly whole."""
    size = rng.choice((10, 10, 100, 100, 1000, 10_000, 1_000_000, 10**9))
    top = rng.randrange(-size // 3, size + 1)
    return Fraction(top, rng.choice((1, 1, 1, 2, 3, 4, 5, 7, 8, 12, 20, 99)))


# --- bases ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Base:
    """An answer whose meaning is known.

    Args:
        name: Its kind.
        gold: How the gold writes it.
        same: Makes another way to write it, and says what was changed.
        other: Makes another answer of its kind, and says what was changed.
        worded: Whether it is made of words, so that no name or unit can stand at it.
        bare: Whether nothing may be put around it but a box: a sentence, a color or a point would change it.
    """

    name: str
    gold: str
    same: Callable[[random.Random], tuple[str, str]]
    other: Callable[[random.Random], tuple[str, str]]
    worded: bool = False
    bare: bool = False


def number_base(rng: random.Random) -> Base:
    value = number(rng)

    def same(rng: random.Random) -> tuple[str, str]:
        text = another_form(rng, value)
        kind = rng.randrange(9)
        if kind == 0:
            return "name in front", f"{rng.choice(NAMES)} = {text}"
        if kind == 1:
            return "unit behind", f"{text} \\text{{ {rng.choice(UNITS)}}}"
        if kind == 2:
            return "unit behind", f"{text} {rng.choice([unit for unit in UNITS if len(unit) > 1])}"
        if kind == 3:
            return (
                "explanation behind",
                f"{text} {rng.choice(('because it divides 12', 'since there are 3', 'as shown above'))}",
            )
        if kind == 4 and value.denominator != 1:
            return "approximation behind", f"{text} \\approx {float(value):.3f}"
        if kind == 5:
            return "chain", f"{plain(value - 1)} + 1 = {text}" if value >= 1 else f"x = {plain(value)} = {text}"
        if kind == 6:
            return "sum in a name's value", f"{rng.choice('xyz')} = {text}"
        return "other form", text

    def other(rng: random.Random) -> tuple[str, str]:
        wrong = another_number(rng, value)
        text, kind = another_form(rng, wrong), rng.randrange(14)
        if kind == 0:
            return "another number, named", f"{rng.choice(NAMES)} = {text}"
        if kind == 1:
            return "another number, with a unit", f"{text} \\text{{ {rng.choice(UNITS)}}}"
        if kind == 2:
            return "two candidates", f"{plain(value)} \\text{{ or }} {text}"
        if kind == 3:
            return "two candidates", f"{plain(value)}, {text}"
        if kind == 4:
            return "told twice", f"{plain(value)}, {plain(value)}"
        if kind == 5:
            return "tautology", f"{plain(value)} = {plain(value)}"
        if kind == 6:
            return "an unknown beside it", f"{plain(value)}{rng.choice('xyn')}" if value else "x"
        if kind == 7:
            return "an inequality", f"x {rng.choice(('<', '>', chr(92) + 'le', chr(92) + 'ne'))} {plain(value)}"
        if kind == 8:
            return "taken back", f"{plain(value)} \\text{{ is wrong, it is }} {text}"
        if kind == 9:
            return "both signs", f"\\pm {plain(abs(value))}" if value else "\\pm 1"
        if kind == 10:
            return "false chain", f"{plain(wrong)} = {plain(value)}"
        if kind == 11:
            return "covering interval", f"[{plain(value - 1)}, {plain(value + 1)}]"
        if kind == 12 and value.denominator == 1 and value > 9:
            return "apart", f"{str(value)[0]} {str(value)[1:]}" if len(str(value)) > 4 or len(str(value)) == 3 else text
        return "another number", text

    return Base("number", plain(value), same, other)


def measure_base(rng: random.Random) -> Base:
    value, unit = abs(number(rng)) + 1, rng.choice(UNITS)

    def same(rng: random.Random) -> tuple[str, str]:
        forms = [
            f"{plain(value)} \\text{{ {unit}}}",
            f"{another_form(rng, value)}",
            f"x = {plain(value)}\\text{{ {unit}}}",
        ]
        return "unit kept or left out", rng.choice(forms)

    def other(rng: random.Random) -> tuple[str, str]:
        if rng.random() < 0.5:
            other_unit = rng.choice([name for name in UNITS if name != unit])
            return "another unit", f"{plain(value)} \\text{{ {other_unit}}}"
        return "another number", f"{another_form(rng, another_number(rng, value))} \\text{{ {unit}}}"

    return Base("measure", f"{plain(value)} \\text{{ {unit}}}", same, other)


def distinct_numbers(rng: random.Random, count: int) -> list[Fraction]:
    found: list[Fraction] = []
    while len(found) < count:
        value = Fraction(rng.randrange(-30, 60), rng.choice((1, 1, 1, 2, 3)))
        if value not in found:
            found.append(value)
    return found


def list_base(rng: random.Random) -> Base:
    values = distinct_numbers(rng, rng.randrange(2, 5))

    def written(rng: random.Random, items: Sequence[Fraction]) -> str:
        texts = [another_form(rng, item) if abs(item) < 1000 else plain(item) for item in items]
        style = rng.randrange(6)
        if style == 0:
            return "\\{" + ", ".join(texts) + "\\}"
        if style == 1:
            return " \\text{ and } ".join(texts) if len(texts) == 2 else ", ".join(texts)
        if style == 2:
            return "; ".join(texts)
        if style == 3:
            return ", ".join(f"x = {text}" for text in texts)
        if style == 4:
            return "x = " + ", ".join(texts)
        return ",\\ ".join(texts)

    def same(rng: random.Random) -> tuple[str, str]:
        items = list(values)
        rng.shuffle(items)
        return "order and style", written(rng, items)

    def other(rng: random.Random) -> tuple[str, str]:
        items = list(values)
        place, kind = rng.randrange(len(items)), rng.randrange(4)
        if kind == 0:
            del items[place]
            return "an item missing", written(rng, items)
        if kind == 1:
            extra = another_number(rng, items[place])
            if extra in items:
                extra = max(items) + 1
            return "an item too many", written(rng, [*items, extra])
        wrong = another_number(rng, items[place])
        if wrong in items:
            wrong = max(items) + 1
        items[place] = wrong
        return "another item", written(rng, items)

    return Base("list", ", ".join(map(plain, values)), same, other)


def point_base(rng: random.Random) -> Base:
    values = distinct_numbers(rng, rng.randrange(2, 4))

    def written(rng: random.Random, items: Sequence[Fraction]) -> str:
        texts = [another_form(rng, item) if abs(item) < 1000 else plain(item) for item in items]
        style = rng.randrange(4)
        if style == 0:
            return "\\left(" + ",\\, ".join(texts) + "\\right)"
        if style == 1:
            return f"({','.join('xyz'[: len(texts)])}) = ({', '.join(texts)})"
        if style == 2:
            return ", ".join(f"{name} = {text}" for name, text in zip("xyz", texts, strict=False))
        return f"({', '.join(texts)})"

    def same(rng: random.Random) -> tuple[str, str]:
        return "style", written(rng, values)

    def other(rng: random.Random) -> tuple[str, str]:
        items = list(values)
        if rng.random() < 0.4:
            i, j = rng.sample(range(len(items)), 2)
            items[i], items[j] = items[j], items[i]
            return "coordinates exchanged", written(rng, items)
        place = rng.randrange(len(items))
        items[place] = another_number(rng, items[place])
        return "another coordinate", written(rng, items)

    return Base("point", f"({', '.join(map(plain, values))})", same, other)


def interval_base(rng: random.Random) -> Base:
    low, high = sorted(distinct_numbers(rng, 2))
    closed = rng.random() < 0.5, rng.random() < 0.5

    def interval(low: Fraction, high: Fraction, closed: tuple[bool, bool]) -> str:
        return f"{'[' if closed[0] else '('}{plain(low)}, {plain(high)}{']' if closed[1] else ')'}"

    def inequality(low: Fraction, high: Fraction, closed: tuple[bool, bool]) -> str:
        return f"{plain(low)} {LE if closed[0] else '<'} x {LE if closed[1] else '<'} {plain(high)}"

    def same(rng: random.Random) -> tuple[str, str]:
        forms = [
            inequality(low, high, closed),
            "x \\in " + interval(low, high, closed),
            "\\left" + interval(low, high, closed).replace("]", "\\right]").replace(")", "\\right)"),
        ]
        forms.append(
            f"x {GE if closed[0] else '>'} {plain(low)} \\text{{ and }} x {LE if closed[1] else '<'} {plain(high)}"
        )
        return "style", rng.choice(forms)

    def other(rng: random.Random) -> tuple[str, str]:
        kind = rng.randrange(4)
        write = rng.choice((interval, inequality))
        if kind == 0:
            return "an end opened or closed", write(low, high, (not closed[0], closed[1]))
        if kind == 1:
            return "an end opened or closed", write(low, high, (closed[0], not closed[1]))
        if kind == 2:
            return "another end", write(low - 1, high, closed)
        return "everything", "(-\\infty, \\infty)"

    return Base("interval", interval(low, high, closed), same, other)


def polynomial(coefficients: Sequence[int], name: str = "x", order: Sequence[int] | None = None) -> str:
    """A polynomial from its coefficients, the constant first."""
    terms = []
    for power in order or range(len(coefficients) - 1, -1, -1):
        factor = coefficients[power]
        if not factor:
            continue
        unknown = "" if power == 0 else name if power == 1 else f"{name}^{{{power}}}"
        size = "" if abs(factor) == 1 and power else str(abs(factor))
        terms.append(("-" if factor < 0 else "+") + size + unknown)
    text = "".join(terms) or "0"
    return text.removeprefix("+")


def polynomial_base(rng: random.Random) -> Base:
    name = rng.choice("xyt")
    coefficients = [rng.randrange(-9, 10) for _ in range(rng.randrange(2, 5))]
    coefficients[-1] = coefficients[-1] or 1
    gold = polynomial(coefficients, name)

    def same(rng: random.Random) -> tuple[str, str]:
        order = list(range(len(coefficients)))
        rng.shuffle(order)
        text = polynomial(coefficients, name, order)
        kind = rng.randrange(5)
        if kind == 0:
            return "double of a half", f"\\frac{{{polynomial([2 * c for c in coefficients], name)}}}{{2}}"
        if kind == 1:
            return "added and taken away", f"{text} + {name} - {name}"
        if kind == 2 and name != "y":
            return "name of the function", f"f({name}) = {text}"
        if kind == 3:
            return "factor", f"({text}) \\cdot 1"
        return "order", text

    def other(rng: random.Random) -> tuple[str, str]:
        wrong = list(coefficients)
        place, kind = rng.randrange(len(wrong)), rng.randrange(4)
        if kind == 0:
            renamed = rng.choice([n for n in "abcuvw" if n != name])
            return "another unknown", gold.replace(name, renamed)
        if kind == 1 and wrong[place]:
            wrong[place] = -wrong[place]
            return "a sign", polynomial(wrong, name)
        if kind == 2:
            return "a power more", polynomial([0, *wrong], name)
        wrong[place] += rng.choice((-2, -1, 1, 2))
        return "a coefficient", polynomial(wrong, name)

    return Base("polynomial", gold, same, other)


def equation_base(rng: random.Random) -> Base:
    a, b, c = rng.randrange(1, 9), rng.choice([n for n in range(-9, 10) if n]), rng.randrange(-20, 20)

    def line(a: int, b: int, c: int) -> str:
        return f"{polynomial([0, a])}{'+' if b > 0 else '-'}{'' if abs(b) == 1 else abs(b)}y={c}"

    def same(rng: random.Random) -> tuple[str, str]:
        forms = [
            line(3 * a, 3 * b, 3 * c),
            f"{c}={line(a, b, 0)[:-2]}",
            f"{line(a, b, 0)[:-2]}-({c})=0",
            f"{-c}={line(-a, -b, 0)[:-2]}",
        ]
        return "the same line", rng.choice(forms)

    def other(rng: random.Random) -> tuple[str, str]:
        forms = {
            "another constant": line(a, b, c + 1),
            "another slope": line(a + 1, b, c),
            "a sign": line(a, -b, c),
            "right side in common": f"xy={c}",
            "value alone": str(c),
            "tautology": "x=x",
            "nothing": "0=0",
        }
        if not c:
            forms.pop("right side in common")
        name = rng.choice(sorted(forms))
        return name, forms[name]

    return Base("equation", line(a, b, c), same, other)


def named_base(rng: random.Random) -> Base:
    value, name = number(rng), rng.choice(("x", "t", "k", "a"))

    def same(rng: random.Random) -> tuple[str, str]:
        text = another_form(rng, value)
        return "name kept or left out", rng.choice((f"{name} = {text}", text, f"{text} = {name}", f"{name}={text}."))

    def other(rng: random.Random) -> tuple[str, str]:
        kind = rng.randrange(4)
        if kind == 0:
            another = rng.choice([n for n in ("x", "t", "k", "a", "b", "z") if n != name])
            return "another name", f"{another} = {plain(value)}"
        if kind == 1:
            return "tautology", f"{name} = {name}"
        if kind == 2:
            return "an inequality", f"{name} \\ge {plain(value)}"
        return "another value", f"{name} = {another_form(rng, another_number(rng, value))}"

    return Base("named value", f"{name} = {plain(value)}", same, other)


def inequality_base(rng: random.Random) -> Base:
    value = Fraction(rng.randrange(-20, 30), rng.choice((1, 1, 2, 3)))
    sign = rng.choice(("<", ">", "\\le", "\\ge"))
    flipped = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
    strict = {"<": "\\le", ">": "\\ge", "\\le": "<", "\\ge": ">"}
    interval = {
        "<": f"(-\\infty, {plain(value)})", ">": f"({plain(value)}, \\infty)",
        "\\le": f"(-\\infty, {plain(value)}]", "\\ge": f"[{plain(value)}, \\infty)",
    }  # fmt: skip

    def same(rng: random.Random) -> tuple[str, str]:
        forms = [
            f"{plain(value)} {flipped[sign]} x",
            interval[sign],
            f"x \\in {interval[sign]}",
            f"2x {sign} {plain(2 * value)}",
        ]
        return "turned round, or an interval", rng.choice(forms)

    def other(rng: random.Random) -> tuple[str, str]:
        forms = {
            "turned round on one side": f"x {flipped[sign]} {plain(value)}",
            "strictness": f"x {strict[sign]} {plain(value)}",
            "another bound": f"x {sign} {plain(value + 1)}",
            "value alone": plain(value),
            "equation": f"x = {plain(value)}",
            "another unknown": f"z {sign} {plain(value)}",
        }
        name = rng.choice(sorted(forms))
        return name, forms[name]

    return Base("inequality", f"x {sign} {plain(value)}", same, other)


def matrix_base(rng: random.Random) -> Base:
    rows, columns = rng.randrange(1, 4), rng.randrange(1, 4)
    if rows == columns == 1:
        columns = 2
    entries = [[rng.randrange(-9, 10) for _ in range(columns)] for _ in range(rows)]

    def written(entries: list[list[int]], kind: str = "pmatrix", form: Callable[[int], str] = str) -> str:
        body = " \\\\ ".join(" & ".join(form(entry) for entry in row) for row in entries)
        return f"\\begin{{{kind}}} {body} \\end{{{kind}}}"

    def same(rng: random.Random) -> tuple[str, str]:
        kind = rng.choice(("pmatrix", "bmatrix", "matrix", "Bmatrix"))
        if rng.random() < 0.3:
            parts = [[rng.randrange(-9, 10) for _ in row] for row in entries]
            rest = [[b - a for a, b in zip(*pair, strict=True)] for pair in zip(parts, entries, strict=True)]
            return "sum of two", written(parts, kind) + " + " + written(rest, kind)
        return "style", written(entries, kind, lambda entry: another_form(rng, Fraction(entry)))

    def other(rng: random.Random) -> tuple[str, str]:
        wrong = [list(row) for row in entries]
        if rng.random() < 0.3 and rows > 1 and entries[0] != entries[-1]:
            wrong[0], wrong[-1] = wrong[-1], wrong[0]
            return "rows exchanged", written(wrong)
        wrong[rng.randrange(rows)][rng.randrange(columns)] += rng.choice((-3, -1, 1, 10))
        return "another entry", written(wrong)

    return Base("matrix", written(entries), same, other)


def word_base(rng: random.Random) -> Base:
    word = rng.choice(PEOPLE)

    def same(rng: random.Random) -> tuple[str, str]:
        return "case and font", rng.choice(
            (f"\\text{{{word}}}", word.upper(), word.lower(), f"\\textbf{{{word}}}.", f" {word} ")
        )

    def other(rng: random.Random) -> tuple[str, str]:
        another = rng.choice([name for name in PEOPLE if name != word])
        return "another word", rng.choice((another, f"\\text{{not {word}}}", f"\\text{{{word} or {another}}}"))

    return Base("word", word, same, other, worded=True)


def choice_base(rng: random.Random) -> Base:
    letter = rng.choice("ABCDE")

    def same(rng: random.Random) -> tuple[str, str]:
        return "brackets and text", rng.choice(
            (f"({letter})", f"\\text{{{letter}}}", f"({letter}) {number(rng)}", f"\\textbf{{({letter})}}", f"{letter}.")
        )

    def other(rng: random.Random) -> tuple[str, str]:
        another = rng.choice([name for name in "ABCDE" if name != letter])
        return "another letter", rng.choice(
            (another, f"({another})", f"{letter} \\text{{ or }} {another}", f"{letter}{another}")
        )

    return Base("choice", letter, same, other, worded=True)


_DIGIT = re.compile(r"\d")
# Where a digit may change and the answer stay: the middle of a chain, parities, overlapping unions, approximations, periodic functions, labels.
_ANY_DIGIT = re.compile(
    r"boxed|=[^=]*=|\(-1\)|cup|cap|approx|\\circ|\\pmod|\\(?:sin|cos|tan|text|mbox|mathrm)|\([A-J]\)|0 ?[a-z]|!"
)


_MIXED = re.compile(r"(-?\d+) ?\\[dt]?frac ?\{(\d+)\}\{(\d+)\}")


def _product_of(changed: str, gold: str) -> bool:
    """Whether a mixed number became a product of the same value: 3 times 9/8 is 3 3/8."""
    one, other = _MIXED.search(changed), _MIXED.search(gold)
    if one is None or other is None or 0 in (int(one[3]), int(other[3])):
        return False
    whole, top, bottom = map(int, other.groups())
    mixed = abs(whole) + Fraction(top, bottom)
    return abs(int(one[1])) * Fraction(int(one[2]), int(one[3])) == mixed


def text_base(gold: str) -> Base:
    """The gold of a labeled file: what is around it, and one digit in it."""

    def same(rng: random.Random) -> tuple[str, str]:
        return "as it is", gold

    def other(rng: random.Random) -> tuple[str, str]:
        places = [match.start() for match in _DIGIT.finditer(gold)]
        while True:
            place = rng.choice(places)
            digit = str((int(gold[place]) + rng.randrange(1, 10)) % 10)
            changed = gold[:place] + digit + gold[place + 1 :]
            if not _product_of(changed, gold):
                return "a digit", changed

    return Base("gold of a file", gold, same, other, worded=True)


# --- classes of answers that say more, or less, than their value ------------------------------------------------------------

BEFORE = ["half of", "twice", "not", "negative", "at least", "at most", "the square of", "the reciprocal of", "any number but",
          "the opposite of", "more than", "never", "the cube root of", "almost", "the supplement of", "ten times"]  # fmt: skip
AFTER = ["million", "squared", "dozen", "tenths", "thousand", "is wrong", "below zero", "and a half", "times two", "or less",
         "minus one", "cubed", "factorial", "too many", "in base nine", "hundred"]  # fmt: skip
THINGS = ["red apples", "students in each class", "small boxes", "ways", "tickets per person"]
INTRODUCED = ["The answer is", "exactly", "So the total is", "The number of apples is", "We get", ""]


def words_base(rng: random.Random) -> Base:
    """A number among words; the oracle is the list from which they are taken."""
    value = rng.randrange(3, 400)

    def same(rng: random.Random) -> tuple[str, str]:
        before, after = rng.choice(INTRODUCED), rng.choice(["", *THINGS])
        text = f"\\text{{{before} }}{value}" if before else str(value)
        return "introduced and counted", text + (f"\\text{{ {after}}}" if after else "")

    def other(rng: random.Random) -> tuple[str, str]:
        if rng.random() < 0.5:
            word = rng.choice(BEFORE)
            return f"before: {word}", rng.choice((f"\\text{{{word} }}{value}", f"{word} {value}"))
        word = rng.choice(AFTER)
        return f"after: {word}", rng.choice((f"{value}\\text{{ {word}}}", f"{value} {word}"))

    return Base("words", str(value), same, other, worded=True)


Function = tuple[str, Callable[[Fraction], Fraction]]


def pieces(rng: random.Random) -> Function:
    """A function made of pieces, as LaTeX and as exact arithmetic."""
    a, b, c = rng.choice((1, 1, 2, 3, -1)), rng.randrange(-200, 201), rng.randrange(-60, 61)
    inner = polynomial([b, a])
    kind = rng.randrange(6)
    if kind == 0:
        return f"|{inner}|", lambda x: abs(a * x + b)
    if kind == 1:
        return inner, lambda x: a * x + b
    if kind == 2:
        return f"\\sqrt{{({inner})^2}}", lambda x: abs(a * x + b)
    if kind == 3:
        return f"|{inner}|{c:+d}", lambda x: abs(a * x + b) + c
    if kind == 4:
        return f"||x|{c:+d}|", lambda x: abs(abs(x) + c)
    return f"|{inner}|+|x{c:+d}|", lambda x: abs(a * x + b) + abs(x + c)


def twin(rng: random.Random, text: str, value: Callable[[Fraction], Fraction]) -> Function:
    """A function that is the same on one side of some point, and mostly not on the other."""
    kind = rng.randrange(4)
    if kind == 0:
        return text.replace("|", "", 2) if text.startswith("|") else f"|{text}|", value
    if kind == 1:
        shift = rng.randrange(20, 500)
        return f"{text}+|x+{shift}|-x-{shift}", lambda x: value(x) + abs(x + shift) - x - shift
    if kind == 2:
        shift = rng.randrange(20, 500)
        return f"{text}+\\frac{{|x-{shift}|+x-{shift}}}{{2}}", lambda x: value(x) + (abs(x - shift) + x - shift) / 2
    return pieces(rng)


POINTS = [Fraction(n * n * (1 if n % 2 else -1), 7) for n in range(1, 100)] + [
    Fraction(n, 1) for n in range(-600, 601, 7)
]


def pieces_base(rng: random.Random) -> Base:
    """The oracle is exact arithmetic at 271 points between -1,400 and 1,400."""
    text, value = pieces(rng)

    def same(rng: random.Random) -> tuple[str, str]:
        return "written twice", rng.choice((text, f"{text}+x-x", f"\\frac{{2({text})}}{{2}}"))

    def other(rng: random.Random) -> tuple[str, str]:
        while True:
            another, told = twin(rng, text, value)
            if told is value:
                # Without its bars: what is left is a polynomial, or bars around what was there.
                if not another.startswith("|") and "|" not in another and "sqrt" not in another and "|" in text:
                    return "without bars", another
                continue
            if any(value(x) != told(x) for x in POINTS):
                return "the same on one side", another

    return Base("pieces", text, same, other)


def floor_base(rng: random.Random) -> Base:
    """Integer parts of a counting unknown; the oracle is exact arithmetic at the first 4,000 whole numbers."""
    bottom, shift = rng.randrange(2, 400), rng.randrange(0, 300)

    def same(rng: random.Random) -> tuple[str, str]:
        forms = [f"\\lceil \\frac{{n+{shift}-{bottom - 1}}}{{{bottom}}}\\rceil",
                 f"\\lfloor \\frac{{n+{shift + bottom}}}{{{bottom}}}\\rfloor-1"]  # fmt: skip
        return "ceiling, or one more", rng.choice(forms)

    def other(rng: random.Random) -> tuple[str, str]:
        away = rng.choice([n for n in range(2, 400) if n != bottom])
        forms = {
            "a constant": str(shift // bottom),
            "another divisor": f"\\lfloor \\frac{{n+{shift}}}{{{away}}}\\rfloor",
            "no floor": f"\\frac{{n+{shift}}}{{{bottom}}}",
            "ceiling": f"\\lceil \\frac{{n+{shift}}}{{{bottom}}}\\rceil",
            "one late": f"\\lfloor \\frac{{n+{shift}-1}}{{{bottom}}}\\rfloor",
        }
        name = rng.choice(sorted(forms))
        return name, forms[name]

    return Base("floors", f"\\lfloor \\frac{{n+{shift}}}{{{bottom}}}\\rfloor", same, other, bare=True)


def thousands_base(rng: random.Random) -> Base:
    value = rng.choice((rng.randrange(1_000, 10_000), rng.randrange(10_000, 10**6), rng.randrange(10**6, 10**9)))
    groups = f"{value:,}".split(",")

    def same(rng: random.Random) -> tuple[str, str]:
        return "separator", rng.choice((",", "", "{,}", "\\,", ",\\!")).join(groups)

    def other(rng: random.Random) -> tuple[str, str]:
        numbers = [str(int(group)) for group in groups]
        forms = {
            "groups turned round": ",".join(numbers[::-1]) if numbers[::-1] != groups else ", ".join(groups),
            "a list": ", ".join(groups),
            "alternatives": " or ".join(f"x={number}" for number in numbers),
            "a set": "\\{" + ",".join(groups) + "\\}",
            "a group less": ", ".join(numbers[:-1]),
        }
        name = rng.choice(sorted(forms))
        return name, forms[name]

    return Base("thousands", ",".join(groups), same, other, bare=True)


def logic_base(rng: random.Random) -> Base:
    """Unions of two intervals in words; the oracle is membership of the 161 half integers around them."""
    ends = sorted(rng.sample(range(-20, 21), 4))

    def inside(text: Sequence[tuple[int, str, int]], x: float) -> bool:
        """Membership, with "and" before "or"."""
        return any(all((x > end if sign == ">" else x < end) for end, sign, _ in group) for group in _groups(text))

    def _groups(text: Sequence[tuple[int, str, int]]) -> list[list[tuple[int, str, int]]]:
        groups: list[list[tuple[int, str, int]]] = [[]]
        for part in text:
            if part[2]:
                groups.append([])
            groups[-1].append(part)
        return groups

    def written(text: Sequence[tuple[int, str, int]]) -> str:
        words = ["" if not i else (" or " if part[2] else " and ") for i, part in enumerate(text)]
        return "".join(f"{word}x{part[1]}{part[0]}" for word, part in zip(words, text, strict=True))

    gold = [(ends[0], ">", 0), (ends[1], "<", 0), (ends[2], ">", 1), (ends[3], "<", 0)]
    places = [n / 2 for n in range(-80, 81)]

    def same(rng: random.Random) -> tuple[str, str]:
        return "turned round, or a union", rng.choice((
            written([(ends[2], ">", 0), (ends[3], "<", 0), (ends[0], ">", 1), (ends[1], "<", 0)]),
            f"({ends[0]},{ends[1]})\\cup({ends[2]},{ends[3]})",
            f"{ends[0]}<x<{ends[1]} or {ends[2]}<x<{ends[3]}",
        ))  # fmt: skip

    def other(rng: random.Random) -> tuple[str, str]:
        while True:
            text = [
                (end + rng.choice((0, 0, 1, -2)), rng.choice((sign, sign, sign, "<")), (rng.random() < 0.4) * (i > 0))
                for i, (end, sign, _) in enumerate(gold)
            ]
            if any(inside(gold, x) != inside(text, x) for x in places):
                return "other words or ends", written(text)

    return Base("logic", written(gold), same, other, bare=True)


LENGTHS = {
    "mm": Fraction(1, 1000),
    "cm": Fraction(1, 100),
    "m": Fraction(1),
    "km": Fraction(1000),
    "inches": Fraction(254, 10_000),
}
TIMES = {"seconds": Fraction(1), "minutes": Fraction(60), "hours": Fraction(3600), "days": Fraction(86_400)}
MONEY = {"cents": Fraction(1, 100), "dollars": Fraction(1)}
FOREIGN = ["euros", "yen", "kg", "liters", "rupees", "pesos"]


def conversion_base(rng: random.Random) -> Base:
    table = rng.choice((LENGTHS, TIMES, MONEY))
    value, unit = Fraction(rng.randrange(1, 500), rng.choice((1, 1, 2, 4))), rng.choice(sorted(table))

    def same(rng: random.Random) -> tuple[str, str]:
        name = rng.choice(sorted(table))
        return "converted", f"{plain(value * table[unit] / table[name])}\\text{{ {name}}}"

    def other(rng: random.Random) -> tuple[str, str]:
        if rng.random() < 0.4:
            return "another dimension", f"{plain(value)}\\text{{ {rng.choice(FOREIGN)}}}"
        name = rng.choice([name for name in sorted(table) if name != unit])
        factor = Fraction(rng.choice((1, 1, 10, 100)))
        changed = value * factor
        if changed * table[name] == value * table[unit]:
            changed += 1
        return "not converted", f"{plain(changed)}\\text{{ {name}}}"

    return Base("conversion", f"{plain(value)}\\text{{ {unit}}}", same, other)


def names_base(rng: random.Random) -> Base:
    value = rng.randrange(2, 500)
    shape = rng.randrange(4)
    letters = rng.sample("ABCDGHKLMNQST", 3)
    small = rng.sample("abcdkmnpqrstuvwz", 3)
    n = rng.randrange(1, 9)
    name, others = [
        (letters[0] + letters[1], [letters[0] + letters[2], letters[2] + letters[1], letters[0], "".join(letters)]),
        (f"P({letters[0]})", [f"P({letters[1]})", f"{letters[1]}({letters[0]})"]),
        (
            small[0],
            [small[1], small[0] + small[1], f"{small[0]}_1", f"2{small[0]}", f"{small[0]}^2", f"{small[0]}+{small[1]}"],
        ),
        (f"{small[0]}_{n}", [f"{small[0]}_{n + 1}", f"{small[1]}_{n}", small[0]]),
    ][shape]

    def same(rng: random.Random) -> tuple[str, str]:
        return "name kept or left out", rng.choice(
            (f"{name}={value}", str(value), f"{value}={name}" if shape == 2 else f"{name} = {value}")
        )

    def other(rng: random.Random) -> tuple[str, str]:
        return "another name", f"{rng.choice(others)}={value}"

    return Base("names", f"{name}={value}", same, other, bare=True)


GAPS = [
    "\\quad ",
    "\\qquad ",
    "\\;",
    "\\:",
    "\\ ",
    "~",
    "\\hspace{1cm}",
    "\\phantom{0}",
    "\\enspace ",
    "\\text{ }",
    "\\thinspace ",
]


def digits_base(rng: random.Random) -> Base:
    value = str(rng.randrange(10, 1000))
    cut = rng.randrange(1, len(value))

    def same(rng: random.Random) -> tuple[str, str]:
        return "nothing is drawn", value[:cut] + rng.choice(("\\!", "")) + value[cut:]

    def other(rng: random.Random) -> tuple[str, str]:
        return "a gap is drawn", value[:cut] + rng.choice(GAPS) + value[cut:]

    return Base("joined digits", value, same, other, bare=True)


def comma_base(rng: random.Random) -> Base:
    whole, places = rng.randrange(0, 400), f"{rng.randrange(1, 100):02d}".rstrip("0") or "5"

    def same(rng: random.Random) -> tuple[str, str]:
        return "decimal comma", f"{whole},{places}"

    def other(rng: random.Random) -> tuple[str, str]:
        forms = [
            f"{whole}, {places}",
            f"{whole} ,{places}",
            f"{whole};{places}",
            f"({whole},{places})",
            f"{whole},\\;{places}",
        ]
        return "a list", rng.choice(forms)

    return Base("decimal comma", f"{whole}.{places}", same, other, bare=True)


def nothing_base(rng: random.Random) -> Base:
    value = rng.randrange(2, 300)
    shape = rng.randrange(3)
    gold = (str(value), f"{value}={value}", f"x^2+{value}=0")[shape]

    def same(rng: random.Random) -> tuple[str, str]:
        return "as it is", gold

    def other(rng: random.Random) -> tuple[str, str]:
        k = value + rng.randrange(1, 50)
        forms = [
            f"{k}={k}",
            "x=x",
            "0=0",
            f"x^2+{k}=0",
            f"e^{{x}}+{k}=0",
            f"{value}+",
            f"{value}\\ldots",
            f"{value}\\cdot",
        ]
        return "no answer", rng.choice(forms)

    return Base("no answer", gold, same, other, bare=True)


CLASSES: list[Callable[[random.Random], Base]] = [
    words_base, pieces_base, floor_base, thousands_base, logic_base, conversion_base, names_base, digits_base, comma_base,
    nothing_base,
]  # fmt: skip


BASES: list[tuple[int, Callable[[random.Random], Base]]] = [
    (8, number_base), (2, measure_base), (3, list_base), (3, point_base), (3, interval_base), (4, polynomial_base),
    (3, equation_base), (3, named_base), (3, inequality_base), (2, matrix_base), (1, word_base), (1, choice_base),
]  # fmt: skip


# --- what may stand around any answer -------------------------------------------------------------------------------------


def wrapped(rng: random.Random, text: str, base: Base) -> tuple[str, str, str]:
    """The answer in its place: what was put around it, the response, and its kind."""
    if base.bare:
        return ("bare", text, "answer") if rng.random() < 0.5 else ("in a box", f"So $\\boxed{{{text}}}$.", "response")
    inner = rng.randrange(8)
    if inner == 0:
        text = f"${text}$"
    elif inner == 1 and not base.worded:
        text = f"\\displaystyle {text}"
    elif inner == 2 and not base.worded:
        text = f"\\color{{red}}{{{text}}}" if "," not in text and ";" not in text else text
    elif inner == 3:
        text = f"  {text} \n"
    elif inner == 4:
        text = f"{text}."
    elif inner == 5 and not base.worded:
        text = f"\\boldsymbol{{{text}}}" if "," not in text and ";" not in text and "&" not in text else text
    place = rng.randrange(7)
    if place < 3:
        return "bare", text, "answer"
    stripped = text.strip().rstrip(".")
    if place == 3:
        return "in a box", f"We try \\boxed{{0}} first, which fails.\n\nSo it is $\\boxed{{{stripped}}}$.", "response"
    if place == 4:
        return "after hashes", f"12 + 3 = 15, and so on.\n#### {stripped}", "response"
    if place == 5:
        return "in tags", f"Thinking of 7 things.\n<answer>{stripped}</answer>", "response"
    formula = stripped if stripped.startswith("$") or base.worded else f"${stripped}$"
    return "in a sentence", f"There are 3 ways to see it.\nThe final answer is {formula}.", "response"


def make_case(seed: int, index: int, golds: Sequence[str], classes: bool = False) -> Case:
    """Case `index` of a seed; of the classes that say more than their value only, where `classes` says so."""
    rng = random.Random(f"{seed}/{index}")
    if classes:
        base = CLASSES[index % len(CLASSES)](rng)
    elif golds and rng.random() < 0.2:
        base = text_base(rng.choice(golds))
    else:
        base = rng.choices([make for _, make in BASES], [weight for weight, _ in BASES])[0](rng)
    matters = rng.random() < 0.5
    change, text = (base.other if matters else base.same)(rng)
    place, response, kind = wrapped(rng, text, base)
    return Case(base.name, f"{change}, {place}", matters, base.gold, response, kind)


@dataclass
class Run:
    """A run over cases, in batches."""

    seed: int
    golds: Sequence[str] = ()
    done: int = 0
    classes: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[dict[str, Any]] = field(default_factory=list)

    def batch(self, start: int, size: int, verifier: Verifier) -> dict[str, Any]:
        """Judges cases `start` to `start + size`; what came of them."""
        counts: Counter[str] = Counter()
        violations: list[dict[str, Any]] = []
        cases = [make_case(self.seed, index, self.golds, self.classes) for index in range(start, start + size)]
        for kind in ("answer", "response"):
            part = [(start + i, case) for i, case in enumerate(cases) if case.kind == kind]
            verdicts = verifier.verify_batch(
                [case.response for _, case in part],
                [case.gold for _, case in part],
                kind=kind,
            )
            for (index, case), verdict in zip(part, verdicts, strict=True):
                right = verdict.status is Status.RIGHT
                counts[f"{case.base}: {'must matter' if case.matters else 'must not matter'}"] += 1
                if right == case.matters:
                    row = {"index": index, **vars(case), "verdict": verdict.status.value, "answer": verdict.answer}
                    violations.append(row | {"reason": verdict.reason, "tier": verdict.tier})
        return {"start": start, "size": size, "counts": dict(counts), "violations": violations}

    def take(self, batch: dict[str, Any]) -> None:
        """Adds a batch's figures."""
        self.done += batch["size"]
        self.counts.update(batch["counts"])
        self.violations += batch["violations"]


def usable_golds(paths: Sequence[Path]) -> list[str]:
    """Golds of labeled files that hold a digit, and that the verifier reads by itself."""
    from mathturn_gym.verifier import is_readable

    golds = {case.gold for case in load_cases()} | {case.gold for path in paths for case in load_cases(path)}
    return sorted(
        gold
        for gold in golds
        if 0 < len(gold) < 120 and _DIGIT.search(gold) and is_readable(gold) and not _ANY_DIGIT.search(gold)
    )


def main() -> None:
    """Runs, or goes on with a run, and prints the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=500_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path, default=Path("runs/metamorphic.jsonl"))
    parser.add_argument("--golds", type=Path, nargs="*", default=[])
    parser.add_argument("--classes", action="store_true", help="only answers that say more, or less, than their value")
    parser.add_argument("--show", type=int, default=20)
    arguments = parser.parse_args()
    run = Run(arguments.seed, usable_golds(arguments.golds), classes=arguments.classes)
    arguments.state.parent.mkdir(parents=True, exist_ok=True)
    if arguments.state.exists():
        for line in arguments.state.read_text(encoding="utf-8").splitlines():
            run.take(json.loads(line))
    start_time, start_done = time.monotonic(), run.done
    # One verifier for all batches: its symbolic workers load sympy once, which takes longer than a batch.
    with arguments.state.open("a", encoding="utf-8") as state, Verifier(form="equivalent", timeout=2.0) as verifier:
        while run.done < arguments.cases:
            batch = run.batch(run.done, min(BATCH, arguments.cases - run.done), verifier)
            run.take(batch)
            state.write(json.dumps(batch) + "\n")
            state.flush()
    seconds = time.monotonic() - start_time
    for name, count in sorted(run.counts.items()):
        print(f"{count:8d}  {name}")
    print(f"{run.done} cases, {len(run.violations)} violations; {run.done - start_done} in {seconds:.0f} s")
    for violation in run.violations[: arguments.show]:
        print(json.dumps(violation))
    sys.exit(1 if run.violations else 0)


if __name__ == "__main__":
    main()
