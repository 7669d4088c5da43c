"""A stranger's program, run for a limited time: chat templates come with models, and may never end."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeVar

from mathturn_gym.env.dialogue._tokenizers import LOCKS
from mathturn_gym.types import Ids

T = TypeVar("T")
_LOOK: Final = 0.2
"""Seconds between two looks at how long it has taken."""


class _Stop(BaseException):
    """Raised inside of what took too long."""


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


# ---- ids of texts that were encoded before


class IdCache:
    """Ids by number and text, the least recently used leaving first; bounded by bytes, safe in threads.

    Args:
        limit: Bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self.bytes = limit, 0
        self._kept: OrderedDict[tuple[int, str], Ids] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy begins empty: a cache is no part of what a dialogue is."""
        return IdCache, (self._limit,)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: tuple[int, str]) -> Ids | None:
        """The ids, read-only, or None."""
        with LOCKS.caches:
            ids = self._kept.get(key)
            if ids is not None:
                self._kept.move_to_end(key)
            return ids

    def put(self, key: tuple[int, str], ids: Ids) -> None:
        """Keeps ids, unless they alone would drive out most of what is kept."""
        ids.setflags(write=False)
        size = _size(key, ids)
        if size > self._limit // 8:
            return
        with LOCKS.caches:
            if key in self._kept:
                return
            self._kept[key] = ids
            self.bytes += size
            while self.bytes > self._limit:
                self.bytes -= _size(*self._kept.popitem(last=False))


def _size(key: tuple[int, str], ids: Ids) -> int:
    """Bytes of an entry, with about what Python needs around it."""
    return int(ids.nbytes) + sys.getsizeof(key[1]) + 400
