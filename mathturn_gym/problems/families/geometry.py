"""Geometry and trigonometry with exact answers."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Final

from mathturn_gym.problems.families._writing import Draw, Writer, square_root, surd_text, tuple_text
from mathturn_gym.problems.families.registry import Question, family, whole


@family("geometry")
def geometry(draw: Draw, level: int) -> Question:
    """Lengths, areas and volumes, with square roots and pi."""
    a, b = draw.between(2, 20), draw.between(2, 20)
    if level == 1:
        return _rectangle(draw, a, b)
    if level == 2:
        if draw.between(0, 1):
            return _root(
                lambda w: (
                    f"A right triangle has legs of length {w(str(a))} and {w(str(b))}. How long is its hypotenuse? Give the"
                    f" exact value."
                ),
                a * a + b * b,
            )
        long = a + draw.between(1, 12)
        return _root(
            lambda w: (
                f"A right triangle has a hypotenuse of length {w(str(long))} and a leg of length {w(str(a))}. How long is"
                f" the other leg? Give the exact value."
            ),
            long * long - a * a,
        )
    if level == 3:
        (x, y), (u, v) = draw.distinct(-9, 9, 2), draw.distinct(-9, 9, 2)
        return _root(
            lambda w: f"What is the exact distance between the points {w(f'({x}, {y})')} and {w(f'({u}, {v})')}?",
            (x - u) ** 2 + (y - v) ** 2,
        )
    return _solid(draw, a, b) if level == 4 else _triangle(draw)


def _root(write: Callable[[Writer], str], square: int) -> Question:
    if square == 0:
        return whole(write, 0)
    outside, inside = square_root(square)
    return Question(write, surd_text({inside: Fraction(outside)}), outside if inside == 1 else None)


def _rectangle(draw: Draw, a: int, b: int) -> Question:
    kind = draw.between(0, 3)
    if kind == 0:
        return whole(lambda w: f"What is the area of a rectangle with sides {w(str(a))} and {w(str(b))}?", a * b)
    if kind == 1:
        return whole(
            lambda w: f"What is the perimeter of a rectangle with sides {w(str(a))} and {w(str(b))}?", 2 * (a + b)
        )
    if kind == 2:
        return Question(
            lambda w: f"A triangle has a base of length {w(str(a))} and a height of {w(str(b))}. What is its area?",
            str(Fraction(a * b, 2)),
        )
    first, second = draw.between(20, 80), draw.between(20, 80)
    return whole(
        lambda w: (
            f"Two angles of a triangle measure {first} and {second} degrees. How many degrees does the third angle measure?"
        ),
        180 - first - second,
    )


def _solid(draw: Draw, a: int, b: int) -> Question:
    kind = draw.between(0, 4)
    c = draw.between(2, 20)
    if kind == 0:
        return Question(
            lambda w: f"What is the exact area of an equilateral triangle with sides of length {w(str(a))}?",
            surd_text({3: Fraction(a * a, 4)}),
        )
    if kind == 1:
        return _root(
            lambda w: (
                f"A box has edges of length {w(str(a))}, {w(str(b))} and {w(str(c))}. How long is its space diagonal? Give the"
                f" exact value."
            ),
            a * a + b * b + c * c,
        )
    if kind == 2:
        text, value = "What is the exact area of a circle with radius {}?", Fraction(a * a)
    elif kind == 3:
        text, value = "What is the exact circumference of a circle with diameter {}?", Fraction(a)
    else:
        return _pi(
            lambda w: f"A cone has a base of radius {w(str(a))} and a height of {w(str(b))}. What is its exact volume?",
            Fraction(a * a * b, 3),
        )
    return _pi(lambda w: text.format(w(str(a))), value)


def _pi(write: Callable[[Writer], str], factor: Fraction) -> Question:
    top = r"\pi" if factor.numerator == 1 else rf"{factor.numerator}\pi"
    return Question(write, top if factor.denominator == 1 else rf"\frac{{{top}}}{{{factor.denominator}}}")


def _triangle(draw: Draw) -> Question:
    """Heron's formula: 16 area² = (a+b+c)(-a+b+c)(a-b+c)(a+b-c)."""
    a, b = draw.between(3, 15), draw.between(3, 15)
    c = draw.between(abs(a - b) + 1, a + b - 1)
    square = (a + b + c) * (-a + b + c) * (a - b + c) * (a + b - c)
    outside, inside = square_root(square)
    return Question(
        lambda w: f"A triangle has sides of length {w(str(a))}, {w(str(b))} and {w(str(c))}. What is its exact area?",
        surd_text({inside: Fraction(outside, 4)}),
    )


# Values at multiples of 15 degrees as sums of c·√r, written r -> c: exact, and easy to add.
_SINE: Final[dict[int, dict[int, Fraction]]] = {
    0: {},
    15: {6: Fraction(1, 4), 2: Fraction(-1, 4)},
    30: {1: Fraction(1, 2)},
    45: {2: Fraction(1, 2)},
    60: {3: Fraction(1, 2)},
    75: {6: Fraction(1, 4), 2: Fraction(1, 4)},
    90: {1: Fraction(1)},
}
_TANGENT: Final[dict[int, dict[int, Fraction]]] = {
    0: {},
    15: {1: Fraction(2), 3: Fraction(-1)},
    30: {3: Fraction(1, 3)},
    45: {1: Fraction(1)},
    60: {3: Fraction(1)},
    75: {1: Fraction(2), 3: Fraction(1)},
}
_FUNCTIONS: Final = ("sin", "cos", "tan")


def _value(function: str, degrees: int) -> dict[int, Fraction] | None:
    """The exact value at a multiple of 15 degrees, or None where there is none."""
    if function == "cos":
        return _value("sin", degrees + 90)
    if function == "sin":
        degrees %= 360
        if degrees >= 180:
            return {root: -value for root, value in (_value("sin", degrees - 180) or {}).items()}
        return _SINE[min(degrees, 180 - degrees)]
    degrees %= 180
    # The tangent has no value there: another angle is drawn.
    if degrees == 90:
        return None
    if degrees > 90:
        return {root: -value for root, value in _TANGENT[180 - degrees].items()}
    return _TANGENT[degrees]


def _angle(draw: Draw, level: int) -> int:
    if level == 1:
        return draw.pick((0, 30, 45, 60, 90))
    if level == 5:
        return 15 * draw.between(-24, 24)
    return draw.pick((30, 45)) * draw.between(-8 if level == 3 else 0, 8)


@family("trigonometry")
def trigonometry(draw: Draw, level: int) -> Question:
    """Exact values of sine, cosine and tangent.

    Asked for as rational numbers beside square roots: the expression itself would be equal to its exact value.
    """
    terms: list[tuple[int, str, int]] = []
    total: dict[int, Fraction] = {}
    while len(terms) < (1 if level <= 3 else 2):
        factor, function, degrees = draw.between(2, 12), draw.pick(_FUNCTIONS), _angle(draw, level)
        value = _value(function, degrees)
        if value is not None:
            terms.append((factor, function, degrees))
            for root, part in value.items():
                total[root] = total.get(root, Fraction(0)) + factor * part

    roots = (1, 2, 3, 6)
    if level <= 3:
        root, factor_of_root = next(iter({r: v for r, v in total.items() if v}.items()), (1, Fraction(0)))
        values: list[Fraction | int] = [factor_of_root, root]
    else:
        values = [total.get(root, Fraction(0)) for root in roots]

    def write(w: Writer) -> str:
        shown = (f"{factor}{w.dot}{w.function(name, _written(w, degrees, level))}" for factor, name, degrees in terms)
        unit = " (angles in radians)" if level >= 3 else " (angles in degrees)"
        if level <= 3:
            form = f"a{w.dot}{w.root('b')}"
            ask = f"with a rational number {w('a')} and the smallest possible positive whole number {w('b')}, and give {w('(a, b)')}"
        else:
            form = "a" + "".join(f" + {name}{w.dot}{w.root(root)}" for name, root in zip("bcd", roots[1:], strict=True))
            ask = f"with rational numbers, and give {w('(a, b, c, d)')}"
        return f"Write the exact value of {w(' + '.join(shown))}{unit} as {w(form)} {ask}."

    return Question(write, tuple_text(values))


def _written(w: Writer, degrees: int, level: int) -> str:
    if level < 3:
        return str(degrees)
    part = Fraction(degrees, 180)
    if not part:
        return "0"
    sign, size = ("-" if part < 0 else ""), abs(part.numerator)
    top = w.pi if size == 1 else f"{size}{w.pi}" if w.tex else f"{size}*{w.pi}"
    return sign + (top if part.denominator == 1 else w.frac(top, part.denominator))
