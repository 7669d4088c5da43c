"""Word problems of a single step, in one wording each."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from mathturn_gym.errors import check_int
from mathturn_gym.problems.base import Generator
from mathturn_gym.problems.families._writing import Draw
from mathturn_gym.problems.families.registry import Question, family, generator
from mathturn_gym.types import Problem

_NUMBER: Final = re.compile(r"\d[\d.]*")
_NAMES: Final = ("Ada", "Ben", "Chen", "Dina", "Elif", "Farid", "Grace", "Hugo", "Ines", "Jun", "Kofi", "Lena")
_THINGS: Final = ("apples", "pencils", "stickers", "marbles", "cards", "shells", "coins", "beads")


@family("words")
def words(draw: Draw, level: int) -> Question:
    """Word problems in several wordings."""
    name, other = (_NAMES[k] for k in draw.distinct(0, len(_NAMES) - 1, 2))
    thing = draw.pick(_THINGS)
    return _LEVELS[level - 1][draw.between(0, 1)](draw, name, other, thing)


def _say(draw: Draw, wordings: tuple[str, ...], value: int) -> Question:
    """Returns one of the wordings. The split depends on the numbers alone, not on names or wording."""
    text = draw.pick(wordings)
    # Names and wordings repeat across splits, numbers do not: otherwise a test problem would be a train problem with
    # another name.
    return Question(lambda w: text, str(value), value, key=" ".join(_NUMBER.findall(wordings[0])))


def _gain(draw: Draw, name: str, other: str, thing: str) -> Question:
    a, b, c = draw.between(10, 90), draw.between(5, 60), draw.between(2, 9)
    return _say(
        draw,
        (
            f"{name} has {a} {thing}, gets {b} more and then gives {c} away. How many {thing} does {name} have now?",
            (
                f"{name} starts with {a} {thing}. {other} gives {name} {b} more, and {name} loses {c} of them all. How many"
                f" {thing} are left for {name}?"
            ),
            f"A box holds {a} {thing}. {name} puts in {b} more and later takes out {c}. How many {thing} are in the box?",
        ),
        a + b - c,
    )


def _compare(draw: Draw, name: str, other: str, thing: str) -> Question:
    a, b = draw.between(10, 90), draw.between(2, 40)
    return _say(
        draw,
        (
            f"{name} has {a} {thing} and {other} has {b} more than {name}. How many {thing} do they have together?",
            f"{other} owns {b} {thing} more than {name}, who owns {a}. How many {thing} do the two own in total?",
        ),
        2 * a + b,
    )


def _packs(draw: Draw, name: str, other: str, thing: str) -> Question:
    a, b, c = draw.between(3, 15), draw.between(4, 24), draw.between(1, 11)
    return _say(
        draw,
        (
            f"{name} buys {a} packs of {b} {thing} each and gives {c} {thing} to {other}. How many {thing} does {name} keep?",
            f"There are {b} {thing} in each of {a} boxes. {name} removes {c} {thing}. How many {thing} remain in the boxes?",
        ),
        a * b - c,
    )


def _share(draw: Draw, name: str, other: str, thing: str) -> Question:
    children, each, rest = draw.between(3, 12), draw.between(3, 25), 0
    rest = draw.between(1, children - 1)
    total = children * each + rest
    return _say(
        draw,
        (
            (
                f"{name} shares {total} {thing} equally among {children} children, each getting as many as possible. How many"
                f" {thing} are left over?"
            ),
            (
                f"{total} {thing} are dealt out evenly to {children} children until no full round is possible. How many"
                f" {thing} remain?"
            ),
        ),
        rest,
    )


def _journey(draw: Draw, name: str, other: str, thing: str) -> Question:
    v, t, u, s = draw.between(3, 25), draw.between(1, 6), draw.between(3, 25), draw.between(1, 6)
    return _say(
        draw,
        (
            (
                f"{name} rides at {v} km per hour for {t} hours and then at {u} km per hour for {s} hours. How many kilometres"
                f" does {name} ride in all?"
            ),
            (
                f"For {t} hours {name} travels at {v} km per hour, and for the next {s} hours at {u} km per hour. What is the"
                f" whole distance in kilometres?"
            ),
        ),
        v * t + u * s,
    )


def _change(draw: Draw, name: str, other: str, thing: str) -> Question:
    a, p, b, q = draw.between(2, 9), draw.between(2, 15), draw.between(2, 9), draw.between(2, 15)
    paid = 50 * ((a * p + b * q) // 50 + 1)
    return _say(
        draw,
        (
            (
                f"{name} buys {a} books at {p} dollars each and {b} pens at {q} dollars each, and pays with {paid} dollars. How"
                f" many dollars does {name} get back?"
            ),
            (
                f"A book costs {p} dollars and a pen {q} dollars. {name} takes {a} books and {b} pens and hands over {paid}"
                f" dollars. What is the change in dollars?"
            ),
        ),
        paid - a * p - b * q,
    )


def _heads(draw: Draw, name: str, other: str, thing: str) -> Question:
    cows, hens = draw.between(2, 40), draw.between(2, 40)
    heads, legs = cows + hens, 4 * cows + 2 * hens
    return _say(
        draw,
        (
            (
                f"A farm has only cows (four legs each) and hens (two legs each): {heads} heads and {legs} legs in all. How many"
                f" cows are there?"
            ),
            (
                f"{name} counts {heads} heads and {legs} legs among the farm's cows and hens, a cow having four legs and a hen"
                f" two. How many cows are there?"
            ),
        ),
        cows,
    )


def _ages(draw: Draw, name: str, other: str, thing: str) -> Question:
    # name is k times as old as other; in y years the two ages add up to s
    young, k, y = draw.between(2, 15), draw.between(2, 5), draw.between(1, 20)
    total = young + k * young + 2 * y
    return _say(
        draw,
        (
            f"{name} is {k} times as old as {other}. In {y} years their ages will add up to {total}. How old is {other} now?",
            (
                f"In {y} years the ages of {name} and {other} will add up to {total}. Today {name} is {k} times as old as"
                f" {other}. How old is {other} today?"
            ),
        ),
        young,
    )


def _work(draw: Draw, name: str, other: str, thing: str) -> Question:
    # rates 1/a and 1/b with a = m (m + n) , b = n (m + n): together m n hours
    m, n = draw.distinct(2, 9, 2)
    scale = draw.between(1, 4)
    a, b = scale * m * (m + n), scale * n * (m + n)
    return _say(
        draw,
        (
            f"{name} alone paints a hall in {a} hours, {other} alone in {b} hours. How many hours do they need together?",
            f"One pump empties a tank in {a} hours and another one in {b} hours. How many hours do both need together?",
        ),
        scale * m * n,
    )


def _mixture(draw: Draw, name: str, other: str, thing: str) -> Question:
    # x litres at p % and the rest at q % give `litres` at r %
    p, q = draw.distinct(1, 18, 2)
    p, q, part, litres = 5 * p, 5 * q, draw.between(1, 9), draw.between(1, 6)
    litres *= 10
    x = litres * part // 10
    strength = (part * p + (10 - part) * q) / 10
    shown = f"{strength:g}"
    return _say(
        draw,
        (
            (
                f"{name} mixes a {p}% acid solution with a {q}% acid solution and gets {litres} litres of a {shown}% acid"
                f" solution. How many litres of the {p}% solution were used?"
            ),
            (
                f"How many litres of a {p}% acid solution must be mixed with a {q}% acid solution to get {litres} litres that"
                f" contain {shown}% acid?"
            ),
        ),
        x,
    )


_LEVELS: Final = ((_gain, _compare), (_packs, _share), (_journey, _change), (_heads, _ages), (_work, _mixture))


# ---- word problems of a single step, in one wording each


# Prime numbers of names and things: indices made of the operands then reach all of them.
_STORY_NAMES: Final = _NAMES[:11]
_STORY_THINGS: Final = _THINGS[:7]
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
# Two fifths, two fifths, one fifth: there are fewer products than sums.
_DRAWN: Final = (_GAINS, _GAINS, _LOSSES, _LOSSES, _GROUPS)


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
                # Folded into the factors whose product fits, instead of drawn again: few pairs would pass.
                b = 2 + b % (largest // a - 1)
                answer = a * b
            else:
                continue
            # Floors, so that the words say nothing of the answer's remainder by anything.
            story = wordings[(a + b // 3) % len(wordings)]
            name, things = (
                _STORY_NAMES[(3 * a + b // 2) % len(_STORY_NAMES)],
                _STORY_THINGS[(a // 2 + b) % len(_STORY_THINGS)],
            )
            return Problem("-", story.format(name=name, things=things, a=a, b=b), str(answer))
