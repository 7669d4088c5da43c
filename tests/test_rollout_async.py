from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import mathturn_gym  # noqa: F401 - registers the ids
from mathturn_gym.baselines.tiny import make_tiny_model, train_tokenizer
from mathturn_gym.decoding.servers.asyncio_policy import AsyncCausalLMPolicy
from mathturn_gym.errors import EpisodeStateError, InvalidValueError, PolicyError
from mathturn_gym.rollout import collect
from mathturn_gym.rollout_async import AsyncPolicy, Progress, acollect
from mathturn_gym.testing import RandomPolicy
from mathturn_gym.types import Completion, Episode, Ids
from mathturn_gym.wrappers.policy import CausalLMPolicy

TOKENIZER = train_tokenizer()
SETTINGS: dict[str, Any] = {"tokenizer": TOKENIZER, "num_turns": 2, "max_completion_tokens": 12}


def causal(**kwargs: Any) -> CausalLMPolicy:
    return CausalLMPolicy(make_tiny_model(TOKENIZER, seed=3), TOKENIZER, **kwargs)


class Env(gym.Wrapper[Ids, Ids, Ids, Ids]):
    """Counts how many are open."""

    opened = 0

    def __init__(self) -> None:
        super().__init__(gym.make("MathMultiTurn-v0", **SETTINGS))
        Env.opened += 1

    def close(self) -> None:
        Env.opened -= 1
        super().close()


class Slow:
    """Uniform ids; an episode's answers take as long as `pause` says."""

    def __init__(self, pause: Callable[[str], float] = lambda session: 0.0) -> None:
        self._random, self._pause = RandomPolicy(len(TOKENIZER)), pause
        self.running = self.most = self.cancelled = self.asked = 0

    async def acomplete(
        self, context: Ids, *, max_tokens: int, seed: int | None = None, session: str | None = None
    ) -> Completion:
        self.asked += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self._pause(session or ""))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return self._random.complete([context], max_tokens=[max_tokens], seeds=[seed or 0])[0]


def gather(policy: AsyncPolicy, episodes: int, **kwargs: Any) -> list[Episode]:
    async def run() -> list[Episode]:
        return [episode async for episode in acollect(Env, policy, episodes, **kwargs)]

    return asyncio.run(run())


def ids(episodes: list[Episode]) -> dict[int, list[int]]:
    return {episode.index: episode.ids.tolist() for episode in episodes}


def test_it_plays_the_episodes_that_collect_plays() -> None:
    env = gym.make_vec("MathMultiTurn-v0", num_envs=2, **SETTINGS)
    expected = collect(env, causal(), 7, seed=2, group_size=2, first_index=1, discount=0.5)

    async def run() -> list[Episode]:
        async with AsyncCausalLMPolicy(causal()) as policy:
            assert isinstance(policy, AsyncPolicy)
            stream = acollect(Env, policy, 7, concurrency=4, seed=2, group_size=2, first_index=1, discount=0.5)
            return [episode async for episode in stream]

    found = asyncio.run(run())
    assert ids(found) == ids(expected)
    for a, b in zip(sorted(found, key=lambda e: e.index), expected, strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=2e-5)
        assert (a.group, a.returns is not None and a.returns.tolist()) == (
            b.group,
            b.returns is not None and b.returns.tolist(),
        )
    assert Env.opened == 0


def test_episodes_come_as_they_finish() -> None:
    # The first episode is slow; all others pass it.
    policy = Slow(lambda session: 0.4 if session.endswith("/0") else 0.0)
    assert [episode.index for episode in gather(policy, 6, concurrency=2)][-1] == 0
    assert policy.most == 2


def test_progress_is_told() -> None:
    seen: list[Progress] = []
    episodes = gather(Slow(), 5, concurrency=2, on_progress=seen.append)
    assert [progress.finished for progress in seen] == [1, 2, 3, 4, 5]
    assert seen[-1] == Progress(5, 0, 5, sum(int(episode.loss_mask.sum()) for episode in episodes))


def test_workers_wait_for_a_slow_reader() -> None:
    async def run() -> int:
        policy = Slow()
        async with aclosing(acollect(Env, policy, 100, concurrency=2, max_waiting=1)) as stream:
            await anext(stream)
            await asyncio.sleep(0.5)
            return policy.asked

    # One taken, one waiting in the queue, one per worker waiting to be put there, and one more begun before that.
    assert asyncio.run(run()) <= 2 * 5


def test_leaving_early_cancels_what_runs_and_closes_the_environments() -> None:
    async def run() -> Slow:
        policy = Slow(lambda session: 0.0 if session.endswith("/0") else 60.0)
        async with aclosing(acollect(Env, policy, 9, concurrency=3)) as stream:
            async for episode in stream:
                assert episode.index == 0
                await asyncio.sleep(0.1)
                break
        return policy

    policy = asyncio.run(run())
    assert (policy.running, Env.opened) == (0, 0)
    assert policy.cancelled >= 2


def test_a_failing_policy_raises_after_what_had_finished() -> None:
    class Failing(Slow):
        async def acomplete(self, context: Ids, **kwargs: Any) -> Completion:
            if str(kwargs["session"]).endswith("/3"):
                raise PolicyError("gone")
            return await super().acomplete(context, **kwargs)

    async def run() -> list[int]:
        seen = []
        with pytest.raises(PolicyError, match="gone"):  # noqa: PT012 - the loop is what raises
            async for episode in acollect(Env, Failing(), 20, concurrency=1):
                seen.append(episode.index)
        return seen

    assert asyncio.run(run()) == [0, 1, 2]
    assert Env.opened == 0


@pytest.mark.parametrize(("argument", "value"), [("concurrency", 0), ("max_waiting", 0), ("discount", 2.0)])
def test_bad_arguments_are_named(argument: str, value: Any) -> None:
    with pytest.raises(InvalidValueError, match=argument):
        gather(Slow(), 1, **{argument: value})


def test_no_environments_are_refused() -> None:
    async def run() -> None:
        async for _ in acollect([], Slow(), 1):
            pass

    with pytest.raises(InvalidValueError, match="env_fns"):
        asyncio.run(run())


def test_calls_share_a_batch() -> None:
    async def run() -> tuple[list[Completion], CausalLMPolicy]:
        policy = causal(stop_ids=[])
        async with AsyncCausalLMPolicy(policy) as shared:
            calls = [shared.acomplete(np.arange(3, 8 + row), max_tokens=30, seed=row) for row in range(6)]
            return await asyncio.gather(*calls), policy

    found, policy = asyncio.run(run())
    expected = causal(stop_ids=[]).complete(
        [np.arange(3, 8 + row) for row in range(6)], max_tokens=[30] * 6, seeds=range(6)
    )
    assert [c.ids.tolist() for c in found] == [c.ids.tolist() for c in expected]
    assert policy.stats.decode_passes < 3 * 30


def test_a_cancelled_call_frees_its_place() -> None:
    async def run() -> None:
        async with AsyncCausalLMPolicy(causal(stop_ids=[], max_batch_size=1)) as policy:
            long = asyncio.create_task(policy.acomplete(np.array([5]), max_tokens=8000, seed=0))
            await asyncio.sleep(0.2)
            long.cancel()
            short = await asyncio.wait_for(policy.acomplete(np.array([5]), max_tokens=2, seed=0), 60)
            assert len(short) == 2
            with pytest.raises(asyncio.CancelledError):
                await long

    asyncio.run(run())


def test_weights_are_updated_while_calls_run() -> None:
    async def run() -> Completion:
        policy = causal(stop_ids=[])
        other = make_tiny_model(TOKENIZER, seed=4).state_dict()
        async with AsyncCausalLMPolicy(policy) as shared:
            call = asyncio.create_task(shared.acomplete(np.array([5]), max_tokens=400, seed=0))
            await asyncio.sleep(0.1)
            await asyncio.to_thread(policy.update_weights, other)
            return await call

    completion = asyncio.run(run())
    assert sorted(set(completion.versions.tolist())) == [0, 1]


def test_errors_reach_the_call_that_they_belong_to() -> None:
    async def run() -> None:
        policy = causal()
        async with AsyncCausalLMPolicy(policy) as shared:
            with pytest.raises(InvalidValueError, match="empty"):
                await shared.acomplete(np.zeros(0, np.int64), max_tokens=2)
            with torch.no_grad():
                policy.model.get_input_embeddings().weight[77] = torch.nan
            with pytest.raises(PolicyError, match="not finite"):
                await shared.acomplete(np.array([77]), max_tokens=2)
        with pytest.raises(EpisodeStateError, match="close"):
            await shared.acomplete(np.array([5]), max_tokens=2)

    asyncio.run(run())
