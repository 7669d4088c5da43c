"""Figures of independent samples: pass@k and majority@k, exact expectations over all choices of k of n samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from mathturn_gym.errors import InvalidValueError, check_int
from mathturn_gym.verifier import answer_key

__all__ = ["majority_at_k", "pass_at_k"]


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of k samples is right: 1 - C(n-c, k) / C(n, k).

    The estimator of Chen et al., *Evaluating Large Language Models Trained on Code* (2021), §2.1.

    Args:
        samples: Samples drawn, n.
        right: How many of them are right, c.
        k: In 1..n.

    Raises:
        InvalidValueError: k is not in 1..n, or c not in 0..n.

    >>> pass_at_k(4, 1, 2), pass_at_k(4, 3, 2)
    (0.5, 1.0)
    """
    samples = check_int("samples", samples, low=1)
    right = check_int("right", right, low=0, high=samples)
    k = check_int("k", k, low=1, high=samples)
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def majority_at_k(answers: Sequence[str | None], right: Sequence[bool], k: int) -> float:
    """Unbiased estimate of the chance that the most frequent answer of k samples is right.

    The mean over all C(n, k) choices of k of the n samples (counted by polynomials, not listed). Samples without an
    answer do not vote, right answers are one candidate however they are written, a tie is broken by lot, and a choice
    without any vote is wrong.

    Args:
        answers: n answers, None for none.
        right: n flags.
        k: In 1..n.

    Raises:
        InvalidValueError: lengths that differ, or k is not in 1..n.

    >>> majority_at_k(["4", "4", "5"], [True, True, False], 3)
    1.0
    >>> majority_at_k(["4", "5"], [True, False], 2)
    0.5
    """
    if len(answers) != len(right):
        raise InvalidValueError(f"right must have one flag per answer: {len(right)} for {len(answers)}")
    k = check_int("k", k, low=1, high=max(1, len(answers)))
    if k > len(answers):
        raise InvalidValueError(f"k must be at most the number of samples, {len(answers)}, got {k}")
    correct = sum(right)
    wrong = Counter(answer_key(a) for a, ok in zip(answers, right, strict=True) if not ok and a is not None)
    silent = sum(1 for a, ok in zip(answers, right, strict=True) if not ok and a is None)
    total = Fraction(0)
    for votes in range(1, min(correct, k) + 1):
        total += math.comb(correct, votes) * _others(list(wrong.values()), silent, k - votes, votes)
    return float(total / math.comb(len(answers), k))


def _others(counts: list[int], silent: int, size: int, votes: int) -> Fraction:
    """Choices of `size` samples of the others that give none more than `votes`; one tied t ways counts 1 / (t + 1)."""
    ways: dict[tuple[int, int], int] = {(0, 0): 1}  # (samples chosen, candidates that tie) -> choices
    for count in counts:
        grown: Counter[tuple[int, int]] = Counter()
        for (chosen, ties), number in ways.items():
            for more in range(min(count, votes, size - chosen) + 1):
                grown[chosen + more, ties + (more == votes)] += number * math.comb(count, more)
        ways = grown
    return sum(
        (
            Fraction(number * math.comb(silent, size - chosen), ties + 1)
            for (chosen, ties), number in ways.items()
            if size - chosen <= silent
        ),
        Fraction(0),
    )
