import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from mathturn_gym.episodes.metrics.figures import majority_at_k, pass_at_k
from mathturn_gym.errors import InvalidValueError


@pytest.mark.parametrize("samples", [1, 2, 5, 9])
def test_pass_at_k_is_the_mean_over_all_choices_of_k_samples(samples: int) -> None:
    for right in range(samples + 1):
        flags = [True] * right + [False] * (samples - right)
        for k in range(1, samples + 1):
            choices = list(itertools.combinations(flags, k))
            assert math.isclose(pass_at_k(samples, right, k), sum(any(c) for c in choices) / len(choices))


def test_pass_at_k_of_many_samples_does_not_overflow() -> None:
    assert math.isclose(pass_at_k(10_000, 1, 5_000), 0.5)


@pytest.mark.parametrize(("n", "c", "k"), [(0, 0, 1), (3, 4, 1), (3, 1, 0), (3, 1, 4), (3, -1, 1)])
def test_pass_at_k_refuses_impossible_counts(n: int, c: int, k: int) -> None:
    with pytest.raises(InvalidValueError):
        pass_at_k(n, c, k)


def majority_by_listing(answers: list[str | None], right: list[bool], k: int) -> float:
    """The definition, by listing every choice of k samples."""
    total = Fraction(0)
    choices = list(itertools.combinations(range(len(answers)), k))
    for choice in choices:
        votes = Counter("RIGHT" if right[i] else answers[i] for i in choice if right[i] or answers[i] is not None)
        best = max(votes.values(), default=0)
        winners = [name for name, count in votes.items() if count == best]
        total += Fraction(int("RIGHT" in winners), max(1, len(winners)))
    return float(total / len(choices))


def test_majority_at_k_is_the_mean_over_all_choices_of_k_samples() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        n = int(rng.integers(1, 9))
        answers = [(None, "a", "b", "c", "right")[i] for i in rng.integers(0, 5, size=n)]
        right = [answer == "right" for answer in answers]
        for k in range(1, n + 1):
            assert math.isclose(majority_at_k(answers, right, k), majority_by_listing(answers, right, k))


def test_majority_takes_right_answers_as_one_candidate_however_they_are_written() -> None:
    assert majority_at_k(["1/2", r"\frac12", "3", "3"], [True, True, False, False], 4) == 0.5


def test_majority_without_any_vote_is_wrong() -> None:
    assert majority_at_k([None, None], [False, False], 2) == 0.0


def test_majority_refuses_flags_that_do_not_match() -> None:
    with pytest.raises(InvalidValueError, match="one flag per answer: 1 for 2"):
        majority_at_k(["1", "2"], [True], 1)
