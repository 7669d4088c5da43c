"""How a rollout actor asks a policy actor: many requests in a message, and many answers in its reply.

    Line.acomplete ─► requests of 5 ms ─► exchange ─► Desk ─► AsyncPolicy.acomplete, each in a task of its own
                   ◄─ answers of 5 ms  ◄──────────────┘

A message between actors costs about a millisecond of CPU on each side, whatever is in it, so a message for each turn
would cost more than the turn. One call is always out while somebody waits; its reply comes with the first answers that
are ready, and a newer call, which brings new requests, sends the older one home. Nothing here imports Ray.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from mathturn_gym.rollout import AsyncPolicy
from mathturn_gym.types import Completion, Ids

__all__ = ["Answer", "Desk", "Line", "Request"]

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
        except Exception as error:  # nobody on this line gets an answer any more, and each says so where it waits
            answers = [(number, error) for number in self._pending]
        for number, answer in answers:
            future = self._pending.get(number)
            if future is None or future.done():  # whoever asked has been cancelled
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _returned(self, task: asyncio.Task[None]) -> None:
        self._out.discard(task)
        if not self._out and any(not future.done() for future in self._pending.values()):
            self._send_soon()
