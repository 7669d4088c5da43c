"""Procedural families: addition, products, linear equations, and a hidden number whose feedback informs."""

from __future__ import annotations

from typing import Final

import numpy as np

from mathturn_gym.errors import InvalidValueError, check_int
from mathturn_gym.problems.base import Generator
from mathturn_gym.types import Problem

__all__ = ["Addition", "GuessNumber", "LinearEquation", "Multiplication"]

_DRAWN: Final = "-"


class Addition(Generator):
    """`What is 3+4?` with operands of at most `digits` digits and a sum of at most `digits` digits.

    Args:
        digits: Digits of the largest number, 1 to 9.
        split: "train", "validation", "test" or "all".

    >>> Addition(1).get(seed=0, index=0).prompt
    'What is 2+3?'
    """

    def __init__(self, digits: int = 1, split: str = "train") -> None:
        self.digits = check_int("digits", digits, low=1, high=9)
        super().__init__(f"add{digits}", split)

    def draw(self, rng: np.random.Generator) -> Problem:
        """Uniform over all pairs whose sum fits."""
        largest = 10**self.digits - 1
        while True:
            a, b = (int(n) for n in rng.integers(0, largest + 1, size=2))
            if a + b <= largest:
                return Problem(_DRAWN, f"What is {a}+{b}?", str(a + b))


class Multiplication(Generator):
    """`What is 12*34?` with two factors of exactly `digits` digits.

    Args:
        digits: Digits of each factor, 1 to 9.
        split: "train", "validation", "test" or "all".

    >>> Multiplication(2).get(seed=0, index=0).prompt
    'What is 81*24?'
    """

    def __init__(self, digits: int = 2, split: str = "train") -> None:
        self.digits = check_int("digits", digits, low=1, high=9)
        super().__init__(f"mul{digits}", split)

    def draw(self, rng: np.random.Generator) -> Problem:
        """Uniform over all pairs of factors."""
        low, high = (10 ** (self.digits - 1) if self.digits > 1 else 0), 10**self.digits
        a, b = (int(n) for n in rng.integers(low, high, size=2))
        return Problem(_DRAWN, f"What is {a}*{b}?", str(a * b))


class LinearEquation(Generator):
    """`Solve 3x+4=19 for x.` with a in 2..9, x and b in 0..9: 800 equations.

    Args:
        split: "train", "validation", "test" or "all".

    >>> problem = LinearEquation().get(seed=0, index=0)
    >>> problem.prompt, problem.gold
    ('Solve 8x+2=34 for x.', ('4',))
    """

    def __init__(self, split: str = "train") -> None:
        super().__init__("lins", split)

    def draw(self, rng: np.random.Generator) -> Problem:
        """Uniform over the 800."""
        a, x, b = int(rng.integers(2, 10)), int(rng.integers(10)), int(rng.integers(10))
        return Problem(_DRAWN, f"Solve {a}x+{b}={a * x + b} for x.", str(x))


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

    def __init__(self, high: int = 8, split: str = "train") -> None:
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
        return Problem(_DRAWN, prompt, str(number), hints=(true,), false_hints=(false,))
