"""One event loop for what a process awaits on behalf of synchronous callers: async verifiers, questions to a judge.

It runs in a thread of its own, so that this works in Jupyter and in threads too, and what is opened in it (an HTTP client) can be
used again.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Sequence
from typing import Any

__all__ = ["awaited_together"]


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
        for awaitable in awaitables:  # or Python warns of coroutines that nobody awaited
            getattr(awaitable, "close", lambda: None)()
        return None

    async def gather() -> list[Any]:
        return await asyncio.gather(*awaitables, return_exceptions=True)

    task = asyncio.run_coroutine_threadsafe(gather(), loop)
    try:
        return task.result()
    except BaseException:  # an interrupt, say: nobody will ask for the others
        task.cancel()
        raise


@atexit.register
def _end() -> None:
    _LOOP.end()


_LEFT_BEHIND: list[_Loop] = []
"""The parent's, in a forked process: its sockets are not closed here, and not collected either."""


def _renew() -> None:
    global _LOOP
    _LEFT_BEHIND.append(_LOOP)
    _LOOP = _Loop()


# A forked process inherits the loop, and not the thread that runs it.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
