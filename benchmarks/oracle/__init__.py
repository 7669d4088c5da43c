"""The independent route: solves a family's questions from their plain text with sympy, and compares.

Nothing of the families' own arithmetic is used, only the text that a model would see. Needs sympy; not imported unless
asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy

from mathturn_gym.problems.base import ProblemSource
from mathturn_gym.problems.families import Family
from mathturn_gym.problems.families.registry import SOLVERS, Solver
from mathturn_gym.problems.mixtures import Mixture
from mathturn_gym.types import Problem
from oracle import _continuous, _solvers
from oracle._reading import UnreadableError, gold_value, numbers

__all__ = ["UnreadableError", "disagreement", "disagreements"]

assert all((_continuous, _solvers))  # importing them enters their solvers


def disagreements(source: ProblemSource, items: int, seed: int = 0) -> Iterator[str]:
    """What is wrong with the first items of a source of families; nothing where the independent route agrees with all.

    A LaTeX form is checked through its plain twin, the same item of the same family: the same gold answer, and the same
    numbers. Problems for whose family there is no such route are passed over.

    Args:
        source: A `Family`, a generator, or a mixture of these.
        items: How many to check.
        seed: Of the stream.
    """
    plain = _plain(source)
    for index in range(items):
        problem = source.get(seed, index)
        if _solver(problem) is not None:
            found = disagreement(problem, plain.get(seed, index))
            if found is not None:
                yield found


def disagreement(problem: Problem, plain: Problem | None = None) -> str | None:
    """What is wrong with a procedural problem; None where the independent route gives its gold answer.

    Args:
        problem: From a family or generator for which there is such a route.
        plain: The same question in plain text; None where the problem is in plain text itself.

    Raises:
        UnreadableError: its text is not one that the family writes.

    >>> disagreement(Family("linear", 2).get(seed=0, index=0)) is None
    True
    """
    twin = problem if plain is None else plain
    if twin.gold != problem.gold:
        return f"{problem.id}: gold {problem.gold!r}, in the plain form {twin.gold!r}"
    if _digits(twin.prompt) != _digits(problem.prompt):
        return f"{problem.id}: the forms have different numbers: {twin.prompt!r} and {problem.prompt!r}"
    solver = _solver(problem)
    if solver is None:
        raise UnreadableError(f"there is no independent route for {problem.id!r}")
    found = _solved(solver, twin.prompt)
    for gold in problem.gold:
        if not _agrees(found, gold_value(gold)):
            return f"{problem.id}: gold {gold!r}, but {twin.prompt!r} gives {found}"
    return None


@lru_cache(maxsize=4096)  # small levels ask the same again and again
def _solved(solver: Solver, text: str) -> Any:
    return solver(text)


def _solver(problem: Problem) -> Any:
    family = str(problem.metadata.get("family"))
    return SOLVERS.get(family) or SOLVERS.get(family.rstrip("0123456789"))


def _plain(source: ProblemSource) -> ProblemSource:
    """The same source in plain text."""
    if isinstance(source, Mixture):
        return Mixture([_plain(part) for part in source.sources], source.weights, source.name)
    return Family(source.family, source.level, source.split) if isinstance(source, Family) else source


def _digits(text: str) -> list[int]:
    # An index counts alike as x_1 and x1; signs, brackets and the place of a limit or a bound are the form's own.
    return sorted(abs(number) for number in numbers(text.replace("_", " ").replace("x", " x ")))


def _agrees(found: Any, gold: Any) -> bool:
    if isinstance(found, tuple):  # trigonometry: (value, form in a, b, …), and gold holds the numbers of the form
        value, form = found
        names = sympy.symbols("a b c d")[: len(gold)]
        return _equal(value, form.subs(dict(zip(names, gold, strict=True)))) and _smallest(gold)
    if isinstance(found, sympy.MatrixBase):
        return bool(found == gold)
    if isinstance(found, sympy.Tuple):
        return isinstance(gold, sympy.Tuple) and len(found) == len(gold) and all(map(_equal, found, gold))
    return _equal(found, gold)


def _smallest(gold: Any) -> bool:
    """In `a sqrt(b)`, b has no square factor (and is 1 where the value is 0)."""
    if len(gold) > 2:
        return True
    a, b = gold
    return bool(b == 1) if a == 0 else all(power == 1 for power in sympy.factorint(b).values())


def _equal(left: Any, right: Any) -> bool:
    """Exactly, or to 60 digits where both are surds (whose sums differ by far more, or not at all)."""
    if isinstance(left, (int, Fraction)) and right.is_Rational:
        return (left.numerator, left.denominator) == (right.p, right.q)
    # strict: numbers and expressions alone, never a text
    difference = sympy.sympify(left, strict=True) - sympy.sympify(right, strict=True)
    if difference.is_Rational:
        return bool(difference == 0)
    return bool(abs(sympy.N(difference, 60, maxn=400)) < sympy.Float("1e-50"))
