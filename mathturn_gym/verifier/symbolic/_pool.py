"""Symbolic workers: processes of their own: started when first needed, bounded in time and memory, shared.

No thread, no signal and no multiprocessing: a supervisor (see `_worker.py`) is started as a plain subprocess, so that
a pool works in any thread, in asyncio, in notebooks, and in daemonic or forked processes, where multiprocessing
allows no children. Whoever waits for a verdict reads the pipe, for everybody who waits.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathturn_gym.errors import VerifierError
from mathturn_gym.verifier.symbolic._worker import read_frame, write_frame

__all__ = ["SymbolicPool", "SymbolicResult", "shared_pool"]

_START_SECONDS = 120.0
# A supervisor answers within the limit of a case; this is how much later it is taken for dead.
_SILENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class SymbolicResult:
    """What a worker found: `equal`, `different`, `unparsed`, `timeout`, `memory` or `crash`, and its seconds."""

    name: str
    seconds: float


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a supervisor: it stops (and kills its workers) when its input closes."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    try:
        process.wait(timeout=2.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class SymbolicPool:
    """Workers behind a pipe.

    Args:
        timeout: Seconds that one case may take.
        memory_mb: Address space of one worker, in MiB.
        workers: Cases at work at the same time.
    """

    def __init__(self, timeout: float, memory_mb: int, workers: int) -> None:
        self.timeout = timeout
        self.memory_mb = memory_mb
        self.workers = workers
        self._forget()
        _pools.add(self)

    def _forget(self) -> None:
        """A state without a process: at the start, and in a forked child, which must not share its parent's pipes."""
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._lock = threading.Condition()
        self._reading = False
        self._ids = itertools.count()
        self._pending: dict[int, tuple[str, str]] = {}
        self._done: dict[int, SymbolicResult] = {}
        self._restarts = 0

    @property
    def pid(self) -> int | None:
        """Process id of the supervisor, or None where none has been needed yet."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts and warms the workers, if they are not running.

        Raises:
            VerifierError: they do not start.
        """
        with self._lock:
            self._start()

    def _start(self) -> None:
        if self._process is not None:
            return
        command = [sys.executable, "-P", str(Path(__file__).with_name("_worker.py"))]
        # A session of its own keeps Ctrl-C away from it; it ends when its input closes.
        process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        settings = {"path": sys.path, "workers": self.workers, "memory_mb": self.memory_mb}
        ready = None
        with contextlib.suppress(BrokenPipeError):
            write_frame(process.stdin.fileno(), settings)
            if select.select([process.stdout], [], [], _START_SECONDS)[0]:
                ready = read_frame(process.stdout.fileno())
        if ready is None:
            process.kill()
            _end(process)
            raise VerifierError(f"the verifier's workers did not start ({' '.join(command)}); see their error above")
        self._process = process
        self._finalizer = weakref.finalize(self, _end, process)

    def _stop(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._process = None
        self._finalizer = None

    def close(self) -> None:
        """Ends the workers; a later case starts new ones."""
        with self._lock:
            self._stop()
            self._lock.notify_all()

    def submit(self, gold: str, answer: str) -> int:
        """Hands a case to the workers, and returns a ticket to `wait` with.

        Raises:
            VerifierError: the workers do not start.
        """
        with self._lock:
            self._start()
            ticket = next(self._ids)
            self._pending[ticket] = gold, answer
            self._write(ticket, (gold, answer))
            return ticket

    def wait(self, ticket: int) -> SymbolicResult:
        """The outcome of a case; blocks the calling thread only.

        Raises:
            VerifierError: the workers die again and again.
        """
        with self._lock:
            while ticket not in self._done:
                if self._reading:
                    self._lock.wait()
                else:
                    self._read_one()
            return self._done.pop(ticket)

    def drop(self, ticket: int) -> None:
        """Forgets a case that nobody will wait for."""
        with self._lock:
            self._pending.pop(ticket, None)
            self._done.pop(ticket, None)

    def compare(self, cases: Sequence[tuple[str, str]]) -> list[SymbolicResult]:
        """SymbolicResults of (gold, answer) pairs, in their order.

        Raises:
            VerifierError: the workers do not start, or die again and again.
        """
        tickets = [self.submit(*case) for case in cases]
        return [self.wait(ticket) for ticket in tickets]

    def _write(self, key: int, case: tuple[str, str]) -> None:
        if self._process is None or self._process.stdin is None:
            return
        message = {"id": key, "gold": case[0], "answer": case[1], "timeout": self.timeout}
        with contextlib.suppress(BrokenPipeError):  # the reader finds out, restarts, and sends it again
            write_frame(self._process.stdin.fileno(), message)

    def _read_one(self) -> None:
        """Reads one reply with the lock released; called with it held."""
        if self._process is None:
            self._restart()
            return
        process = self._process
        assert process.stdout is not None
        self._reading = True
        self._lock.release()
        reply = None
        try:
            if select.select([process.stdout], [], [], self.timeout + _SILENCE_SECONDS)[0]:
                reply = read_frame(process.stdout.fileno())
        except (OSError, ValueError):  # closed under us: the same as gone
            reply = None
        finally:
            self._lock.acquire()
            self._reading = False
            self._lock.notify_all()
        if reply is None:
            self._restart()
        elif self._pending.pop(reply["id"], None) is not None:
            self._restarts = 0
            self._done[reply["id"]] = SymbolicResult(reply["outcome"], reply["seconds"])

    def _restart(self) -> None:
        """A supervisor that died is replaced, and gets the open cases again; not for ever."""
        self._restarts += 1
        if self._restarts > 5:
            raise VerifierError("the verifier's workers died five times; is the machine out of memory?")
        if self._process is not None:
            self._process.kill()
        self._stop()
        self._start()
        for key, case in list(self._pending.items()):
            self._write(key, case)


_pools: weakref.WeakSet[SymbolicPool] = weakref.WeakSet()
_shared: weakref.WeakValueDictionary[tuple[float, int, int], SymbolicPool] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


def shared_pool(timeout: float, memory_mb: int, workers: int) -> SymbolicPool:
    """The pool of this process with these limits; it lives as long as somebody uses it."""
    with _shared_lock:
        key = (timeout, memory_mb, workers)
        pool = _shared.get(key)
        if pool is None:
            pool = _shared[key] = SymbolicPool(timeout, memory_mb, workers)
        return pool


def _after_fork() -> None:
    """In a forked child: lets go of the parent's workers without ending them."""
    global _shared_lock
    _shared_lock = threading.Lock()
    for pool in list(_pools):
        process = pool._process
        if process is not None:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
            process.returncode = 0  # not ours: nothing to wait for, and no warning about it
        if pool._finalizer is not None:
            pool._finalizer.detach()
        pool._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
