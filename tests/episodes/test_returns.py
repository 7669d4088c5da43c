from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mathturn_gym.episodes.returns import (
    BIASED,
    ESTIMATORS,
    BiasedEstimatorWarning,
    advantages,
    episode_returns,
    group_index,
    returns_to_go,
    scale_advantages,
)
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode


def group(*rewards: list[float], name: str | None = "g", **fields: Any) -> list[Episode]:
    return [
        synthetic_episode(0, i, [2] * len(row), group=name, rewards=np.array(row, np.float64), **fields)
        for i, row in enumerate(rewards)
    ]


def lists(arrays: list[npt.NDArray[np.float32]]) -> list[list[float]]:
    return [np.round(array.astype(np.float64), 6).tolist() for array in arrays]


def quiet(*args: Any, **kwargs: Any) -> list[npt.NDArray[np.float32]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiasedEstimatorWarning)
        return advantages(*args, **kwargs)


@given(st.lists(st.floats(-1e6, 1e6), max_size=12), st.floats(0, 1))
def test_returns_to_go_is_the_float64_recursion_rounded_once(rewards: list[float], discount: float) -> None:
    expected, running = [], 0.0
    for reward in reversed(rewards):
        running = reward + discount * running
        expected.append(np.float32(running))
    found = returns_to_go(rewards, discount)
    assert found.dtype == np.float32
    assert found.tolist() == expected[::-1]


@pytest.mark.parametrize("rewards", [[3e38, 3e38], [-1e300], [1e308, 1e308]])
def test_returns_that_leave_float32_are_refused_not_infinite(rewards: list[float]) -> None:
    with pytest.raises(InvalidValueError, match="returns must fit into float32, got"):
        returns_to_go(rewards, 1.0)


@pytest.mark.parametrize(
    ("rewards", "discount", "field"),
    [
        ([1.0], 1.5, "discount"),
        ([1.0], float("nan"), "discount"),
        ([float("inf")], 1.0, "rewards_K"),
        ([[1.0]], 1.0, "1-D"),
    ],
)
def test_returns_to_go_refuses_what_is_not_a_return(rewards: Any, discount: float, field: str) -> None:
    with pytest.raises(InvalidValueError, match=field):
        returns_to_go(rewards, discount)


HAND = ([1.0, 2.0, 4.0], [3.0, 1.0], [2.0])
"""Returns at discount 0.5: [3, 4, 4], [3.5, 1], [2]; at 1: [7, 6, 4], [4, 1], [2]."""


@pytest.mark.parametrize(
    ("estimator", "options", "expected"),
    [
        ("turn_rloo", {}, [[7 - 3, 6 - 1, 4], [4 - 4.5, 1 - 6], [2 - 5.5]]),
        ("turn_rloo", {"discount": 0.5}, [[3 - 2.75, 4 - 1, 4], [3.5 - 2.5, 1 - 4], [2 - 3.25]]),
        (
            "turn_rloo",
            {"discount": 0.5, "discount_states": True},
            [[3 - 2.75, (4 - 1) / 2, 4 / 4], [3.5 - 2.5, (1 - 4) / 2], [2 - 3.25]],
        ),
        ("rloo", {}, [[4.0] * 3, [-0.5] * 2, [-3.5]]),
        ("rloo", {"discount_states": True, "discount": 1.0}, [[4.0] * 3, [-0.5] * 2, [-3.5]]),
        ("reinforce", {}, [[7, 6, 4], [4, 1], [2]]),
        ("dr_grpo", {}, [[7 - 13 / 3] * 3, [4 - 13 / 3] * 2, [2 - 13 / 3]]),
        ("grpo", {"normalize_std": False}, [[7 - 13 / 3] * 3, [4 - 13 / 3] * 2, [2 - 13 / 3]]),
        ("turn_mean", {}, [[-1 + 0.5 + 0, 0.5 + 0, 0], [1 - 0.5, -0.5], [0]]),
        ("turn_mean", {"discount": 0.0}, [[-1, 0.5, 0], [1, -0.5], [0]]),
    ],
)
def test_estimators_by_hand(estimator: Any, options: dict[str, Any], expected: list[list[float]]) -> None:
    found = quiet(group(*HAND), estimator, **{"discount": 1.0, **options})
    assert lists(found) == [np.round(row, 6).tolist() for row in expected]
    assert all(array.dtype == np.float32 for array in found)


def test_grpo_and_reinforce_pp_normalize() -> None:
    wholes = np.array([7.0, 4.0, 2.0])
    expected = (wholes - wholes.mean()) / (wholes.std(ddof=1) + 1e-4)
    found = quiet(group(*HAND), "grpo")
    assert [row[0] for row in found] == pytest.approx(expected, rel=1e-6)
    flat = np.concatenate(quiet(group(*HAND), "reinforce_pp"))
    assert flat.mean() == pytest.approx(0, abs=1e-6)
    assert flat.std() == pytest.approx(1, rel=1e-5)


def test_gae_by_hand_and_its_ends() -> None:
    episodes = group([1.0, 2.0], [1.0, 2.0], [1.0, 2.0])
    cut = group([1.0, 2.0], terminated=False, truncated=True, stop_reason=None)
    values = [[0.5, 1.0], [0.5, 1.0, 9.0], [0.0, 0.0]]
    found = quiet(episodes, "gae", discount=0.5, gae_lambda=0.5, values=values)
    d0, d1 = 1 + 0.5 * 1 - 0.5, 2 - 1.0
    # A terminated episode has nothing after its end, so the critic's 9 there is not used.
    assert lists(found) == lists(quiet(episodes, "gae", discount=0.5, gae_lambda=0.5, values=[*values[:1] * 2, [0, 0]]))
    assert lists(found)[0] == [d0 + 0.25 * d1, d1]
    bootstrapped = quiet(cut, "gae", discount=0.5, gae_lambda=0.5, values=[[0.5, 1.0, 9.0]])
    assert lists(bootstrapped) == [[d0 + 0.25 * (d1 + 4.5), d1 + 4.5]]
    with pytest.raises(InvalidValueError, match=r"values\[0\] of episode 0 .* 3 entries \(it was truncated"):
        advantages(cut, "gae", values=[[0.5, 1.0]])


def test_gae_with_lambda_one_and_no_critic_is_the_return() -> None:
    episodes = group(*HAND)
    zero = [[0.0] * e.num_turns for e in episodes]
    assert lists(advantages(episodes, "gae", discount=0.9, values=zero)) == lists(
        advantages(episodes, "reinforce", discount=0.9)
    )


def other_groups_means(episodes: list[Episode], go: list[Any], i: int, k: int) -> list[float]:
    """By definition: the mean return at turn k of each group other than episode i's, where anybody reached it."""
    numbers = group_index(episodes)
    reached: dict[int, list[float]] = {}
    for j, other in enumerate(episodes):
        if numbers[j] != numbers[i] and other.num_turns > k:
            reached.setdefault(int(numbers[j]), []).append(float(go[j][k]))
    return [float(np.mean(values)) for values in reached.values()]


RAGGED = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.lists(st.floats(-5, 5), max_size=4)), min_size=1, max_size=9
)


def ragged(drawn: list[tuple[str | None, list[float]]]) -> list[Episode]:
    return [
        synthetic_episode(1, i, [1] * len(rewards), group=name, rewards=np.array(rewards, np.float64))
        for i, (name, rewards) in enumerate(drawn)
    ]


@settings(deadline=None)
@given(RAGGED)
def test_the_default_equals_its_definition_on_ragged_groups(drawn: list[tuple[str | None, list[float]]]) -> None:
    episodes = ragged(drawn)
    found = advantages(episodes, discount=0.7)
    go = [returns_to_go(e.rewards, 0.7).astype(np.float64) for e in episodes]
    for i, episode in enumerate(episodes):
        for k in range(episode.num_turns):
            others = [
                go[j][k]
                for j, other in enumerate(episodes)
                if j != i and other.group is not None and other.group == episode.group and other.num_turns > k
            ]
            means = other_groups_means(episodes, go, i, k)
            baseline = np.mean(others) if others else np.mean(means) if means else 0.0
            assert found[i][k] == pytest.approx(go[i][k] - baseline, abs=1e-5)


@settings(deadline=None)
@given(RAGGED, st.floats(0, 5))
def test_the_shrunk_baseline_equals_its_definition(drawn: list[tuple[str | None, list[float]]], pseudo: float) -> None:
    episodes = ragged(drawn)
    found = advantages(episodes, "shrunk_rloo", discount=0.7, shrinkage=pseudo)
    go = [returns_to_go(e.rewards, 0.7).astype(np.float64) for e in episodes]
    numbers = group_index(episodes)
    for i, episode in enumerate(episodes):
        for k in range(episode.num_turns):
            others = [
                go[j][k] for j, e in enumerate(episodes) if j != i and numbers[j] == numbers[i] and e.num_turns > k
            ]
            means = other_groups_means(episodes, go, i, k)
            count, own = len(others), float(np.mean(others)) if others else 0.0
            if not means:
                baseline = own
            elif count + pseudo == 0:
                baseline = float(np.mean(means))
            else:
                share = pseudo / (count + pseudo)  # divided first: a subnormal times a mean would be rounded
                baseline = (1 - share) * own + share * float(np.mean(means))
            assert found[i][k] == pytest.approx(go[i][k] - baseline, abs=1e-4)


@settings(deadline=None)
@given(RAGGED, st.sampled_from(["turn_rloo", "shrunk_rloo"]), st.floats(-5, 5))
def test_a_baseline_does_not_depend_on_what_the_episode_itself_got(
    drawn: list[tuple[str | None, list[float]]], estimator: Any, change: float
) -> None:
    episodes = ragged(drawn)
    own = episodes[0]
    changed = [dataclasses.replace(own, rewards=own.rewards + change), *episodes[1:]]
    before, after = (advantages(part, estimator, discount=1.0)[0] for part in (episodes, changed))
    gains = returns_to_go(changed[0].rewards, 1.0) - returns_to_go(own.rewards, 1.0)
    np.testing.assert_allclose(after - before, gains, atol=1e-4)


def test_shrinkage_is_estimated_from_the_other_groups() -> None:
    # At the only turn: groups b, c and d say that problems differ much and episodes on one hardly do.
    apart = [
        *group([0.0], [0.0]),
        *group([1.0], [1.1], name="b"),
        *group([5.0], [5.1], name="c"),
        *group([9.0], [9.1], name="d"),
    ]
    alike = [
        *group([0.0], [0.0]),
        *group([1.0], [9.0], name="b"),
        *group([5.2], [4.8], name="c"),
        *group([9.0], [1.0], name="d"),
    ]
    own_problem = advantages(apart, "shrunk_rloo")[0][0]  # less about 0, what the other member got
    all_problems = advantages(alike, "shrunk_rloo")[0][0]  # less about 5, what everybody gets
    assert abs(own_problem) < 0.02
    assert all_problems == pytest.approx(-5.0, abs=1e-6)
    within, between = 0.005, 16.0 - 0.005 / 2  # by hand: variances of b, c, d and of their means 1.05, 5.05, 9.05
    pseudo = within / between
    assert own_problem == pytest.approx(-pseudo * 5.05 / (1 + pseudo), rel=1e-3)


def test_a_scale_of_equal_numbers_is_no_division_by_rounding() -> None:
    same = [np.full(127, 0.1, np.float32), np.full(3, 0.1, np.float32)]
    assert np.abs(np.concatenate(scale_advantages(same, epsilon=1e-8))).max() == 0.0


def test_groups_are_numbered_and_the_unnamed_stay_alone() -> None:
    names = ["x", None, "x", None, "y"]
    episodes = [synthetic_episode(0, i, [1], group=name) for i, name in enumerate(names)]
    assert group_index(episodes).tolist() == [0, 1, 0, 2, 3]


@pytest.mark.parametrize("estimator", sorted(BIASED))
def test_biased_estimators_say_so_and_unbiased_ones_do_not(estimator: Any) -> None:
    episodes = group(*HAND)
    with pytest.warns(BiasedEstimatorWarning, match=f"{estimator}.* is biased"):
        advantages(episodes, estimator)
    assert "**Biased" in (advantages.__doc__ or "").split(f'`"{estimator}"`')[1].split("* `")[0]


def test_unbiased_estimators_do_not_warn() -> None:
    for estimator in ("turn_rloo", "shrunk_rloo", "rloo", "reinforce"):
        advantages(group(*HAND), estimator)
    values = [[0.0] * e.num_turns for e in group(*HAND)]
    advantages(group(*HAND), "gae", values=values)
    with pytest.warns(BiasedEstimatorWarning, match=r"gae_lambda 0\.9"):
        advantages(group(*HAND), "gae", values=values, gae_lambda=0.9)


def test_empty_completions_get_zero_and_all_empty_is_said(caplog: pytest.LogCaptureFixture) -> None:
    some = [synthetic_episode(0, i, lengths, group="g") for i, lengths in enumerate([[0, 3], [2, 0]])]
    found = quiet(some, "grpo")
    assert found[0][0] == 0 == found[1][1]
    assert found[0][1] != 0
    none = [synthetic_episode(0, i, [0, 0], group="g") for i in range(3)]
    for estimator in ESTIMATORS:
        values = [[0.0, 0.0]] * 3 if estimator == "gae" else None
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            assert lists(quiet(none, estimator, values=values)) == [[0.0, 0.0]] * 3
        assert "all completions of 3 episodes are empty" in caplog.text


def test_equal_returns_give_zero_not_nan() -> None:
    for estimator in ("grpo", "reinforce_pp", "reinforce_pp_baseline", "rloo", "turn_rloo", "shrunk_rloo", "turn_mean"):
        assert lists(quiet(group([1.0], [1.0], [1.0]), estimator)) == [[0.0]] * 3


def test_episodes_without_turns_have_no_advantages() -> None:
    episodes = group([], [1.0], [])
    for estimator in ESTIMATORS:
        values = [[0.0] * e.num_turns for e in episodes] if estimator == "gae" else None
        assert [len(row) for row in quiet(episodes, estimator, values=values)] == [0, 1, 0]


@pytest.mark.parametrize(
    ("episodes", "options", "message"),
    [
        ([], {}, "at least one episode"),
        (group([1.0]), {"estimator": "turn_rlo"}, "did you mean 'turn_rloo'"),
        (group([1.0]), {"discount": -0.1}, "discount must be"),
        (group([1.0]), {"estimator": "gae"}, "values are given with estimator 'gae'"),
        (group([1.0]), {"values": [[1.0]]}, "values are given with estimator 'gae'"),
        (group([1.0]), {"estimator": "gae", "values": [[1.0]], "gae_lambda": 2.0}, "gae_lambda must be"),
        (group([1.0]), {"estimator": "gae", "values": []}, "0 entries for 1 episodes"),
        (group([1.0]), {"estimator": "gae", "values": [[1.0, 2.0, 3.0]]}, r"values\[0\] of episode 0 on 'synthetic/g'"),
        (group([1.0]), {"estimator": "gae", "values": [[float("nan")]]}, r"values\[0\].*finite"),
        (group([1.0], name=None), {"estimator": "grpo"}, "episode 0 on 'synthetic/0' .* is alone"),
        (group([1.0]), {"estimator": "dr_grpo"}, "'dr_grpo' needs groups of at least 2"),
        (group([1.0]), {"estimator": "turn_mean"}, "is alone"),
        (group([1.0]), {"estimator": "reinforce_pp_baseline"}, "is alone"),
        (group([1.0]), {"estimator": "rloo", "shrinkage": 1.0}, "shrinkage is read by estimator 'shrunk_rloo' alone"),
        (group([1.0]), {"estimator": "shrunk_rloo", "shrinkage": -1.0}, "shrinkage must"),
    ],
)
def test_mistakes_are_named(episodes: list[Episode], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        quiet(episodes, **options)


def test_episode_returns_keeps_what_episodes_already_have() -> None:
    kept = group([1.0, 1.0], returns=np.array([9.0, 8.0], np.float32), discount=0.3)
    fresh = group([1.0, 1.0])
    assert episode_returns(kept + fresh, None).tolist() == [9.0, 8.0, 2.0, 1.0]
    assert episode_returns(kept + fresh, 0.5).tolist() == [1.5, 1.0, 1.5, 1.0]


@pytest.mark.parametrize("groups", [15_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_unbiased_estimators_have_the_exact_gradient_as_their_mean(
    benchmark: Callable[[str], Any], groups: int
) -> None:
    bench, size = benchmark("unbiasedness"), 3
    known = [case for case in bench.cases(size) if case.factor is not None and case.label != "grpo without std"]
    assert len(known) == 8
    rows = bench.run(bench.stop_process(), 1.0, known, groups=groups, size=size, seed=1)
    rows += bench.run(bench.retry_process(), 0.8, known, groups=groups, size=size, seed=2)
    for row in rows:
        assert np.all(row.standard_error > 0)
        off = np.abs(row.mean - row.case.factor * row.exact) / row.standard_error
        assert np.all(off < 4), (row.process, row.case.label, row.exact, row.mean, off)
    # The test can fail: a mean scaled by (G - 1) / G is told from the exact gradient.
    for row in rows:
        if row.case.label == "dr_grpo":
            assert np.all(np.abs(row.deviations) > 4), row


def test_the_expected_gradient_over_every_possible_batch_is_the_exact_one(benchmark: Callable[[str], Any]) -> None:
    """No sampling: 4,096 batches of three problems with two episodes each, each times its probability."""
    bench = benchmark("unbiasedness")
    for label, arguments in bench.EXACT.items():
        mean, exact = bench.exact_mean(bench.mixed_batch(), 2, arguments, 0.8)
        assert np.abs(exact).min() > 0.01
        np.testing.assert_allclose(mean, exact, atol=1e-7, err_msg=label)  # advantages are float32
    # The enumeration can fail: a mean that holds the episode itself is off by one half in groups of two.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiasedEstimatorWarning)
        mean, exact = bench.exact_mean(bench.mixed_batch()[:2], 2, {"estimator": "dr_grpo"}, 0.8)
    np.testing.assert_allclose(mean, exact / 2, atol=1e-7)
    # And with what follows an action left to chance, over 10,000 batches of two problems.
    retries = [bench.retry_process((0.3, -0.4)), bench.retry_process((-1.0, 1.0))]
    mean, exact = bench.exact_mean(retries, 2, bench.EXACT["shrunk_rloo, shrinkage 0.5"], 1.0)
    np.testing.assert_allclose(mean, exact, atol=1e-7)


def test_per_index_centring_is_blind_to_the_number_of_turns(benchmark: Callable[[str], Any]) -> None:
    bench = benchmark("unbiasedness")
    case = next(case for case in bench.cases(4) if case.label == "turn_mean")
    (row,) = bench.run(bench.stop_process(), 1.0, [case], groups=2_000, size=4, seed=0)
    assert row.exact[0] > 0.1
    assert abs(row.mean[0]) < 1e-9


def test_closed_forms_agree_with_enumeration(benchmark: Callable[[str], Any]) -> None:
    bench = benchmark("unbiasedness")

    def enumerated(process: Any, discount: float) -> npt.NDArray[np.float64]:
        total: npt.NDArray[np.float64] = sum(
            t.probability * np.sum(t.scores, axis=0) * sum(discount**k * r for k, r in enumerate(t.rewards))
            for t in process.trajectories
        )
        return total

    for process in (bench.stop_process(), bench.retry_process()):
        for discount in (1.0, 0.8, 0.0):
            assert enumerated(process, discount) == pytest.approx(process.gradient(discount), abs=1e-12)
            whole = sum(
                t.probability * sum(discount**k * r for k, r in enumerate(t.rewards)) for t in process.trajectories
            )
            assert whole == pytest.approx(process.values(discount)[0])
