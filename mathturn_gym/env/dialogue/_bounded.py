"""Runs a function for a limited time: a chat template is a program that comes with a model, and may never end."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")
_LOOK: Final = 0.2  # seconds between two checks of the time that it has taken


class _Stop(BaseException):
    """Raised inside the function that took too long."""


def bounded(work: Callable[[], T], seconds: float) -> T:
    """The result of a call, or its exception.

    It runs in a thread of its own. What takes too long is stopped where it next runs a line of Python.

    Args:
        work: Called without arguments.
        seconds: Of processor time of that thread, so that a busy machine changes nothing; of the clock where threads have
            no clocks of their own (Windows).

    Raises:
        TimeoutError: it took longer.

    >>> bounded(lambda: 1 + 1, 10.0)
    2
    """
    done = threading.Event()
    found: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            found.append((work(), None))
        except BaseException as error:  # handed on to the caller
            found.append((None, error))
        finally:
            done.set()

    thread = threading.Thread(target=run, name="mathturn-bounded", daemon=True)
    thread.start()
    begun = time.monotonic()
    while not done.wait(_LOOK):
        if _used(thread, begun) > seconds:
            assert thread.ident is not None
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Stop))
            raise TimeoutError(f"it took more than {seconds:g} s")
    result, error = found[0]
    if error is not None:
        raise error
    value: T = result
    return value


def _used(thread: threading.Thread, begun: float) -> float:
    """The processor time of a thread, 0 where it has just ended."""
    if not hasattr(time, "pthread_getcpuclockid") or thread.ident is None:
        return time.monotonic() - begun
    if not thread.is_alive():
        return 0.0
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
