"""Procedural families with five levels of difficulty: `Family(name, level)` is a `ProblemSource`.

Item (seed, index, level) is made from these three numbers alone, without symbolic algebra. Its plain and its LaTeX form
ask the same question and share a split.
"""

from __future__ import annotations

from typing import Final

from mathturn_gym.errors import InvalidValueError, check_int, raise_unknown_name
from mathturn_gym.problems.base import SPLITS, ProblemSource, split_of
from mathturn_gym.problems.families import algebra, arithmetic, calculus, counting, geometry, words
from mathturn_gym.problems.families.registry import LEVELS, REGISTRY, FamilySpec, Question
from mathturn_gym.problems.families.writing import LATEX, PLAIN, Draw
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Problem

__all__ = ["FAMILIES", "FORMS", "LEVELS", "Family", "FamilySpec"]

# Importing a module enters its families into the table.
assert all((algebra, arithmetic, calculus, counting, geometry, words))

FAMILIES: Final = tuple(sorted(REGISTRY))
"""Names of all families."""

FORMS: Final = ("plain", "latex")
_ATTEMPTS: Final = 2_000


class Family(ProblemSource):
    """One family, at one level or at all of them.

    Args:
        family: One of `FAMILIES`.
        level: 1 to 5; None draws each item's level (1 to 5 alike often), itself by (seed, index).
        split: "train", "validation", "test" or "all"; a question belongs to one split for ever, in both forms.
        form: "plain" text or "latex".

    Raises:
        InvalidValueError: unknown family, level, split or form.

    >>> Family("quadratic", level=2).get(seed=0, index=0).prompt
    'Find the larger of the two solutions of 5x^2 + 30x = 0. Give the exact value.'
    """

    def __init__(self, family: str, level: int | None = None, split: str = "train", form: str = "plain") -> None:
        if family not in REGISTRY:
            raise_unknown_name("family", family, REGISTRY)
        if split not in (*SPLITS, "all"):
            raise_unknown_name("split", split, (*SPLITS, "all"))
        if form not in FORMS:
            raise_unknown_name("form", form, FORMS)
        self.spec = REGISTRY[family]
        self.family = family
        self.level = None if level is None else check_int("level", level, low=LEVELS[0], high=LEVELS[-1])
        self.split = split
        self.form = form
        self.name = self._name(self.level)

    def get(self, seed: int, index: int) -> Problem:
        """Draws until the question falls into the split."""
        level = self.level
        if level is None:
            level = LEVELS[derive_seed("level", self.family, seed, index) % len(LEVELS)]
        for attempt in range(_ATTEMPTS):
            question = self.spec.draw(Draw("family", self.family, level, seed, index, attempt), level)
            prompt = question.write(PLAIN)
            if self.split == "all" or split_of(question.key or prompt) == self.split:
                return self._problem(question, prompt, level, seed, index)
        raise InvalidValueError(
            f"source {self._name(level)!r} has no question in split {self.split!r}: use split 'all', or another level"
        )

    def by_id(self, problem_id: str) -> Problem:
        """Makes the problem again from the name, seed and index in its id (of any level of this family)."""
        name, *place = problem_id.rsplit("/", 2)
        for level in LEVELS if self.level is None else (self.level,):
            if name == self._name(level) and len(place) == 2 and all(part.isdecimal() for part in place):
                return Family(self.family, level, self.split, self.form).get(int(place[0]), int(place[1]))
        raise InvalidValueError(
            f"problem_id {problem_id!r} is not of source {self.name!r}, whose ids are"
            f" '{self._name(self.level or LEVELS[0])}/SEED/INDEX'"
        )

    def select(self, *, family: str | None = None, level: int | None = None) -> ProblemSource:
        """This family at another level."""
        if family not in (None, self.family):
            raise_unknown_name("family", family, [self.family])
        if level is None:
            return self
        if self.level not in (None, level):
            raise InvalidValueError(
                f"level {level!r} is not in source {self.name!r}, which has level {self.level} only"
            )
        return Family(self.family, level, self.split, self.form)

    def _name(self, level: int | None) -> str:
        at = "" if level is None else f"@{level}"
        return f"{self.family}{at}:{self.split}" + ("" if self.form == "plain" else f":{self.form}")

    def _problem(self, question: Question, plain: str, level: int, seed: int, index: int) -> Problem:
        hints, false_hints = _hints(question.whole)
        return Problem(
            id=f"{self._name(level)}/{seed}/{index}",
            prompt=plain if self.form == "plain" else question.write(LATEX),
            gold=question.gold,
            hints=hints,
            false_hints=false_hints,
            metadata={"family": self.family, "level": level, "split": self.split, "form": self.form},
        )


def _hints(value: int | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Hints about a whole number that say more and more without saying it, and the same hints lying."""
    if value is None:
        return (), ()
    size, digits = abs(value), len(str(abs(value)))
    parity = ("even", "odd")
    sign = "negative" if value < 0 else "not negative"
    lie = "not negative" if value < 0 else "negative"
    plural = "digit" if digits == 1 else "digits"
    wrong_digits = digits + 1
    return (
        (
            f"it is {parity[size % 2]}.",
            f"it is {sign} and has {digits} {plural}.",
            f"its last digit is {size % 10}."
            if digits > 1
            else f"it is {'at least' if size >= 5 else 'below'} 5 in size.",
        ),
        (
            f"it is {parity[1 - size % 2]}.",
            f"it is {lie} and has {wrong_digits} digits.",
            f"its last digit is {(size + 5) % 10}."
            if digits > 1
            else f"it is {'below' if size >= 5 else 'at least'} 5 in size.",
        ),
    )
