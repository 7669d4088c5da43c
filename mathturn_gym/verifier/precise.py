"""Complex numbers of 60 digits: what floats cannot tell apart, these can."""

from __future__ import annotations

import functools
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow, Underflow
from fractions import Fraction
from typing import TypeAlias

from mathturn_gym.verifier.fields import Field, exact
from mathturn_gym.verifier.nodes import Node, UndefinedError

__all__ = ["DIGITS", "PreciseField"]

DIGITS = 60
Pair: TypeAlias = tuple[Decimal, Decimal]

_CONTEXT = Context(prec=DIGITS + 10, Emax=99_999, Emin=-99_999, traps=[DivisionByZero, InvalidOperation, Overflow, Underflow])
_ZERO, _ONE, _TWO = Decimal(0), Decimal(1), Decimal(2)
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798")


def _sin_cos(angle: Decimal) -> Pair:
    """Sine and cosine, by their series after a reduction to [-pi, pi] and four halvings."""
    c = _CONTEXT
    if abs(angle) > 1_000_000:
        raise UndefinedError("angle")
    turns = c.divide(angle, c.multiply(_TWO, _PI)).to_integral_value()
    x = c.divide(c.subtract(angle, c.multiply(c.multiply(_TWO, _PI), turns)), Decimal(16))
    square = c.multiply(x, x)
    sine = term = x
    for k in range(1, 40):
        term = c.divide(c.multiply(term, -square), Decimal(2 * k * (2 * k + 1)))
        sine = c.add(sine, term)
        if abs(term) < Decimal("1e-75"):
            break
    cosine = c.sqrt(c.subtract(_ONE, c.multiply(sine, sine)))
    for _ in range(4):
        sine, cosine = (
            c.multiply(c.multiply(_TWO, sine), cosine),
            c.subtract(_ONE, c.multiply(_TWO, c.multiply(sine, sine))),
        )
    return sine, cosine


@functools.lru_cache(maxsize=64)
def _arctan(x: Decimal) -> Decimal:
    """Arc tangent, by its series after the argument has been halved until it is small."""
    c = _CONTEXT
    if abs(x) > 1:
        quarter = c.divide(_PI, _TWO)
        return c.subtract(quarter if x > 0 else -quarter, _arctan(c.divide(_ONE, x)))
    halvings = 0
    while abs(x) > Decimal("0.02"):
        x = c.divide(x, c.add(_ONE, c.sqrt(c.add(_ONE, c.multiply(x, x)))))
        halvings += 1
    square, total, term = c.multiply(x, x), x, x
    for k in range(3, 80, 2):
        term = c.multiply(term, -square)
        total = c.add(total, c.divide(term, Decimal(k)))
        if abs(term) < Decimal("1e-75"):
            break
    return c.multiply(total, _TWO**halvings)


class PreciseField(Field[Pair]):
    """Pairs of decimals (real and imaginary part); refuses what `FloatField` refuses."""

    def number(self, value: Fraction) -> Pair:
        return self._run(_CONTEXT.divide, Decimal(value.numerator), Decimal(value.denominator)), _ZERO

    def _run(self, operation: object, *values: Decimal) -> Decimal:
        try:
            result = operation(*values)  # type: ignore[operator]
        except (ArithmeticError, ValueError):
            raise UndefinedError("range") from None
        assert isinstance(result, Decimal)
        if not result.is_finite():
            raise UndefinedError("range")
        return result

    def constant(self, name: str) -> Pair:
        if name == "pi":
            return _PI, _ZERO
        if name == "e":
            return _CONTEXT.exp(_ONE), _ZERO
        if name == "i":
            return _ZERO, _ONE
        raise UndefinedError(name)

    def add(self, left: Pair, right: Pair) -> Pair:
        return self._run(_CONTEXT.add, left[0], right[0]), self._run(_CONTEXT.add, left[1], right[1])

    def multiply(self, left: Pair, right: Pair) -> Pair:
        (a, b), (c, d) = left, right
        times = _CONTEXT.multiply
        if not b and not d:
            return self._run(times, a, c), _ZERO
        real = self._run(_CONTEXT.subtract, self._run(times, a, c), self._run(times, b, d))
        return real, self._run(_CONTEXT.add, self._run(times, a, d), self._run(times, b, c))

    def divide(self, left: Pair, right: Pair) -> Pair:
        c, d = right
        if not d:
            return self._run(_CONTEXT.divide, left[0], c), self._run(_CONTEXT.divide, left[1], c)
        norm = self._run(_CONTEXT.add, self._run(_CONTEXT.multiply, c, c), self._run(_CONTEXT.multiply, d, d))
        real, imaginary = self.multiply(left, (c, -d))
        return self._run(_CONTEXT.divide, real, norm), self._run(_CONTEXT.divide, imaginary, norm)

    def power(self, base: Pair, exponent: Pair, node: Node) -> Pair:
        power = exact(node)
        if power is not None and power.denominator == 1 and abs(power) <= 100_000:
            return self._integer_power(base, power.numerator)
        if base == (_ZERO, _ZERO):
            raise UndefinedError("zero to a power")
        if not base[1] and base[0] < 0 and (power is None or power.denominator % 2):
            raise UndefinedError("branch")
        return self._exp(self.multiply(exponent, self._ln(base)))

    def _integer_power(self, base: Pair, power: int) -> Pair:
        if power < 0 or (not power and base == (_ZERO, _ZERO)):
            return self.divide((_ONE, _ZERO), self._integer_power(base, -power)) if power else self.divide(base, base)
        result = (_ONE, _ZERO)
        while power:
            if power & 1:
                result = self.multiply(result, base)
            power >>= 1
            base = self.multiply(base, base) if power else base
        return result

    def root(self, base: Pair, degree: Pair, node: Node) -> Pair:
        n = exact(node)
        if base == (_ZERO, _ZERO):
            return base
        if n is not None and n.denominator == 1 and n % 2 and not base[1] and base[0] < 0:
            if self.point:
                raise UndefinedError("branch")
            real, _ = self.root((-base[0], _ZERO), degree, node)
            return -real, _ZERO
        if n == 2 and not base[1]:
            root = self._run(_CONTEXT.sqrt, abs(base[0]))
            return (root, _ZERO) if base[0] > 0 else (_ZERO, root)
        return self._exp(self.divide(self._ln(base), degree))

    def _exp(self, value: Pair) -> Pair:
        if abs(value[0]) > 20_000:
            raise UndefinedError("range")
        size = self._run(_CONTEXT.exp, value[0])
        if not value[1]:
            return size, _ZERO
        sine, cosine = _sin_cos(value[1])
        return self._run(_CONTEXT.multiply, size, cosine), self._run(_CONTEXT.multiply, size, sine)

    def _ln(self, value: Pair) -> Pair:
        a, b = value
        if not b and a > 0:
            return self._run(_CONTEXT.ln, a), _ZERO
        norm = self._run(_CONTEXT.add, self._run(_CONTEXT.multiply, a, a), self._run(_CONTEXT.multiply, b, b))
        half = _CONTEXT.divide(self._run(_CONTEXT.ln, norm), _TWO)
        if not a:
            angle = _CONTEXT.divide(_PI, _TWO) if b > 0 else -_CONTEXT.divide(_PI, _TWO)
        else:
            angle = _arctan(self._run(_CONTEXT.divide, b, a))
            if a < 0:
                angle = _CONTEXT.add(angle, _PI if b >= 0 else -_PI)
        return half, angle

    def function(self, name: str, value: Pair, base: Pair | None) -> Pair:
        if name in ("ln", "log", "lg"):
            if base is None and (name == "lg" or (name == "log" and self.log_base)):
                base = (Decimal(10), _ZERO)
            logarithm = self._ln(value)
            return logarithm if base is None else self.divide(logarithm, self._ln(base))
        if name == "exp":
            return self._exp(value)
        if name == "abs":
            square = self.multiply(value, (value[0], -value[1]))[0]
            return (abs(value[0]) if not value[1] else self._run(_CONTEXT.sqrt, square)), _ZERO
        if name in ("sin", "cos", "tan", "cot", "sec", "csc") and not value[1]:
            return self._circular(name, value[0])
        if name in ("arctan", "atan") and not value[1]:
            return _arctan(value[0]), _ZERO
        if name in ("arcsin", "asin", "arccos", "acos") and not value[1] and abs(value[0]) < 1:
            c = _CONTEXT
            rest = c.sqrt(c.subtract(_ONE, c.multiply(value[0], value[0])))
            angle = _arctan(c.divide(value[0], rest))
            return (angle if "sin" in name else c.subtract(c.divide(_PI, _TWO), angle)), _ZERO
        raise UndefinedError(name)

    def _circular(self, name: str, angle: Decimal) -> Pair:
        sine, cosine = _sin_cos(angle)
        if name in ("sin", "cos"):
            return (sine if name == "sin" else cosine), _ZERO
        top = {"tan": sine, "cot": cosine}.get(name, _ONE)
        bottom = cosine if name in ("tan", "sec") else sine
        if abs(bottom) < Decimal("1e-50"):
            raise UndefinedError("pole")
        return self._run(_CONTEXT.divide, top, bottom), _ZERO
