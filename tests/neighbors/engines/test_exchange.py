"""Requests and answers of many turns travel in few messages, and each answer reaches who asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mathturn_gym.errors import PolicyError
from mathturn_gym.neighbors.engines._workers import Answer, Desk, Line, Request
from mathturn_gym.types import Completion, Ids


class Echo:
    """Answers with the context, after as many hundredths of a second as its first id says; 99 is an error."""

    scheduler = "async"

    async def acomplete(
        self, context: Ids, *, max_tokens: int, seed: int | None = None, session: str | None = None
    ) -> Completion:
        await asyncio.sleep(context[0] / 100)
        if context[0] == 99:
            raise PolicyError("no answer to 99")
        return Completion(context)


class Handle:
    """A policy actor's, and how many messages it got."""

    def __init__(self) -> None:
        self.calls, self.desks, self.dead = 0, {}, False  # type: ignore[var-annotated]
        self.exchange = SimpleNamespace(remote=self._exchange)

    async def _exchange(self, name: str, requests: Sequence[Request]) -> list[Answer]:
        self.calls += 1
        if self.dead:
            raise ConnectionResetError
        return await self.desks.setdefault(name, Desk(Echo())).exchange(requests)


async def ask(line: Line, *numbers: int) -> list[list[int]]:
    async def one(number: int) -> Any:
        return await line.acomplete(np.array([number, 7]), max_tokens=3)

    return [completion.ids.tolist() for completion in await asyncio.gather(*map(one, numbers))]


def test_what_is_asked_together_travels_together() -> None:
    async def run() -> None:
        handle = Handle()
        line = Line(handle)
        assert await ask(line, *[1] * 50) == [[1, 7]] * 50
        assert handle.calls == 1

    asyncio.run(run())


def test_a_quick_answer_does_not_wait_for_a_slow_one() -> None:
    async def run() -> None:
        handle = Handle()
        line = Line(handle)
        slow = asyncio.create_task(ask(line, 60))
        assert await ask(line, 1, 2, 3) == [[1, 7], [2, 7], [3, 7]]
        await asyncio.sleep(0.1)
        assert await ask(line, 4) == [[4, 7]]  # comes while a call is out
        assert not slow.done()
        assert await slow == [[60, 7]]

    asyncio.run(run())


def test_two_lines_of_one_policy_actor_get_their_own_answers() -> None:
    async def run() -> None:
        handle = Handle()
        first, second = await asyncio.gather(ask(Line(handle), 1, 2), ask(Line(handle), 2, 1))
        assert (first, second) == ([[1, 7], [2, 7]], [[2, 7], [1, 7]])

    asyncio.run(run())


def test_an_error_is_raised_where_it_was_asked_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        line = Line(Handle())
        good = asyncio.create_task(ask(line, 120))
        with pytest.raises(PolicyError, match="no answer to 99"):
            await ask(line, 99)
        assert await good == [[120, 7]]

    asyncio.run(run())


def test_who_has_gone_away_is_not_answered_and_a_dead_actor_tells_all() -> None:
    async def run() -> None:
        handle = Handle()
        line = Line(handle)
        gone = asyncio.create_task(ask(line, 5))
        stays = asyncio.create_task(ask(line, 6))
        await asyncio.sleep(0.02)
        gone.cancel()
        assert await stays == [[6, 7]]
        handle.dead = True
        results = await asyncio.gather(ask(line, 1), ask(line, 2), return_exceptions=True)
        assert [type(one) for one in results] == [ConnectionResetError] * 2

    asyncio.run(run())
