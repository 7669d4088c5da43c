"""The scheduler for policies that are asked in asyncio: every episode is a task that awaits its own completions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass

from mathturn_gym.rollout._plan import EpisodePlan
from mathturn_gym.rollout._policies import AsyncPolicy
from mathturn_gym.rollout._seat import Seat
from mathturn_gym.types import Episode

__all__ = ["Progress", "play_asyncio", "stream_asyncio"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a collection is.

    Args:
        finished: Episodes that have ended.
        running: Episodes that are under way.
        total: Episodes asked for.
        tokens: Tokens sampled in finished episodes.
    """

    finished: int
    running: int
    total: int
    tokens: int


def play_asyncio(
    seats: Sequence[Seat],
    policy: AsyncPolicy,
    plan: EpisodePlan,
    indices: Sequence[int],
    keep: Callable[[Episode], None],
) -> None:
    """Plays episodes in an event loop of its own, and returns when they have ended.

    Args:
        seats: One per episode that runs at the same time.
        policy: The policy.
        plan: What the episodes are.
        indices: Which are played.
        keep: Called with each as it ends.
    """

    async def play() -> None:
        stream = stream_asyncio(seats, policy, plan, indices, max_waiting=len(seats))
        async with aclosing(stream):
            async for episode in stream:
                keep(episode)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(play())
    else:  # a loop runs in this thread already (a Jupyter cell): this call blocks it
        _run_beside(play())


def _run_beside(work: Coroutine[None, None, None]) -> None:
    """Runs a coroutine in another thread and waits for it; an interrupt cancels it first."""
    done: Future[None] = Future()
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()

    async def main() -> None:
        task = asyncio.ensure_future(work)
        running.set_result((asyncio.get_running_loop(), task))
        await task

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # to be raised where `collect` was called
            done.set_exception(error)
        else:
            done.set_result(None)

    thread = threading.Thread(target=run, name="collect", daemon=True)
    thread.start()
    try:
        done.result()
    except BaseException:
        if not done.done():  # it is this thread that was interrupted
            loop, task = running.result(timeout=60.0)
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise


async def stream_asyncio(
    seats: Sequence[Seat],
    policy: AsyncPolicy,
    plan: EpisodePlan,
    indices: Sequence[int],
    *,
    max_waiting: int,
    on_progress: Callable[[Progress], None] | None = None,
) -> AsyncGenerator[Episode, None]:
    """Plays episodes concurrently and yields each as it finishes.

    Args:
        seats: One per episode that runs at the same time.
        policy: The policy.
        plan: What the episodes are.
        indices: Which are played.
        max_waiting: With so many finished episodes not yet taken, the others wait.
        on_progress: Called as each episode finishes.

    Yields:
        Episodes, in the order in which they finish. Where an episode fails, those that had finished come first, then the
        error is raised.
    """
    collection = _Collection(policy, plan, iter(indices), max_waiting)
    tasks = [asyncio.create_task(collection.work(seat)) for seat in seats[: len(indices)]]
    try:
        tokens = 0
        for finished in range(1, len(indices) + 1):
            episode = await collection.take(tasks)
            tokens += int(episode.loss_mask.sum())
            if on_progress is not None:
                on_progress(Progress(finished, collection.running, len(indices), tokens))
            yield episode
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:  # an error has been raised by `take`, or its reader has left and does not want it
            with suppress(asyncio.CancelledError, Exception):
                await task


class _Collection:
    """What the tasks of a collection share."""

    def __init__(self, policy: AsyncPolicy, plan: EpisodePlan, indices: Iterator[int], waiting: int) -> None:
        self._policy, self._plan, self._indices = policy, plan, indices
        self._queue: asyncio.Queue[Episode] = asyncio.Queue(waiting)
        self.running = 0

    async def work(self, seat: Seat) -> None:
        """Plays one episode after the other."""
        for index in self._indices:
            self.running += 1
            seat.begin(self._plan, index)
            run = seat.run
            while not run.over:
                completion = await self._policy.acomplete(
                    run.context, max_tokens=run.budget, seed=run.turn_seed, session=run.session
                )
                context, verifier = seat.turn(completion), seat.verifier
                verdict = None
                if context is not None and verifier is not None:
                    verdict = await asyncio.wrap_future(verifier.submit_turns([context])[0])
                seat.play(completion, context, verdict)
            self.running -= 1
            await self._queue.put(run.episode())

    async def take(self, tasks: Sequence[asyncio.Task[None]]) -> Episode:
        """The next finished episode; a task's error once none is left."""
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
