"""The table of families, and what one of their questions is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from mathturn_gym.problems.families.writing import Draw, Writer

__all__ = ["LEVELS", "REGISTRY", "DrawQuestion", "FamilySpec", "Question", "family"]

LEVELS: Final = (1, 2, 3, 4, 5)
"""Every family has these."""


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
    """A family.

    Args:
        name: As users write it.
        about: One line for lists.
        draw: Draws a question of a level.
    """

    name: str
    about: str
    draw: DrawQuestion


REGISTRY: Final[dict[str, FamilySpec]] = {}


def family(name: str) -> Callable[[DrawQuestion], DrawQuestion]:
    """Enters a drawing function; the first line of its docstring says what the family is about."""

    def enter(draw: DrawQuestion) -> DrawQuestion:
        REGISTRY[name] = FamilySpec(name, (draw.__doc__ or "").split("\n")[0].rstrip("."), draw)
        return draw

    return enter


def whole(write: Callable[[Writer], str], value: int) -> Question:
    """A question whose answer is a whole number."""
    return Question(write, str(value), value)
