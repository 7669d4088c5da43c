from collections.abc import Callable

import numpy as np
import pytest

from mathturn_gym.episodes.metrics import compare, summarize
from mathturn_gym.episodes.metrics.intervals import Bounds, Floats, difference_estimate
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
    found = compare(policy("++--"), policy("+++-++"))
    figure = found.figures["acc@1"]
    assert (figure.a, figure.b, figure.difference.value) == (0.5, 0.75, 0.25)
    assert (found.problems, found.only_a, found.only_b) == (4, 0, 2)


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
    assert figure.p_value is not None
    assert figure.p_value < 0.05


def test_equal_policies_differ_by_nothing_that_was_seen() -> None:
    """They did the same on 40 problems, and may differ on the next."""
    figure = compare(policy("+-" * 20), policy("+-" * 20)).figures["acc@1"]
    assert (figure.difference.value, figure.p_value) == (0, 1)
    assert figure.difference.low is not None
    assert figure.difference.high is not None
    assert -0.1 < figure.difference.low < -0.05
    assert figure.difference.high == pytest.approx(-figure.difference.low)


def test_what_has_no_bounds_and_does_not_vary_has_no_interval() -> None:
    figures = compare(policy("++--"), policy("+-+-")).figures
    assert (figures["tokens"].difference.value, figures["tokens"].difference.low) == (0, None)
    assert figures["tokens"].p_value is None
    assert figures["acc@1"].difference.low is not None


def test_episodes_on_one_question_are_one_problem() -> None:
    """Three problems, ten episodes each, are three problems: certainty comes from different questions."""
    one = [episode(f"p{i % 3}", True) for i in range(30)]
    other = [episode(f"p{i % 3}", i % 3 > 0) for i in range(30)]
    found = compare(one, other)
    assert found.problems == 3
    assert (found.figures["acc@1"].p_value or 0) > 0.2
    assert (found.figures["acc@1"].difference.high or -1) > 0


def test_p_values_and_intervals_agree() -> None:
    """Both come from one statistic: at every confidence the interval excludes 0 where p is below 1 - confidence."""
    rng = np.random.default_rng(5)
    a, b = (policy("".join("+" if right else "-" for right in rng.random(60) < share)) for share in (0.4, 0.6))
    p_value = compare(a, b).figures["acc@1"].p_value
    assert p_value is not None
    assert 0.0001 < p_value < 0.5
    for confidence, excluded in ((1 - 1.001 * p_value, True), (1 - 0.999 * p_value, False)):
        found = compare(a, b, confidence=confidence).figures["acc@1"].difference
        assert found.low is not None
        assert (found.low > 0) is excluded


Draw = Callable[[np.random.Generator], tuple[Floats, Floats, Bounds]]


def conditional(problems: int, groups: tuple[int, int], wrong_first: tuple[float, float], rate: float) -> Draw:
    """`corrected` of two policies with equal rates that differ in how many first turns are wrong."""

    def draw(rng: np.random.Generator) -> tuple[Floats, Floats, Bounds]:
        rates = rng.beta(rate, 1 - rate, problems)
        wrong = [rng.binomial(group, share, problems) for group, share in zip(groups, wrong_first, strict=True)]
        corrected = [rng.binomial(count, rates) for count in wrong]
        return np.stack(corrected).astype(float), np.stack(wrong).astype(float), (0.0, 1.0)

    return draw


def cost(problems: int, groups: tuple[int, int]) -> Draw:
    """`tokens_per_solved` of two equal policies with different numbers of episodes."""

    def draw(rng: np.random.Generator) -> tuple[Floats, Floats, Bounds]:
        rates = rng.beta(1, 1, problems).clip(0.02)
        tokens = [rng.lognormal(2, 0.3, (problems, group)).sum(axis=1) for group in groups]
        solved = [rng.binomial(group, rates) for group in groups]
        return np.stack(tokens), np.stack(solved).astype(float), (0.0, None)

    return draw


@pytest.mark.parametrize(
    ("draw", "least", "most"),
    [
        (conditional(60, (8, 8), (1.0, 1.0), 0.4), 0.01, 0.065),  # acc@k
        (conditional(60, (1, 1), (1.0, 1.0), 0.4), 0.02, 0.065),
        (conditional(60, (8, 2), (1.0, 1.0), 0.4), 0.02, 0.065),  # swapping the policies: p <= .05 in none of 400
        (conditional(60, (8, 8), (0.9, 0.1), 0.3), 0.02, 0.075),
        (conditional(60, (1, 1), (0.8, 0.2), 0.3), 0.02, 0.085),  # swapping the policies: in 14 %
        (cost(60, (8, 2)), 0.02, 0.065),  # swapping the policies: in 1 %
    ],
)
def test_p_values_of_equal_policies_are_small_as_often_as_they_say(draw: Draw, least: float, most: float) -> None:
    """Of 1,000 simulated comparisons of equal policies about 5 % have p <= .05; the standard error is .7 %."""
    rng = np.random.default_rng(1)
    small = 0
    for _ in range(1000):
        tops, bottoms, bounds = draw(rng)
        p_value = difference_estimate(tops, bottoms, bounds, confidence=0.95).p_value
        assert p_value is not None
        small += p_value <= 0.05
    assert least <= small / 1000 <= most


def test_policies_without_a_common_problem_cannot_be_compared() -> None:
    with pytest.raises(InvalidValueError, match="no problem in common"):
        compare(policy("+"), policy("+", prefix="q"))
