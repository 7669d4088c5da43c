"""The same verdicts and episodes however many ask at once, in whatever process, and however busy the machine is."""

from __future__ import annotations

import asyncio
import functools
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import mathturn_gym  # noqa: F401 - registers the environments
from mathturn_gym.env.config import EnvConfig
from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.episodes.trajectories.records import episode_to_record
from mathturn_gym.problems import load_problems
from mathturn_gym.types import Verdict
from mathturn_gym.verifier import Verifier
from mathturn_gym.wrappers import load_policy

Pairs = list[tuple[str, str]]
FORKS = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # beside threads, which is what is tested


@pytest.fixture
def pairs(benchmark: Callable[[str], Any]) -> Pairs:
    """Gold and answer, for symbolic workers to decide."""
    found: Pairs = benchmark("verifier_load").cases(8)
    return found


def told(verdict: Verdict) -> tuple[str, str]:
    return verdict.status.value, verdict.reason


def judged(pairs: Pairs) -> list[tuple[str, str]]:
    with Verifier(form="equivalent") as verifier:
        return [told(verifier.verify(answer, gold, kind="answer")) for gold, answer in pairs]


@functools.cache
def judged_once(pairs: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    return judged(list(pairs))


@pytest.fixture
def alone(pairs: Pairs) -> list[tuple[str, str]]:
    """What one thread is told of them."""
    return judged_once(tuple(pairs))


def played() -> list[str]:
    """Episodes of the built-in policy as they are stored, without the time that verdicts took."""
    env: Any = EnvConfig(problems="lins", num_turns=2, max_completion_tokens=8).make("test", 2)
    try:
        found = collect(env, load_policy("builtin", device="cpu"), 4, seed=3)
    finally:
        env.close()
    records = [episode_to_record(episode) for episode in sorted(found, key=lambda one: one.index)]
    for record in records:
        for verdict in record["verdicts"]:
            verdict["seconds"] = 0.0
    return [json.dumps(record) for record in records]


def both(pairs: Pairs) -> tuple[list[tuple[str, str]], list[str]]:
    return judged(pairs), played()


def _spin() -> None:
    while True:
        pass


@contextmanager
def busy(times: int) -> Iterator[None]:
    """This process, and what it starts, on one core beside so many busy processes; the other cores are left alone."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    context = multiprocessing.get_context("fork")
    spinning = [context.Process(target=_spin, daemon=True) for _ in range(times)]
    for process in spinning:
        process.start()
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        for process in spinning:
            process.kill()
            process.join()


@pytest.mark.parametrize("others", [1, pytest.param(8, marks=pytest.mark.slow)])
@FORKS
def test_an_overloaded_machine_says_the_same(pairs: Pairs, others: int) -> None:
    alone = both(pairs[:2])
    with busy(others):
        assert both(pairs[:2]) == alone


def test_64_threads_get_the_verdicts_of_one(pairs: Pairs, alone: list[tuple[str, str]]) -> None:
    assert {status for status, _ in alone} == {"right", "wrong"}
    with Verifier(form="equivalent") as verifier, ThreadPoolExecutor(64) as threads:
        asked = [threads.submit(verifier.verify, answer, gold, kind="answer") for gold, answer in pairs * 8]
        assert [told(one.result()) for one in asked] == alone * 8


def test_a_thousand_tasks_get_the_verdicts_of_one(pairs: Pairs, alone: list[tuple[str, str]]) -> None:
    async def ask() -> list[Verdict]:
        calls = (verifier.averify(answer, gold, kind="answer") for gold, answer in pairs[:4] * 250)
        return await asyncio.gather(*calls)

    with Verifier(form="equivalent") as verifier:
        assert [told(one) for one in asyncio.run(ask())] == alone[:4] * 250


@FORKS
def test_children_judge_and_play_as_their_parent(pairs: Pairs) -> None:
    here = both(pairs[:2])
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(both, [pairs[:2]] * 2) == [here, here]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(judged, [pairs[:2]]) == [here[0]]


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow), "forkserver"])
@FORKS
def test_asynchronous_environments_of_every_kind_say_the_same(method: str) -> None:
    answer = Dialogue("builtin").encode(r"\boxed{4}")

    def steps(**options: Any) -> list[Any]:
        env = gym.make_vec("MathMultiTurn-v0", num_envs=2, problems="lins", num_turns=2, **options)
        try:
            first, _ = env.reset(seed=5)
            second, rewards, *_ = env.step((answer, answer))
            return [*(row.tolist() for row in first), *(row.tolist() for row in second), rewards.tolist()]
        finally:
            env.close()

    alone = steps(vectorization_mode="sync")
    assert steps(vectorization_mode="async", vector_kwargs={"context": method}) == alone


class Prompts:
    """What the workers of a data loader make of problems: ids, once their gold answer has been judged."""

    def __init__(self) -> None:
        self.source: Any = load_problems("lins:test")
        self.dialogue, self.verifier = Dialogue("builtin"), Verifier()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> list[int]:
        problem = self.source.drawn(0, index)
        assert self.verifier.verify(f"\\boxed{{{problem.gold[0]}}}", problem.gold).correct
        ids: list[int] = self.dialogue.problem_ids(problem).tolist()
        return ids


@FORKS
@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes:UserWarning")  # on a single core
def test_workers_of_a_data_loader_read_what_the_parent_reads() -> None:
    from torch.utils.data import DataLoader

    prompts = Prompts()
    loader: Any = DataLoader(prompts, batch_size=None, num_workers=2)  # type: ignore[arg-type]
    assert [np.asarray(one).tolist() for one in loader] == [prompts[index] for index in range(len(prompts))]


def test_an_actor_of_ray_plays_what_is_played_here(pairs: Pairs) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not here: `make test-engines` installs it and runs this")
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        assert ray.get(ray.remote(both).remote(pairs[:2])) == both(pairs[:2])
    finally:
        ray.shutdown()


def test_within_a_running_event_loop_as_in_a_notebook(pairs: Pairs) -> None:
    async def cell() -> Any:
        return both(pairs[:2])

    assert asyncio.run(cell()) == both(pairs[:2])
