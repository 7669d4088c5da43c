"""The tables of what can be drawn by name. A family is one file of this folder: entering it here is all it takes.

    @family("linear")      def linear(draw, level) -> Question      five levels, in plain text and in LaTeX
    @generator("lins")     class LinearEquation(Generator)          its question in plain text alone, without levels
    @solves("linear")      def linear(text) -> answer               the independent route to the answer

The independent route is what tests and `benchmarks/check_families.py` solve questions by, from their text alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, TypeAlias, TypeVar

from mathturn_gym.problems.base import Generator
from mathturn_gym.problems.families._writing import Draw, Writer

LEVELS: Final = (1, 2, 3, 4, 5)
"""Every family has these."""

Solver: TypeAlias = Callable[[str], Any]
_GeneratorClass = TypeVar("_GeneratorClass", bound=type[Generator])


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a family.

    Args:
        write: Its text in either form.
        gold: The accepted answer, or several spellings of it.
        whole: The answer where it is a whole number: hints are made from it.
        key: What decides its split, its plain text by default: questions that differ in their wording share one.
    """

    write: Callable[[Writer], str]
    gold: str | tuple[str, ...]
    whole: int | None = None
    key: str = ""


DrawQuestion: TypeAlias = Callable[[Draw, int], Question]


@dataclass(frozen=True, slots=True)
class FamilySpec:
    """A family with levels: its name, one line for lists, and how a question of a level is drawn."""

    name: str
    about: str
    draw: DrawQuestion


@dataclass(frozen=True, slots=True)
class GeneratorSpec:
    """A generator of one wording.

    Args:
        name: As users write it, before the number where it takes one.
        about: One line for lists.
        make: Makes it, from its number (if it takes one) and its split.
        numbers: The numbers that it takes, or None.
        shown: The names that lists show.
    """

    name: str
    about: str
    make: Callable[..., Generator]
    numbers: range | None
    shown: tuple[str, ...]


REGISTRY: Final[dict[str, FamilySpec]] = {}
"""Families with levels, by name."""

GENERATORS: Final[dict[str, GeneratorSpec]] = {}
"""Generators of one wording, by name."""

SOLVERS: Final[dict[str, Solver]] = {}
"""Independent routes, by the name of the family (of a generator without its number)."""


def family(name: str) -> Callable[[DrawQuestion], DrawQuestion]:
    """Enters a drawing function; the first line of its docstring says what the family is about."""

    def enter(draw: DrawQuestion) -> DrawQuestion:
        REGISTRY[name] = FamilySpec(name, _first_line(draw), draw)
        return draw

    return enter


def generator(
    name: str, numbers: range | None = None, shown: tuple[int, ...] = ()
) -> Callable[[_GeneratorClass], _GeneratorClass]:
    """Enters a generator; the first line of its docstring says what it asks.

    Args:
        name: As users write it. One that takes a number is written with it: "add2".
        numbers: The numbers that it takes; its class is called with (number, split), and with (split) alone for None.
        shown: The numbers that lists show.
    """

    def enter(made: _GeneratorClass) -> _GeneratorClass:
        names = (name,) if numbers is None else tuple(f"{name}{number}" for number in shown)
        GENERATORS[name] = GeneratorSpec(name, _first_line(made), made, numbers, names)
        return made

    return enter


def solves(*names: str) -> Callable[[Solver], Solver]:
    """Enters a function from a question's plain text to its answer (a number, a tuple or an expression of sympy)."""

    def enter(solver: Solver) -> Solver:
        SOLVERS.update(dict.fromkeys(names, solver))
        return solver

    return enter


def whole(write: Callable[[Writer], str], value: int) -> Question:
    """A question whose answer is a whole number."""
    return Question(write, str(value), value)


def exact(write: Callable[[Writer], str], value: Fraction) -> Question:
    """A question whose answer is a fraction; one that turns out to be a whole number has hints as well."""
    return Question(write, str(value), int(value) if value.denominator == 1 else None)


def _first_line(documented: Any) -> str:
    return (documented.__doc__ or "").split("\n")[0].rstrip(".")
