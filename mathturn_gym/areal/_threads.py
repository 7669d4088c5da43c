"""Blocking calls from an event loop, in threads that nothing waits for at the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

__all__ = ["in_thread"]

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[..., T], *args: Any, timeout: float | None = None) -> T:
    """Calls a blocking function in a daemon thread of its own.

    `asyncio.to_thread` shares a handful of threads, so that a few calls that hang would stop everybody's, and waits
    for them when the loop ends. Here a call that never returns costs one sleeping thread.

    Args:
        function: Called with `args`.
        *args: Its arguments.
        timeout: Seconds to wait for it, or None; the thread itself cannot be stopped.

    Raises:
        TimeoutError: it took longer.
        Exception: whatever the function raises.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if done.done():  # cancelled, or too late
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def run() -> None:
        result: T | None = None
        failure: Exception | None = None
        try:
            result = function(*args)
        except StopIteration as error:  # a future does not take one
            failure = RuntimeError(f"{function!r} raised {error!r}")
        except Exception as error:
            failure = error
        except BaseException as error:  # SystemExit and the like: they must not end the loop of everybody else
            failure = RuntimeError(f"{function!r} raised {error!r}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name=f"mathturn-{getattr(function, '__name__', 'call')}", daemon=True).start()
    async with asyncio.timeout(timeout):
        return await done
