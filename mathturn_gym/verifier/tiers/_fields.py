"""Arithmetics to evaluate a tree in: exact rationals, integers modulo a prime, complex floats with an error bound.

Each refuses (`UndefinedError`) what it cannot do for certain, so that a tier built on
it either knows or passes the case on.
"""

from __future__ import annotations

import cmath
import contextlib
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TypeVar

from mathturn_gym.verifier.reading._nodes import Node, UndefinedError, Visitor

_EPS = 2.0**-52


def _ln(value: complex, error: float) -> tuple[complex, float]:
    if abs(value) <= 4 * error or not value:
        raise UndefinedError("logarithm of zero")
    if value.real < 0 and value.imag and abs(value.imag) <= error:
        raise UndefinedError("branch")
    result = cmath.log(value)
    return result, 1.4 * error / abs(value) + 4 * _EPS * max(1.0, abs(result))


def _exp(value: complex, error: float) -> tuple[complex, float]:
    if error > 0.01:
        raise UndefinedError("not certain")
    result = cmath.exp(value) if value.imag else complex(math.exp(value.real))
    return result, abs(result) * (1.1 * error + 4 * _EPS)


def _sine(function: Callable[[complex], complex]) -> Callable[[complex, float], tuple[complex, float]]:
    def apply(value: complex, error: float) -> tuple[complex, float]:
        growth = math.cosh(value.imag)
        return function(value), 1.1 * growth * (error + 4 * _EPS * max(1.0, abs(value)))

    return apply


def _by_slope(
    function: Callable[[complex], complex], slope: Callable[[complex], complex]
) -> Callable[[complex, float], tuple[complex, float]]:
    def apply(value: complex, error: float) -> tuple[complex, float]:
        result, steep = function(value), abs(slope(value))
        if steep * max(error, _EPS) > 1e-6:
            raise UndefinedError("not certain")
        # A step of the error to either side must not change the slope much, or the bound would be none.
        if error and abs(slope(value + 16 * error)) > 2 * steep + 1:
            raise UndefinedError("not certain")
        return result, 2 * steep * error + 8 * _EPS * max(1.0, abs(result)) * (1 + steep)

    return apply


def _real_only(function: Callable[[float], complex]) -> Callable[[complex], complex]:
    def apply(value: complex) -> complex:
        if value.imag or not -1.0 <= value.real <= 1.0:
            raise UndefinedError("domain")
        return function(value.real)

    return apply


def _whole(function: Callable[[float], int]) -> Callable[[complex, float], tuple[complex, float]]:
    def apply(value: complex, error: float) -> tuple[complex, float]:
        if value.imag or abs(value) > 2**52:
            raise UndefinedError("domain")
        nearest = round(value.real)
        if abs(value.real - nearest) <= 8 * error + 1e-12 * max(1.0, abs(value.real)):
            if abs(value.real - nearest) > 8 * error:
                raise UndefinedError("not certain")
            return complex(nearest), 0.0
        return complex(function(value.real)), 0.0

    return apply


def _fact(value: complex, error: float) -> tuple[complex, float]:
    if value.imag or not -0.5 <= value.real <= 165.0 or error > 1e-9:
        raise UndefinedError("factorial")
    result = math.gamma(value.real + 1.0)
    return complex(result), abs(result) * (8.0 * error + 1e-13)


_FUNCTIONS: dict[str, Callable[[complex, float], tuple[complex, float]]] = {
    "ln": _ln,
    "exp": _exp,
    "sin": _sine(cmath.sin),
    "cos": _sine(cmath.cos),
    "sinh": _by_slope(cmath.sinh, cmath.cosh),
    "cosh": _by_slope(cmath.cosh, cmath.sinh),
    "tanh": _by_slope(cmath.tanh, lambda z: 1 / cmath.cosh(z) ** 2),
    "tan": _by_slope(cmath.tan, lambda z: 1 / cmath.cos(z) ** 2),
    "cot": _by_slope(lambda z: 1 / cmath.tan(z), lambda z: 1 / cmath.sin(z) ** 2),
    "sec": _by_slope(lambda z: 1 / cmath.cos(z), lambda z: cmath.tan(z) / cmath.cos(z)),
    "csc": _by_slope(lambda z: 1 / cmath.sin(z), lambda z: 1 / cmath.sin(z) / cmath.tan(z)),
    "arctan": _by_slope(cmath.atan, lambda z: 1 / (1 + z * z)),
    "arcsin": _by_slope(_real_only(math.asin), lambda z: 1 / cmath.sqrt(1 - z * z)),
    "arccos": _by_slope(_real_only(math.acos), lambda z: 1 / cmath.sqrt(1 - z * z)),
    "abs": lambda value, error: (complex(abs(value)), error + abs(value) * _EPS),
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "fact": _fact,
}
for _long, _short in (("arcsin", "asin"), ("arccos", "acos"), ("arctan", "atan")):
    _FUNCTIONS[_short] = _FUNCTIONS[_long]


def float_function(name: str, value: complex, error: float) -> tuple[complex, float]:
    """A function's value and the bound on its error.

    Raises:
        UndefinedError: an unknown function, a value outside its domain, or no certain value.
    """
    function = _FUNCTIONS.get(name)
    if function is None:
        raise UndefinedError(name)
    try:
        return function(value, error)
    except (OverflowError, ValueError, ZeroDivisionError):
        raise UndefinedError(name) from None


T = TypeVar("T")
_MAX_BITS = 40_000
_MAX_FACTORIAL = 3_000
# Operations on numbers of more than this many bits that one tree may take.
_LARGE_BITS = 1_500
_MAX_LARGE = 200
_EPS = 2.0**-52
_MINUS_ONE = Fraction(-1)
_ZERO = Fraction(0)
_MAX_DET = 4
_HUNDRED = Fraction(100)


class Field(Visitor[T], ABC):
    """An arithmetic to evaluate trees in: `field.visit(tree)` is the tree's value there, or `UndefinedError`.

    Args:
        point: The value of each unknown.
        log_base: What a bare `log` means, 10 or 0 for the natural one.
    """

    def __init__(self, point: Mapping[str, Fraction] | None = None, log_base: int = 0) -> None:
        self.point = point or {}
        self.log_base = log_base

    def symbol(self, name: str) -> T:
        """The value of an unknown."""
        if name not in self.point:
            raise UndefinedError(name)
        return self.number(self.point[name])

    @abstractmethod
    def number(self, value: Fraction) -> T:
        """A literal."""

    @abstractmethod
    def constant(self, name: str) -> T:
        """Pi, e or i."""

    @abstractmethod
    def add(self, left: T, right: T) -> T:
        """Sum."""

    @abstractmethod
    def multiply(self, left: T, right: T) -> T:
        """Product."""

    @abstractmethod
    def divide(self, left: T, right: T) -> T:
        """Quotient."""

    @abstractmethod
    def power(self, base: T, exponent: T, node: Node) -> T:
        """Power; `node` is the exponent's tree."""

    def exponent(self, node: Node) -> Fraction | None:
        """The rational value of an exponent's tree; with unknowns in it, only where it is a whole number at this point."""
        value = exact(node)
        if value is None and self.point:
            with contextlib.suppress(UndefinedError):
                value = ExactField(self.point).visit(node)
            return value if value is not None and value.denominator == 1 else None
        return value

    def root(self, base: T, degree: T, node: Node) -> T:
        """Principal root (real for odd roots of negative constants)."""
        raise UndefinedError("root")

    def function(self, name: str, value: T, base: T | None) -> T:
        """`sin`, `ln`, `abs`, `floor`, `fact` …."""
        raise UndefinedError(name)

    def binomial(self, top: T, bottom: T) -> T:
        """Binomial coefficient."""
        raise UndefinedError("binom")

    def visit_num(self, node: Node) -> T:
        assert isinstance(node.value, Fraction)
        return self.number(node.value)

    def visit_sym(self, node: Node) -> T:
        return self.symbol(str(node.value))

    visit_text = visit_sym

    def visit_const(self, node: Node) -> T:
        return self.constant(str(node.value))

    def visit_add(self, node: Node) -> T:
        return functools.reduce(self.add, map(self.visit, node.args))

    visit_mixed = visit_add

    def visit_mul(self, node: Node) -> T:
        return functools.reduce(self.multiply, map(self.visit, node.args))

    def visit_neg(self, node: Node) -> T:
        return self.multiply(self.number(_MINUS_ONE), self.visit(node.args[0]))

    def visit_div(self, node: Node) -> T:
        if len(node.args) != 2:
            raise UndefinedError("ratio of more than two")
        top, bottom = map(self.visit, node.args)
        return self.divide(top, bottom)

    visit_obelus = visit_div
    visit_ratio = visit_div

    def visit_pow(self, node: Node) -> T:
        base, exponent = map(self.visit, node.args)
        return self.power(base, exponent, node.args[1])

    def visit_root(self, node: Node) -> T:
        base, degree = map(self.visit, node.args)
        return self.root(base, degree, node.args[1])

    def visit_percent(self, node: Node) -> T:
        return self.divide(self.visit(node.args[0]), self.number(_HUNDRED))

    def visit_binom(self, node: Node) -> T:
        top, bottom = map(self.visit, node.args)
        return self.binomial(top, bottom)

    def visit_abs(self, node: Node) -> T:
        return self.function(node.kind, self.visit(node.args[0]), None)

    visit_floor = visit_abs
    visit_ceil = visit_abs
    visit_fact = visit_abs

    def visit_det(self, node: Node) -> T:
        matrix = node.args[0]
        shape = matrix.value
        if matrix.kind != "matrix" or not isinstance(shape, tuple) or shape[0] != shape[1] or int(shape[0]) > _MAX_DET:
            raise UndefinedError("determinant")
        size = int(shape[0])
        entries = [self.visit(entry) for entry in matrix.args]
        return self._determinant([entries[row * size : (row + 1) * size] for row in range(size)])

    def _determinant(self, rows: list[list[T]]) -> T:
        """Laplace's expansion along the first row."""
        if len(rows) == 1:
            return rows[0][0]
        total = self.number(_ZERO)
        for column, entry in enumerate(rows[0]):
            minor = self._determinant([row[:column] + row[column + 1 :] for row in rows[1:]])
            term = self.multiply(entry, minor)
            total = self.add(total, self.multiply(self.number(_MINUS_ONE), term) if column % 2 else term)
        return total

    def visit_fn(self, node: Node) -> T:
        values = [self.visit(arg) for arg in node.args]
        return self.function(str(node.value), values[0], values[1] if len(values) > 1 else None)

    def visit_other(self, node: Node) -> T:
        raise UndefinedError(node.kind)


class ExactField(Field[Fraction]):
    """Rationals of bounded size: what comes out is a proof."""

    def __init__(self, point: Mapping[str, Fraction] | None = None) -> None:
        super().__init__(point)
        self._large = 0

    def _bounded(self, value: Fraction) -> Fraction:
        bits = max(value.numerator.bit_length(), value.denominator.bit_length())
        if bits <= _LARGE_BITS:
            return value
        self._large += 1
        if bits > _MAX_BITS or self._large > _MAX_LARGE:
            raise UndefinedError("too large")
        return value

    def number(self, value: Fraction) -> Fraction:
        """See `Field.number`."""
        return self._bounded(value)

    def visit_neg(self, node: Node) -> Fraction:
        """See `Field.visit_neg`."""
        return -self.visit(node.args[0])

    def constant(self, name: str) -> Fraction:
        """See `Field.constant`."""
        raise UndefinedError(name)

    def add(self, left: Fraction, right: Fraction) -> Fraction:
        """See `Field.add`."""
        return self._bounded(left + right)

    def multiply(self, left: Fraction, right: Fraction) -> Fraction:
        """See `Field.multiply`."""
        return self._bounded(left * right)

    def divide(self, left: Fraction, right: Fraction) -> Fraction:
        """See `Field.divide`."""
        if not right:
            raise UndefinedError("division by zero")
        return self._bounded(left / right)

    def power(self, base: Fraction, exponent: Fraction, node: Node) -> Fraction:
        """See `Field.power`."""
        if exponent.denominator != 1:
            root = self.root(base, Fraction(exponent.denominator), node)
            return self.power(root, Fraction(exponent.numerator), node)
        size = max(base.numerator.bit_length(), base.denominator.bit_length())
        if base in (0, 1, -1):
            size = 0
        if size * abs(exponent.numerator) > _MAX_BITS or (not base and exponent <= 0):
            raise UndefinedError("power")
        odd = exponent.numerator % 2
        return self._bounded(base ** (exponent.numerator if size or not base else odd if base == -1 else 1))

    def root(self, base: Fraction, degree: Fraction, node: Node) -> Fraction:
        """See `Field.root`."""
        n = degree.numerator
        if degree.denominator != 1 or not 1 <= n <= 64 or base < 0:
            raise UndefinedError("root")
        return Fraction(_integer_root(base.numerator, n), _integer_root(base.denominator, n))

    def function(self, name: str, value: Fraction, base: Fraction | None) -> Fraction:
        """See `Field.function`."""
        if name == "abs":
            return abs(value)
        if name in ("floor", "ceil"):
            return Fraction(math.floor(value) if name == "floor" else math.ceil(value))
        if name == "fact" and value.denominator == 1 and 0 <= value <= _MAX_FACTORIAL:
            return self._bounded(Fraction(math.factorial(value.numerator)))
        raise UndefinedError(name)

    def binomial(self, top: Fraction, bottom: Fraction) -> Fraction:
        """See `Field.binomial`."""
        if top.denominator != 1 or bottom.denominator != 1 or not 0 <= bottom <= top <= _MAX_FACTORIAL:
            raise UndefinedError("binom")
        return self._bounded(Fraction(math.comb(top.numerator, bottom.numerator)))


def _integer_root(value: int, degree: int) -> int:
    """The exact root of a non-negative integer."""
    if degree == 1:
        return value
    if degree == 2:
        root = math.isqrt(value)
    else:
        low, high = 0, 1 << (value.bit_length() // degree + 1)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle**degree <= value else (low, middle - 1)
        root = low
    if root**degree != value:
        raise UndefinedError("irrational")
    return root


def exact(node: Node) -> Fraction | None:
    """The rational value of a tree without unknowns, or None where it has none within bounds."""
    try:
        return ExactField().visit(node)
    except UndefinedError:
        return None


class ModularField(Field[int]):
    """Integers modulo a prime p = 1 (mod 4): rational functions, with pi and e as further unknowns and i a root of -1.

    Equal values at a random point modulo a random prime of 127 bits prove an identity but for a chance below
    degree / 2**120 (Schwartz and Zippel).
    """

    def __init__(self, prime: int, minus_one_root: int, point: Mapping[str, int]) -> None:
        super().__init__()
        self.prime = prime
        self.minus_one_root = minus_one_root
        self.residues = point

    def symbol(self, name: str) -> int:
        """See `Field.symbol`."""
        return self.residues[name]

    def number(self, value: Fraction) -> int:
        """See `Field.number`."""
        return self.divide(value.numerator % self.prime, value.denominator % self.prime)

    def constant(self, name: str) -> int:
        """See `Field.constant`."""
        if name == "i":
            return self.minus_one_root
        if name not in ("pi", "e"):
            raise UndefinedError(name)
        return self.residues[name]

    def add(self, left: int, right: int) -> int:
        """See `Field.add`."""
        return (left + right) % self.prime

    def multiply(self, left: int, right: int) -> int:
        """See `Field.multiply`."""
        return left * right % self.prime

    def divide(self, left: int, right: int) -> int:
        """See `Field.divide`."""
        if right == 1:
            return left
        if not right:
            raise UndefinedError("division by zero")
        return left * pow(right, -1, self.prime) % self.prime

    def power(self, base: int, exponent: int, node: Node) -> int:
        """See `Field.power`."""
        power = exact(node)
        if power is None or power.denominator != 1 or abs(power) > 1 << 64 or (not base and power <= 0):
            raise UndefinedError("power")
        return pow(base, power.numerator, self.prime)

    def visit_fact(self, node: Node) -> int:
        """A number's factorial is a number."""
        value = exact(node)
        if value is None:
            raise UndefinedError("factorial of an unknown")
        return self.number(value)

    visit_binom = visit_fact


class FloatField(Field[tuple[complex, float]]):
    """Complex floats, each with a bound on its error: a difference above the bounds is a difference."""

    def number(self, value: Fraction) -> tuple[complex, float]:
        """See `Field.number`."""
        try:
            number = complex(value.numerator / value.denominator)
        except OverflowError:
            raise UndefinedError("overflow") from None
        return number, abs(number) * _EPS

    def constant(self, name: str) -> tuple[complex, float]:
        """See `Field.constant`."""
        if name == "i":
            return 1j, 0.0
        if name == "inf":
            raise UndefinedError("infinity")
        number = math.pi if name == "pi" else math.e
        return complex(number), number * _EPS

    def _checked(self, value: complex, error: float) -> tuple[complex, float]:
        if not (cmath.isfinite(value) and math.isfinite(error)) or (value and abs(value) < 1e-290):
            raise UndefinedError("range")
        # -0.0 would put a negative real number on the wrong side of a branch cut.
        return complex(value.real + 0.0, value.imag + 0.0), error

    def add(self, left: tuple[complex, float], right: tuple[complex, float]) -> tuple[complex, float]:
        """See `Field.add`."""
        value = left[0] + right[0]
        return self._checked(value, left[1] + right[1] + abs(value) * _EPS)

    def multiply(self, left: tuple[complex, float], right: tuple[complex, float]) -> tuple[complex, float]:
        """See `Field.multiply`."""
        (a, ea), (b, eb) = left, right
        value = complex(a.real * b.real) if not a.imag and not b.imag else a * b
        return self._checked(value, abs(a) * eb + abs(b) * ea + ea * eb + abs(value) * 4 * _EPS)

    def divide(self, left: tuple[complex, float], right: tuple[complex, float]) -> tuple[complex, float]:
        """See `Field.divide`."""
        (a, ea), (b, eb) = left, right
        if abs(b) <= 2 * eb or not b:
            raise UndefinedError("division by zero")
        value = complex(a.real / b.real) if not a.imag and not b.imag else a / b
        return self._checked(value, (ea + abs(value) * eb) / (abs(b) - eb) + abs(value) * 4 * _EPS)

    def power(self, base: tuple[complex, float], exponent: tuple[complex, float], node: Node) -> tuple[complex, float]:
        """See `Field.power`."""
        (a, ea), (b, _) = base, exponent
        if not b.imag and b.real == round(b.real) and abs(b.real) < 1e9 and self.exponent(node) == round(b.real):
            n = round(b.real)
            if not a:
                if n <= 0 or ea:
                    raise UndefinedError("zero to a power")
                return 0j, 0.0
            if abs(n) * ea > abs(a) * 0.01:
                raise UndefinedError("not certain")
            try:
                value = complex(a.real**n) if not a.imag else a**n
            except OverflowError:
                raise UndefinedError("overflow") from None
            return self._checked(value, abs(value) * (abs(n) * 1.1 * (ea / abs(a)) + (abs(n) + 4) * _EPS))
        if not a and not ea and b.real > 0:
            return 0j, 0.0
        if not a.imag and a.real < 0:
            power = exact(node)
            if power is None or power.denominator % 2:
                # Real root or principal root: people mean both.
                raise UndefinedError("branch")
        return self.function("exp", self.multiply(exponent, self.function("ln", base, None)), None)

    def root(self, base: tuple[complex, float], degree: tuple[complex, float], node: Node) -> tuple[complex, float]:
        """See `Field.root`."""
        n = exact(node)
        one = self.number(Fraction(1))
        if n is None or n.denominator != 1 or not 2 <= n <= 1000:
            return self.power(base, self.divide(one, degree), Node("div", (Node("num", (), Fraction(1)), node)))
        a, ea = base
        if not a:
            return 0j, ea ** (1 / n.numerator)
        if n % 2 and not a.imag and a.real < 0:
            if self.point:
                raise UndefinedError("branch")
            value, error = self.root((-a, ea), degree, node)
            return complex(-value.real), error
        if abs(a) <= 4 * ea or (a.real < 0 and a.imag and abs(a.imag) <= ea):
            raise UndefinedError("not certain")
        value = cmath.sqrt(a) if n == 2 else a ** (1 / n.numerator)
        if not a.imag and a.real > 0:
            value = complex(value.real)
        return self._checked(value, abs(value) * (1.1 * ea / abs(a) / n.numerator + 8 * _EPS))

    def function(
        self, name: str, value: tuple[complex, float], base: tuple[complex, float] | None
    ) -> tuple[complex, float]:
        """See `Field.function`."""
        if name in ("log", "lg") or (name == "ln" and base is not None):
            logarithm = self.function("ln", value, None)
            if base is None and (name == "lg" or self.log_base):
                base = self.number(Fraction(10))
            return logarithm if base is None else self.divide(logarithm, self.function("ln", base, None))
        return self._checked(*float_function(name, *value))

    def binomial(self, top: tuple[complex, float], bottom: tuple[complex, float]) -> tuple[complex, float]:
        """See `Field.binomial`."""
        rest = self.add(top, self.multiply(self.number(Fraction(-1)), bottom))
        below = self.multiply(self.function("fact", bottom, None), self.function("fact", rest, None))
        return self.divide(self.function("fact", top, None), below)
