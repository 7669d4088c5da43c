"""Combinatorics and probability."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Final

from mathturn_gym.problems.families._writing import Draw, Writer
from mathturn_gym.problems.families.registry import Question, family, whole

# Their letters repeat, or not: with parts of them the level has enough questions.
_WORDS: Final = (
    "BANANA", "LEVEL", "PEPPER", "SUMMER", "TOMATO", "LETTER", "BALLOON", "COFFEE", "PUZZLE", "KITTEN", "MAMMAL",
    "SUCCESS", "ASSESS", "CANDLE", "ORANGE", "NUMBER", "SQUARE", "GREEN", "APPLE", "CHEESE", "STATISTICS",
    "TENNESSEE", "PARALLEL", "ACCORD", "BUBBLE", "COMMON", "DIVIDE", "ELEVEN", "FOLLOW", "GIGGLE", "HAMMER",
    "INFINITY", "MINIMUM", "ALGEBRA", "RATIO", "PRIME", "FACTOR", "MATRIX", "VECTOR", "ANGLE", "CIRCLE", "GRAPH",
    "SERIES", "LIMIT", "DERIVE",
)  # fmt: skip


@family("combinatorics")
def combinatorics(draw: Draw, level: int) -> Question:
    """Choices, arrangements, paths and distributions."""
    if level == 1:
        n = draw.between(3, 14)
        k = draw.between(1, n - 1)
        thing = draw.pick(("people", "books", "cards", "flowers", "songs", "players"))
        return whole(lambda w: f"In how many ways can {k} of {n} different {thing} be chosen?", math.comb(n, k))
    if level == 2:
        n = draw.between(4, 11)
        k = draw.between(2, min(n, 5))
        who = draw.pick(("runners", "students", "dancers", "actors", "riders", "singers"))
        return whole(
            lambda w: f"In how many ways can {k} of {n} {who} be placed in a row of {k} seats, order mattering?",
            math.perm(n, k),
        )
    if level == 3:
        word = draw.pick(_WORDS)
        if draw.between(0, 1):  # a part of a word, so that the level does not run out of questions
            start = draw.between(0, len(word) - 4)
            word = word[start : start + draw.between(4, len(word))]
        # Letters that are alike may change places without another order coming of it.
        ways = math.factorial(len(word)) // math.prod(math.factorial(count) for count in Counter(word).values())
        return whole(lambda w: f"In how many different orders can all the letters of {word} be arranged?", ways)
    if level == 4:
        return _committee(draw) if draw.between(0, 1) else _paths(draw)
    n, k = draw.between(5, 25), draw.between(3, 6)
    positive = draw.between(0, 1) == 1 and n >= k
    kind = "positive" if positive else "non-negative"

    def write(w: Writer) -> str:
        names = [f"x_{i}" if w.tex else f"x{i}" for i in range(1, k + 1)]
        sum_text = " + ".join(names)
        return f"How many solutions in {kind} whole numbers does {w(f'{sum_text} = {n}')} have?"

    # Stars and bars: n stars and k - 1 bars between them, at most one in each gap where all are positive.
    return whole(write, math.comb(n - 1, k - 1) if positive else math.comb(n + k - 1, k - 1))


def _committee(draw: Draw) -> Question:
    women, men = draw.between(3, 9), draw.between(3, 9)
    a, b = draw.between(1, women - 1), draw.between(1, men - 1)
    return whole(
        lambda w: (
            f"A committee of {a + b} people with exactly {a} women and {b} men is chosen from {women} women and {men} men."
            f" How many committees are possible?"
        ),
        math.comb(women, a) * math.comb(men, b),
    )


def _paths(draw: Draw) -> Question:
    x, y = draw.between(2, 5), draw.between(2, 5)
    right, up = x + draw.between(1, 4), y + draw.between(1, 4)
    return whole(
        lambda w: (
            f"A path goes from {w('(0, 0)')} to {w(f'({right}, {up})')} in steps of one unit to the right or up. How many"
            f" such paths pass through {w(f'({x}, {y})')}?"
        ),
        # Paths to the point, times paths from it to the end.
        math.comb(x + y, x) * math.comb(right - x + up - y, right - x),
    )


@family("probability")
def probability(draw: Draw, level: int) -> Question:
    """Urns, dice and coins, with exact answers."""
    if level == 2:
        return _dice(draw)
    if level == 4:
        return _coins(draw)
    red, blue = draw.between(2, 12), draw.between(2, 12)
    green = draw.between(1, 12)
    bag = f"A bag holds {red} red, {blue} blue and {green} green balls."
    total = red + blue + green
    if level == 1:
        colour, count = draw.pick((("red", red), ("blue", blue), ("green", green)))
        return _chance(
            f"{bag} One ball is drawn at random. What is the probability that it is {colour}?", Fraction(count, total)
        )
    if level == 3:
        colour, count = draw.pick((("red", red), ("blue", blue)))
        return _chance(
            f"{bag} Two balls are drawn at random without replacement. What is the probability that both are {colour}?",
            Fraction(math.comb(count, 2), math.comb(total, 2)),
        )
    drawn = draw.between(3, min(5, total - 1))
    wanted = draw.between(max(0, drawn - blue - green), min(drawn, red))
    ways = math.comb(red, wanted) * math.comb(total - red, drawn - wanted)
    return _chance(
        f"{bag} {drawn} balls are drawn at random without replacement. What is the probability that exactly {wanted} of"
        f" them are red?",
        Fraction(ways, math.comb(total, drawn)),
    )


def _chance(text: str, value: Fraction) -> Question:
    return Question(lambda w: f"{text} Give an exact fraction.", str(value))


def _dice(draw: Draw) -> Question:
    """Two fair dice with possibly different numbers of faces."""
    first, second = draw.pick((4, 6, 8, 10, 12, 20)), draw.pick((4, 6, 8, 10, 12, 20))
    total = draw.between(3, first + second - 1)
    kind = draw.pick(("exactly", "at least", "at most"))
    sums = [a + b for a in range(1, first + 1) for b in range(1, second + 1)]
    good = {"exactly": total.__eq__, "at least": total.__le__, "at most": total.__ge__}[kind]
    return _chance(
        f"Two fair dice are rolled, one with the faces 1 to {first} and one with the faces 1 to {second}. What is the"
        f" probability that the sum is {kind} {total}?",
        Fraction(sum(map(good, sums)), len(sums)),
    )


def _coins(draw: Draw) -> Question:
    tosses = draw.between(3, 10)
    heads = draw.between(1, tosses - 1)
    exactly = draw.between(0, 1) == 1
    ways = sum(math.comb(tosses, k) for k in ([heads] if exactly else range(heads, tosses + 1)))
    bottom = draw.between(2, 6)
    if bottom == 2:
        chance, coin = Fraction(ways, 2**tosses), "A fair coin"
        text = f"{coin} is tossed {tosses} times."
    else:
        p = Fraction(1, bottom)
        counted = [heads] if exactly else range(heads, tosses + 1)
        chance = sum((math.comb(tosses, k) * p**k * (1 - p) ** (tosses - k) for k in counted), Fraction(0))
        text = f"A coin that shows heads with probability 1/{bottom} is tossed {tosses} times."
    kind = "exactly" if exactly else "at least"
    return _chance(f"{text} What is the probability of {kind} {heads} heads?", chance)
