"""Calls of users' functions: signatures are checked before the call, and errors name the function."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mathturn_gym.errors import InvalidValueError, UserFunctionError
from mathturn_gym.types import TurnContext

T = TypeVar("T")


def name_of(function: object) -> str:
    """Returns the name of a function for error messages, with file and line where they are known.

    >>> name_of(len)
    'builtins.len'
    """
    inner = inspect.unwrap(function) if callable(function) else function
    inner = getattr(inner, "func", inner)  # of a functools.partial
    inner = getattr(inner, "__func__", inner)  # of a method
    code = getattr(inner, "__code__", None)
    if not hasattr(inner, "__qualname__"):
        kind = type(inner)
        inner, code = kind, getattr(getattr(kind, "__call__", None), "__code__", None)  # noqa: B004 - its code is wanted
    name = f"{inner.__module__}.{inner.__qualname__}"
    return name if code is None else f"{name} ({Path(code.co_filename).name}, line {code.co_firstlineno})"


def positional_parameters(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """The parameters that can be given by position, or None where Python does not know them (some of C's)."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    by_position = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return [one for one in signature.parameters.values() if one.kind in by_position]


def check_takes(role: str, function: Callable[..., Any], *arguments: str, keywords: Sequence[str] = ()) -> None:
    """Raises if the function's signature does not accept a call with these arguments.

    Args:
        role: What the user gave the function as, for the message.
        function: The function.
        *arguments: Names for the arguments by position, for the message.
        keywords: Names of the arguments by keyword.

    Raises:
        InvalidValueError: the signature does not take these arguments.

    >>> check_takes("feedback", divmod, "context")
    Traceback (most recent call last):
    ...
    mathturn_gym.errors.InvalidValueError: feedback is called as f(context), which builtins.divmod does not take: missing a required argument: 'y'
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments, **dict.fromkeys(keywords))
    except TypeError as error:
        call = ", ".join([*arguments, *(f"{name}=…" for name in keywords)])
        raise InvalidValueError(
            f"{role} is called as f({call}), which {name_of(function)} does not take: {error}"
        ) from error


def call_with_turn(role: str, function: Callable[[TurnContext], T], context: TurnContext) -> T:
    """Calls a function with a turn.

    Raises:
        UserFunctionError: it raised; the message names it and the turn.
    """
    try:
        return function(context)
    except Exception as error:  # whatever a user's code raises
        raise error_of(role, function, context, error) from error


def error_of(role: str, function: object, context: TurnContext, error: Exception) -> UserFunctionError:
    """The error that names a user's function and the turn for which it raised."""
    return UserFunctionError(
        f"{role} {name_of(function)} raised {type(error).__name__} for {place_of(context)}: {error}"
    )


def place_of(context: TurnContext) -> str:
    """Which turn it is, for messages."""
    return f"problem {context.problem.id!r}, turn {context.turn}"


# ---- one event loop for what a process awaits on behalf of synchronous callers: async verifiers, questions to a judge


class _Loop:
    """The loop and its thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def get(self) -> asyncio.AbstractEventLoop | None:
        """The loop, which starts when it is first needed; None where the caller runs in it, and would wait for itself."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="async-judges", daemon=True)
                self._thread.start()
            return None if threading.current_thread() is self._thread else self._loop

    def end(self) -> None:
        """Ends the loop with its process."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=1.0)
            if not self._loop.is_running():
                self._loop.close()


_LOOP = _Loop()


def awaited_together(awaitables: Sequence[Awaitable[Any]]) -> list[Any] | None:
    """What awaitables give, or raise, in their order; they are awaited together, in the loop of the process.

    Returns:
        A value or an exception for each; None where the caller runs in that loop, and would wait for itself: nothing was
        awaited then.
    """
    loop = _LOOP.get()
    if loop is None:
        for awaitable in awaitables:  # otherwise Python warns of coroutines that were never awaited
            getattr(awaitable, "close", lambda: None)()
        return None

    async def gather() -> list[Any]:
        return await asyncio.gather(*awaitables, return_exceptions=True)

    task = asyncio.run_coroutine_threadsafe(gather(), loop)
    try:
        return task.result()
    except BaseException:  # such as an interrupt: the others will not be awaited
        task.cancel()
        raise


@atexit.register
def _end() -> None:
    _LOOP.end()


# The parent's, in a forked process: its sockets are not closed here, and not collected either.
_LEFT_BEHIND: list[_Loop] = []


def _renew() -> None:
    global _LOOP
    _LEFT_BEHIND.append(_LOOP)
    _LOOP = _Loop()


# A forked process inherits the loop, and not the thread that runs it.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
