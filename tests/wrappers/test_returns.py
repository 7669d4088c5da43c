from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode

import mathturn_gym  # noqa: F401
from mathturn_gym.errors import EpisodeStateError, InvalidValueError
from mathturn_gym.testing import RandomPolicy
from mathturn_gym.types import Completion, Episode, Problem
from mathturn_gym.wrappers import ReturnsWrapper, VectorReturnsWrapper

KWARGS: dict[str, Any] = {"num_turns": 3, "max_completion_tokens": 9, "problems": "add1"}


def completion(ids: list[int], version: int = 0) -> Completion:
    return Completion(np.array(ids), np.full(len(ids), -0.5, np.float32), version_start=version)


def test_gives_the_episode_with_its_returns_at_the_end() -> None:
    env = ReturnsWrapper(gym.make("MathMultiTurn-v0", **KWARGS), discount=0.5)
    obs, info = env.reset(seed=0)
    assert "trajectory" not in info
    for turn in range(3):
        last, *_, info = env.step(completion([70, 71, 72], version=turn))
        assert ("trajectory" in info) == (turn == 2)
    episode: Episode = info["trajectory"]
    assert episode.returns is not None
    assert episode.returns.tolist() == [-1.75, -1.5, -1.0]
    assert episode.discount == 0.5
    assert np.array_equal(episode.ids, last)
    assert np.array_equal(episode.prompt_ids, obs)
    assert [turn.versions.tolist() for turn in episode.turns] == [[0] * 3, [1] * 3, [2] * 3]
    assert all(np.all(turn.logprobs == -0.5) for turn in episode.turns)


def test_plain_ids_have_no_logprobs() -> None:
    env = ReturnsWrapper(gym.make("MathSingleTurn-v0", **{**KWARGS, "num_turns": 1}))
    env.reset(seed=0)
    episode = env.step(np.array([70, 71]))[-1]["trajectory"]
    assert np.isnan(episode.logprobs[episode.loss_mask]).all()


def test_changes_nothing_else_and_round_trips_through_its_spec() -> None:
    bare, wrapped = gym.make("MathMultiTurn-v0", **KWARGS), ReturnsWrapper(gym.make("MathMultiTurn-v0", **KWARGS))
    assert data_equivalence(bare.reset(seed=1), wrapped.reset(seed=1), exact=True)
    action = np.array([70])
    assert data_equivalence(bare.step(action), wrapped.step(action), exact=True)
    spec = pickle.loads(pickle.dumps(EnvSpec.from_json(wrapped.spec.to_json())))  # type: ignore[union-attr]
    twin = gym.make(spec)
    assert isinstance(twin, ReturnsWrapper)
    assert data_equivalence(twin.reset(seed=1), wrapped.reset(seed=1), exact=True)


@pytest.mark.parametrize("discount", [-0.1, 1.1, float("nan"), "x", True])
def test_discount_is_checked(discount: Any) -> None:
    with pytest.raises(InvalidValueError, match="discount must be a finite number"):
        ReturnsWrapper(gym.make("MathMultiTurn-v0"), discount=discount)
    with pytest.raises(InvalidValueError, match="discount must be a finite number"):
        VectorReturnsWrapper(gym.make_vec("MathMultiTurn-v0", num_envs=1), discount=discount)


def test_acting_before_reset() -> None:
    with pytest.raises(EpisodeStateError, match="before reset"):
        ReturnsWrapper(gym.make("MathMultiTurn-v0")).step(np.array([1]))
    with pytest.raises(EpisodeStateError, match="before reset"):
        VectorReturnsWrapper(gym.make_vec("MathMultiTurn-v0", num_envs=1)).step([np.array([1])])


@pytest.mark.parametrize("mode", ["sync", "vector_entry_point"])
@pytest.mark.parametrize("autoreset", list(AutoresetMode))
def test_vector_form_gives_the_episodes_of_the_single_form(mode: str, autoreset: AutoresetMode) -> None:
    kwargs = {**KWARGS, "stop_on_success": True, "problems": [Problem(f"p/{i}", f"{i}", "1") for i in range(3)]}
    extra: dict[str, Any] = {"autoreset_mode": autoreset}
    env = VectorReturnsWrapper(
        gym.make_vec("MathMultiTurn-v0", num_envs=2, vectorization_mode=mode, vector_kwargs=extra, **kwargs)
        if mode == "sync"
        else gym.make_vec("MathMultiTurn-v0", num_envs=2, vectorization_mode=mode, **extra, **kwargs),
        discount=0.9,
    )
    policy = RandomPolicy(env.single_action_space.vocab_size)  # type: ignore[attr-defined]
    obs, _ = env.reset(seed=[5, 6])
    found: list[list[Episode]] = [[], []]
    played: list[list[Completion]] = [[], []]
    resetting = [False, False]
    for step in range(12):
        completions = policy.complete(obs, max_tokens=[4, 6], seeds=[step, 50 + step])
        obs, _, terminated, truncated, infos = env.step(completions)
        for i in range(2):
            if not (autoreset is AutoresetMode.NEXT_STEP and resetting[i]):
                played[i].append(completions[i])
            if "trajectory" in infos and infos["_trajectory"][i]:
                found[i].append(infos["trajectory"][i])
        resetting = (terminated | truncated).tolist()
        if autoreset is AutoresetMode.DISABLED and any(resetting):
            obs, _ = env.reset(options={"reset_mask": np.array(resetting)})
    env.close()
    for i in range(2):
        single, expected = ReturnsWrapper(gym.make("MathMultiTurn-v0", **kwargs), discount=0.9), []
        single.reset(seed=5 + i)
        for one in played[i]:
            *_, terminated_, truncated_, info = single.step(one)
            if terminated_ or truncated_:
                expected.append(info["trajectory"])
                single.reset()
        assert len(found[i]) == len(expected) >= 3
        for a, b in zip(found[i], expected, strict=True):
            assert (a.problem_id, a.ids.tolist(), a.verdicts) == (b.problem_id, b.ids.tolist(), b.verdicts)
            assert a.returns is not None
            assert b.returns is not None
            assert a.returns.tolist() == b.returns.tolist()
            assert a.logprobs.tobytes() == b.logprobs.tobytes()
