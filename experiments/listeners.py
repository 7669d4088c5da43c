"""What a hidden number allows: the best policy that listens, the best that does not, and blind guessing, computed exactly.

    python experiments/listeners.py [--highest 8] [--turns 3]

Whether a policy trained over turns has learned to *listen* is not shown by a policy that was never given the chance:
it has to be better than the best one that ignores what it is told. Nothing is sampled here:

* blind: numbers at random, each turn anew: 1 - (1 - 1/n)^k. It takes no training, and no memory.
* deaf: the best that ignores the feedback. It names k different numbers: k / n.
* listener: the best there is. Every number is still possible that agrees with all that was said; the value of a set of
  possible numbers is the largest, over guesses, of being right now or in one of the turns to come.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from functools import cache

from mathturn_gym.problems import load_problems

Hint = Callable[[int], str]


def hints_of(highest: int) -> Hint:
    """What `feedback="hint"` says after a wrong guess, by the hidden number, as the problems themselves have it."""
    source = load_problems(f"guess{highest}:all")
    found: dict[int, str] = {}
    index = 0
    while len(found) < highest:
        problem = source.get(0, index)
        found[int(problem.gold[0])] = problem.hints[0]
        index += 1
    return found.__getitem__


def blind(highest: int, turns: int) -> Fraction:
    """Guessing at random, each turn anew."""
    return 1 - (1 - Fraction(1, highest)) ** turns


def deaf(highest: int, turns: int) -> Fraction:
    """The best policy that ignores the feedback."""
    return Fraction(min(turns, highest), highest)


def listener(highest: int, turns: int, hint: Hint) -> Fraction:
    """The best policy.

    Args:
        highest: Numbers are 1 to this.
        turns: Guesses.
        hint: What is said after a wrong guess, by the hidden number.
    """

    @cache
    def solved(possible: frozenset[int], left: int) -> int:
        """Numbers of the set that are found, by the best guesses."""
        if not possible or not left:
            return 0
        best = 0
        for guess in possible:
            told: dict[str, set[int]] = defaultdict(set)
            for number in possible - {guess}:
                told[hint(number)].add(number)
            best = max(best, 1 + sum(solved(frozenset(those), left - 1) for those in told.values()))
        return best

    return Fraction(solved(frozenset(range(1, highest + 1)), turns), highest)


def main() -> None:
    """Prints the three, turn by turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--highest", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    hint = hints_of(options.highest)
    print(f"guess{options.highest}, solved within k turns")
    print(f"{'k':>3}{'blind':>10}{'deaf':>10}{'listener':>10}")
    for k in range(1, options.turns + 1):
        row = (blind(options.highest, k), deaf(options.highest, k), listener(options.highest, k, hint))
        print(f"{k:>3}" + "".join(f"{float(value):>10.3f}" for value in row))


if __name__ == "__main__":
    main()
