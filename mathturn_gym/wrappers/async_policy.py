"""A `CausalLMPolicy` for asyncio: one thread decodes whatever has been asked for, together."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

import torch

from mathturn_gym.errors import EpisodeStateError
from mathturn_gym.types import Completion, Ids
from mathturn_gym.wrappers.policy import CausalLMPolicy


@dataclass(slots=True, eq=False)
class _Request:
    context: Ids
    max_tokens: int
    seed: int | None
    future: asyncio.Future[Completion] = field(repr=False)
    ticket: int = -1

    def settle(self, found: Completion | Exception | None) -> None:
        """Gives the waiting call what was found, None cancelling it, unless it was cancelled or its loop is gone."""

        def settle() -> None:  # in the future's own loop: asyncio's futures are not safe in threads
            if self.future.done():
                return
            if isinstance(found, Completion):
                self.future.set_result(found)
            elif found is None:
                self.future.cancel()
            else:
                self.future.set_exception(found)

        loop = self.future.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle)


class AsyncCausalLMPolicy:
    """Answers many `acomplete` calls at once, in one batch that is refilled as they end.

    Use it as an async context manager, or close it. Until then nothing else may use the policy, except
    `update_weights`.

    Args:
        policy: The policy.
        precision: "bfloat16" decodes under autocast: it is a property of a thread, and the caller's does not reach this one.

    Attributes:
        scheduler: "async": `collect` awaits each completion in a task of its own.
    """

    scheduler: Final = "async"

    def __init__(self, policy: CausalLMPolicy, *, precision: str = "float32") -> None:
        self._precision = precision
        self.policy, self.tokenizer = policy, policy.tokenizer
        self._inbox: SimpleQueue[_Request | None] = SimpleQueue()
        self._cancelled: SimpleQueue[_Request] = SimpleQueue()
        self._closed = False
        # A daemon: a program that forgets `close` can still end.
        self._thread = threading.Thread(target=self._work, name="decoding", daemon=True)
        self._thread.start()

    async def acomplete(
        self, context: Ids, *, max_tokens: int, seed: int | None = None, session: str | None = None
    ) -> Completion:
        """Samples a completion; cancelling the call frees its place.

        Args:
            context: int64 (L,), not empty.
            max_tokens: Budget, >= 0.
            seed: Decides the sample; None draws one.
            session: Not needed: caches are found by the ids.

        Raises:
            InvalidValueError: as for `CausalLMPolicy.complete`.
            PolicyError: as for `CausalLMPolicy.complete`; every request under way gets it.
            EpisodeStateError: it is closed.
        """
        if self._closed:
            raise EpisodeStateError("acomplete() after close(): make another AsyncCausalLMPolicy")
        request = _Request(context, max_tokens, seed, asyncio.get_running_loop().create_future())
        self._inbox.put(request)
        try:
            return await request.future
        except asyncio.CancelledError:
            self._cancelled.put(request)
            raise

    def close(self) -> None:
        """Ends the thread; requests under way are cancelled."""
        if not self._closed:
            self._closed = True
            self._inbox.put(None)
            self._thread.join()

    async def __aenter__(self) -> AsyncCausalLMPolicy:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    def _work(self) -> None:
        # Autocast is a property of a thread: the caller's does not reach this one.
        with torch.autocast(self.policy.device.type, torch.bfloat16, enabled=self._precision == "bfloat16"):
            self._decode()

    def _decode(self) -> None:
        running: dict[int, _Request] = {}
        while self._receive(running):
            try:
                # One step at a time: between steps new requests join, and cancelled ones leave.
                done = self.policy.advance(steps=1)
            except Exception as error:
                for request in running.values():
                    request.settle(error)
                running.clear()
                continue
            for ticket, completion in done:
                running.pop(ticket).settle(completion)
        for ticket, request in running.items():
            self.policy.cancel(ticket)
            request.settle(None)

    def _receive(self, running: dict[int, _Request]) -> bool:
        """Takes what has come in, waiting where nothing runs; False once closed."""
        while not running or not self._inbox.empty():  # with nothing to decode, `get` waits for a request
            request = self._inbox.get()
            if request is None:
                return False
            try:
                request.ticket = self.policy.submit(request.context, max_tokens=request.max_tokens, seed=request.seed)
            except Exception as error:
                request.settle(error)
            else:
                running[request.ticket] = request
        while not self._cancelled.empty():
            request = self._cancelled.get()
            if running.pop(request.ticket, None) is not None:
                self.policy.cancel(request.ticket)
        return True
