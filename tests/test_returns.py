from __future__ import annotations

import importlib.util
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.returns import (
    BIASED,
    ESTIMATORS,
    BiasedEstimatorWarning,
    advantages,
    episode_returns,
    group_index,
    returns_to_go,
)
from mathturn_gym.synthetic import synthetic_episode
from mathturn_gym.types import Episode


def load_benchmark(name: str) -> Any:
    path = Path(__file__).parent.parent / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


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


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", None]), st.lists(st.floats(-5, 5), max_size=4)), min_size=1, max_size=9
    )
)
def test_the_default_equals_its_definition_on_ragged_groups(drawn: list[tuple[str | None, list[float]]]) -> None:
    episodes = [
        synthetic_episode(1, i, [1] * len(rewards), group=name, rewards=np.array(rewards, np.float64))
        for i, (name, rewards) in enumerate(drawn)
    ]
    found = advantages(episodes, discount=0.7)
    go = [returns_to_go(e.rewards, 0.7).astype(np.float64) for e in episodes]
    for i, episode in enumerate(episodes):
        for k in range(episode.num_turns):
            others = [
                go[j][k]
                for j, other in enumerate(episodes)
                if j != i and other.group is not None and other.group == episode.group and other.num_turns > k
            ]
            assert found[i][k] == pytest.approx(go[i][k] - (np.mean(others) if others else 0.0), abs=1e-5)


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
    for estimator in ("turn_rloo", "rloo", "reinforce"):
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
    for estimator in ("grpo", "reinforce_pp", "rloo", "turn_rloo", "turn_mean"):
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


def test_unbiased_estimators_have_the_exact_gradient_as_their_mean() -> None:
    bench = load_benchmark("unbiasedness")
    size, groups = 3, 100_000
    known = [case for case in bench.cases(size) if case.factor is not None and case.label != "grpo without std"]
    assert len(known) == 6
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


def test_per_index_centring_is_blind_to_the_number_of_turns() -> None:
    bench = load_benchmark("unbiasedness")
    case = next(case for case in bench.cases(4) if case.label == "turn_mean")
    (row,) = bench.run(bench.stop_process(), 1.0, [case], groups=2_000, size=4, seed=0)
    assert row.exact[0] > 0.1
    assert abs(row.mean[0]) < 1e-9


def test_closed_forms_agree_with_enumeration() -> None:
    bench = load_benchmark("unbiasedness")

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
