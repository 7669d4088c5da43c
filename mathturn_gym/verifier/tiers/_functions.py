"""Elementary functions on complex floats that carry a bound on their error."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable

from mathturn_gym.verifier.reading._nodes import UndefinedError

__all__ = ["float_function"]

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
