"""Whole numbers and fractions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Final

import numpy as np

from mathturn_gym.errors import check_int
from mathturn_gym.problems.base import Generator
from mathturn_gym.problems.families._writing import Draw, Writer, tuple_text
from mathturn_gym.problems.families.registry import Question, exact, family, generator, whole
from mathturn_gym.types import Problem

_APPLY: Final[dict[str, Callable[[int, int], int]]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@family("integers")
def integers(draw: Draw, level: int) -> Question:
    """Sums, differences and products of whole numbers, with parentheses."""
    high = (9, 20, 50, 99, 99)[level - 1]
    value, text, _ = _tree(draw, level, high)
    return whole(lambda w: f"What is {w(text.replace(' * ', w.dot))}?", value)


def _tree(draw: Draw, operations: int, high: int) -> tuple[int, str, int]:
    """(value, text, how tightly its outermost operation binds) of a random expression."""
    if not operations:
        number = draw.between(1, high)
        return number, str(number), 3
    left_size = draw.between(0, operations - 1)
    left, left_text, left_binds = _tree(draw, left_size, high)
    right, right_text, right_binds = _tree(draw, operations - 1 - left_size, high)
    sign = draw.pick("+-*")
    binds = 2 if sign == "*" else 1
    if left_binds < binds:
        left_text = f"({left_text})"
    # a - (b - c) needs its parentheses; to a + (b + c) they do no harm.
    if right_binds <= binds and right_binds < 3:
        right_text = f"({right_text})"
    return _APPLY[sign](left, right), f"{left_text} {sign} {right_text}", binds


@family("rationals")
def rationals(draw: Draw, level: int) -> Question:
    """Fractions added, subtracted, multiplied and divided."""
    bottom = (5, 9, 9, 12, 20)[level - 1]
    signs = ("+-", "+-", "*/", "+-*/", "+-*/")[level - 1]
    fractions = [_proper(draw, bottom) for _ in range((2, 2, 2, 2, 3)[level - 1])]
    signs = "".join(draw.pick(signs) for _ in fractions[1:])
    value = _chain(fractions, signs)

    def write(w: Writer) -> str:
        text = w.number(fractions[0])
        for sign, fraction in zip(signs, fractions[1:], strict=True):
            shown = {"*": w.dot, "/": r" \div " if w.tex else " / "}.get(sign, f" {sign} ")
            text += shown + w.number(fraction)
        return f"Calculate {w(text)} and give the exact value as a fraction or a whole number."

    return Question(write, str(value))


def _proper(draw: Draw, bottom: int) -> Fraction:
    """A fraction that is no whole number."""
    below = draw.between(2, bottom)
    return Fraction(draw.coprime(1, 2 * below, below), below)


# Precedence by hand: eval is banned, and a Fraction must stay exact.
def _chain(values: list[Fraction], signs: str) -> Fraction:
    """Evaluates with the usual precedence."""
    terms = [values[0]]
    for sign, value in zip(signs, values[1:], strict=True):
        if sign in "+-":
            terms.append(value if sign == "+" else -value)
        else:
            terms[-1] = terms[-1] * value if sign == "*" else terms[-1] / value
    return sum(terms, Fraction(0))


@family("multiplication")
def multiplication(draw: Draw, level: int) -> Question:
    """Long multiplication."""
    left, right = ((1, 2), (2, 2), (2, 3), (3, 3), (4, 4))[level - 1]
    a, b = draw.between(10 ** (left - 1) + 1, 10**left - 1), draw.between(10 ** (right - 1) + 1, 10**right - 1)
    return whole(lambda w: f"Multiply: {w(f'{a}{w.dot}{b}')}.", a * b)


@family("division")
def division(draw: Draw, level: int) -> Question:
    """Long division, exact or with a remainder."""
    divisor = draw.between(*((2, 9), (6, 25), (11, 40), (21, 99), (101, 999))[level - 1])
    quotient = draw.between(*((3, 60), (11, 99), (21, 200), (101, 999), (101, 9999))[level - 1])
    if level <= 2:
        return whole(lambda w: f"Divide {w(str(divisor * quotient))} by {w(str(divisor))}.", quotient)
    rest = draw.between(0, divisor - 1)
    number = divisor * quotient + rest
    return Question(
        lambda w: (
            f"Divide {w(str(number))} by {w(str(divisor))}. Give the whole quotient q and the remainder r as {w('(q, r)')}."
        ),
        tuple_text((quotient, rest)),
    )


@family("modular")
def modular(draw: Draw, level: int) -> Question:
    """Remainders, powers, inverses and congruences modulo a number."""
    m = draw.between(*((3, 12), (5, 30), (7, 50), (7, 60), (11, 120))[level - 1])
    a = draw.between(2, 10 * m)
    if level == 1:
        a = draw.between(m + 1, 400)
        return whole(lambda w: f"What is the remainder when {w(str(a))} is divided by {w(str(m))}?", a % m)
    if level <= 3:
        b = draw.between(2, 99)
        product = level == 2
        return whole(
            lambda w: (
                f"What is the remainder when {w(f'{a}{w.dot}{b}' if product else w.power(str(a), b))} is divided by"
                f" {w(str(m))}?"
            ),
            a * b % m if product else pow(a, b, m),
        )
    # Only numbers without a common factor with m have an inverse.
    a = draw.coprime(2, m - 1, m)
    if level == 4:
        return whole(
            lambda w: (
                f"Find the whole number {w('x')} with {w(w.less(False, False).join('0x') + f' < {m}')} such that"
                f" {w(f'{a}x')} leaves the remainder {w('1')} when divided by {w(str(m))}."
            ),
            pow(a, -1, m),
        )
    rest = draw.between(2, m - 1)
    return whole(
        lambda w: (
            f"Find the smallest whole number {w(w.less(False, True).join('x0'))} such that {w(f'{a}x')} leaves the"
            f" remainder {w(str(rest))} when divided by {w(str(m))}."
        ),
        rest * pow(a, -1, m) % m,
    )


@family("gcd-lcm")
def gcd_lcm(draw: Draw, level: int) -> Question:
    """Greatest common divisors and least common multiples."""
    shared = draw.between(*((2, 9), (2, 6), (6, 30), (2, 6), (50, 400))[level - 1])
    parts = draw.distinct(2, (12, 12, 30, 12, 300)[level - 1], 3 if level == 4 else 2)
    numbers = [shared * part for part in parts]
    multiple = level in (2, 4)
    name = "least common multiple" if multiple else "greatest common divisor"
    value = math.lcm(*numbers) if multiple else math.gcd(*numbers)

    def write(w: Writer) -> str:
        *front, last = (w(str(number)) for number in numbers)
        return f"What is the {name} of {', '.join(front)} and {last}?"

    return whole(write, value)


@family("primes")
def primes(draw: Draw, level: int) -> Question:
    """Prime numbers and factorisation."""
    n = draw.between(*((4, 999), (12, 999), (24, 2000), (10, 300), (1000, 99999))[level - 1])
    if level == 1:
        above = n + 1
        while not _is_prime(above):
            above += 1
        return whole(lambda w: f"What is the smallest prime number greater than {w(str(n))}?", above)
    if level == 4:
        end = n + draw.between(10, 60)
        count = sum(_is_prime(k) for k in range(n, end + 1))
        return whole(lambda w: f"How many prime numbers p satisfy {w(_between(w, n, 'p', end))}?", count)
    found = _factors(n)
    if level == 2:
        return whole(lambda w: f"What is the largest prime factor of {w(str(n))}?", max(found))
    if level == 3:
        divisors = math.prod(power + 1 for power in found.values())
        return whole(lambda w: f"How many positive divisors does {w(str(n))} have?", divisors)
    return whole(lambda w: f"What is the sum of the different prime factors of {w(str(n))}?", sum(found))


def _between(w: Writer, low: int, name: str, high: int) -> str:
    sign = w.less(False, False)
    return f"{low}{sign}{name}{sign}{high}"


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % k for k in range(2, math.isqrt(number) + 1))


def _factors(number: int) -> dict[int, int]:
    """Prime factors and their powers, by trial division."""
    found: dict[int, int] = {}
    factor = 2
    # Numbers have five digits at most: trial division is instant.
    while factor * factor <= number:
        while number % factor == 0:
            number //= factor
            found[factor] = found.get(factor, 0) + 1
        factor += 1
    if number > 1:
        found[number] = found.get(number, 0) + 1
    return found


_DIGITS: Final = "0123456789"


@family("bases")
def bases(draw: Draw, level: int) -> Question:
    """Numbers written in other bases."""
    base = 2 if level <= 2 else draw.between(3, 9)
    number = draw.between(*((5, 255), (5, 511), (50, 900), (50, 900), (200, 9999))[level - 1])
    digits = _in_base(number, base)
    if level in (1, 3):
        return whole(
            lambda w: f"The number {w(digits)} is written in base {w(str(base))}. Write it in base {w('10')}.", number
        )
    if level in (2, 4):
        return Question(
            lambda w: (
                f"Write the number {w(str(number))} (base {w('10')}) in base {w(str(base))}. Give its digits only."
            ),
            digits,
        )
    # Bases up to 9: letters for digits would ask for a convention, not for arithmetic.
    other = draw.pick([b for b in range(2, 10) if b != base])
    return Question(
        lambda w: (
            f"The number {w(digits)} is written in base {w(str(base))}. Write it in base {w(str(other))}. Give its digits only."
        ),
        _in_base(number, other),
    )


def _in_base(number: int, base: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, base)
        text = _DIGITS[digit] + text
    return text or "0"


@family("percentages")
def percentages(draw: Draw, level: int) -> Question:
    """Percentages and parts of a quantity."""
    # Multiples of 5 % of multiples of 20 are whole numbers.
    percent = 5 * draw.between(1, 19)
    if level == 1:
        amount = 20 * draw.between(1, 50)
        return exact(
            lambda w: f"What is {w(_percent(w, percent))} of {w(str(amount))}?", Fraction(percent * amount, 100)
        )
    if level == 2:
        total = 20 * draw.between(2, 50)
        part = total * percent // 100
        return whole(
            lambda w: (
                f"What percentage of {w(str(total))} is {w(str(part))}? Give the number without the percent sign."
            ),
            percent,
        )
    up = draw.between(0, 1) == 1
    factor = Fraction(100 + (percent if up else -percent), 100)
    moved = "increased" if up else "decreased"
    if level == 3:
        amount = 10 * draw.between(2, 99)
        return exact(
            lambda w: f"The number {w(str(amount))} is {moved} by {w(_percent(w, percent))}. What is the result?",
            amount * factor,
        )
    if level == 4:
        start = 20 * draw.between(1, 60)
        end = int(start * factor)
        return whole(
            lambda w: (
                f"A number is {moved} by {w(_percent(w, percent))}, and the result is {w(str(end))}. What was the number?"
            ),
            start,
        )
    second, amount = 5 * draw.between(1, 19), 100 * draw.between(1, 40)
    return exact(
        lambda w: (
            f"The number {w(str(amount))} is {moved} by {w(_percent(w, percent))}, and the result is then decreased by"
            f" {w(_percent(w, second))}. What is the final result?"
        ),
        amount * factor * Fraction(100 - second, 100),
    )


def _percent(w: Writer, number: int) -> str:
    return rf"{number}\%" if w.tex else f"{number}%"


# ---- sums and products of whole numbers, in one wording


@generator("add", range(1, 10), shown=(1, 2, 3))
class Addition(Generator):
    """`What is 3+4?` with operands of at most `digits` digits (1 to 9) and a sum of at most `digits` digits.

    >>> Addition(1).get(seed=0, index=0).prompt
    'What is 2+3?'
    """

    def __init__(self, digits: int = 1, split: str | None = None) -> None:
        self.digits = check_int("digits", digits, low=1, high=9)
        super().__init__(f"add{digits}", split)

    def draw(self, rng: np.random.Generator) -> Problem:
        """Uniform over all pairs whose sum fits."""
        largest = 10**self.digits - 1
        while True:
            a, b = (int(n) for n in rng.integers(0, largest + 1, size=2))
            if a + b <= largest:
                return Problem("-", f"What is {a}+{b}?", str(a + b))


@generator("mul", range(1, 10), shown=(2,))
class Multiplication(Generator):
    """`What is 12*34?` with two factors of exactly `digits` digits (1 to 9).

    >>> Multiplication(2).get(seed=0, index=0).prompt
    'What is 81*24?'
    """

    def __init__(self, digits: int = 2, split: str | None = None) -> None:
        self.digits = check_int("digits", digits, low=1, high=9)
        super().__init__(f"mul{digits}", split)

    def draw(self, rng: np.random.Generator) -> Problem:
        """Uniform over all pairs of factors."""
        low, high = (10 ** (self.digits - 1) if self.digits > 1 else 0), 10**self.digits
        a, b = (int(n) for n in rng.integers(low, high, size=2))
        return Problem("-", f"What is {a}*{b}?", str(a * b))
