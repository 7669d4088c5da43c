"""Procedural families: `Family(name, level)` is a `ProblemSource` with five levels of difficulty.

Item (seed, index, level) is made from these three numbers alone, without symbolic algebra. Its plain and its LaTeX form
ask the same question and share a split. Every module of this folder is loaded here, so that a new family is one file.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from mathturn_gym.errors import InvalidValueError, check_int, raise_unknown_name
from mathturn_gym.problems.base import Endless, ProblemSource, check_split, content_id, split_of
from mathturn_gym.problems.families._writing import LATEX, PLAIN, Draw
from mathturn_gym.problems.families.registry import GENERATORS, LEVELS, REGISTRY, Question
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Problem

# Entering a family is importing its module. Sorted: a registry in the order of the file system would differ between
# machines.
for _module in sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")):
    import_module(f"{__name__}.{_module}")

FAMILIES: Final = tuple(sorted(REGISTRY))
"""Names of all families with levels."""

NAMES: Final = tuple(name for _, spec in sorted(GENERATORS.items()) for name in spec.shown)
"""Generators of one wording, by the names that lists show; others take other numbers (`add4`, `guess20`)."""

FORMS: Final = ("plain", "latex")
"""How a question of a family can be written."""

_ATTEMPTS: Final = 2_000


class Family(Endless):
    """One family, at one level or at all of them.

    Args:
        family: One of `FAMILIES`.
        level: 1 to 5; None draws each item's level (1 to 5 alike often), itself by (seed, index).
        split: "train", "validation", "test" or "all"; a question belongs to one split for ever, in both forms. None plays
            train problems and leaves the choice to `part`.
        form: "plain" text or "latex".

    Raises:
        InvalidValueError: unknown family, level, split or form.

    >>> Family("quadratic", level=2).get(seed=0, index=0).prompt
    'Find the larger of the two solutions of 5x^2 + 30x = 0. Give the exact value.'
    """

    def __init__(self, family: str, level: int | None = None, split: str | None = None, form: str = "plain") -> None:
        if family not in REGISTRY:
            raise_unknown_name("family", family, REGISTRY)
        if split is not None:
            check_split(split)
        if form not in FORMS:
            raise_unknown_name("form", form, FORMS)
        self.spec = REGISTRY[family]
        self.level = None if level is None else check_int("level", level, low=LEVELS[0], high=LEVELS[-1])
        self.form = form
        super().__init__(family, split)

    def drawn(self, seed: int, index: int) -> Problem:
        """Draws until the question falls into the split."""
        level = self.level
        if level is None:
            level = LEVELS[derive_seed("level", self.family, seed, index) % len(LEVELS)]
        # Both forms ask the same question, so the split is decided by the plain text of either.
        for attempt in range(_ATTEMPTS):
            question = self.spec.draw(Draw("family", self.family, level, seed, index, attempt), level)
            prompt = question.write(PLAIN)
            own_split = split_of(question.key or prompt)
            if self.played in ("all", own_split):
                return self._problem(question, prompt, level, own_split)
        raise InvalidValueError(
            f"source {self.name!r} has no question of level {level} in split {self.played!r}: use split 'all', or another level"
        )

    def holds(self, problem: Problem) -> bool:
        """Whether a problem of this family has the split, level and form of this source."""
        facts = problem.metadata
        return super().holds(problem) and self.level in (None, facts["level"]) and self.form == facts["form"]

    def kinds(self) -> Sequence[Family]:
        """This family at each of its levels."""
        if self.level is not None:
            return [self]
        return [Family(self.family, level, self.split, self.form) for level in LEVELS]

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

    def _named(self) -> str:
        at = "" if self.level is None else f"@{self.level}"
        return f"{self.family}{at}:{self.played}" + ("" if self.form == "plain" else f":{self.form}")

    def _problem(self, question: Question, plain: str, level: int, split: str) -> Problem:
        hints, false_hints = _hints(question.whole)
        prompt = plain if self.form == "plain" else question.write(LATEX)
        return Problem(
            id=content_id(self.family, prompt, question.gold, hints, false_hints),
            prompt=prompt,
            gold=question.gold,
            hints=hints,
            false_hints=false_hints,
            metadata={"family": self.family, "level": level, "split": split, "form": self.form},
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
