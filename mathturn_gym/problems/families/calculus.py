"""Logarithms, derivatives, integrals, limits and matrices.

Derivatives are asked at a point: a question that asks for a formula could be answered by writing it unevaluated.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TypeAlias

from mathturn_gym.problems.families._writing import Draw, Writer, determinant
from mathturn_gym.problems.families.registry import Question, exact, family, whole

Text: TypeAlias = Callable[[Writer], str]


def _log(w: Writer, base: int, inside: object) -> str:
    return rf"\log_{{{base}}}({inside})" if w.tex else f"log_{base}({inside})"


@family("logarithms")
def logarithms(draw: Draw, level: int) -> Question:
    """Logarithms, exponents, and equations with them."""
    base = draw.pick((2, 3, 5, 7, 10))
    if level <= 2:
        factor, inner = draw.between(1, 30), 1 if level == 1 else draw.between(1, 3)
        power = draw.between(1, 6 if level == 1 else 5) * draw.pick((1, -1))
        inside = base ** abs(power)
        return exact(
            lambda w: (
                f"What is the exact value of {w(f'{factor}{w.dot}{_log(w, base**inner, inside if power > 0 else w.frac(1, inside))}')}?"
            ),
            Fraction(factor * power, inner),
        )
    if level == 3:
        a, b, power = draw.nonzero(-6, 6), draw.between(-9, 9), draw.between(1, 5)
        return exact(
            lambda w: f"Solve for {w('x')}: {w(w.power(str(base), w.polynomial([a, b])) + f' = {base**power}')}.",
            Fraction(power - b, a),
        )
    if level == 4:
        a, b, power = draw.nonzero(-6, 6), draw.between(-20, 20), draw.between(0, 4)
        return exact(
            lambda w: f"Solve for {w('x')}: {w(_log(w, base, w.polynomial([a, b])) + f' = {power}')}.",
            Fraction(base**power - b, a),
        )
    power, p, q = draw.between(-3, 6), draw.between(2, 40), draw.between(2, 40)
    # log(m p) + log(q) - log(p q) with m = base^power, written as fractions where it is below 1
    m = Fraction(base) ** power
    return whole(
        lambda w: (
            f"What is the exact value of"
            f" {w(f'{_log(w, base, w.number(m * p))} + {_log(w, base, q)} - {_log(w, base, p * q)}')}?"
        ),
        power,
    )


def _at(coefficients: list[int], x: int) -> int:
    """Horner's rule."""
    value = 0
    for coefficient in coefficients:
        value = value * x + coefficient
    return value


def _slope(coefficients: list[int]) -> list[int]:
    degree = len(coefficients) - 1
    return [coefficient * (degree - place) for place, coefficient in enumerate(coefficients[:-1])] or [0]


def _random_polynomial(draw: Draw, degree: int) -> list[int]:
    return [draw.nonzero(-9, 9), *(draw.between(-9, 9) for _ in range(degree))]


@family("derivatives")
def derivatives(draw: Draw, level: int) -> Question:
    """Derivatives at a point."""
    x = draw.between(-4, 5)
    f, g = _random_polynomial(draw, 2 if level != 2 else 4), _random_polynomial(draw, 1)
    if level <= 2:
        return _slope_of(lambda w: w.polynomial(f), x, Fraction(_at(_slope(f), x)))
    if level == 3:
        value = _at(_slope(f), x) * _at(g, x) + _at(f, x) * _at(_slope(g), x)
        return _slope_of(lambda w: f"({w.polynomial(g)})({w.polynomial(f)})", x, Fraction(value))
    if level == 4:
        # Where the divisor is 0 there is no derivative: another question is drawn.
        below = _at(g, x)
        if not below:
            return derivatives(draw, level)
        value_4 = Fraction(_at(_slope(f), x) * below - _at(f, x) * _at(_slope(g), x), below**2)
        return _slope_of(lambda w: w.frac(w.polynomial(f), w.polynomial(g)), x, value_4)
    power = draw.between(3, 6)
    return _slope_of(
        lambda w: w.power(f"({w.polynomial(f)})", power),
        x,
        Fraction(power * _at(f, x) ** (power - 1) * _at(_slope(f), x)),
    )


def _slope_of(function: Text, x: int, value: Fraction) -> Question:
    derivative = f"f'({x})"
    return exact(
        lambda w: f"Let {w(f'f(x) = {function(w)}')}. What is the value of the derivative {w(derivative)}?",
        value,
    )


@family("integrals")
def integrals(draw: Draw, level: int) -> Question:
    """Definite integrals."""
    low = draw.between(-4, 3)
    high = low + draw.between(1, 5)
    if level <= 3:
        f = _random_polynomial(draw, level)
        return exact(_integral(lambda w: f"({w.polynomial(f)})", str(low), str(high)), _area(f, low, high))
    if level == 4:
        a, b, power = draw.between(1, 4), draw.nonzero(-6, 6), draw.between(3, 5)
        ends = [Fraction((a * x + b) ** (power + 1), a * (power + 1)) for x in (low, high)]
        return exact(
            _integral(lambda w: w.power(f"({w.polynomial([a, b])})", power), str(low), str(high)), ends[1] - ends[0]
        )
    if draw.between(0, 1):
        factor, top = draw.between(1, 12), draw.between(2, 15)
        size = "" if factor == 1 else str(factor)
        return Question(
            _integral(lambda w: w.frac(factor, "x"), "1", str(top)),
            rf"{size}\ln({top})",
        )
    factor, k = draw.between(1, 24), draw.between(1, 6)
    # the integral of sin(k x) from 0 to pi/k is 2/k
    return exact(
        lambda w: _integral(
            lambda v: f"{factor}{v.dot}{v.function('sin', 'x' if k == 1 else f'{k}x')}",
            "0",
            w.pi if k == 1 else w.frac(w.pi, k),
        )(w),
        Fraction(2 * factor, k),
    )


def _integral(function: Text, low: str, high: str) -> Text:
    def write(w: Writer) -> str:
        if w.tex:
            return rf"Find the exact value of $\int_{{{low}}}^{{{high}}} {function(w)} \, dx$."
        return f"Find the exact value of the integral of {function(w)} with respect to x from {low} to {high}."

    return write


def _area(coefficients: list[int], low: int, high: int) -> Fraction:
    degree = len(coefficients)
    return sum(
        (Fraction(c * (high ** (degree - k) - low ** (degree - k)), degree - k) for k, c in enumerate(coefficients)),
        Fraction(0),
    )


@family("limits")
def limits(draw: Draw, level: int) -> Question:
    """Limits of polynomials, quotients and roots."""
    a, b = draw.nonzero(-9, 9), draw.nonzero(-9, 9)
    if level == 1:
        f = _random_polynomial(draw, 2)
        return _limit(lambda w: f"({w.polynomial(f)})", str(a), Fraction(_at(f, a)))
    if level == 2:
        # (x - a)(c x + d) / (x - a)
        c, d = draw.nonzero(-6, 6), draw.between(-9, 9)
        return _limit(
            lambda w: w.frac(w.polynomial([c, d - a * c, -a * d]), w.polynomial([1, -a])), str(a), Fraction(c * a + d)
        )
    if level == 3:
        degree = draw.between(1, 3)
        f, g = _random_polynomial(draw, degree), _random_polynomial(draw, degree)
        return _limit(lambda w: w.frac(w.polynomial(f), w.polynomial(g)), "infinity", Fraction(f[0], g[0]))
    if level == 4:
        function = draw.pick(("sin", "tan"))
        return _limit(
            lambda w: w.frac(w.function(function, w.polynomial([a, 0])), w.polynomial([b, 0])), "0", Fraction(a, b)
        )
    root, slope = draw.between(1, 20), draw.nonzero(-12, 12)
    # (sqrt(s x + r²) - r) / x tends to s / (2 r)
    return _limit(
        lambda w: w.frac(f"{w.root(w.polynomial([slope, root * root]))} - {root}", "x"), "0", Fraction(slope, 2 * root)
    )


def _limit(function: Text, place: str, value: Fraction) -> Question:
    def write(w: Writer) -> str:
        if w.tex:
            return rf"Find $\lim_{{x \to {w.infinity if place == 'infinity' else place}}} {function(w)}$."
        return f"Find the limit of {function(w)} as x tends to {place}."

    return exact(write, value)


@family("matrices")
def matrices(draw: Draw, level: int) -> Question:
    """Determinants, products and inverses of matrices."""
    size, high = (3 if level in (3, 5) else 2), (9, 9, 5, 6, 3)[level - 1]
    rows = [[draw.between(-high, high) for _ in range(size)] for _ in range(size)]
    if level in (1, 3):
        return whole(lambda w: f"What is the determinant of the matrix {w(w.matrix(rows))}?", determinant(rows))
    if level == 2:
        other = [[draw.between(-high, high) for _ in range(2)] for _ in range(2)]
        i, j = draw.between(0, 1), draw.between(0, 1)
        return whole(
            lambda w: (
                f"Let {w(f'A = {w.matrix(rows)}')} and {w(f'B = {w.matrix(other)}')}. What is the entry of {w('AB')} in row"
                f" {i + 1} and column {j + 1}?"
            ),
            sum(rows[i][k] * other[k][j] for k in range(2)),
        )
    below = determinant(rows)
    if not below:
        return matrices(draw, level)
    if level == 4:
        inverse = [
            [Fraction(rows[1][1], below), Fraction(-rows[0][1], below)],
            [Fraction(-rows[1][0], below), Fraction(rows[0][0], below)],
        ]
        body = r" \\ ".join(" & ".join(map(str, row)) for row in inverse)
        return Question(
            lambda w: f"Find the inverse of the matrix {w(w.matrix(rows))}.",
            rf"\begin{{pmatrix}} {body} \end{{pmatrix}}",
        )
    i, j = draw.between(0, 2), draw.between(0, 2)
    minor = [[rows[r][c] for c in range(3) if c != i] for r in range(3) if r != j]
    return exact(
        lambda w: (
            f"What is the entry in row {i + 1} and column {j + 1} of the inverse of the matrix {w(w.matrix(rows))}?"
        ),
        Fraction((-1) ** (i + j) * determinant(minor), below),
    )
