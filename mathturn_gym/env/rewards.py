"""The reward of a turn: the verdict's reward, and named terms that can be added to it.

Every built-in term looks at what the policy wrote and at its verdicts, never at text that the environment wrote.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np

from mathturn_gym.base.user_functions import call_with_turn, check_takes, name_of
from mathturn_gym.errors import InvalidValueError, check_float, raise_unknown_name, shown
from mathturn_gym.types import Status, TurnContext
from mathturn_gym.verifier import answer_key

LARGEST_RETURN: Final = float(np.finfo(np.float32).max)
"""Returns are float32: an episode's largest return must stay below this."""


def affine_reward(score: float, bias: float, scaling: float) -> float:
    """`((score - 0.5) * 2 - bias) * scaling`: `turn_reward` without its checks."""
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


def check_scale(bias: float, scaling: float, num_turns: int) -> None:
    """Raises where an episode's returns could leave float32, in which they are kept.

    Args:
        bias: `reward_bias`.
        scaling: `reward_scaling`.
        num_turns: Turns of an episode.

    Raises:
        InvalidValueError: they could.
    """
    largest = (1.0 + abs(bias)) * abs(scaling) * max(num_turns, 1)
    if not largest <= LARGEST_RETURN:
        raise InvalidValueError(
            f"reward_scaling={scaling!r} with reward_bias={bias!r} makes returns of up to {largest:.3g} in {num_turns}"
            f" turns; they are float32, so at most {LARGEST_RETURN:.3g}: choose smaller ones"
        )


Term: TypeAlias = Callable[[TurnContext], float]
RewardTerms: TypeAlias = Mapping[str, "float | Term"]

OVERLONG_SHARE: Final = 0.2
"""The last part of the budget, in which `overlong` falls from 0 to -1 (DAPO: 4,096 of 20,480)."""


def _format(context: TurnContext) -> float:
    """1 where an answer was found."""
    judged = context.judged
    # a verifier of the user's own that answers with a bool never says "no answer".
    missing = judged.answer is None and judged.status in (Status.RIGHT, Status.WRONG)
    return float(judged.status is not Status.NO_ANSWER and not missing)


def _overlong(context: TurnContext) -> float:
    """DAPO's soft punishment of length (Yu et al. 2025, eq. 13): 0, then linearly down to -1 at the budget."""
    left = context.max_tokens - int(context.ids.shape[0])
    return -min(1.0, max(0.0, 1 - left / (OVERLONG_SHARE * context.max_tokens)))


def _repeated(context: TurnContext) -> float:
    """-1 where the answer is one that was not right before."""
    answer = context.judged.answer
    if answer is None or context.judged.correct:
        return 0.0
    earlier = (turn.verdict for turn in context.earlier)
    failed = {answer_key(verdict.answer) for verdict in earlier if verdict.answer is not None and not verdict.correct}
    return -float(answer_key(answer) in failed)


def _improvement(context: TurnContext) -> float:
    """This turn's score minus the one before; 0 for the first."""
    return context.judged.value - context.earlier[-1].verdict.value if context.earlier else 0.0


def _correct_to_wrong(context: TurnContext) -> float:
    """-1 where the turn before was right and this one is not."""
    return -float(bool(context.earlier) and context.earlier[-1].verdict.correct and not context.judged.correct)


def _turn_cost(context: TurnContext) -> float:
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
    """The terms behind what a user gives: weights of built-in ones by name, or functions under names of their own.

    Args:
        terms: For example `{"overlong": 1.0, "turn_cost": 0.05, "mine": lambda context: …}`; None for none. A function
            gets the `TurnContext`, whose `judged` is the verdict.

    Raises:
        InvalidValueError: an unknown name without a function, a weight that is not finite, a function that does not take a
            `TurnContext`, or the name "verdict" (which the verdict's own reward has).

    >>> from mathturn_gym.types import Problem, Verdict
    >>> turn = TurnContext(Problem("p/1", "2+2?", "4"), 0, 5, "", verdict=Verdict(Status.NO_ANSWER))
    >>> get_terms({"turn_cost": 0.5})["turn_cost"](turn)
    -0.5
    """
    found: dict[str, Term] = {}
    given_terms: object = terms  # a config may say anything
    if given_terms is not None and not (
        isinstance(given_terms, Mapping) and all(isinstance(one, str) for one in given_terms)
    ):
        raise InvalidValueError(
            f"reward_terms must be weights or functions by name, as {{'format': 1.0}}, got {shown(given_terms)}; on the"
            " command line --reward-term format=1.0"
        )
    for name, given in (terms or {}).items():
        if name == "verdict":
            raise InvalidValueError("reward_terms: 'verdict' is the name of the verdict's own reward; choose another")
        if callable(given):
            check_takes(f"reward_terms[{name!r}]", given, "context")
            found[name] = functools.partial(_users, name, given)
        elif name not in TERMS:
            raise_unknown_name("reward term", name, TERMS)
        else:
            found[name] = functools.partial(_weighted, TERMS[name], check_float(f"reward_terms[{name!r}]", given))
    return found


def _weighted(term: Term, weight: float, context: TurnContext) -> float:
    return weight * term(context)


def _users(name: str, term: Term, context: TurnContext) -> float:
    """A user's term; what it raises or returns that is no reward is an error that names it."""
    role = f"reward_terms[{name!r}]"
    return check_float(f"what {role} {name_of(term)} returns", call_with_turn(role, term, context))
