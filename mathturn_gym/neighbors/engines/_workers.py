"""What runs on the cluster: actors that play, and actors that hold a policy for them.

Nothing here imports Ray: the engine makes actors of these classes, and tests call them as they are.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from zlib import crc32

from mathturn_gym.env.config import EnvConfig
from mathturn_gym.episodes.rollout import AsyncPolicy, acollect, collect
from mathturn_gym.errors import InvalidValueError, PolicyError
from mathturn_gym.neighbors.engines._wire import PackedEpisodes, PackedWeights
from mathturn_gym.neighbors.engines._work_queue import Share
from mathturn_gym.policies import PolicyConfig
from mathturn_gym.problems import Curriculum, ProblemSource
from mathturn_gym.types import Completion, Episode, Ids
from mathturn_gym.wrappers import load_policy

_WINDOW_SECONDS: Final = 0.005
"""How long the first of several requests, or answers, waits for others that can travel with it."""


@dataclass(frozen=True, slots=True)
class Request:
    """One completion that is asked for.

    Args:
        number: Unlike any other of its line.
        context: See `AsyncPolicy.acomplete`.
        max_tokens: See `AsyncPolicy.acomplete`.
        seed: See `AsyncPolicy.acomplete`.
        session: See `AsyncPolicy.acomplete`.
    """

    number: int
    context: Ids
    max_tokens: int
    seed: int | None
    session: str | None


Answer: TypeAlias = "tuple[int, Completion | Exception]"
"""A request's number, and what the policy gave or raised."""


class Desk:
    """The end of a line in the policy actor.

    Args:
        policy: Who answers.
    """

    def __init__(self, policy: AsyncPolicy) -> None:
        self._policy = policy
        self._ready: list[Answer] = []
        self._waiting: asyncio.Future[None] | None = None
        self._answering: set[asyncio.Task[None]] = set()  # asyncio itself refers to tasks weakly

    async def exchange(self, requests: Sequence[Request]) -> list[Answer]:
        """Takes requests, and returns answers to these or to earlier ones as soon as there are any.

        Args:
            requests: New ones; none to wait for answers only.

        Returns:
            None at all where a newer call waits in this one's place.
        """
        for request in requests:
            task = asyncio.create_task(self._answer(request))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        self._wake()
        if not self._ready:
            mine = self._waiting = asyncio.get_running_loop().create_future()
            await mine
            if self._waiting is not mine:
                return []
        await asyncio.sleep(_WINDOW_SECONDS)
        ready, self._ready = self._ready, []
        return ready

    async def _answer(self, request: Request) -> None:
        answer: Completion | Exception
        try:
            answer = await self._policy.acomplete(
                request.context, max_tokens=request.max_tokens, seed=request.seed, session=request.session
            )
        except Exception as error:  # it is raised where the completion was asked for
            answer = error
        self._ready.append((request.number, answer))
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Line:
    """The end of a line in the rollout actor.

    Args:
        handle: The policy actor's; it has `exchange.remote(name, requests)`.
    """

    def __init__(self, handle: Any) -> None:
        self._handle, self._name = handle, uuid.uuid4().hex
        self._numbers = itertools.count()
        self._new: list[Request] = []
        self._pending: dict[int, asyncio.Future[Completion]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._out: set[asyncio.Task[None]] = set()

    async def acomplete(
        self, context: Ids, *, max_tokens: int, seed: int | None = None, session: str | None = None
    ) -> Completion:
        """See `AsyncPolicy.acomplete`; raises what the policy raises, and what says that its actor is gone."""
        number = next(self._numbers)
        future = self._pending[number] = asyncio.get_running_loop().create_future()
        self._new.append(Request(number, context, max_tokens, seed, session))
        self._send_soon()
        try:
            return await future
        finally:
            del self._pending[number]

    def _send_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WINDOW_SECONDS, self._send)

    def _send(self) -> None:
        self._timer = None
        requests, self._new = self._new, []
        task = asyncio.create_task(self._exchange(requests))
        self._out.add(task)
        task.add_done_callback(self._returned)

    async def _exchange(self, requests: Sequence[Request]) -> None:
        answers: Sequence[Answer]
        try:
            answers = await self._handle.exchange.remote(self._name, requests)
        except Exception as error:  # no request on this line is answered any more; each waiting one raises
            answers = [(number, error) for number in self._pending]
        for number, answer in answers:
            future = self._pending.get(number)
            if future is None or future.done():  # the caller was cancelled
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _returned(self, task: asyncio.Task[None]) -> None:
        self._out.discard(task)
        if not self._out and any(not future.done() for future in self._pending.values()):
            self._send_soon()


# ---- actors


_PATIENCE_SECONDS: Final = 120.0
"""How long a request waits for a policy actor to take the place of one that died."""


@dataclass(frozen=True)
class WorkerSettings:
    """What every worker of an engine is made of.

    Args:
        env: Environment and splits.
        policy: What `load_policy` makes the policy of.
        threads: CPU threads of torch.
        precision: "float32", or "bfloat16" for autocast around sampling.
        shares: Shares that a rollout actor plays side by side, where its policy is asked in asyncio.
    """

    env: EnvConfig
    policy: PolicyConfig
    threads: int = 1
    precision: str = "float32"
    shares: int = 4


@dataclass(frozen=True)
class Job:
    """What a collection's episodes are; a share names some of them.

    Args:
        name: Unlike any other job's of the engine.
        problems: What is played.
        seed: See `collect`.
        group_size: See `collect`.
        discount: See `collect`.
        problem_ids: See `collect`.
        keywords: Of `EnvConfig.make`, besides the config's own.
    """

    name: int
    problems: ProblemSource
    seed: int
    group_size: int
    discount: float
    problem_ids: Sequence[str] | None = None
    keywords: Mapping[str, Any] = field(default_factory=dict)


def _prepare_process(settings: WorkerSettings) -> None:
    import torch

    torch.set_num_threads(settings.threads)  # sums come out the same on every node


def _loaded_weights(policy: Any, weights: PackedWeights | None, version: int) -> None:
    if weights is None or version <= getattr(policy, "version", 0):
        return
    if not callable(getattr(policy, "update_weights", None)):
        raise InvalidValueError(f"policy {type(policy).__name__} takes no weights: it has no update_weights()")
    policy.update_weights(weights.state_dict(), version=version)


class PolicyActor:
    """A policy that rollout actors ask, many at once.

    Args:
        settings: See `WorkerSettings`.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._policy: Any = None
        self._asked: Any = None
        self._desks: dict[str, Desk] = {}

    async def start(self, weights: PackedWeights | None, version: int) -> dict[str, Any]:
        """Loads the policy; returns what the engine and the rollout actors need to know of it.

        Args:
            weights: The newest there are, or None.
            version: Theirs.

        Raises:
            MathTurnError: the policy does not load here, or cannot be asked by others.
        """
        await asyncio.to_thread(self._load, weights, version)
        return {"pid": os.getpid(), "tokenizer": getattr(self._policy, "tokenizer", None)}

    def _load(self, weights: PackedWeights | None, version: int) -> None:
        from mathturn_gym.wrappers import AsyncCausalLMPolicy
        from mathturn_gym.wrappers.policy import CausalLMPolicy

        _prepare_process(self._settings)
        self._policy = load_policy(self._settings.policy)
        _loaded_weights(self._policy, weights, version)
        if callable(getattr(self._policy, "acomplete", None)):
            self._asked = self._policy
        elif isinstance(self._policy, CausalLMPolicy):
            self._asked = AsyncCausalLMPolicy(self._policy, precision=self._settings.precision)
        else:
            raise InvalidValueError(
                f"policy actors need a CausalLMPolicy or a policy with acomplete(), got {type(self._policy).__name__}:"
                " leave policy_actors at 0, and each rollout actor has a policy of its own"
            )

    async def exchange(self, line: str, requests: Sequence[Request]) -> list[Answer]:
        """See `Desk.exchange`.

        Args:
            line: Name of the rollout actor's line.
            requests: What it asks.
        """
        if line not in self._desks:
            self._desks[line] = Desk(self._asked)
        return await self._desks[line].exchange(requests)

    async def update_weights(self, weights: PackedWeights, version: int) -> int:
        """Takes newer weights; requests that are under way go on with them. Returns the policy's version.

        Args:
            weights: All weights, or a LoRA adapter's.
            version: Above the last one; older ones arrive late, and are left alone.

        Raises:
            CheckpointError: they do not fit.
        """
        await asyncio.to_thread(_loaded_weights, self._policy, weights, version)
        return int(getattr(self._policy, "version", version))

    async def ended(self) -> None:
        """Never returns: a caller that awaits it learns when the actor dies."""
        await asyncio.Event().wait()


class PolicyPool:
    """The policy of a rollout actor whose model lives in policy actors: a session stays with one while it lives.

    Args:
        handles: The policy actors; the owner of the pool may exchange them in place.
        dead: The exceptions that mean that an actor is gone.
        tokenizer: Theirs.

    Attributes:
        scheduler: "async".
    """

    scheduler: Final = "async"

    def __init__(self, handles: Sequence[Any], dead: tuple[type[BaseException], ...], tokenizer: Any) -> None:
        self.handles, self.tokenizer = handles, tokenizer
        self._dead = dead
        self._lines: dict[Any, Line] = {}

    async def acomplete(
        self, context: Ids, *, max_tokens: int, seed: int | None = None, session: str | None = None
    ) -> Completion:
        """See `AsyncPolicy.acomplete`; asks another actor where the one that had the session has died.

        Raises:
            PolicyError: no policy actor came back in time.
        """
        began = time.monotonic()
        while time.monotonic() - began < _PATIENCE_SECONDS:
            # The same seed gives the same sample on every actor.
            handle = self.handles[crc32((session or "").encode()) % len(self.handles)]
            if handle not in self._lines:
                self._lines[handle] = Line(handle)
            line = self._lines[handle]
            try:
                return await line.acomplete(context, max_tokens=max_tokens, seed=seed, session=session)
            except self._dead:
                self._lines.pop(handle, None)
                await asyncio.sleep(0.05)  # the engine tells this actor who takes its place
        raise PolicyError(f"no policy actor answered for {_PATIENCE_SECONDS:g} s: all of them are dead")


class RolloutActor:
    """Environments, their verifier, and a policy: plays shares of episodes.

    Args:
        settings: See `WorkerSettings`.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._policy: Any = None
        self._handles: list[Any] = []
        self._jobs: dict[int, Job] = {}
        self._envs: dict[tuple[int, int], list[Any]] = defaultdict(list)
        self._places: asyncio.Semaphore

    async def start(
        self,
        weights: PackedWeights | None,
        version: int,
        policies: Sequence[Any] = (),
        dead: tuple[type[BaseException], ...] = (),
        tokenizer: Any = None,
    ) -> dict[str, Any]:
        """Loads what playing needs; returns what the engine needs to know.

        Args:
            weights: The newest there are; None for a policy that has its own.
            version: Theirs.
            policies: Policy actors to ask; none to have a policy of its own.
            dead: See `PolicyPool`.
            tokenizer: The policy actors'.

        Raises:
            MathTurnError: policy or environment cannot be made here.
        """
        if policies:
            if not self._handles:  # newer ones may have come before: calls of an actor overtake one another
                self._handles[:] = policies
            self._policy = PolicyPool(self._handles, dead, tokenizer)
        await asyncio.to_thread(self._load, weights, version)
        self._places = asyncio.Semaphore(self._settings.shares if self._concurrent else 1)
        return {"pid": os.getpid(), "concurrent": self._concurrent}

    def _load(self, weights: PackedWeights | None, version: int) -> None:
        _prepare_process(self._settings)
        if self._policy is None:
            self._policy = load_policy(self._settings.policy)
            _loaded_weights(self._policy, weights, version)

    @property
    def _concurrent(self) -> bool:
        """Whether several shares can be played side by side: the policy is asked in asyncio."""
        return getattr(self._policy, "scheduler", "batched") == "async"

    async def play(
        self, name: int, job: Sequence[Awaitable[Job]], share: Share, curriculum: Mapping[str, Any] | None = None
    ) -> PackedEpisodes:
        """Plays a share.

        Args:
            name: Of the job.
            job: Where it can be had, in a list: what stands there alone, Ray would fetch for every share again.
            share: Which of its episodes.
            curriculum: History that the job's curriculum chooses problems by.

        Raises:
            MathTurnError: an argument, the policy, the verifier or a function of the user's.
        """
        if name not in self._jobs:
            self._jobs.setdefault(name, await job[0])
        known = self._jobs[name]
        async with self._places:  # one more is already here when a share ends, so that no actor waits for the driver
            began = time.perf_counter()
            if curriculum is not None and isinstance(known.problems, Curriculum):
                known.problems.load_state_dict(curriculum)
            async with self._env(known, share.count) as env:
                if self._concurrent:
                    options = self._options(known, share)
                    episodes = [episode async for episode in acollect(env, self._policy, share.count, **options)]
                else:
                    episodes = await asyncio.to_thread(self._collect, env, known, share)
        # In the order of their indices, whichever came first: the same share is the same bytes.
        episodes.sort(key=lambda episode: episode.index)
        return PackedEpisodes.of(episodes, time.perf_counter() - began)

    def _collect(self, env: Any, job: Job, share: Share) -> list[Episode]:
        # What was cached for other episodes would change who is computed with whom, and so the last bits.
        if callable(getattr(self._policy, "drop_caches", None)):
            self._policy.drop_caches()
        with self._autocast():
            return collect(env, self._policy, share.count, **self._options(job, share))

    def _options(self, job: Job, share: Share) -> dict[str, Any]:
        return {
            "seed": job.seed,
            "first_index": share.first,
            "group_size": job.group_size,
            "discount": job.discount,
            "problem_ids": job.problem_ids,
        }

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._settings.precision == "float32":
            return nullcontext()
        import torch

        return torch.autocast(self._policy.device.type, torch.bfloat16)

    @asynccontextmanager
    async def _env(self, job: Job, places: int) -> AsyncIterator[Any]:
        """A vector environment for a share, and back to those that are idle when it was played."""
        idle = self._envs[job.name, places]
        env = idle.pop() if idle else await asyncio.to_thread(self._made, job, places)
        yield env  # after an error the environment and its episodes are dropped
        idle.append(env)

    def _made(self, job: Job, places: int) -> Any:
        return self._settings.env.make("train", places, policy=self._policy, problems=job.problems, **job.keywords)

    async def forget(self, job: int) -> None:
        """Closes the environments of a job that is over."""
        self._jobs.pop(job, None)
        for key in [key for key in self._envs if key[0] == job]:
            for env in self._envs.pop(key):
                env.close()

    async def use_policies(self, policies: Sequence[Any]) -> None:
        """The policy actors that are there now."""
        self._handles[:] = policies

    async def update_weights(self, weights: PackedWeights, version: int) -> int:
        """See `PolicyActor.update_weights`."""
        await asyncio.to_thread(_loaded_weights, self._policy, weights, version)
        return int(getattr(self._policy, "version", version))

    async def ended(self) -> None:
        """Never returns: a caller that awaits it learns when the actor dies."""
        await asyncio.Event().wait()
