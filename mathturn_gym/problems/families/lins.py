"""Linear equations in one wording."""

from __future__ import annotations

import numpy as np

from mathturn_gym.problems.base import Generator
from mathturn_gym.problems.families.registry import generator
from mathturn_gym.types import Problem

__all__ = ["LinearEquation"]


@generator("lins")
class LinearEquation(Generator):
    """`Solve 3x+4=19 for x.` with a in 2..9, x and b in 0..9: 800 equations.

    Args:
        split: See `Generator`.

    >>> problem = LinearEquation().get(seed=0, index=0)
    >>> problem.prompt, problem.gold
    ('Solve 8x+2=34 for x.', ('4',))
    """

    def __init__(self, split: str | None = None) -> None:
        super().__init__("lins", split)

    def draw(self, rng: np.random.Generator) -> Problem:
        """Uniform over the 800."""
        a, x, b = int(rng.integers(2, 10)), int(rng.integers(10)), int(rng.integers(10))
        return Problem("-", f"Solve {a}x+{b}={a * x + b} for x.", str(x))
