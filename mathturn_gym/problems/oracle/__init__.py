"""The independent route: solves a family's question from its plain text with sympy, and compares.

Nothing of the families' own arithmetic is used, only the text that a model would see. Needs sympy; not imported unless
asked for.
"""

from __future__ import annotations

from typing import Any

import sympy

from mathturn_gym.problems.families import Family
from mathturn_gym.problems.oracle import continuous, solvers
from mathturn_gym.problems.oracle.reading import UnreadableError, gold_value, numbers
from mathturn_gym.types import Problem

__all__ = ["UnreadableError", "disagreement"]

assert continuous.__name__  # importing it enters its solvers


def disagreement(problem: Problem) -> str | None:
    """What is wrong with a procedural problem; None where the independent route gives its gold answer.

    The LaTeX form is checked through its plain twin: the same gold answer, and the same numbers.

    Args:
        problem: From a `Family`.

    Raises:
        UnreadableError: its text is not one that the family writes.

    >>> disagreement(Family("linear", 2).get(seed=0, index=0)) is None
    True
    """
    if problem.metadata["form"] == "latex":
        twin = _twin(problem)
        if twin.gold != problem.gold:
            return f"{problem.id}: gold {problem.gold!r}, in the plain form {twin.gold!r}"
        if _digits(twin.prompt) != _digits(problem.prompt):
            return f"{problem.id}: the forms have different numbers: {twin.prompt!r} and {problem.prompt!r}"
        problem = twin
    found = solvers.SOLVERS[problem.metadata["family"]](problem.prompt)
    for gold in problem.gold:
        if not _agrees(found, gold_value(gold)):
            return f"{problem.id}: gold {gold!r}, but {problem.prompt!r} gives {found}"
    return None


def _twin(problem: Problem) -> Problem:
    data = problem.metadata
    _, seed, index = problem.id.rsplit("/", 2)
    return Family(data["family"], data["level"], data["split"]).get(int(seed), int(index))


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
    # strict: numbers and expressions alone, never a text
    difference = sympy.sympify(left, strict=True) - sympy.sympify(right, strict=True)
    if difference.is_Rational:
        return bool(difference == 0)
    return bool(abs(sympy.N(difference, 60, maxn=400)) < sympy.Float("1e-50"))
