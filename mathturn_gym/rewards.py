"""What a turn is worth: the verdict's reward, and named terms that can be added to it.

Every term looks at what the policy wrote and at its verdicts, never at text that the environment wrote.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from mathturn_gym.errors import InvalidValueError, check_float, raise_unknown_name
from mathturn_gym.types import Status, Verdict
from mathturn_gym.verifier import answer_key

__all__ = ["TERMS", "RewardContext", "RewardTerms", "Term", "affine_reward", "get_terms", "turn_reward"]


def affine_reward(score: float, bias: float, scaling: float) -> float:
    """`((score - 0.5) * 2 - bias) * scaling` of whatever it is given: `turn_reward` without its checks."""
    return ((score - 0.5) * 2 - bias) * scaling


def turn_reward(score: float, *, bias: float = 0.0, scaling: float = 1.0) -> float:
    """The reward of one turn, `((score - 0.5) * 2 - bias) * scaling`, in float64.

    The formula of AReaL's `MathMultiTurnAgent`: +1 for right and -1 for wrong with the defaults.

    Args:
        score: The verdict's score, in [0, 1].
        bias: Subtracted before scaling.
        scaling: Multiplies the result.

    Raises:
        InvalidValueError: the score is outside [0, 1], or a parameter is not finite.

    >>> turn_reward(1.0), turn_reward(0.0), turn_reward(1.0, bias=0.5, scaling=5.0)
    (1.0, -1.0, 2.5)
    """
    check_float("score", score, low=0.0, high=1.0)
    return affine_reward(score, check_float("reward_bias", bias), check_float("reward_scaling", scaling))


@dataclass(frozen=True, slots=True)
class RewardContext:
    """What a reward term may look at.

    Args:
        verdict: Of the turn.
        earlier: The verdicts of the turns before it.
        tokens: Ids of the completion.
        max_tokens: The most that it may have.
    """

    verdict: Verdict
    earlier: tuple[Verdict, ...]
    tokens: int
    max_tokens: int


Term: TypeAlias = Callable[[RewardContext], float]
RewardTerms: TypeAlias = Mapping[str, "float | Term"]

OVERLONG_SHARE: Final = 0.2
"""The last part of the budget, in which `overlong` falls from 0 to -1 (DAPO: 4,096 of 20,480)."""


def _format(context: RewardContext) -> float:
    """1 where an answer was found."""
    return float(context.verdict.status is not Status.NO_ANSWER)


def _overlong(context: RewardContext) -> float:
    """DAPO's soft punishment of length (Yu et al. 2025, eq. 13): 0, then linearly down to -1 at the budget."""
    room = OVERLONG_SHARE * context.max_tokens
    return -min(1.0, max(0.0, 1 - (context.max_tokens - context.tokens) / room))


def _repeated(context: RewardContext) -> float:
    """-1 where the answer is one that was not right before."""
    answer = context.verdict.answer
    if answer is None or context.verdict.correct:
        return 0.0
    failed = {answer_key(v.answer) for v in context.earlier if v.answer is not None and not v.correct}
    return -float(answer_key(answer) in failed)


def _improvement(context: RewardContext) -> float:
    """This turn's score minus the one before; 0 for the first."""
    return context.verdict.value - context.earlier[-1].value if context.earlier else 0.0


def _correct_to_wrong(context: RewardContext) -> float:
    """-1 where the turn before was right and this one is not."""
    return -float(bool(context.earlier) and context.earlier[-1].correct and not context.verdict.correct)


def _turn_cost(context: RewardContext) -> float:
    """-1 for every turn."""
    return -1.0


TERMS: Final[dict[str, Term]] = {
    "correct_to_wrong": _correct_to_wrong,
    "format": _format,
    "improvement": _improvement,
    "overlong": _overlong,
    "repeated_answer": _repeated,
    "turn_cost": _turn_cost,
}
"""The built-in terms, before their weights: the signs are such that positive weights make sense."""


def get_terms(terms: RewardTerms | None) -> dict[str, Term]:
    """The terms behind what a user gives: weights of built-in ones by name, or callables under names of their own.

    Args:
        terms: For example `{"overlong": 1.0, "turn_cost": 0.05, "mine": lambda context: …}`; None for none.

    Raises:
        InvalidValueError: an unknown name without a callable, a weight that is not finite, or the name "verdict" (which
            the verdict's own reward has).

    >>> context = RewardContext(Verdict(Status.WRONG), (), tokens=1024, max_tokens=1024)
    >>> get_terms({"overlong": 0.5})["overlong"](context)
    -0.5
    """
    found: dict[str, Term] = {}
    for name, given in (terms or {}).items():
        if name == "verdict":
            raise InvalidValueError("reward_terms: 'verdict' is the name of the verdict's own reward; choose another")
        if callable(given):
            found[name] = functools.partial(_checked, name, given)
        elif name not in TERMS:
            raise_unknown_name("reward term", name, TERMS)
        else:
            found[name] = functools.partial(_weighted, TERMS[name], check_float(f"reward_terms[{name!r}]", given))
    return found


def _weighted(term: Term, weight: float, context: RewardContext) -> float:
    return weight * term(context)


def _checked(name: str, term: Term, context: RewardContext) -> float:
    return check_float(f"reward_terms[{name!r}] returned", term(context))
