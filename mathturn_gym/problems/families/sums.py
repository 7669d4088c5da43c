"""Sums and products of whole numbers, in one wording."""

from __future__ import annotations

import numpy as np

from mathturn_gym.errors import check_int
from mathturn_gym.problems.base import Generator
from mathturn_gym.problems.families.registry import generator
from mathturn_gym.types import Problem

__all__ = ["Addition", "Multiplication"]


@generator("add", range(1, 10), shown=(1, 2, 3))
class Addition(Generator):
    """`What is 3+4?` with operands of at most `digits` digits and a sum of at most `digits` digits.

    Args:
        digits: Digits of the largest number, 1 to 9.
        split: See `Generator`.

    >>> Addition(1).get(seed=0, index=0).prompt
    'What is 2+3?'
    """

    def __init__(self, digits: int = 1, split: str | None = None) -> None:
        self.digits = check_int("digits", digits, low=1, high=9)
        super().__init__(f"add{digits}", split)

    def draw(self, rng: np.random.Generator) -> Problem:
        """Uniform over all pairs whose sum fits."""
        largest = 10**self.digits - 1
        while True:
            a, b = (int(n) for n in rng.integers(0, largest + 1, size=2))
            if a + b <= largest:
                return Problem("-", f"What is {a}+{b}?", str(a + b))


@generator("mul", range(1, 10), shown=(2,))
class Multiplication(Generator):
    """`What is 12*34?` with two factors of exactly `digits` digits.

    Args:
        digits: Digits of each factor, 1 to 9.
        split: See `Generator`.

    >>> Multiplication(2).get(seed=0, index=0).prompt
    'What is 81*24?'
    """

    def __init__(self, digits: int = 2, split: str | None = None) -> None:
        self.digits = check_int("digits", digits, low=1, high=9)
        super().__init__(f"mul{digits}", split)

    def draw(self, rng: np.random.Generator) -> Problem:
        """Uniform over all pairs of factors."""
        low, high = (10 ** (self.digits - 1) if self.digits > 1 else 0), 10**self.digits
        a, b = (int(n) for n in rng.integers(low, high, size=2))
        return Problem("-", f"What is {a}*{b}?", str(a * b))
