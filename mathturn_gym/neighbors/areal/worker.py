"""Many agents at once against one policy.

    agent 1 ─ obs ─┐                                 ┌─ reply ─► agent 1
    agent 2 ─ obs ─┼─► queue ─► one batch ─► policy ─┼─ reply ─► agent 2
    agent 3 ─ obs ─┘                                 └─ reply ─► agent 3

Each agent has queues of its own, so that a reply can only go to who asked, whatever the query ids are. A row's sample
is decided by the seed of its job and turn, so it does not depend on who else is running, or how fast.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from mathturn_gym.errors import EpisodeStateError, InvalidValueError, check_float, check_int
from mathturn_gym.neighbors.areal.protocol import Agent, BundledGenerationOutputs, EnvironmentService, in_thread
from mathturn_gym.neighbors.areal.sample import SequenceSample
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Completion, Ids, Policy

_LOG = logging.getLogger(__name__)


class AsyncBatchPolicy(Protocol):
    """A `Policy` whose `complete` is a coroutine function (a client of a server, for example)."""

    async def complete(
        self, contexts: Sequence[Ids], *, max_tokens: Sequence[int], seeds: Sequence[int] | None = None
    ) -> list[Completion]:
        """Continues each context, as `Policy.complete` does."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """One trajectory to collect.

    Args:
        agent: A `MathMultiTurnAgent`, or anything with its `collect_trajectory`.
        prompt: The query.
        env: Judges the answers.
        seed: Decides its samples, with the turn; None takes the job's number in the worker.
        timeout: Seconds that it may take; None takes the worker's.
    """

    agent: Agent
    prompt: SequenceSample
    env: EnvironmentService
    seed: int | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class JobResult:
    """What became of a job.

    Args:
        samples: What the agent returned; [] where it failed.
        error: Why it failed: an exception of the agent, its environment or the policy, `TimeoutError`, or
            `asyncio.CancelledError`; None where it did not.
    """

    samples: list[SequenceSample]
    error: BaseException | None = None


@dataclass(slots=True)
class _Request:
    """One observation on its way to the policy."""

    seed: int
    qid: str
    context: list[int]
    max_tokens: int
    reply: asyncio.Future[BundledGenerationOutputs]


class AgentWorker:
    """Runs agents against a policy; use it as `async with AgentWorker(policy) as worker`.

    Of an observation's `gconfig` only `max_new_tokens` is used: how a policy samples is the policy's own setting.

    Args:
        policy: Any `Policy`. `complete` is called in a thread, one batch at a time; where it is a coroutine function
            it is awaited, up to `max_batches` batches at a time.
        max_agents: How many agents run at once; the others wait.
        max_batch: The most rows of one batch, or None.
        max_batches: Batches under way at once, for asynchronous policies.
        timeout: Seconds that one agent may take, from its start; None for no limit.
        seed: Decides the samples, with a job's own seed and the turn.

    Raises:
        InvalidValueError: an argument is outside what is allowed.
    """

    def __init__(
        self,
        policy: Policy | AsyncBatchPolicy,
        *,
        max_agents: int = 64,
        max_batch: int | None = None,
        max_batches: int = 1,
        timeout: float | None = None,
        seed: int = 0,
    ) -> None:
        if not callable(getattr(policy, "complete", None)):
            raise InvalidValueError(f"policy must have complete(contexts, max_tokens=, seeds=), got {policy!r}")
        self._policy: Any = policy
        self._asynchronous = inspect.iscoroutinefunction(self._policy.complete)
        self._max_agents = check_int("max_agents", max_agents, low=1)
        self._max_batch = None if max_batch is None else check_int("max_batch", max_batch, low=1)
        # A policy in a thread owns a model and its caches: one batch at a time.
        self._max_batches = check_int("max_batches", max_batches, low=1) if self._asynchronous else 1
        self._timeout = None if timeout is None else check_float("timeout", timeout, low=1e-3)
        self._seed = check_int("seed", seed, low=0)
        self._submitted = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._requests: asyncio.Queue[_Request] | None = None

    async def __aenter__(self) -> Self:
        self._requests = asyncio.Queue()
        self._places = asyncio.Semaphore(self._max_agents)
        self._pumps = [asyncio.create_task(self._pump()) for _ in range(self._max_batches)]
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Cancels what still runs and waits for it (a policy call in a thread is left to end by itself)."""
        self._requests = None
        running = [*self._tasks, *self._pumps]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def submit(self, job: Job) -> asyncio.Task[list[SequenceSample]]:
        """Starts a job as soon as there is room; the task gives its samples, and can be cancelled.

        Raises:
            EpisodeStateError: the worker is not running.
            InvalidValueError: the job's timeout is no positive number.
        """
        if self._requests is None:
            raise EpisodeStateError("submit() outside `async with AgentWorker(policy) as worker`: it is not running")
        if job.timeout is not None:
            check_float("Job.timeout", job.timeout, low=1e-3)
        # By order of submission: the samples of a job do not depend on which others run.
        number, self._submitted = self._submitted, self._submitted + 1
        task = asyncio.create_task(self._collect(job, number if job.seed is None else job.seed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def run(self, jobs: Iterable[Job]) -> list[JobResult]:
        """Runs jobs to their ends; the outcomes stand in the jobs' order, and none of them raises.

        Cancelling this call cancels the jobs that it started.
        """
        tasks = [self.submit(job) for job in jobs]
        try:
            results = await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        return [JobResult([], one) if isinstance(one, BaseException) else JobResult(one) for one in results]

    async def _collect(self, job: Job, seed: int) -> list[SequenceSample]:
        async with self._places:
            link = _Link(self, seed)
            # From the start of the agent, not from its submission: waiting for room is not its fault.
            async with asyncio.timeout(self._timeout if job.timeout is None else job.timeout):
                return await job.agent.collect_trajectory(job.prompt, job.env, link, link)

    # ---- the policy's side

    async def _pump(self) -> None:
        """Takes what is waiting as one batch, asks the policy, and answers; again and again."""
        requests = self._requests
        assert requests is not None
        while True:
            batch = [await requests.get()]
            await asyncio.sleep(0)  # agents that are ready to ask come into the same batch
            while not requests.empty() and len(batch) != self._max_batch:
                batch.append(requests.get_nowait())
            await self._answer([request for request in batch if not request.reply.done()])

    async def _answer(self, batch: list[_Request]) -> None:
        """Answers a batch; where it fails as a whole, its rows are asked one by one, so that only the culprit fails."""
        if not batch:
            return
        try:
            completions = await self._complete(batch)
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # it is this worker that is being closed, not the policy
                raise
            if len(batch) == 1:
                _settle(batch[0], error)
                return
            _LOG.warning("the policy failed on %d rows (%r); asking for them one by one", len(batch), error)
            for request in batch:
                await self._answer([request])
            return
        for request, completion in zip(batch, completions, strict=True):
            try:
                _settle(request, BundledGenerationOutputs.from_completion(request.qid, request.context, completion))
            except (AttributeError, TypeError, ValueError, AssertionError) as error:  # this row is no completion
                _settle(request, error)

    async def _complete(self, batch: Sequence[_Request]) -> list[Completion]:
        contexts = [np.array(request.context, np.int64) for request in batch]
        limits = [request.max_tokens for request in batch]
        seeds = [request.seed for request in batch]

        if self._asynchronous:
            completions = await self._policy.complete(contexts, max_tokens=limits, seeds=seeds)
        else:
            completions = await in_thread(lambda: self._policy.complete(contexts, max_tokens=limits, seeds=seeds))
        if len(completions) != len(batch):
            raise InvalidValueError(
                f"policy {self._policy!r} returned {len(completions)} completions for {len(batch)} contexts"
            )
        return list(completions)

    def _ask(self, request: _Request) -> None:
        if self._requests is None:
            raise EpisodeStateError("the worker was closed while an agent was running")
        self._requests.put_nowait(request)


class _Link:
    """Both queues of one agent: `put` sends an observation to the policy, `get` gives the reply to it."""

    def __init__(self, worker: AgentWorker, seed: int) -> None:
        self._worker, self._job_seed = worker, seed
        self._turn = 0
        self._replies: asyncio.Queue[asyncio.Future[BundledGenerationOutputs]] = asyncio.Queue()

    async def put(self, item: Any) -> None:
        """Sends an observation, `(qid, token_ids, gconfig)`."""
        qid, token_ids, gconfig = item
        reply = asyncio.get_running_loop().create_future()
        seed = derive_seed(self._worker._seed, self._job_seed, self._turn)
        # Counted here and not read from the agent, which may be anybody's.
        self._turn += 1
        self._replies.put_nowait(reply)
        self._worker._ask(_Request(seed, qid, list(token_ids), int(gconfig.max_new_tokens), reply))

    async def get(self) -> BundledGenerationOutputs:
        """The next reply; raises what the policy raised."""
        future = await self._replies.get()
        return await future


def _settle(request: _Request, answer: BundledGenerationOutputs | BaseException) -> None:
    """Answers a request, unless its agent is gone."""
    if request.reply.done():
        return
    if isinstance(answer, BaseException):
        request.reply.set_exception(answer)
        request.reply.exception()  # seen: an agent that failed meanwhile will not ask for it
    else:
        request.reply.set_result(answer)
