import itertools

import numpy as np
import pytest

from mathturn_gym.episodes.metrics import compare, summarize
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.types import Episode, Status, StopReason, Verdict


def episode(problem_id: str, right: bool) -> Episode:
    mask = np.array([False, True])
    return Episode(
        problem_id=problem_id,
        ids=np.zeros(2, np.int64),
        loss_mask=mask,
        logprobs=np.zeros(2, np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        turn_spans=np.array([[1, 2]]),
        rewards=np.array([1.0 if right else -1.0]),
        verdicts=(Verdict(Status.RIGHT if right else Status.WRONG, answer="1" if right else "2"),),
        feedbacks=("",),
        turn_truncated=(False,),
        terminated=True,
        truncated=False,
        stop_reason=StopReason.TURNS,
    )


def policy(outcomes: str, prefix: str = "p") -> list[Episode]:
    return [episode(f"{prefix}{i}", outcome == "+") for i, outcome in enumerate(outcomes)]


def test_differences_are_b_minus_a_over_common_problems() -> None:
    found = compare(policy("++--"), policy("+++-++"), permutations=50)
    figure = found.figures["acc@1"]
    assert (figure.a, figure.b, figure.difference.value) == (0.5, 0.75, 0.25)
    assert (found.problems, found.only_a, found.only_b) == (4, 0, 2)


def test_the_p_value_is_that_of_listing_every_swap() -> None:
    a, b = "+---+-", "++++--"
    gains = [(y == "+") - (x == "+") for x, y in zip(a, b, strict=True)]
    swaps = [
        abs(sum(s * g for s, g in zip(signs, gains, strict=True))) for signs in itertools.product((1, -1), repeat=6)
    ]
    exact = sum(size >= abs(sum(gains)) for size in swaps) / len(swaps)
    found = compare(policy(a), policy(b), permutations=20_000).figures["acc@1"].p_value
    assert abs(found - exact) < 0.015  # four standard errors


def test_problem_by_problem_pairing_sees_what_two_separate_intervals_cannot() -> None:
    rng = np.random.default_rng(0)
    a = "".join("+" if right else "-" for right in rng.random(200) < 0.5)
    b = "".join("+" if x == "+" or i % 14 == 0 else "-" for i, x in enumerate(a))
    reports = [summarize(policy(outcomes))["acc@1"] for outcomes in (a, b)]
    assert reports[0].high is not None
    assert reports[1].low is not None
    assert reports[1].low < reports[0].high  # the intervals overlap
    figure = compare(policy(a), policy(b)).figures["acc@1"]
    assert figure.difference.low is not None
    assert figure.difference.low > 0
    assert figure.p_value < 0.05


def test_equal_policies_differ_by_nothing_that_was_seen() -> None:
    """They did the same on 40 problems, and may differ on the next."""
    figure = compare(policy("+-" * 20), policy("+-" * 20), permutations=20).figures["acc@1"]
    assert (figure.difference.value, figure.p_value) == (0, 1)
    assert figure.difference.low is not None
    assert figure.difference.high is not None
    assert -0.1 < figure.difference.low < -0.05
    assert figure.difference.high == pytest.approx(-figure.difference.low)


def test_what_has_no_bounds_and_does_not_vary_has_no_interval() -> None:
    figures = compare(policy("++--"), policy("+-+-"), permutations=20).figures
    assert (figures["tokens"].difference.value, figures["tokens"].difference.low) == (0, None)
    assert figures["acc@1"].difference.low is not None


def test_episodes_on_one_question_are_one_problem() -> None:
    """Three problems, ten episodes each, are three problems: certainty comes from different questions."""
    one = [episode(f"p{i % 3}", True) for i in range(30)]
    other = [episode(f"p{i % 3}", i % 3 > 0) for i in range(30)]
    found = compare(one, other, permutations=500)
    assert found.problems == 3
    assert found.figures["acc@1"].p_value > 0.2
    assert (found.figures["acc@1"].difference.high or -1) > 0


def test_p_values_of_equal_policies_are_uniform() -> None:
    rng = np.random.default_rng(3)
    small = 0
    for run in range(300):
        a, b = (policy("".join("+" if right else "-" for right in rng.random(30) < 0.5)) for _ in range(2))
        small += compare(a, b, permutations=200, seed=run).figures["acc@1"].p_value <= 0.1
    assert small / 300 < 0.15  # nominal 0.1 at most: the test is discrete, standard error 0.017


def test_policies_without_a_common_problem_cannot_be_compared() -> None:
    with pytest.raises(InvalidValueError, match="no problem in common"):
        compare(policy("+"), policy("+", prefix="q"))


def test_a_comparison_is_the_same_for_the_same_seed() -> None:
    first, again, other = (
        compare(policy("++--+-"), policy("+-++++"), permutations=99, seed=s).to_dict() for s in (1, 1, 2)
    )
    assert first == again != other
