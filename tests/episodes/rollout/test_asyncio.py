from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tiny import make_tiny_model, train_tokenizer

import mathturn_gym  # noqa: F401 - registers the ids
from mathturn_gym.episodes.rollout import AsyncPolicy, acollect, collect
from mathturn_gym.episodes.rollout._schedulers import Progress
from mathturn_gym.errors import InvalidValueError, PolicyError
from mathturn_gym.testing import RandomPolicy
from mathturn_gym.types import Completion, Episode, Ids, Problem, TurnContext
from mathturn_gym.wrappers.async_policy import AsyncCausalLMPolicy
from mathturn_gym.wrappers.policy import CausalLMPolicy

TOKENIZER = train_tokenizer()
SETTINGS: dict[str, Any] = {"tokenizer": TOKENIZER, "num_turns": 2, "max_completion_tokens": 12}


def causal(**kwargs: Any) -> CausalLMPolicy:
    return CausalLMPolicy(make_tiny_model(TOKENIZER, seed=3), TOKENIZER, **kwargs)


def envs(num_envs: int, mode: str = "vector_entry_point", **kwargs: Any) -> Any:
    settings = {**SETTINGS, **kwargs}
    return gym.make_vec("MathMultiTurn-v0", num_envs=num_envs, vectorization_mode=mode, **settings)


class Slow:
    """Uniform ids; an episode's answers take as long as `pause` says."""

    scheduler = "async"

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


def gather(policy: AsyncPolicy, episodes: int, num_envs: int = 2, **kwargs: Any) -> list[Episode]:
    async def run() -> list[Episode]:
        return [episode async for episode in acollect(envs(num_envs), policy, episodes, **kwargs)]

    return asyncio.run(run())


def ids(episodes: list[Episode]) -> dict[int, list[int]]:
    return {episode.index: episode.ids.tolist() for episode in episodes}


@pytest.mark.parametrize("mode", ["vector_entry_point", "sync"])
def test_it_plays_the_episodes_that_collect_plays(mode: str) -> None:
    expected = collect(envs(2), causal(), 7, seed=2, group_size=2, first_index=1, discount=0.5)

    async def run() -> list[Episode]:
        async with AsyncCausalLMPolicy(causal()) as policy:
            stream = acollect(envs(4, mode), policy, 7, seed=2, group_size=2, first_index=1, discount=0.5)
            return [episode async for episode in stream]

    found = asyncio.run(run())
    assert ids(found) == ids(expected)
    for a, b in zip(sorted(found, key=lambda e: e.index), expected, strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=2e-5)
        assert (a.group, a.returns is not None and a.returns.tolist()) == (
            b.group,
            b.returns is not None and b.returns.tolist(),
        )


def test_collect_takes_an_async_policy_inside_a_running_loop_too() -> None:
    expected = ids(gather(Slow(), 5))
    seen: list[int] = []

    def play() -> list[Episode]:
        return collect(envs(2), Slow(), 5, on_episode=lambda episode: seen.append(episode.index))

    async def cell() -> list[Episode]:  # as in Jupyter
        return play()

    for found in (play(), asyncio.run(cell())):
        assert ids(found) == expected
        assert [episode.index for episode in found] == [0, 1, 2, 3, 4]
    assert sorted(seen) == sorted([*range(5)] * 2)


def test_what_fails_inside_a_running_loop_is_raised_there() -> None:
    class Failing(Slow):
        async def acomplete(self, context: Ids, **kwargs: Any) -> Completion:
            if str(kwargs["session"]).endswith("/3"):
                raise PolicyError("gone")
            return await super().acomplete(context, **kwargs)

    async def cell() -> None:
        collect(envs(1), Failing(), 9)

    with pytest.raises(PolicyError, match="gone") as caught:
        asyncio.run(cell())
    assert [episode.index for episode in caught.value.finished] == [0, 1, 2]


@pytest.mark.parametrize("inside", [False, True], ids=["plain", "running loop"])
def test_an_error_of_on_episode_cancels_what_runs(inside: bool) -> None:
    policy = Slow(lambda session: 0.0 if session.endswith("/0") else 60.0)

    def stop(episode: Episode) -> None:
        raise KeyboardInterrupt

    def play() -> None:
        collect(envs(3), policy, 9, on_episode=stop)

    async def cell() -> None:
        play()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(cell()) if inside else play()
    assert policy.running == 0
    assert policy.cancelled >= 2


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_an_interrupt_inside_a_running_loop_cancels_what_runs() -> None:
    policy = Slow(lambda session: 60.0)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    async def cell() -> None:
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        try:
            collect(envs(2), policy, 9)
        finally:
            signal.signal(signal.SIGALRM, before)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(cell())
    assert (policy.running, policy.cancelled) == (0, 2)


def test_the_environment_is_usable_afterwards() -> None:
    env = envs(2)
    collect(env, Slow(), 3)
    env.step((np.zeros(0, np.int64),) * 2)


def test_episodes_come_as_they_finish() -> None:
    # The first episode is slow; all others pass it.
    policy = Slow(lambda session: 0.4 if session.endswith("/0") else 0.0)
    assert [episode.index for episode in gather(policy, 6)][-1] == 0
    assert policy.most == 2


def test_a_slow_verdict_does_not_hold_up_the_other_episodes() -> None:
    others = threading.Event()
    slow = Problem("p/0", "1+1?", "2")
    problems = [slow, *(Problem(f"p/{i}", "2+2?", "4") for i in range(1, 5))]

    async def judge(context: TurnContext) -> bool:
        if context.problem.id == "p/0":  # answered once all others have ended
            await asyncio.get_running_loop().run_in_executor(None, others.wait, 30)
            assert others.is_set()
        return False

    async def run() -> list[str]:
        env = envs(2, problems=problems, verifier=judge, num_turns=1)
        ended = []
        async for episode in acollect(env, Slow(), 5, problem_ids=[problem.id for problem in problems]):
            ended.append(episode.problem_id)
            if len(ended) == 4:
                others.set()
        return ended

    assert asyncio.run(run())[-1] == "p/0"


def test_progress_is_told() -> None:
    seen: list[Progress] = []
    episodes = gather(Slow(), 5, on_progress=seen.append)
    assert [progress.finished for progress in seen] == [1, 2, 3, 4, 5]
    assert seen[-1] == Progress(5, 0, 5, sum(int(episode.loss_mask.sum()) for episode in episodes))


def test_workers_wait_for_a_slow_reader() -> None:
    async def run() -> int:
        policy = Slow()
        async with aclosing(acollect(envs(2), policy, 100, max_waiting=1)) as stream:
            await anext(stream)
            await asyncio.sleep(0.5)
            return policy.asked

    # One taken, one waiting in the queue, one per worker waiting to be put there, and one more begun before that.
    assert asyncio.run(run()) <= 2 * 5


def test_leaving_early_cancels_what_runs() -> None:
    async def run() -> Slow:
        policy = Slow(lambda session: 0.0 if session.endswith("/0") else 60.0)
        async with aclosing(acollect(envs(3), policy, 9)) as stream:
            async for episode in stream:
                assert episode.index == 0
                await asyncio.sleep(0.1)
                break
        return policy

    policy = asyncio.run(run())
    assert policy.running == 0
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
            async for episode in acollect(envs(1), Failing(), 20):
                seen.append(episode.index)
        return seen

    assert asyncio.run(run()) == [0, 1, 2]


@pytest.mark.parametrize(("argument", "value"), [("max_waiting", 0), ("discount", 2.0), ("episodes", -1)])
def test_bad_arguments_are_named(argument: str, value: Any) -> None:
    with pytest.raises(InvalidValueError, match=argument):
        gather(Slow(), **{"episodes": 1, argument: value})


def test_environments_out_of_reach_are_refused() -> None:
    env = envs(1, "async")
    with pytest.raises(InvalidValueError, match="out of reach"):
        collect(env, Slow(), 1)
    env.close()
