"""Equations, inequalities and polynomials.

No question can be answered by its own text: expansion and factoring ask for numbers (a coefficient, the constants of
the factors), since the unexpanded product is mathematically equal to the expanded one, and inequalities for the ends of
their solution sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import ClassVar, TypeAlias

import numpy as np

from mathturn_gym.problems.base import Generator
from mathturn_gym.problems.families._writing import Draw, Writer, determinant, square_root, surd_text, tuple_text
from mathturn_gym.problems.families.registry import Question, exact, family, generator, whole
from mathturn_gym.types import Problem

Text: TypeAlias = Callable[[Writer], str]


@family("linear")
def linear(draw: Draw, level: int) -> Question:
    """Linear equations in one unknown."""
    a, b = draw.nonzero(-9, 9), draw.between(-20, 20)
    c, d = draw.nonzero(-9, 9), draw.between(-20, 20)
    # Equal slopes leave no solution, or all numbers.
    while c == a:
        c = draw.nonzero(-9, 9)
    if level <= 2:
        x = draw.between(-12, 12)
        if level == 1:
            a, c = draw.between(2, 9), 0
        d = (a - c) * x + b
        return _solve(lambda w: w.polynomial([a, b]), lambda w: w.polynomial([c, d]), Fraction(x))
    if level == 3:
        return _solve(lambda w: w.polynomial([a, b]), lambda w: w.polynomial([c, d]), Fraction(d - b, a - c))
    if level == 4:
        p, q = draw.nonzero(-9, 9), draw.nonzero(-9, 9)
        value = Fraction(c * q - a * p, a - c)
        return _solve(lambda w: _bracket(w, a, p), lambda w: _bracket(w, c, q), value)
    p, q = draw.distinct(2, 9, 2)
    value = Fraction(d - b) / (Fraction(1, p) - Fraction(1, q))
    return _solve(lambda w: w.frac("x", p) + _plus(b), lambda w: w.frac("x", q) + _plus(d), value)


def _solve(left: Text, right: Text, value: Fraction) -> Question:
    return exact(
        lambda w: f"Solve for {w('x')}: {w(f'{left(w)} = {right(w)}')}. Give the exact value of {w('x')}.", value
    )


def _bracket(w: Writer, factor: int, shift: int) -> str:
    size = {1: "", -1: "-"}.get(factor, str(factor))
    return f"{size}({w.polynomial([1, shift])})"


def _plus(number: int) -> str:
    return "" if not number else f" + {number}" if number > 0 else f" - {-number}"


@family("quadratic")
def quadratic(draw: Draw, level: int) -> Question:
    """Quadratic equations with whole, rational or surd solutions."""
    if level <= 3:
        p, q = draw.distinct(-9, 9, 2)
        a, e = (
            (1, 1)
            if level == 1
            else (draw.between(2, 5), 1)
            if level == 2
            else (draw.between(2, 5), draw.between(1, 4))
        )
        # (a x - p)(e x - q) for level 3; a (x - p)(x - q) below
        coefficients = [a, -a * (p + q), a * p * q] if level < 3 else [a * e, -(a * q + e * p), p * q]
        roots = (Fraction(p), Fraction(q)) if level < 3 else (Fraction(p, a), Fraction(q, e))
        if roots[0] == roots[1]:
            return quadratic(draw, level)
        return _larger(coefficients, str(max(roots)))
    a = 1 if level == 4 else draw.between(2, 5)
    b, c = draw.between(-10, 10), draw.nonzero(-12, 12)
    under = b * b - 4 * a * c
    # Levels 4 and 5 ask for surds: a square under the root would make the solution rational.
    if under <= 0 or math.isqrt(under) ** 2 == under:
        return quadratic(draw, level)
    outside, inside = square_root(under)
    return _larger([a, b, c], surd_text({1: Fraction(-b, 2 * a), inside: Fraction(outside, 2 * a)}))


def _larger(coefficients: list[int], gold: str) -> Question:
    return Question(
        lambda w: (
            f"Find the larger of the two solutions of {w(w.polynomial(coefficients) + ' = 0')}. Give the exact value."
        ),
        gold,
    )


@family("systems")
def systems(draw: Draw, level: int) -> Question:
    """Systems of two or three linear equations."""
    size = 2 if level <= 3 else 3
    high = (3, 6, 9, 3, 6)[level - 1]
    rows = [[draw.nonzero(-high, high) for _ in range(size)] for _ in range(size)]
    if level == 1:
        rows[0] = [1, 1]
    # Parallel lines: no solution, or many.
    if determinant(rows) == 0:
        return systems(draw, level)
    if level == 3:
        right = [draw.between(-12, 12) for _ in range(size)]
        # Cramer's rule, exact in fractions.
        bottom = determinant(rows)
        values = [Fraction(determinant(_replaced(rows, right, k)), bottom) for k in range(size)]
    else:
        values = [Fraction(draw.between(-8, 8)) for _ in range(size)]
        right = [int(sum(c * x for c, x in zip(row, values, strict=True))) for row in rows]
    names = "xyz"[:size]

    def write(w: Writer) -> str:
        lines = [w(f"{_combination(row, names)} = {value}") for row, value in zip(rows, right, strict=True)]
        unknowns = w("(" + ", ".join(names) + ")")
        return f"Solve the system {', '.join(lines[:-1])} and {lines[-1]}. Give the solution as {unknowns}."

    return Question(write, tuple_text(values))


def _replaced(rows: list[list[int]], column: list[int], place: int) -> list[list[int]]:
    return [[*row[:place], value, *row[place + 1 :]] for row, value in zip(rows, column, strict=True)]


def _combination(coefficients: list[int], names: str) -> str:
    text = ""
    for coefficient, name in zip(coefficients, names, strict=True):
        size = "" if abs(coefficient) == 1 else str(abs(coefficient))
        sign = ("-" if coefficient < 0 else "") if not text else (" - " if coefficient < 0 else " + ")
        text += f"{sign}{size}{name}"
    return text


@family("inequalities")
def inequalities(draw: Draw, level: int) -> Question:
    """Linear, quadratic and absolute-value inequalities."""
    strict = draw.between(0, 1) == 1
    if level == 1:
        a, b = draw.between(2, 9), draw.between(-9, 20)
        c = a * draw.between(1, 15) + b + draw.between(0, a - 1)
        count = max(0, math.ceil(Fraction(c - b, a)) - 1 if strict else (c - b) // a)
        return whole(
            lambda w: (
                f"How many positive whole numbers {w('x')} satisfy"
                f" {w(w.polynomial([a, b]) + w.less(strict, False) + str(c))}?"
            ),
            count,
        )
    if level == 2:
        return _extreme(draw, strict)
    p, q = sorted(draw.distinct(-9, 9, 2))
    if level == 3:
        inner = q - p - 1 if strict else q - p + 1
        return whole(
            lambda w: (
                f"How many whole numbers {w('x')} (negative ones and zero included) satisfy"
                f" {w(w.polynomial([1, -(p + q), p * q]) + w.less(strict, False) + '0')}?"
            ),
            inner,
        )
    if level == 4:
        a = draw.between(1, 4)
        return _ends(
            lambda w: w.polynomial([a, -a * (p + q), a * p * q]) + w.less(strict, False) + "0", Fraction(p), Fraction(q)
        )
    a, b, c = draw.between(2, 9), draw.nonzero(-15, 15), draw.between(1, 20)
    return _ends(
        lambda w: f"|{w.polynomial([a, b])}|" + w.less(strict, False) + str(c), Fraction(-c - b, a), Fraction(c - b, a)
    )


def _extreme(draw: Draw, strict: bool) -> Question:
    """The whole number at the end of a half-line."""
    a, b, c = draw.nonzero(-9, 9), draw.between(-20, 20), draw.between(-20, 20)
    greater = draw.between(0, 1) == 1
    end = Fraction(c - b, a)
    upwards = greater == (a > 0)
    value = (
        (math.floor(end) + 1 if strict else math.ceil(end))
        if upwards
        else (math.ceil(end) - 1 if strict else math.floor(end))
    )
    which = "smallest" if upwards else "largest"
    return whole(
        lambda w: (
            f"What is the {which} whole number {w('x')} (which may be negative) that satisfies"
            f" {w(w.polynomial([a, b]) + w.less(strict, greater) + str(c))}?"
        ),
        value,
    )


def _ends(condition: Text, low: Fraction, high: Fraction) -> Question:
    return Question(
        lambda w: (
            f"The real numbers {w('x')} with {w(condition(w))} form an interval from {w('p')} to {w('q')}. Give the pair"
            f" {w('(p, q)')} of its ends."
        ),
        tuple_text((low, high)),
    )


@family("expansion")
def expansion(draw: Draw, level: int) -> Question:
    """A coefficient of an expanded product."""
    a, b, c, d = draw.between(1, 6), draw.nonzero(-9, 9), draw.between(1, 6), draw.nonzero(-9, 9)
    if level <= 2:
        factors = [[a, b], [c, d]] if level == 1 else [[a, b], [a, b], [c, d]]
    elif level == 3:
        factors = [[a, b], [c, d, draw.nonzero(-9, 9)]]
    else:
        factors = [[1 if level == 4 else a, b]] * draw.between(4, 7 if level == 4 else 6)
    product = [1]
    for factor in factors:
        product = _multiply(product, factor)
    power = draw.between(1, len(product) - 2)
    value = product[len(product) - 1 - power]

    def write(w: Writer) -> str:
        if level >= 4:
            text = w.power(f"({w.polynomial(factors[0])})", len(factors))
        elif level == 2:
            text = w.power(f"({w.polynomial(factors[0])})", 2) + f"({w.polynomial(factors[2])})"
        else:
            text = "".join(f"({w.polynomial(factor)})" for factor in factors)
        letters = "x" if power == 1 else w.power("x", power)
        return f"What is the coefficient of {w(letters)} when {w(text)} is expanded?"

    return whole(write, value)


def _multiply(left: list[int], right: list[int]) -> list[int]:
    product = [0] * (len(left) + len(right) - 1)
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            product[i + j] += a * b
    return product


@family("factoring")
def factoring(draw: Draw, level: int) -> Question:
    """The constants in the factors of a polynomial."""
    if level <= 2:
        low = 1 if level == 1 else -12
        # p <= q makes the answer one pair; the verifier compares pairs in order.
        p, q = sorted((draw.nonzero(low, 12), draw.nonzero(low, 12)))
        return Question(
            lambda w: (
                f"Write {w(w.polynomial([1, p + q, p * q]))} as {w('(x + p)(x + q)')} with whole numbers"
                f" {w(w.less(False, False).join('pq'))}. Give {w('(p, q)')}."
            ),
            tuple_text((p, q)),
        )
    if level == 3:
        a = draw.pick((2, 3, 5, 7))
        p, q = draw.coprime(1, 9, a) * draw.pick((1, -1)), draw.nonzero(-9, 9)
        # p shares no factor with a, so the root -p/a is no whole number and the two factors cannot change places.
        return Question(
            lambda w: (
                f"Write {w(w.polynomial([a, a * q + p, p * q]))} as {w(f'({a}x + p)(x + q)')} with whole numbers"
                f" {w('p')} and {w('q')}. Give {w('(p, q)')}."
            ),
            tuple_text((p, q)),
        )
    roots = sorted(draw.distinct(-7, 7, 3 if level == 4 else 4))
    product = [1]
    for root in roots:
        product = _multiply(product, [1, -root])
    return Question(
        lambda w: (
            f"All solutions of {w(w.polynomial(product) + ' = 0')} are whole numbers. Give them in increasing order,"
            f" in parentheses and separated by commas."
        ),
        tuple_text(roots),
    )


@family("sequences")
def sequences(draw: Draw, level: int) -> Question:
    """Arithmetic, geometric and recursive sequences."""
    start, n = draw.between(-10, 20), draw.between(6, 40)
    if level <= 2:
        step = draw.nonzero(-9, 9)
        last = start + (n - 1) * step
        what = f"the term number {n}" if level == 1 else f"the sum of the first {n} terms"
        value = last if level == 1 else n * (start + last) // 2
        return whole(
            lambda w: (
                f"An arithmetic sequence has the first term {w(str(start))} and the common difference {w(str(step))}."
                f" What is {what}?"
            ),
            value,
        )
    if level == 3:
        first, ratio, n = draw.nonzero(-9, 9), draw.pick((-3, -2, 2, 3, 4)), draw.between(4, 8)
        return whole(
            lambda w: (
                f"A geometric sequence has the first term {w(str(first))} and the common ratio {w(str(ratio))}."
                f" What is the term number {n}?"
            ),
            first * ratio ** (n - 1),
        )
    if level == 4:
        return _recursive(draw)
    top, bottom = draw.between(1, 8), draw.between(2, 9)
    # The series converges for ratios below 1 only.
    while top >= bottom or math.gcd(top, bottom) > 1:
        top, bottom = draw.between(1, 8), draw.between(2, 9)
    ratio_5 = Fraction(top, bottom) * draw.pick((1, -1))
    first = draw.between(1, 30)
    return Question(
        lambda w: (
            f"A geometric series with infinitely many terms has the first term {w(str(first))} and the common ratio"
            f" {w(w.number(ratio_5))}. What is its sum?"
        ),
        str(first / (1 - ratio_5)),
    )


def _recursive(draw: Draw) -> Question:
    first, second, p, q, n = (
        draw.between(0, 5),
        draw.between(1, 6),
        draw.between(1, 3),
        draw.nonzero(-2, 3),
        draw.between(5, 9),
    )
    terms = [first, second]
    while len(terms) < n:
        terms.append(p * terms[-1] + q * terms[-2])

    def write(w: Writer) -> str:
        def name(k: str) -> str:
            return w.index("a", k)

        rule = _combination([p, q], "XY").replace("X", name("n-1")).replace("Y", name("n-2"))
        return (
            f"A sequence has {w(name('1') + f' = {first}')}, {w(name('2') + f' = {second}')} and"
            f" {w(name('n') + ' = ' + rule)} for {w(w.less(False, True).join(('n', '3')))}. What is {w(name(str(n)))}?"
        )

    return whole(write, terms[-1])


# ---- linear equations in one wording


@generator("lins")
class LinearEquation(Generator):
    """`Solve 3x+4=19 for x.` with a in 2..9, x and b in 0..9: 800 equations.

    >>> problem = LinearEquation().get(seed=0, index=0)
    >>> problem.prompt, problem.gold
    ('Solve 8x+2=34 for x.', ('4',))
    """

    name_of_family: ClassVar[str] = "lins"

    def __init__(self, split: str | None = None) -> None:
        super().__init__(self.name_of_family, split)

    def draw(self, rng: np.random.Generator) -> Problem:
        """Uniform over the 800."""
        a, x, b = int(rng.integers(2, 10)), int(rng.integers(10)), int(rng.integers(10))
        return Problem("-", f"Solve {a}x+{b}={a * x + b} for x.", str(x))


@generator("lins-pairs")
class LinearEquationByPairs(LinearEquation):
    """`Solve 3x+4=19 for x.`, split by a and b: no pair of coefficients of a test equation is in training.

    The split of `lins` is by whole equations, so that each of its 80 pairs is in training: what it tests is interpolation.

    >>> LinearEquationByPairs(split="test").get(seed=0, index=0).prompt
    'Solve 3x+3=24 for x.'
    """

    name_of_family = "lins-pairs"

    def split_key(self, problem: Problem) -> str:
        """The equation's left side."""
        return problem.prompt.partition("=")[0]
