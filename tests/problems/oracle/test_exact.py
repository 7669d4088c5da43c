"""The quick exact arithmetic of the independent route, held against sympy."""

from __future__ import annotations

from fractions import Fraction

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from oracle._exact import (
    Polynomial,
    area,
    exact_log,
    limit_at,
    root_of,
    slope,
    solve_linear,
    value,
)
from oracle._reading import UnreadableError, expression

X = sympy.Symbol("x")
small = st.integers(-9, 9)
coefficients = st.lists(small, min_size=2, max_size=5)


def written(numbers: list[int]) -> str:
    return " + ".join(f"({n}) * x^{k}" for k, n in enumerate(numbers))


def exact(found: Fraction) -> sympy.Rational:
    return sympy.Rational(found.numerator, found.denominator)


@given(coefficients, coefficients, small)
def test_slopes_are_derivatives(top: list[int], bottom: list[int], place: int) -> None:
    text = f"({written(top)})^2/({written(bottom)})"
    if expression(written(bottom)).subs(X, place) == 0:
        return
    assert exact(slope(text, place)) == sympy.diff(expression(text), X).subs(X, place)


@given(st.lists(small, min_size=1, max_size=9), small, small)
def test_areas_are_integrals(numbers: list[int], low: int, high: int) -> None:
    assert exact(area(written(numbers), low, high)) == sympy.integrate(expression(written(numbers)), (X, low, high))


@pytest.mark.parametrize(
    ("function", "place"),
    [
        ("(3x^2 - 5x - 2)/(x - 2)", 2),
        ("sin(4x)/(6x)", 0),
        ("tan(-3x)/(2x)", 0),
        ("(sqrt(7x + 16) - 4)/x", 0),
        ("(2x^2 + 1)", -3),
        ("(x^2 + 1)/(x - 2)", 3),
    ],
)
def test_limits_are_limits(function: str, place: int) -> None:
    assert exact(limit_at(function, place)) == sympy.limit(expression(function), X, place)


@given(st.lists(small, min_size=2, max_size=5).filter(any))
def test_rational_roots_are_all_of_them(numbers: list[int]) -> None:
    polynomial = Polynomial.read(written(numbers))
    if not polynomial.degree:
        return
    found = [root for root in sympy.roots(sympy.Poly(expression(written(numbers)), X)) if root.is_Rational]
    assert [exact(root) for root in polynomial.rational_roots()] == sorted(found)


@given(coefficients, coefficients)
def test_polynomials_multiply_and_subtract(a: list[int], b: list[int]) -> None:
    text = f"({written(a)})({written(b)}) - ({written(b)})^3/7"
    found = Polynomial.read(text)
    wanted = sympy.Poly(expression(text), X).all_coeffs()[::-1]
    assert [exact(Fraction(c)) for c in found.coefficients] == wanted
    assert found(3) == value(text, x=Fraction(3))


@given(st.sampled_from([2, 3, 5, 6, 10]), st.integers(1, 4), st.integers(-9, 9))
def test_logarithms_are_exact(root: int, inner: int, power: int) -> None:
    assert exact_log(root**inner, Fraction(root) ** power) == Fraction(power, inner)


def test_what_has_no_such_answer_is_refused() -> None:
    for call in (
        lambda: root_of("x^2 = 4"),
        lambda: root_of("2x + 1 = 2x"),
        lambda: exact_log(2, Fraction(3)),
        lambda: limit_at("1/(x - 2)", 2),
        lambda: limit_at("sin(x)/x", 1),
        lambda: limit_at("(sqrt(x + 2) - 1)/x", 0),
        lambda: slope("x^(1/2)", 4),
        lambda: value("x + y", x=Fraction(1)),
        lambda: Polynomial.read("1/x"),
        lambda: value("3 $ 4"),
        lambda: value("3 +"),
        lambda: solve_linear(["x + y = 1", "2x + 2y = 3"], ["x", "y"]),
    ):
        with pytest.raises(UnreadableError):
            call()
