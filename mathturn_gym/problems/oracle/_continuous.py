"""Solvers for geometry, calculus, matrices and word problems."""

from __future__ import annotations

import re
from typing import Any

import sympy

from mathturn_gym.problems.families.registry import solves
from mathturn_gym.problems.oracle._reading import UnreadableError, expression, numbers
from mathturn_gym.problems.oracle._solvers import find, x

__all__: list[str] = []


@solves("geometry")
def geometry(text: str) -> Any:
    """By coordinates, sympy's geometry and integrals."""
    found = [sympy.Integer(n) for n in numbers(text)]
    if "legs" in text:
        return sympy.Point(0, found[0]).distance(sympy.Point(found[1], 0))
    if "hypotenuse" in text:
        return found[0] * sympy.sin(sympy.acos(found[1] / found[0]))
    if "distance" in text:
        return sympy.Point(*found[:2]).distance(sympy.Point(*found[2:]))
    if "rectangle" in text:
        corners = [(0, 0), (found[0], 0), (found[0], found[1]), (0, found[1])]
        shape = sympy.Polygon(*corners)
        return abs(shape.area) if "area" in text else shape.perimeter
    if "base of length" in text:
        return abs(sympy.Triangle((0, 0), (found[0], 0), (1, found[1])).area)
    if "angles" in text:
        return sympy.solve(sum(found) + x - 180, x)[0]
    if "equilateral" in text:
        return _by_cosines(found[0], found[0], found[0])
    if "box" in text:
        return sympy.Point(0, 0, 0).distance(sympy.Point(*found))
    if "circle" in text:
        return sympy.Circle((0, 0), found[0]).area if "area" in text else 2 * sympy.pi * found[0] / 2
    if "cone" in text:
        return sympy.integrate(sympy.pi * (found[0] * x / found[1]) ** 2, (x, 0, found[1]))
    return _by_cosines(*found)


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
    """By sympy's logarithms, and equations by solving what is inside."""
    if text.startswith("What"):
        return sympy.nsimplify(sympy.simplify(expression(find(r"value of (.+)\?", text)[0])))
    equation = find(r"x: (.+)\.$", text)[0]
    left, right = equation.split(" = ")
    if left.startswith("log_"):
        base, inside = find(r"log_(\d+)\((.+)\)$", left)
        return sympy.solve(expression(inside) - sympy.Integer(base) ** int(right), x)[0]
    base, exponent = find(r"^(\d+)\^(.+)$", left)
    return sympy.solve(expression(exponent) - sympy.log(int(right), int(base)), x)[0]


@solves("derivatives")
def derivatives(text: str) -> Any:
    """By sympy's derivative."""
    function, place = find(r"f\(x\) = (.+)\. What is the value of the derivative f'\((-?\d+)\)", text)
    return sympy.diff(expression(function), x).subs(x, int(place))


@solves("integrals")
def integrals(text: str) -> Any:
    """By sympy's integral."""
    function, low, high = find(r"integral of (.+) with respect to x from (\S+) to (\S+)\.$", text)
    return sympy.integrate(expression(function), (x, expression(low), expression(high)))


@solves("limits")
def limits(text: str) -> Any:
    """By sympy's limit."""
    function, place = find(r"limit of (.+) as x tends to (\S+)\.$", text)
    return sympy.limit(expression(function), x, sympy.oo if place == "infinity" else int(place))


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


_Numbers = list[Any]


@solves("words")
def words(text: str) -> Any:
    """Each story as equations, its numbers read off the text."""
    n = [sympy.Rational(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]
    u, v = sympy.symbols("u v")
    if "heads" in text:
        return sympy.solve([u + v - n[0], 4 * u + 2 * v - n[1]], [u, v])[u]
    if "years" in text:
        k, years, total = (n[2], n[0], n[1]) if text.startswith("In ") else n
        return sympy.solve(u + years + k * u + years - total, u)[0]
    if "%" in text:
        return _mixed(text, n)
    if "alone" in text or "pump" in text:
        return sympy.solve(u / n[0] + u / n[1] - 1, u)[0]
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
        return sympy.Mod(total, children)
    if "together" in text or "in total" in text:
        more, base = (n[0], n[1]) if "owns" in text else (n[1], n[0])
        return base + (base + more)
    if "packs" in text or "boxes" in text:
        return n[0] * n[1] - n[2]
    if len(n) == 3:
        return n[0] + n[1] - n[2]
    raise UnreadableError(f"no story known for {text!r}")


def _mixed(text: str, n: _Numbers) -> Any:
    """Litres of the first solution."""
    u = sympy.Symbol("u")
    strong, weak, litres, result = n[:4]
    return sympy.solve(strong * u + weak * (litres - u) - result * litres, u)[0]
