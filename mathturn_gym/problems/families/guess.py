"""Hidden numbers, whose feedback informs."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from mathturn_gym.errors import check_int
from mathturn_gym.problems.base import Generator
from mathturn_gym.problems.families.registry import generator
from mathturn_gym.types import Problem


@generator("guess", range(2, 1001), shown=(8,))
class GuessNumber(Generator):
    """`Guess a number from 1 to 8.`: nothing in the prompt helps, the hints do.

    The hint names the half that the number lies in. With three turns the best policy that ignores feedback solves
    3/8 of the episodes; one that listens solves 5/8. False hints name the other half. With `feedback="above-below"` hints
    answer the guess instead (`experiments/listeners.py` computes the best policies of both).

    Args:
        high: Largest number, 2 to 1000; the lower half of an odd one is the smaller.
        split: The prompt is always the same, so splits differ in their random streams only.

    >>> problem = GuessNumber().get(seed=0, index=1)
    >>> problem.gold, problem.hints
    (('6',), ('it is at least 5.',))
    """

    split_by_prompt = False
    prior: ClassVar[str] = ""
    """What the name of the family has between "guess" and the number."""

    def __init__(self, high: int = 8, split: str | None = None) -> None:
        self.high = check_int("high", high, low=2, high=1000)
        super().__init__(f"guess{self.prior}{self.high}", split)

    def draw(self, rng: np.random.Generator) -> Problem:
        """A number with its hints."""
        number, half = self.number(rng), self.high // 2
        low_hint, high_hint = f"it is at most {half}.", f"it is at least {half + 1}."
        true, false = (low_hint, high_hint) if number <= half else (high_hint, low_hint)
        prompt = f"Guess a number from 1 to {self.high}."
        return Problem("-", prompt, str(number), hints=(true,), false_hints=(false,))

    def number(self, rng: np.random.Generator) -> int:
        """Uniform over 1..high."""
        return int(rng.integers(1, self.high + 1))


@generator("guess-geometric", range(2, 1001), shown=(7,))
class GuessGeometric(GuessNumber):
    """`Guess a number from 1 to 7.`: each number has three quarters of the probability of the one before it.

    >>> GuessGeometric(7).get(seed=0, index=1).gold
    ('1',)
    """

    prior = "-geometric"

    def number(self, rng: np.random.Generator) -> int:
        """Number k with probability proportional to (3/4)^k."""
        weights = 0.75 ** np.arange(self.high)
        return 1 + int(rng.choice(self.high, p=weights / weights.sum()))


@generator("guess-peaks", range(3, 1001), shown=(15,))
class GuessPeaks(GuessNumber):
    """`Guess a number from 1 to 15.`: the first and the last number are three times as probable as any other.

    >>> GuessPeaks(15).get(seed=0, index=1).gold
    ('9',)
    """

    prior = "-peaks"

    def number(self, rng: np.random.Generator) -> int:
        """A number of 1..high, the ends three times as often as the others."""
        weights = np.ones(self.high)
        weights[[0, -1]] = 3
        return 1 + int(rng.choice(self.high, p=weights / weights.sum()))
