"""A hidden number, whose feedback informs."""

from __future__ import annotations

import numpy as np

from mathturn_gym.errors import InvalidValueError, check_int
from mathturn_gym.problems.base import Generator
from mathturn_gym.problems.families.registry import generator
from mathturn_gym.types import Problem


@generator("guess", range(2, 1001, 2), shown=(8,))
class GuessNumber(Generator):
    """`Guess a number from 1 to 8.`: nothing in the prompt helps, the hints do.

    The hint names the half that the number lies in. With three turns the best policy that ignores feedback solves
    3/8 of the episodes; one that listens solves 5/8. False hints name the other half.

    Args:
        high: Largest number, even, 2 to 1000.
        split: The prompt is always the same, so splits differ in their random streams only.

    >>> problem = GuessNumber().get(seed=0, index=1)
    >>> problem.gold, problem.hints
    (('6',), ('it is at least 5.',))
    """

    split_by_prompt = False

    def __init__(self, high: int = 8, split: str | None = None) -> None:
        self.high = check_int("high", high, low=2, high=1000)
        if self.high % 2:
            raise InvalidValueError(f"high must be even (its hints name a half), got {high}")
        super().__init__(f"guess{self.high}", split)

    def draw(self, rng: np.random.Generator) -> Problem:
        """Uniform over 1..high."""
        number, half = int(rng.integers(1, self.high + 1)), self.high // 2
        low_hint, high_hint = f"it is at most {half}.", f"it is at least {half + 1}."
        true, false = (low_hint, high_hint) if number <= half else (high_hint, low_hint)
        prompt = f"Guess a number from 1 to {self.high}."
        return Problem("-", prompt, str(number), hints=(true,), false_hints=(false,))
