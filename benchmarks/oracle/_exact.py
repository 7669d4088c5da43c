"""Exact arithmetic over the text of a question: fractions, slopes, polynomials and whole-number logarithms.

Sympy answers the same questions a hundred times slower. What is here follows other routes than the families do: slopes
by dual numbers and not by rules, areas from a function's values alone, limits by L'Hôpital's rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, TypeAlias

from oracle._reading import UnreadableError, evaluated

Number: TypeAlias = "Fraction | int"
_NODES: Final = 9


def value(text: str, **names: Any) -> Any:
    """The value of an expression in fractions, or in whatever kind of number the names stand for.

    >>> value("3x^2 - (x + 1)/4", x=Fraction(1))
    Fraction(5, 2)
    """
    return evaluated(text, Fraction, names, {})


def root_of(equation: str, name: str = "x") -> Fraction:
    """The solution of a linear equation, from its values at 0 and 1; that it is linear is checked at 2 and 3.

    Raises:
        UnreadableError: it is not linear, or has no solution.

    >>> root_of("3x + 4 = 19 - 2x")
    Fraction(3, 1)
    """
    left, right = equation.split("=")
    gaps = [value(left, **{name: Fraction(k)}) - value(right, **{name: Fraction(k)}) for k in range(4)]
    step = gaps[1] - gaps[0]
    if not step or any(gaps[k] != gaps[0] + k * step for k in (2, 3)):
        raise UnreadableError(f"{equation!r} is no linear equation with one solution")
    return Fraction(-gaps[0], step)


class Dual:
    """A number with its rate of change: a + b e with e² = 0 (Clifford, 1873). Functions act as f(a) + f'(a) b e.

    Args:
        value: The number, a.
        slope: Its rate of change, b.
    """

    __slots__ = ("slope", "value")

    def __init__(self, value: Number, slope: Number = 0) -> None:
        self.value, self.slope = Fraction(value), Fraction(slope)

    def __add__(self, other: Dual) -> Dual:
        return Dual(self.value + other.value, self.slope + other.slope)

    def __sub__(self, other: Dual) -> Dual:
        return Dual(self.value - other.value, self.slope - other.slope)

    def __neg__(self) -> Dual:
        return Dual(-self.value, -self.slope)

    def __mul__(self, other: Dual) -> Dual:
        return Dual(self.value * other.value, self.value * other.slope + self.slope * other.value)

    def __truediv__(self, other: Dual) -> Dual:
        quotient = self.value / other.value
        return Dual(quotient, (self.slope - quotient * other.slope) / other.value)

    def __pow__(self, other: Dual) -> Dual:
        result = Dual(1)
        for _ in range(_whole(other.value)):
            result = result * self
        return result


def _whole(exponent: Fraction) -> int:
    if exponent.denominator != 1 or exponent < 0:
        raise UnreadableError(f"exponent {exponent} is no natural number")
    return int(exponent)


def _dual_root(inside: Dual) -> Dual:
    parts = [math.isqrt(part) for part in inside.value.as_integer_ratio()]
    root = Fraction(*parts)
    if root * root != inside.value or not root:
        raise UnreadableError(f"the square root of {inside.value} is not rational")
    return Dual(root, inside.slope / (2 * root))


def _dual_at_zero(inside: Dual) -> Dual:
    """Sine and tangent: both are 0 at 0, and rise there as their argument does."""
    if inside.value:
        raise UnreadableError(f"sine and tangent are known at 0 alone, not at {inside.value}")
    return inside


_DUAL: Final[dict[str, Callable[[Dual], Dual]]] = {"sqrt": _dual_root, "sin": _dual_at_zero, "tan": _dual_at_zero}


def slope(function: str, place: Number) -> Fraction:
    """The derivative at a place, by dual numbers.

    >>> slope("(x + 1)/(x - 2)", 3)
    Fraction(-3, 1)
    """
    found: Dual = evaluated(function, Dual, {"x": Dual(place, 1)}, _DUAL)
    return found.slope


def limit_at(function: str, place: Number) -> Fraction:
    """The limit at a place where the function is a polynomial, or a quotient of two that vanish there (L'Hôpital).

    >>> limit_at("(x^2 - 4)/(x - 2)", 2), limit_at("(sqrt(6x + 9) - 3)/x", 0)
    (Fraction(4, 1), Fraction(1, 1))
    """
    top, bottom = _quotient(function)
    above, below = (evaluated(part, Dual, {"x": Dual(place, 1)}, _DUAL) for part in (top, bottom))
    if below.value:
        return Fraction(above.value, below.value)
    if above.value or not below.slope:
        raise UnreadableError(f"{function!r} has no limit at {place} that this rule finds")
    return Fraction(above.slope, below.slope)


def _quotient(text: str) -> tuple[str, str]:
    """The two sides of a division outside all parentheses; the text over 1 where there is none."""
    depth = 0
    for at, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "/" and not depth:
            return text[:at], text[at + 1 :]
    return text, "1"


def area(function: str, low: Number, high: Number) -> Fraction:
    """The integral of a polynomial of degree 8 at most, from its values at nine places (Newton and Cotes).

    >>> area("3x^2 + 1", 0, 2)
    Fraction(10, 1)
    """
    width = Fraction(high) - Fraction(low)
    places = [Fraction(low) + width * Fraction(k, _NODES - 1) for k in range(_NODES)]
    terms = (weight * value(function, x=place) for weight, place in zip(_weights(), places, strict=True))
    return width * sum(terms, Fraction(0))


@lru_cache(maxsize=1)
def _weights() -> tuple[Fraction, ...]:
    """Weights of nine places in [0, 1] that give every power up to 8 its integral; by elimination."""
    powers = range(_NODES)
    return tuple(_eliminated([[*(Fraction(k, _NODES - 1) ** n for k in powers), Fraction(1, n + 1)] for n in powers]))


def solve_linear(equations: Sequence[str], names: Sequence[str]) -> list[Fraction]:
    """The solution of as many linear equations as unknowns, from the equations' values at 0 and 1.

    Raises:
        UnreadableError: they have no solution, or several.

    >>> solve_linear(["x + y = 5", "x - y = 1"], ["x", "y"])
    [Fraction(3, 1), Fraction(2, 1)]
    """
    rows = []
    for left, right in (equation.split("=") for equation in equations):
        gaps = []
        for chosen in (None, *names):
            point = {name: Fraction(name == chosen) for name in names}
            gaps.append(value(left, **point) - value(right, **point))
        rows.append([*(gap - gaps[0] for gap in gaps[1:]), -gaps[0]])
    return _eliminated(rows)


def _eliminated(rows: list[list[Fraction]]) -> list[Fraction]:
    """The solution of N equations, each given by N coefficients and its right side (Gauss and Jordan)."""
    for i in range(len(rows)):
        pivot = next((r for r in range(i, len(rows)) if rows[r][i]), None)
        if pivot is None:
            raise UnreadableError("the equations have no solution, or several")
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [entry / rows[i][i] for entry in rows[i]]
        for r in range(len(rows)):
            if r != i:
                rows[r] = [a - rows[r][i] * b for a, b in zip(rows[r], rows[i], strict=True)]
    return [row[-1] for row in rows]


class Polynomial:
    """A polynomial in x; quotients must be by numbers.

    Args:
        coefficients: From the constant up.
    """

    __slots__ = ("coefficients",)

    def __init__(self, coefficients: Sequence[Number] | Number) -> None:
        given = [coefficients] if isinstance(coefficients, (int, Fraction)) else list(coefficients)
        given = [int(c) if c.denominator == 1 else c for c in given]  # integers are ten times as fast
        while len(given) > 1 and not given[-1]:
            given.pop()
        self.coefficients = given

    @classmethod
    def read(cls, text: str) -> Polynomial:
        """The polynomial that an expression in x is.

        >>> Polynomial.read("(x + 2)(x - 1)^2").coefficients
        [2, -3, 0, 1]
        """
        found: Polynomial = evaluated(text, lambda n: cls(Fraction(n)), {"x": cls([Fraction(0), Fraction(1)])}, {})
        return found

    @property
    def degree(self) -> int:
        """Its degree; 0 for the zero polynomial."""
        return len(self.coefficients) - 1

    def __call__(self, x: Number) -> Number:
        total: Number = 0
        for coefficient in reversed(self.coefficients):
            total = total * x + coefficient
        return total

    def __add__(self, other: Polynomial) -> Polynomial:
        size = max(self.degree, other.degree) + 1
        padded = [[*part.coefficients, *[0] * (size - part.degree - 1)] for part in (self, other)]
        return Polynomial([a + b for a, b in zip(*padded, strict=True)])

    def __neg__(self) -> Polynomial:
        return Polynomial([-coefficient for coefficient in self.coefficients])

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        product: list[Number] = [0] * (self.degree + other.degree + 1)
        for i, a in enumerate(self.coefficients):
            for j, b in enumerate(other.coefficients):
                product[i + j] += a * b
        return Polynomial(product)

    def __truediv__(self, other: Polynomial) -> Polynomial:
        if other.degree:
            raise UnreadableError("a polynomial is divided by numbers only")
        return Polynomial([Fraction(c) / other.coefficients[0] for c in self.coefficients])

    def __pow__(self, other: Polynomial) -> Polynomial:
        result = Polynomial(1)
        for _ in range(_whole(Fraction(other.coefficients[0]))):
            result = result * self
        return result

    def rational_roots(self) -> list[Fraction]:
        """Its different rational roots, by trying every p/q with p dividing the last and q the first coefficient."""
        scale = math.lcm(*(Fraction(c).denominator for c in self.coefficients))
        whole = [int(c * scale) for c in self.coefficients]
        low = next(k for k, c in enumerate(whole) if c)
        candidates = {
            Fraction(sign * p, q) for p in _divisors(whole[low]) for q in _divisors(whole[-1]) for sign in (1, -1)
        }
        return sorted(root for root in candidates | ({Fraction(0)} if low else set()) if self(root) == 0)


def _divisors(number: int) -> list[int]:
    size = abs(number)
    small = [k for k in range(1, math.isqrt(size) + 1) if size % k == 0]
    return sorted({*small, *(size // k for k in small)})


def exact_log(base: int, inside: Fraction) -> Fraction:
    """log_base(inside) where it is rational: both are powers of one number.

    Raises:
        UnreadableError: it is not rational.

    >>> exact_log(8, Fraction(1, 4))
    Fraction(-2, 3)
    """
    if inside < 1:
        return -exact_log(base, 1 / inside)
    for whole in range(1, 40):
        number = inside**whole  # inside^whole = base^power
        power = 0
        while number > 1 and number.denominator == 1 and number % base == 0:
            number, power = number / base, power + 1
        if number == 1:
            return Fraction(power, whole)
    raise UnreadableError(f"the logarithm of {inside} to base {base} is not rational")
