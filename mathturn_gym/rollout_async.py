"""Episodes as they finish: the asyncio form of `collect`.

env_fns ─► `concurrency` workers ─► await policy.acomplete(context) ─► step in a thread ─► queue ─► async for episode
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym

from mathturn_gym.errors import InvalidValueError, check_int
from mathturn_gym.streaming import EpisodePlan, EpisodeRun
from mathturn_gym.types import Completion, Episode, Ids

__all__ = ["AsyncPolicy", "Progress", "acollect"]


@runtime_checkable
class AsyncPolicy(Protocol):
    """Anything that continues one context at a time, many at once, in asyncio.

    Cancelling `acomplete` must drop the request.
    """

    async def acomplete(
        self, context: Ids, *, max_tokens: int, seed: int | None = None, session: str | None = None
    ) -> Completion:
        """Continues a context.

        Args:
            context: int64 (L,).
            max_tokens: Budget, >= 0.
            seed: Determines the sample; None leaves it to the policy.
            session: The same for all turns of an episode: what holds its prefix may be asked again.
        """
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a collection is.

    Args:
        finished: Episodes that have ended.
        running: Episodes that are under way.
        total: Episodes asked for.
        tokens: Ids sampled in finished episodes.
    """

    finished: int
    running: int
    total: int
    tokens: int


async def acollect(
    env_fns: Callable[[], gym.Env[Any, Any]] | Sequence[Callable[[], gym.Env[Any, Any]]],
    policy: AsyncPolicy,
    episodes: int,
    *,
    concurrency: int | None = None,
    seed: int = 0,
    first_index: int = 0,
    group_size: int = 1,
    discount: float = 1.0,
    problem_ids: Sequence[str] | None = None,
    max_waiting: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> AsyncGenerator[Episode, None]:
    """Plays episodes concurrently and yields each as it finishes; the same episodes as `collect` plays.

    Leaving the loop early (`aclosing`, or cancelling the task) cancels what runs, its requests included, and closes the
    environments. Where the policy fails, episodes that had finished are still yielded, then the error is raised.

    Args:
        env_fns: Makes an environment: one for all workers, or one each (worker w gets `env_fns[w % len]`).
        policy: Asked one context at a time.
        episodes: How many to play.
        concurrency: Episodes at the same time; None takes as many as there are `env_fns`.
        seed: See `collect`.
        first_index: See `collect`.
        group_size: See `collect`.
        discount: See `collect`.
        problem_ids: See `collect`.
        max_waiting: Back-pressure: with so many finished episodes not yet taken, workers wait; None takes `concurrency`.
        on_progress: Called as each episode finishes.

    Yields:
        Episodes, in the order in which they finish.

    Raises:
        InvalidValueError: an argument is outside what is allowed.
        PolicyError: the policy cannot go on.
    """
    factories = [env_fns] if callable(env_fns) else list(env_fns)
    if not factories:
        raise InvalidValueError("env_fns must be a function or at least one of them, got none")
    workers = check_int("concurrency", len(factories) if concurrency is None else concurrency, low=1)
    plan = EpisodePlan(seed, group_size, problem_ids, discount)
    total, first = check_int("episodes", episodes, low=0), check_int("first_index", first_index, low=0)
    waiting = check_int("max_waiting", workers if max_waiting is None else max_waiting, low=1)
    collection = _Collection(policy, plan, iter(range(first, first + total)), waiting)
    with ThreadPoolExecutor(workers, thread_name_prefix="acollect") as threads:
        tasks = [
            asyncio.create_task(collection.work(factories[w % len(factories)], threads))
            for w in range(min(workers, total))
        ]
        try:
            tokens = 0
            for finished in range(1, total + 1):
                episode = await collection.take(tasks)
                tokens += int(episode.loss_mask.sum())
                if on_progress is not None:
                    on_progress(Progress(finished, collection.running, total, tokens))
                yield episode
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:  # an error has been raised by `take`, or its reader has left and does not want it
                with suppress(asyncio.CancelledError, Exception):
                    await task


class _Collection:
    """What the workers share."""

    def __init__(self, policy: AsyncPolicy, plan: EpisodePlan, indices: Iterator[int], waiting: int) -> None:
        self._policy, self._plan, self._indices = policy, plan, indices
        self._queue: asyncio.Queue[Episode] = asyncio.Queue(waiting)
        self.running = 0

    async def work(self, factory: Callable[[], gym.Env[Any, Any]], threads: ThreadPoolExecutor) -> None:
        """Plays one episode after the other. Environments work in threads: a verdict may take long."""
        loop = asyncio.get_running_loop()
        env = await loop.run_in_executor(threads, factory)
        try:
            for index in self._indices:
                self.running += 1
                run = await loop.run_in_executor(threads, EpisodeRun, env, self._plan, index)
                while not run.over:
                    completion = await self._policy.acomplete(
                        run.context,
                        max_tokens=run.budget,
                        seed=run.turn_seed,
                        session=f"{self._plan.seed}/{self._plan.number(index)}/{index}",
                    )
                    await loop.run_in_executor(threads, run.play, completion)
                self.running -= 1
                await self._queue.put(run.episode())
        finally:
            env.close()

    async def take(self, tasks: Sequence[asyncio.Task[None]]) -> Episode:
        """The next finished episode; a worker's error once none is left."""
        getter = asyncio.create_task(self._queue.get())
        try:
            while not getter.done():
                pending = [task for task in tasks if not task.done()]
                failed = [task for task in tasks if task.done() and not task.cancelled() and task.exception()]
                if failed and self._queue.empty():
                    await asyncio.sleep(0)
                    if not getter.done():
                        failed[0].result()
                await asyncio.wait([getter, *pending], return_when=asyncio.FIRST_COMPLETED)
            return getter.result()
        finally:
            getter.cancel()
