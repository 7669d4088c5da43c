"""Word problems of a single step, in one wording each."""

from __future__ import annotations

from typing import Final

import numpy as np

from mathturn_gym.errors import check_int
from mathturn_gym.problems.base import Generator
from mathturn_gym.problems.families.registry import generator
from mathturn_gym.types import Problem

__all__ = ["Story"]

_NAMES: Final = ("Ada", "Ben", "Chen", "Dina", "Elif", "Farid", "Grace", "Hugo", "Ines", "Jun", "Kofi")
_THINGS: Final = ("apples", "pencils", "stickers", "marbles", "cards", "shells", "coins")
_GAINS: Final = (
    "{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?",
    "There are {a} {things} in a box. {name} puts in {b} more. How many {things} are in the box now?",
    "{name} found {a} {things} on Monday and {b} on Tuesday. How many {things} did {name} find in all?",
)
_LOSSES: Final = (
    "{name} has {a} {things} and gives {b} away. How many {things} does {name} have left?",
    "There are {a} {things} in a box. {name} takes out {b}. How many {things} are left in the box?",
    "{name} had {a} {things} and lost {b} of them. How many {things} are left?",
)
_GROUPS: Final = (
    "{name} buys {a} bags with {b} {things} in each. How many {things} does {name} buy?",
    "There are {a} boxes, and {name} puts {b} {things} into each. How many {things} are in the boxes?",
)
_DRAWN: Final = (_GAINS, _GAINS, _LOSSES, _LOSSES, _GROUPS)
"""Two fifths, two fifths, one fifth: there are fewer products than sums."""


@generator("story", range(1, 10), shown=(1, 2))
class Story(Generator):
    """`Ada has 3 apples and gets 4 more. How many …?`: one sum, difference or product of numbers with at most `digits` digits.

    Names, things and wording follow from the numbers, so that no two splits ask the same of the same numbers in other words.

    Args:
        digits: Digits of the largest number, answer included, 1 to 9.
        split: See `Generator`.

    >>> Story(2).get(seed=0, index=0).prompt
    'Farid found 55 marbles on Monday and 32 on Tuesday. How many marbles did Farid find in all?'
    """

    def __init__(self, digits: int = 1, split: str | None = None) -> None:
        self.digits = check_int("digits", digits, low=1, high=9)
        super().__init__(f"story{digits}", split)

    def draw(self, rng: np.random.Generator) -> Problem:
        """Uniform over the pairs of numbers of one kind of story."""
        largest = 10**self.digits - 1
        wordings = _DRAWN[int(rng.integers(len(_DRAWN)))]
        while True:
            a, b = (int(n) for n in rng.integers(2, largest + 1, size=2))
            if wordings is _GAINS and a + b <= largest:
                answer = a + b
            elif wordings is _LOSSES and a >= b:
                answer = a - b
            elif wordings is _GROUPS and a <= largest // 2:
                b = 2 + b % (largest // a - 1)
                answer = a * b
            else:
                continue
            # Floors, so that the words say nothing of the answer's remainder by anything.
            story = wordings[(a + b // 3) % len(wordings)]
            name, things = _NAMES[(3 * a + b // 2) % len(_NAMES)], _THINGS[(a // 2 + b) % len(_THINGS)]
            return Problem("-", story.format(name=name, things=things, a=a, b=b), str(answer))
