"""Complex numbers of 60 digits: what floats cannot tell apart, these can.

Everything here runs inside `precisely()`, which sets the decimal context.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow, Underflow, localcontext
from fractions import Fraction
from typing import TypeAlias

from mathturn_gym.verifier.reading._nodes import HiddenError, Node, UndefinedError, walk
from mathturn_gym.verifier.tiers._fields import ExactField, Field, exact

DIGITS = 60
Pair: TypeAlias = tuple[Decimal, Decimal]

_CONTEXT = Context(
    prec=DIGITS + 10, Emax=99_999, Emin=-99_999, traps=[DivisionByZero, InvalidOperation, Overflow, Underflow]
)
_ZERO, _ONE = Decimal(0), Decimal(1)
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798")
_TINY = Decimal("1e-75")
# A term below this share of the other may be anything: a value is compared only where each of its terms shows in it.
_SHOWN = Decimal("1e-25")
_SHOWN_SQUARED = Decimal("1e-12")
# What is left of a sum below this share of its terms is rounding.
_ROUNDING = Decimal("1e-50")
_MOST_DIGITS = 30
_SAME, _OTHER = Decimal("1e-40"), Decimal("1e-30")


def precisely() -> AbstractContextManager[Context]:
    """The decimal context in which a `PreciseField` works."""
    return localcontext(_CONTEXT)


def digits(value: Fraction) -> int:
    """The digits that are needed to write a number, without the zeros at its end."""
    sizes = (abs(value.numerator), value.denominator)
    return sum(len(str(size).rstrip("0")) for size in sizes if size != 1)


def is_chance(gold: Node, answer: Node) -> bool:
    """Whether an answer has so many digits of its own that it may agree with its gold to all digits that are compared."""
    known = {item.value for item in walk(gold) if item.kind == "num"}
    own = {item.value for item in walk(answer) if item.kind == "num"} - known
    return sum(digits(value) for value in own if isinstance(value, Fraction)) > _MOST_DIGITS


def near(difference: Decimal, size: Decimal) -> bool | None:
    """Whether two values are equal whose difference and size these are; None where rounding may be all that differs."""
    return True if difference <= size * _SAME else False if difference > size * _OTHER else None


def _sin_cos(angle: Decimal) -> Pair:
    """Sine and cosine, by the sine's series after a reduction to [-pi, pi] and four halvings."""
    if abs(angle) > 1_000_000:
        raise UndefinedError("angle")
    x = (angle - 2 * _PI * (angle / (2 * _PI)).to_integral_value()) / 16
    square, sine, term = x * x, x, x
    for k in range(1, 40):
        term = -term * square / (2 * k * (2 * k + 1))
        sine += term
        if abs(term) < _TINY:
            break
    cosine = (1 - sine * sine).sqrt()
    for _ in range(4):
        sine, cosine = 2 * sine * cosine, 1 - 2 * sine * sine
    if abs(angle) > 1:
        sine, cosine = (_ZERO if abs(value) < _ROUNDING else value for value in (sine, cosine))
    return sine, cosine


def _check_shown(one: Decimal, other: Decimal) -> None:
    """Raises `HiddenError` where the smaller of two terms is lost in their sum."""
    small, large = sorted((abs(one), abs(other)))
    if small and small < large * _SHOWN:
        raise HiddenError("a term is too small")


@functools.lru_cache(maxsize=64)
def _arctan(x: Decimal) -> Decimal:
    """Arc tangent, by its series after the argument has been halved until it is small."""
    if abs(x) > 1:
        return (_PI / 2 if x > 0 else -_PI / 2) - _arctan(1 / x)
    halvings = 0
    while abs(x) > Decimal("0.02"):
        x /= 1 + (1 + x * x).sqrt()
        halvings += 1
    square, total, term = x * x, x, x
    for k in range(3, 80, 2):
        term = -term * square
        total += term / k
        if abs(term) < _TINY:
            break
    return total * Decimal(2) ** halvings


# Functions that large arguments do not change, and functions that small ones change by their square.
_SATURATED = dict.fromkeys(("sinh", "cosh", "tanh"), Decimal(28)) | dict.fromkeys(("arctan", "atan"), 1 / _SHOWN)
_EVEN = ("cos", "sec", "cosh")


class PreciseField(Field[Pair]):
    """Pairs of decimals (real and imaginary part); refuses what `FloatField` refuses."""

    def visit_num(self, node: Node) -> Pair:
        """See `Field.visit_num`; a number of as many digits as are compared may be another number's beginning."""
        assert isinstance(node.value, Fraction)
        if digits(node.value) > _MOST_DIGITS:
            raise HiddenError("digits")
        return self.number(node.value)

    def number(self, value: Fraction) -> Pair:
        """See `Field.number`."""
        return self.divide((Decimal(value.numerator), _ZERO), (Decimal(value.denominator), _ZERO))

    def constant(self, name: str) -> Pair:
        """See `Field.constant`."""
        if name == "pi":
            return _PI, _ZERO
        if name == "e":
            return _ONE.exp(), _ZERO
        if name == "i":
            return _ZERO, _ONE
        raise UndefinedError(name)

    def visit_fact(self, node: Node) -> Pair:
        """Factorials and the like of rational arguments, which are rational."""
        return self.number(ExactField(self.point).visit(node))

    visit_binom = visit_fact
    visit_floor = visit_fact
    visit_ceil = visit_fact

    def add(self, left: Pair, right: Pair) -> Pair:
        """See `Field.add`."""
        sizes = [max(abs(real), abs(imaginary)) for real, imaginary in (left, right)]
        _check_shown(*sizes)
        total = left[0] + right[0], left[1] + right[1]
        return total if max(map(abs, total)) > max(sizes) * _ROUNDING else (_ZERO, _ZERO)

    def multiply(self, left: Pair, right: Pair) -> Pair:
        """See `Field.multiply`."""
        (a, b), (c, d) = left, right
        if not b and not d:
            return a * c, _ZERO
        _check_shown(a * c, b * d)
        _check_shown(a * d, b * c)
        return a * c - b * d, a * d + b * c

    def divide(self, left: Pair, right: Pair) -> Pair:
        """See `Field.divide`."""
        c, d = right
        if not d:
            return left[0] / c, left[1] / c
        _check_shown(c * c, d * d)
        norm = c * c + d * d
        real, imaginary = self.multiply(left, (c, -d))
        return real / norm, imaginary / norm

    def power(self, base: Pair, exponent: Pair, node: Node) -> Pair:
        """See `Field.power`."""
        power = self.exponent(node)
        if power is not None and power.denominator == 1 and abs(power) <= 100_000:
            return self._integer_power(base, power.numerator)
        if base == (_ZERO, _ZERO):
            raise UndefinedError("zero to a power")
        if not base[1] and base[0] < 0 and (power is None or power.denominator % 2):
            raise UndefinedError("branch")
        return self._exp(self.multiply(exponent, self._ln(base)))

    def _integer_power(self, base: Pair, power: int) -> Pair:
        if power <= 0 and base == (_ZERO, _ZERO):
            raise UndefinedError("zero to a power")
        if power < 0:
            return self.divide((_ONE, _ZERO), self._integer_power(base, -power))
        result = (_ONE, _ZERO)
        while power:
            if power & 1:
                result = self.multiply(result, base)
            power >>= 1
            base = self.multiply(base, base) if power else base
        return result

    def root(self, base: Pair, degree: Pair, node: Node) -> Pair:
        """See `Field.root`."""
        n = exact(node)
        if base == (_ZERO, _ZERO):
            return base
        if n is not None and n.denominator == 1 and n % 2 and not base[1] and base[0] < 0:
            if self.point:
                raise UndefinedError("branch")
            real, _ = self.root((-base[0], _ZERO), degree, node)
            return -real, _ZERO
        if n == 2 and not base[1]:
            root = abs(base[0]).sqrt()
            return (root, _ZERO) if base[0] > 0 else (_ZERO, root)
        return self._exp(self.divide(self._ln(base), degree))

    def _exp(self, value: Pair) -> Pair:
        if abs(value[0]) > 20_000:
            raise UndefinedError("range")
        if 0 < abs(value[0]) < _SHOWN:
            raise HiddenError("a power too near to 1")
        size = value[0].exp()
        if not value[1]:
            return size, _ZERO
        sine, cosine = _sin_cos(value[1])
        return size * cosine, size * sine

    def _ln(self, value: Pair) -> Pair:
        a, b = value
        if not a and not b:
            raise UndefinedError("logarithm of zero")
        if not b and a > 0:
            return (a.ln() if abs(a - 1) > _ROUNDING else _ZERO), _ZERO
        half = (a * a + b * b).ln() / 2
        if not a:
            return half, (_PI / 2 if b > 0 else -_PI / 2)
        angle = _arctan(b / a)
        if a < 0:
            angle += _PI if b >= 0 else -_PI
        return half, angle

    def function(self, name: str, value: Pair, base: Pair | None) -> Pair:
        """See `Field.function`."""
        if name in ("ln", "log", "lg"):
            if base is None and (name == "lg" or (name == "log" and self.log_base)):
                base = (Decimal(10), _ZERO)
            logarithm = self._ln(value)
            return logarithm if base is None else self.divide(logarithm, self._ln(base))
        if name == "exp":
            return self._exp(value)
        if name == "abs":
            return (abs(value[0]) if not value[1] else (value[0] ** 2 + value[1] ** 2).sqrt()), _ZERO
        if value[1]:
            raise UndefinedError(name)
        return self._real_function(name, value[0]), _ZERO

    def _real_function(self, name: str, x: Decimal) -> Decimal:
        size = abs(x)
        saturated = size > _SATURATED.get(name, size)
        if saturated or (
            x and (size < _SHOWN if name in ("arccos", "acos") else size < _SHOWN_SQUARED and name in _EVEN)
        ):
            raise HiddenError("an argument too large or too small")
        if name in ("arctan", "atan"):
            return _arctan(x)
        if name in ("arcsin", "asin", "arccos", "acos") and abs(x) <= 1:
            angle = _arctan(x / (1 - x * x).sqrt()) if abs(x) < 1 else x * _PI / 2
            return angle if "sin" in name else _PI / 2 - angle
        if name in ("sinh", "cosh", "tanh") and abs(x) < 1000:
            up, down = x.exp(), (-x).exp()
            return {"sinh": (up - down) / 2, "cosh": (up + down) / 2, "tanh": (up - down) / (up + down)}[name]
        if name not in ("sin", "cos", "tan", "cot", "sec", "csc"):
            raise UndefinedError(name)
        sine, cosine = _sin_cos(x)
        if name in ("sin", "cos"):
            return sine if name == "sin" else cosine
        top = {"tan": sine, "cot": cosine}.get(name, _ONE)
        bottom = cosine if name in ("tan", "sec") else sine
        if abs(bottom) < Decimal("1e-50"):
            raise UndefinedError("pole")
        return top / bottom
