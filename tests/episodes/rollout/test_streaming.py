"""Without a barrier per turn, episodes are the same."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from tiny import make_tiny_model, train_tokenizer

import mathturn_gym  # noqa: F401 - registers the ids
from mathturn_gym.episodes.rollout import EpisodePlan, collect
from mathturn_gym.errors import InvalidValueError, PolicyError
from mathturn_gym.testing import RandomPolicy
from mathturn_gym.types import Completion, Episode
from mathturn_gym.wrappers.policy import CausalLMPolicy

TOKENIZER = train_tokenizer()


class Barrier:
    """A policy that can only answer whole batches."""

    def __init__(self, policy: CausalLMPolicy) -> None:
        self._policy = policy

    def complete(self, contexts: Any, *, max_tokens: Any, seeds: Any = None) -> list[Completion]:
        return self._policy.complete(contexts, max_tokens=max_tokens, seeds=seeds)


def policy(**kwargs: Any) -> CausalLMPolicy:
    return CausalLMPolicy(make_tiny_model(TOKENIZER, seed=3), TOKENIZER, **kwargs)


def vec(num_envs: int, mode: str = "vector_entry_point", **kwargs: Any) -> Any:
    settings = {"tokenizer": TOKENIZER, "num_turns": 3, "max_completion_tokens": 24, "feedback": "hint", **kwargs}
    return (
        gym.make_vec(
            "MathMultiTurn-v0",
            num_envs=num_envs,
            vectorization_mode=mode,
            autoreset_mode=AutoresetMode.DISABLED,
            **settings,
        )
        if mode == "vector_entry_point"
        else gym.make_vec("MathMultiTurn-v0", num_envs=num_envs, vectorization_mode=mode, **settings)
    )


def same(found: list[Episode], expected: list[Episode]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        assert (a.index, a.problem_id, a.group, a.stop_reason) == (b.index, b.problem_id, b.group, b.stop_reason)
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=2e-5)


@pytest.mark.parametrize("mode", ["vector_entry_point", "sync"])
def test_a_stream_plays_the_episodes_of_a_barrier(mode: str) -> None:
    expected = collect(vec(4), Barrier(policy(cache_bytes=0)), 11, seed=5, group_size=2, discount=0.9)
    streaming = policy(max_batch_size=3)
    found = collect(vec(4, mode), streaming, 11, seed=5, group_size=2, discount=0.9)
    same(found, expected)
    assert streaming.cached_bytes == 0, "an episode that has ended keeps memory"
    assert streaming.stats.reused > 0


def test_a_stream_continues_and_leaves_the_environment_usable() -> None:
    env = vec(3)
    whole = collect(env, policy(), 8, seed=1)
    same(collect(env, policy(), 4, seed=1) + collect(env, policy(), 4, seed=1, first_index=4), whole)
    same(collect(env, Barrier(policy()), 8, seed=1), whole)
    env.reset(seed=0)
    env.step(tuple(np.array([5], np.int64) for _ in range(3)))


def test_prompts_without_room_are_played_without_asking() -> None:
    env = vec(2, max_context_tokens=25, problems="lins")
    episodes = collect(env, policy(), 6, seed=0)
    same(episodes, collect(env, Barrier(policy()), 6, seed=0))
    assert any(episode.num_turns < 3 for episode in episodes)


def test_a_policy_that_breaks_keeps_the_episodes_that_had_ended() -> None:
    broken, seen = policy(), []

    def breaks(episode: Episode) -> None:
        seen.append(episode.index)
        if len(seen) == 2:
            with torch.no_grad():
                broken.model.get_input_embeddings().weight.fill_(torch.nan)

    with pytest.raises(PolicyError, match="not finite") as caught:
        collect(vec(3), broken, 20, seed=0, on_episode=breaks)
    assert [episode.index for episode in caught.value.finished] == sorted(seen)
    assert broken.advance() == []


def test_an_error_in_between_leaves_no_requests_behind() -> None:
    interrupted = policy()

    def interrupt(episode: Episode) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(vec(3), interrupted, 20, seed=0, on_episode=interrupt)
    assert interrupted.advance() == []
    same(collect(vec(3), interrupted, 3, seed=0), collect(vec(3), policy(), 3, seed=0))


def test_a_plan_depends_on_the_index_alone() -> None:
    plan = EpisodePlan(seed=4, group_size=3, problem_ids=["a", "b"])
    assert [plan.options(i)["problem_id"] for i in range(9)] == ["a"] * 3 + ["b"] * 3 + ["a"] * 3
    assert [plan.group(i) for i in (2, 3)] == ["4/0", "4/1"]
    assert plan.turn_seed(1, 0) != plan.turn_seed(0, 1)
    assert EpisodePlan().group(5) is None


@pytest.mark.parametrize(("field", "value"), [("seed", -1), ("group_size", 0), ("discount", 1.5), ("problem_ids", [])])
def test_plans_outside_what_is_allowed_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidValueError, match=field):
        collect(vec(1), RandomPolicy(100), 1, **{field: value})
