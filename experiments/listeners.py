"""What a hidden number allows: the best policy that listens, the best that does not, and blind guessing, computed exactly.

    python experiments/listeners.py [--highest 8] [--turns 3]
    python experiments/listeners.py --prior geometric --highest 7 --lies 0 0.1 0.25    # hints that answer the guess

Whether a policy trained over turns has learned to *listen* is not shown by a policy that was never given the chance:
it has to be better than the best one that ignores what it is told. Nothing is sampled here:

* blind: numbers at random, independent in each turn: 1 - (1 - 1/n)^k. It takes no training, and no memory.
* deaf: the best that ignores the feedback. It names k different numbers: k / n.
* listener: the best there is. Every number is still possible that agrees with all that was said; the value of a set of
  possible numbers is the largest, over guesses, of being right now or in one of the turns to come.

With `feedback="above-below"` the hint answers the guess, so that a guess is also a question. Then there are four:

* optimal: the best there is. It asks where that helps later turns.
* myopic: listens, and always names the most probable number (at random among equals): the best for each turn alone.
* deaf: ignores the hints, and names the most probable numbers one after the other.
* bits: what the hint after the first optimal guess says of the number (mutual information), if that guess is wrong.
"""

from __future__ import annotations

import argparse
import math
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
    """Value of guessing at random in each turn."""
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


# ---- hints that answer the guess

History = tuple[tuple[int, bool], ...]


def prior_of(name: str, highest: int) -> list[Fraction]:
    """Probabilities of 1 to `highest`, as `guess7`, `guess-geometric7` and `guess-peaks15` draw them."""
    weights = {
        "uniform": [Fraction(1)] * highest,
        "geometric": [Fraction(3, 4) ** k for k in range(highest)],
        "peaks": [Fraction(3 if k in (0, highest - 1) else 1) for k in range(highest)],
    }[name]
    return [weight / sum(weights) for weight in weights]


class Asker:
    """Exact values of policies that play against hints which say above or below, and lie in a share of the cases.

    Args:
        prior: Probabilities of the numbers 1, 2, and so on.
        lies: Share of the hints that say the opposite.
    """

    def __init__(self, prior: list[Fraction], lies: Fraction | float = 0) -> None:
        self.prior, self.lies = prior, Fraction(lies).limit_denominator(1000)
        self._values: dict[tuple[bool, History, int], Fraction] = {}

    def masses(self, history: History) -> list[Fraction]:
        """Joint probability of each number and of what was said; a guess that was wrong has none."""
        found = []
        for number, mass in enumerate(self.prior, 1):
            for guess, above in history:
                mass *= 0 if number == guess else self.lies if (number > guess) != above else 1 - self.lies
            found.append(mass)
        return found

    def value(self, turns: int, history: History = (), *, myopic: bool = False) -> Fraction:
        """Probability of what was said and of a right guess in the turns that are left."""
        history = tuple(sorted(history))  # the order of the hints does not matter
        key = (myopic, history, turns)
        if key not in self._values:
            masses = self.masses(history)
            if not turns or not any(masses):
                return Fraction(0)
            guesses = [k for k, mass in enumerate(masses, 1) if mass == max(masses)]
            if myopic:
                self._values[key] = sum(
                    (self.worth(g, turns, history, myopic=True) for g in guesses), Fraction(0)
                ) / len(guesses)
            else:
                every = guesses[:1] if turns == 1 else range(1, len(masses) + 1)
                self._values[key] = max(self.worth(guess, turns, history) for guess in every)
        return self._values[key]

    def worth(self, guess: int, turns: int, history: History = (), *, myopic: bool = False) -> Fraction:
        """The same of a guess, and of the policy after it."""
        after = sum(
            (self.value(turns - 1, (*history, (guess, above)), myopic=myopic) for above in (True, False)), Fraction(0)
        )
        return self.masses(history)[guess - 1] + (after if turns > 1 else 0)

    def optimal(self, turns: int) -> Fraction:
        """Value of the best policy."""
        return self.value(turns)

    def myopic(self, turns: int) -> Fraction:
        """Value of the policy that always names the most probable number."""
        return self.value(turns, myopic=True)

    def deaf(self, turns: int) -> Fraction:
        """Value of the best policy that ignores hints."""
        return sum(sorted(self.prior, reverse=True)[:turns], Fraction(0))

    def bits(self, turns: int) -> float:
        """Bits about the number in the hint after the first optimal guess."""
        guess = max(range(1, len(self.prior) + 1), key=lambda g: self.worth(g, turns))
        below, above = float(sum(self.prior[: guess - 1])), float(sum(self.prior[guess:]))
        lies = float(self.lies)
        says_above = (above * (1 - lies) + below * lies) / (above + below)
        return _entropy(says_above) - _entropy(lies)


def _entropy(share: float) -> float:
    return -sum(p * math.log2(p) for p in (share, 1 - share) if p > 0)


def main() -> None:
    """Prints the values, turn by turn or by the share of lies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--highest", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--prior", choices=("uniform", "geometric", "peaks"), help="hints answer the guess")
    parser.add_argument("--lies", type=float, nargs="+", default=[0.0], help="shares of hints that lie, with --prior")
    options = parser.parse_args()
    if options.prior:
        print(f"guess-{options.prior}{options.highest} in {options.turns} turns, feedback above-below")
        print(f"{'lies':>6}{'bits':>8}{'deaf':>8}{'myopic':>8}{'optimal':>8}")
        for lies in options.lies:
            asker = Asker(prior_of(options.prior, options.highest), lies)
            values = [float(one(options.turns)) for one in (asker.bits, asker.deaf, asker.myopic, asker.optimal)]
            print(f"{lies:>6g}" + "".join(f"{value:>8.3f}" for value in values))
        return
    hint = hints_of(options.highest)
    print(f"guess{options.highest}, solved within k turns")
    print(f"{'k':>3}{'blind':>10}{'deaf':>10}{'listener':>10}")
    for k in range(1, options.turns + 1):
        row = (blind(options.highest, k), deaf(options.highest, k), listener(options.highest, k, hint))
        print(f"{k:>3}" + "".join(f"{float(value):>10.3f}" for value in row))


if __name__ == "__main__":
    main()
