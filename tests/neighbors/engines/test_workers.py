"""What runs in an engine's workers, in this process: what travels, and what is played."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mathturn_gym import collect
from mathturn_gym.env.config import EnvConfig
from mathturn_gym.errors import CheckpointError, InvalidValueError, PolicyError
from mathturn_gym.neighbors.engines._wire import PackedEpisodes, PackedWeights
from mathturn_gym.neighbors.engines._work_queue import Share
from mathturn_gym.neighbors.engines._workers import (
    Answer,
    Job,
    PolicyActor,
    PolicyPool,
    Request,
    RolloutActor,
    WorkerSettings,
)
from mathturn_gym.policies import PolicyConfig
from mathturn_gym.problems import Curriculum, load_problems
from mathturn_gym.types import Episode
from mathturn_gym.wrappers import load_policy


def expected(env: EnvConfig, policy: PolicyConfig, episodes: int, **options: Any) -> list[Episode]:
    player = load_policy(policy)
    return collect(env.make("train", episodes, policy=player), player, episodes, **options)  # type: ignore[arg-type]


def job(**changes: Any) -> Job:
    values = {"name": 0, "problems": load_problems("lins", "train"), "seed": 5, "group_size": 2, "discount": 0.5}
    return Job(**{**values, **changes})


async def play(actor: RolloutActor, one: Job, share: Share, **options: Any) -> list[Episode]:
    async def fetch() -> Job:
        return one

    coming = fetch()
    packed = await actor.play(one.name, [coming], share, **options)
    coming.close()  # a job that the actor knows is not fetched again
    return pickle.loads(pickle.dumps(packed)).episodes()


@pytest.mark.parametrize("scheduler", ["async", "batched"])
def test_a_share_is_what_collect_plays(env: EnvConfig, simulated: Any, same: Any, scheduler: str) -> None:
    policy = simulated(scheduler=scheduler)

    async def run() -> list[Episode]:
        actor = RolloutActor(WorkerSettings(env, policy))
        assert (await actor.start(None, 0))["concurrent"] == (scheduler == "async")
        both = await asyncio.gather(play(actor, job(), Share(4, 2)), play(actor, job(), Share(6, 4)))
        return [episode for share in both for episode in share]

    same(asyncio.run(run()), expected(env, policy, 6, seed=5, first_index=4, group_size=2, discount=0.5))


def test_a_model_of_the_actors_own(env: EnvConfig, same: Any) -> None:
    policy = PolicyConfig("builtin")

    async def run() -> list[Episode]:
        actor = RolloutActor(WorkerSettings(env, policy))
        await actor.start(None, 0)
        return await play(actor, job(), Share(0, 6))

    same(asyncio.run(run()), expected(env, policy, 6, seed=5, group_size=2, discount=0.5))


class Handle:
    """A policy actor as Ray's handle to it."""

    def __init__(self, actor: PolicyActor) -> None:
        self.actor, self.dead, self.asked = actor, False, 0
        self.exchange = SimpleNamespace(remote=self._exchange)

    async def _exchange(self, line: str, requests: Sequence[Request]) -> list[Answer]:
        self.asked += 1
        if self.dead:
            raise ConnectionResetError
        return await self.actor.exchange(line, pickle.loads(pickle.dumps(requests)))


def test_policy_actors_are_asked_and_replaced(env: EnvConfig, same: Any) -> None:
    policy = PolicyConfig("builtin")

    async def run() -> list[Episode]:
        actors = [PolicyActor(WorkerSettings(env, policy)) for _ in range(2)]
        (facts, *_) = [await actor.start(None, 0) for actor in actors]
        handles = [Handle(actor) for actor in actors]
        handles[1].dead = True
        rollout = RolloutActor(WorkerSettings(env, policy))
        await rollout.start(None, 0, handles, (ConnectionResetError,), facts["tokenizer"])
        playing = asyncio.create_task(play(rollout, job(), Share(0, 6)))
        while not handles[1].asked:
            await asyncio.sleep(0.01)
        await rollout.use_policies([handles[0], handles[0]])
        return await playing

    same(asyncio.run(run()), expected(env, policy, 6, seed=5, group_size=2, discount=0.5), logprobs=1e-5)


def test_policy_actors_that_came_before_the_start_stay(env: EnvConfig, simulated: Any) -> None:
    async def run() -> None:
        actor = PolicyActor(WorkerSettings(env, simulated()))
        await actor.start(None, 0)
        old, new = Handle(actor), Handle(actor)
        rollout = RolloutActor(WorkerSettings(env, simulated()))
        await rollout.use_policies([new])
        await rollout.start(None, 0, [old], (ConnectionResetError,), actor._policy.tokenizer)
        await play(rollout, job(), Share(0, 2))
        assert (old.asked, new.asked > 0) == (0, True)

    asyncio.run(run())


def test_when_no_policy_actor_comes_back(env: EnvConfig, simulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mathturn_gym.neighbors.engines._workers._PATIENCE_SECONDS", 0.1)
    handle = Handle(PolicyActor(WorkerSettings(env, simulated())))
    handle.dead = True
    pool = PolicyPool([handle], (ConnectionResetError,), None)
    with pytest.raises(PolicyError, match="no policy actor answered for"):
        asyncio.run(pool.acomplete(np.array([5]), max_tokens=3))


def test_weights_arrive_by_version_and_only_where_they_fit(env: EnvConfig) -> None:
    settings = WorkerSettings(env, PolicyConfig("builtin"))
    weights = {name: one * 1.5 for name, one in load_policy("builtin").model.state_dict().items()}

    async def run() -> None:
        for actor in (RolloutActor(settings), PolicyActor(settings)):
            await actor.start(PackedWeights.of(weights), 3)
            assert torch.equal(actor._policy.model.state_dict()["lm_head.weight"], weights["lm_head.weight"])
            assert await actor.update_weights(PackedWeights.of(weights), 2) == 3  # late: not looked at
            assert await actor.update_weights(PackedWeights.of(weights), 7) == 7
            with pytest.raises(CheckpointError, match="lack"):
                await actor.update_weights(PackedWeights.of({"x": torch.zeros(2)}), 8)

    asyncio.run(run())


def test_weights_for_a_policy_that_takes_none(env: EnvConfig) -> None:
    async def run() -> None:
        actor = RolloutActor(WorkerSettings(env, PolicyConfig("random")))
        await actor.start(None, 0)
        with pytest.raises(InvalidValueError, match="RandomPolicy takes no weights"):
            await actor.update_weights(PackedWeights.of({}), 1)
        with pytest.raises(InvalidValueError, match="policy actors need a CausalLMPolicy or a policy with acomplete"):
            await PolicyActor(WorkerSettings(env, PolicyConfig("random"))).start(None, 0)

    asyncio.run(run())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_weights_travel_as_they_are(dtype: torch.dtype) -> None:
    weights = {
        "a": torch.randn(3, 4).to(dtype).T,
        "b": torch.zeros((), dtype=dtype),
        "c": torch.zeros(0, 2, dtype=dtype),
    }
    packed: PackedWeights = pickle.loads(pickle.dumps(PackedWeights.of(weights)))
    assert packed.nbytes == 13 * dtype.itemsize
    for name, tensor in packed.state_dict().items():
        assert tensor.dtype == dtype
        assert torch.equal(tensor, weights[name])


def test_episodes_travel_without_log_probs_too(env: EnvConfig, same: Any) -> None:
    import dataclasses

    episodes = expected(env, PolicyConfig("random"), 3)
    blank = [
        dataclasses.replace(one, logprobs=np.where(one.loss_mask, np.nan, 0).astype(np.float32)) for one in episodes
    ]
    found = pickle.loads(pickle.dumps(PackedEpisodes.of(blank))).episodes()
    assert [np.isnan(one.logprobs).tolist() for one in found] == [one.loss_mask.tolist() for one in blank]


def test_a_curriculum_chooses_by_the_history_that_comes_with_a_share(env: EnvConfig, simulated: Any, same: Any) -> None:
    def curriculum() -> Curriculum:
        return Curriculum([["add1", "add2"], "lins"], minimum=2)

    learned = curriculum()
    for _ in range(4):
        learned.record("add1", solved=True)

    async def run(state: Any) -> list[Episode]:
        actor = RolloutActor(WorkerSettings(env, simulated()))
        await actor.start(None, 0)
        one = job(problems=curriculum(), group_size=1)
        return await play(actor, one, Share(0, 12), curriculum=state)

    policy = load_policy(simulated())
    vector: Any = env.make("train", 12, policy=policy, problems=learned)
    now = collect(vector, policy, 12, seed=5, discount=0.5)
    same(asyncio.run(run(learned.state_dict())), now)
    before = asyncio.run(run(None))
    assert [one.problem_id for one in before] != [one.problem_id for one in now]
