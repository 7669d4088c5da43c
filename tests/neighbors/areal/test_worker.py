"""Many agents on one event loop: the same samples as one at a time, and no failure touches another."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.errors import EpisodeStateError, InvalidValueError
from mathturn_gym.neighbors.areal import (
    AgentWorker,
    GenerationHyperparameters,
    Job,
    JobResult,
    MathCodeSingleStepEnv,
    MathMultiTurnAgent,
    SequenceSample,
    prompt_sample,
    to_episode,
)
from mathturn_gym.neighbors.areal.protocol import EnvironmentService
from mathturn_gym.testing import RandomPolicy
from mathturn_gym.types import Completion, Ids

AGENTS = 64
DIALOGUE = Dialogue("builtin")


def make_policy() -> RandomPolicy:
    return RandomPolicy(DIALOGUE.vocab_size, end_of_turn=DIALOGUE.end_of_turn[-1])


class SlowPolicy:
    """The random policy after a random time, asynchronously; some rows can be made to raise."""

    def __init__(self, poison: Sequence[list[int]] = ()) -> None:
        self._inner = make_policy()
        self._poison = [tuple(ids) for ids in poison]
        self._delays = np.random.default_rng(0)
        self.batches: list[int] = []
        self.at_once = self.most_at_once = 0

    async def complete(
        self, contexts: Sequence[Ids], *, max_tokens: Sequence[int], seeds: Sequence[int] | None = None
    ) -> list[Completion]:
        self.batches.append(len(contexts))
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        await asyncio.sleep(float(self._delays.uniform(0, 0.004)))
        self.at_once -= 1
        for context in contexts:
            if any(tuple(context[: len(ids)].tolist()) == ids for ids in self._poison):
                raise RuntimeError("the policy has no answer to this")
        return self._inner.complete(contexts, max_tokens=max_tokens, seeds=seeds)


def judge(response: str, gold: Any) -> bool:
    """Right or wrong by the answer's length, so that feedback, and with it the contexts, differ."""
    return len(response) % 2 == 0


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("areal") / "train.jsonl"
    rows = [
        {"query_id": f"q{i}", "prompt": f"{i}+{i}?", "solutions": [str(2 * i)], "task": "math"} for i in range(AGENTS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prompts() -> list[SequenceSample]:
    return [prompt_sample(f"q{i}@idx:{i}-0", DIALOGUE.prompt_ids(f"{i}+{i}?").tolist()) for i in range(AGENTS)]


def make_agent(compat: bool = False, path: Path | None = None) -> MathMultiTurnAgent:
    settings = GenerationHyperparameters(n=4, max_new_tokens=12)
    return MathMultiTurnAgent(settings, "builtin", path, num_turns=3, compat=compat, clock=lambda: 1.0)


def run(policy: Any, jobs: list[Job], **kwargs: Any) -> list[JobResult]:
    async def all_of_them() -> list[JobResult]:
        async with AgentWorker(policy, **kwargs) as worker:
            return await worker.run(jobs)

    return asyncio.run(all_of_them())


def records(outcomes: list[JobResult]) -> list[Any]:
    return [[sample.as_json_compatible() for sample in outcome.samples] for outcome in outcomes]


@pytest.mark.parametrize("compat", [True, False])
def test_sixty_four_at_once_give_what_one_at_a_time_gives(compat: bool, dataset: Path, tmp_path: Path) -> None:
    env = MathCodeSingleStepEnv(dataset, verifier=judge)
    first, second = make_agent(compat, tmp_path / "a"), make_agent(compat, tmp_path / "b")
    alone = run(make_policy(), [Job(first, prompt, env) for prompt in prompts()], max_agents=1)
    policy = SlowPolicy()
    together = run(policy, [Job(second, prompt, env) for prompt in prompts()], max_batches=8, max_batch=7)
    assert [outcome.error for outcome in together] == [None] * AGENTS
    assert records(together) == records(alone)
    assert len({json.dumps(record) for record in records(together)}) == AGENTS
    assert max(policy.batches) > 1  # they were batched
    assert max(policy.batches) <= 7
    assert policy.most_at_once > 1  # and batches overlapped
    assert sum(policy.batches) == AGENTS * 3
    if compat:  # the repaired logs have their run's name in them
        logs = [
            {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}
            for root in (tmp_path / "a", tmp_path / "b")
        ]
        assert logs[0] == logs[1]
        assert len(logs[0]) == 2 * AGENTS


def test_a_synchronous_policy_gives_the_same(dataset: Path) -> None:
    env = MathCodeSingleStepEnv(dataset, verifier=judge)
    jobs = [Job(make_agent(), prompt, env) for prompt in prompts()]
    assert records(run(make_policy(), jobs)) == records(run(SlowPolicy(), jobs))


def test_seeds_decide(dataset: Path) -> None:
    env = MathCodeSingleStepEnv(dataset, verifier=judge)
    agent, (prompt, *_) = make_agent(), prompts()
    same, other, again = run(make_policy(), [Job(agent, prompt, env, seed) for seed in (5, 6, 5)])
    assert records([same]) == records([again]) != records([other])
    assert records(run(make_policy(), [Job(agent, prompt, env, 5)], seed=1)) != records([same])
    completions = [turn.ids.tolist() for turn in to_episode(same.samples[0]).turns]
    assert len({tuple(ids[:4]) for ids in completions}) == 3  # every turn has a seed of its own


def test_agents_that_are_gone_are_not_asked_for(dataset: Path) -> None:
    """A request that waits behind another batch is dropped when its agent is cancelled."""
    env = MathCodeSingleStepEnv(dataset, verifier=judge)
    policy = SlowPolicy()

    async def cancel_one() -> None:
        async with AgentWorker(policy, max_batch=1) as worker:
            first, second = (worker.submit(Job(make_agent(), prompt, env)) for prompt in prompts()[:2])
            while not policy.batches:
                await asyncio.sleep(0)
            second.cancel()
            await first

    asyncio.run(cancel_one())
    assert policy.batches == [1, 1, 1]  # the first agent's three turns


class HangingEnv(EnvironmentService):
    """Never judges anything."""

    async def step(self, action: tuple[str, list[str]]) -> Any:
        await asyncio.Event().wait()


def test_failures_lose_nothing_of_the_others(dataset: Path) -> None:
    """A policy that raises, verifiers that hang (on the loop, in a thread), and a cancelled agent, among 64."""
    good = MathCodeSingleStepEnv(dataset, verifier=judge)
    release = threading.Event()
    blocked = MathCodeSingleStepEnv(dataset, verifier=lambda response, gold: release.wait(), timeout=50.0)
    questions = prompts()
    jobs = [Job(make_agent(), prompt, good) for prompt in questions]
    expected = records(run(make_policy(), jobs))
    poisoned, hanging, stuck, cancelled = 3, 17, 29, 40
    # The numbers of the others' jobs stay as they were, and with them their seeds.
    jobs[hanging] = Job(make_agent(), questions[hanging], HangingEnv(), timeout=0.2)
    jobs[stuck] = Job(make_agent(), questions[stuck], blocked, timeout=0.2)
    jobs[cancelled] = Job(make_agent(), questions[cancelled], HangingEnv())
    context = DIALOGUE.prompt_ids(f"{poisoned}+{poisoned}?").tolist()

    async def together() -> list[Any]:
        async with AgentWorker(SlowPolicy([context]), max_batches=4) as worker:
            tasks = [worker.submit(job) for job in jobs]
            asyncio.get_running_loop().call_later(0.05, tasks[cancelled].cancel)
            return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(together())  # does not wait for the thread that is stuck
    assert not release.is_set()
    release.set()
    bad = {poisoned, hanging, stuck, cancelled}
    assert isinstance(results[poisoned], RuntimeError)
    assert "no answer to this" in str(results[poisoned])
    assert isinstance(results[hanging], TimeoutError)
    assert isinstance(results[stuck], TimeoutError)
    assert isinstance(results[cancelled], asyncio.CancelledError)
    for i in set(range(AGENTS)) - bad:
        assert [sample.as_json_compatible() for sample in results[i]] == expected[i]


def test_outcomes_stand_in_the_order_of_jobs(dataset: Path) -> None:
    class Broken(EnvironmentService):
        async def step(self, action: Any) -> Any:
            raise InvalidValueError("broken")

    good = MathCodeSingleStepEnv(dataset, verifier=judge)
    questions = prompts()[:3]
    outcomes = run(
        make_policy(), [Job(make_agent(), q, env) for q, env in zip(questions, [good, Broken(), good], strict=True)]
    )
    assert [bool(outcome.samples) for outcome in outcomes] == [True, False, True]
    assert isinstance(outcomes[1].error, InvalidValueError)
    assert [outcome.samples[0].ids for outcome in outcomes if outcome.samples] == [["q0@idx:0-0"], ["q2@idx:2-0"]]


def test_no_more_agents_run_than_allowed(dataset: Path) -> None:
    running, most = 0, 0

    class Counting(MathCodeSingleStepEnv):
        async def reset(
            self, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[None, dict[str, Any]]:
            nonlocal running, most
            running += 1
            most = max(most, running)
            return None, {}

    class Leaving:
        def __init__(self, agent: MathMultiTurnAgent) -> None:
            self._agent = agent

        async def collect_trajectory(self, *args: Any) -> Any:
            nonlocal running
            try:
                return await self._agent.collect_trajectory(*args)
            finally:
                running -= 1

    env = Counting(dataset, verifier=judge)
    jobs = [Job(Leaving(make_agent()), prompt, env) for prompt in prompts()[:20]]
    outcomes = run(SlowPolicy(), jobs, max_agents=6)
    assert [outcome.error for outcome in outcomes] == [None] * 20
    assert (most, running) == (6, 0)


def test_two_agents_on_one_query_get_their_own_replies(dataset: Path) -> None:
    env = MathCodeSingleStepEnv(dataset, verifier=judge)
    prompt = prompts()[0]
    outcomes = run(SlowPolicy(), [Job(make_agent(), prompt, env) for _ in range(8)], max_batch=3, max_batches=3)
    alone = [run(make_policy(), [Job(make_agent(), prompt, env, seed)])[0] for seed in range(8)]
    assert records(outcomes) == records(alone)
    assert len({json.dumps(record) for record in records(outcomes)}) == 8


def test_cancelling_a_run_cancels_its_jobs(dataset: Path) -> None:
    async def cancelled() -> tuple[int, bool]:
        async with AgentWorker(make_policy()) as worker:
            running = asyncio.create_task(worker.run([Job(make_agent(), p, HangingEnv()) for p in prompts()[:5]]))
            await asyncio.sleep(0.05)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            good = MathCodeSingleStepEnv(dataset, verifier=judge)
            (after,) = await worker.run([Job(make_agent(), prompts()[0], good)])
            return len(worker._tasks), after.error is None

    assert asyncio.run(cancelled()) == (0, True)


def test_leaving_the_worker_cancels_what_runs() -> None:
    async def leave() -> asyncio.Task[Any]:
        async with AgentWorker(make_policy()) as worker:
            task = worker.submit(Job(make_agent(), prompts()[0], HangingEnv()))
            await asyncio.sleep(0.02)
        return task

    assert asyncio.run(leave()).cancelled()


class Bad:
    """Policies that break their contract, each in a way of its own."""

    def __init__(self, kind: str) -> None:
        self._kind, self._inner = kind, make_policy()

    def complete(
        self, contexts: Sequence[Ids], *, max_tokens: Sequence[int], seeds: Sequence[int] | None = None
    ) -> Any:
        if self._kind == "exit":
            raise SystemExit(1)
        if self._kind == "cancel":
            raise asyncio.CancelledError
        made: Any = self._inner.complete(contexts, max_tokens=max_tokens, seeds=seeds)
        return {"none": None, "few": made[:-1], "texts": ["4"] * len(made)}[self._kind]


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("exit", RuntimeError, "SystemExit"),
        ("cancel", RuntimeError, "CancelledError"),
        ("none", TypeError, "NoneType"),
        ("few", InvalidValueError, "returned 0 completions for 1 contexts"),
        ("texts", AttributeError, "logprobs"),
    ],
)
def test_a_broken_policy_fails_its_agents_and_not_the_worker(
    kind: str, error: type[Exception], message: str, dataset: Path
) -> None:
    env = MathCodeSingleStepEnv(dataset, verifier=judge)
    outcomes = run(Bad(kind), [Job(make_agent(), prompt, env) for prompt in prompts()[:3]])
    assert [type(outcome.error) for outcome in outcomes] == [error] * 3
    assert all(message in str(outcome.error) for outcome in outcomes)


def test_limits_hold_and_arguments_are_checked() -> None:
    slow = Job(make_agent(), prompts()[0], HangingEnv())
    (outcome,) = run(make_policy(), [slow], timeout=0.05)
    assert isinstance(outcome.error, TimeoutError)
    for name, value in (("max_agents", 0), ("max_batch", 0), ("timeout", 0.0), ("seed", -1)):
        with pytest.raises(InvalidValueError, match=f"{name} must be"):
            AgentWorker(make_policy(), **{name: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match=r"policy must have complete"):
        AgentWorker(3)  # type: ignore[arg-type]
    with pytest.raises(EpisodeStateError, match="it is not running"):
        AgentWorker(make_policy()).submit(Job(make_agent(), prompts()[0], HangingEnv()))
