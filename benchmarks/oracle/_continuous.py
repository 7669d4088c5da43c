"""Solvers for geometry, calculus, matrices and word problems."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import sympy

from mathturn_gym.problems.families.registry import solves
from oracle._exact import Polynomial, area, exact_log, limit_at, root_of, slope, value
from oracle._reading import UnreadableError, expression, numbers
from oracle._solvers import find, x

__all__: list[str] = []


@solves("geometry")
def geometry(text: str) -> Any:
    """By coordinates and distances, and the cone by sympy's integral."""
    found = [sympy.Integer(n) for n in numbers(text)]
    if "legs" in text:
        return sympy.Point(0, found[0]).distance(sympy.Point(found[1], 0))
    if "hypotenuse" in text:
        return found[0] * sympy.sin(sympy.acos(found[1] / found[0]))
    if "distance" in text:
        return sympy.Point(*found[:2]).distance(sympy.Point(*found[2:]))
    if "rectangle" in text:
        corners = [(0, 0), (found[0], 0), (found[0], found[1]), (0, found[1])]
        return _polygon(corners) if "area" in text else 2 * sum(found)
    if "base of length" in text:
        return _polygon([(0, 0), (found[0], 0), (1, found[1])])
    if "angles" in text:
        return root_of(f"{found[0]} + {found[1]} + x = 180")
    if "equilateral" in text:
        return _by_cosines(found[0], found[0], found[0])
    if "box" in text:
        return sympy.Point(0, 0, 0).distance(sympy.Point(*found))
    if "circle" in text:
        return sympy.Circle((0, 0), found[0]).area if "area" in text else 2 * sympy.pi * found[0] / 2
    if "cone" in text:
        return sympy.integrate(sympy.pi * (found[0] * x / found[1]) ** 2, (x, 0, found[1]))
    return _by_cosines(*found)


def _polygon(corners: list[tuple[Any, Any]]) -> Any:
    """The area inside, by the shoelace formula."""
    pairs = zip(corners, [*corners[1:], corners[0]], strict=True)
    return abs(sum(a * d - b * c for (a, b), (c, d) in pairs)) / sympy.Integer(2)


def _by_cosines(a: Any, b: Any, c: Any) -> Any:
    """A triangle's area from two sides and the angle between them."""
    cosine = (a * a + b * b - c * c) / (2 * a * b)
    return a * b * sympy.sqrt(1 - cosine**2) / 2


@solves("trigonometry")
def trigonometry(text: str) -> Any:
    """Sympy's value of the expression; `agrees` puts the answer's numbers into the form that is asked for."""
    written, unit, form = find(r"value of (.+) \(angles in (degrees|radians)\) as (.+?) with", text)
    if unit == "degrees":
        written = re.sub(r"(sin|cos|tan)\((-?\d+)\)", r"\1(\2*pi/180)", written)
    return expression(written), expression(form)


@solves("logarithms")
def logarithms(text: str) -> Any:
    """Sums of logarithms as the logarithm of a product, and equations by solving what is inside."""
    if text.startswith("What"):
        return _sum_of_logs(find(r"value of (.+)\?", text)[0])
    equation = find(r"x: (.+)\.$", text)[0]
    left, right = equation.split(" = ")
    if left.startswith("log_"):
        base, inside = find(r"log_(\d+)\((.+)\)$", left)
        return root_of(f"{inside} = {base}^{right}")
    base, exponent = find(r"^(\d+)\^\(?(.+?)\)?$", left)
    return root_of(f"{exponent} = {exact_log(int(base), Fraction(int(right)))}")


def _sum_of_logs(text: str) -> Fraction:
    """`3 * log_2(8)`, or `log_2(a) + log_2(b) - log_2(c)`."""
    terms = re.findall(r"([+-]?) ?(?:(\d+) \* )?log_(\d+)\((.+?)\)(?= [+-]|$)", text)
    bases = {int(base) for _, _, base, _ in terms}
    if len(bases) != 1:
        raise UnreadableError(f"{text!r} has not one base: {sorted(bases)}")
    product, factor = Fraction(1), Fraction(1)
    for sign, times, _, inside in terms:
        product *= value(inside) ** (-1 if sign == "-" else 1)
        factor *= int(times or 1)
    if factor != 1 and len(terms) > 1:
        raise UnreadableError(f"{text!r} has factors in a sum")
    return factor * exact_log(bases.pop(), product)


@solves("derivatives")
def derivatives(text: str) -> Any:
    """By dual numbers."""
    function, place = find(r"f\(x\) = (.+)\. What is the value of the derivative f'\((-?\d+)\)", text)
    return slope(function, int(place))


@solves("integrals")
def integrals(text: str) -> Any:
    """From the values of a polynomial, else by sympy's integral."""
    function, low, high = find(r"integral of (.+) with respect to x from (\S+) to (\S+)\.$", text)
    if "sin" not in function and "/x" not in function:
        return area(function, int(low), int(high))
    return sympy.integrate(expression(function), (x, expression(low), expression(high)))


@solves("limits")
def limits(text: str) -> Any:
    """By L'Hôpital's rule; at infinity by the leading terms."""
    function, place = find(r"limit of (.+) as x tends to (\S+)\.$", text)
    if place != "infinity":
        return limit_at(function, int(place))
    above, below = (Polynomial.read(part) for part in find(r"^\(?(.+?)\)?/\(?(.+?)\)?$", function))
    if above.degree != below.degree:
        raise UnreadableError(f"{function!r} has sides of different degrees")
    return Fraction(above.coefficients[-1], below.coefficients[-1])


@solves("matrices")
def matrices(text: str) -> Any:
    """By sympy's matrices."""
    found = [
        sympy.Matrix([numbers(row) for row in re.findall(r"\[([^\[\]]+)\]", m)])
        for m in re.findall(r"\[\[.+?\]\]", text)
    ]
    if "determinant" in text:
        return found[0].det()
    if "the entry of AB" in text:
        i, j = (int(n) for n in find(r"row (\d) and column (\d)", text))
        return (found[0] * found[1])[i - 1, j - 1]
    if "entry" in text:
        i, j = (int(n) for n in find(r"row (\d) and column (\d)", text))
        return found[0].inv(method="ADJ")[i - 1, j - 1]
    return found[0].inv()


@solves("words")
def words(text: str) -> Any:
    """Each story as equations, its numbers read off the text."""
    n = [Fraction(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]
    if "heads" in text:
        return root_of(f"4x + 2 * ({n[0]} - x) = {n[1]}")
    if "years" in text:
        k, years, total = (n[2], n[0], n[1]) if text.startswith("In ") else n
        return root_of(f"(x + {years}) + ({k} * x + {years}) = {total}")
    if "%" in text:
        strong, weak, liters, result = n[:4]
        return root_of(f"({strong}) * x + ({weak}) * ({liters} - x) = ({result}) * {liters}")
    if "alone" in text or "pump" in text:
        return root_of(f"x/{n[0]} + x/{n[1]} = 1")
    if "km" in text:
        return n[0] * n[1] + n[2] * n[3]
    if "dollars" in text:
        if text.startswith("A book"):
            price, pen, books, pens, paid = n
        else:
            books, price, pens, pen, paid = n
        return paid - books * price - pens * pen
    if "children" in text:
        total, children = n
        return total % children
    if "together" in text or "in total" in text:
        more, base = (n[0], n[1]) if "owns" in text else (n[1], n[0])
        return base + (base + more)
    if "packs" in text or "boxes" in text:
        return n[0] * n[1] - n[2]
    if len(n) == 3:
        return n[0] + n[1] - n[2]
    raise UnreadableError(f"no story known for {text!r}")
