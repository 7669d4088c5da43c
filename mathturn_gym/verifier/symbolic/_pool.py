"""The caller's side of symbolic work: a supervisor that is started when first needed, and a line to it for each caller.

No thread, no signal and no multiprocessing: the supervisor (see `_worker.py`) is a plain subprocess, so that a pool works
in any thread, in asyncio, in notebooks, and in daemonic or forked processes, where multiprocessing allows no children.

Callers share nothing but the supervisor: each has a socket of its own to it, a *line*, and reads its own replies. An
exception that a signal handler raises in the middle of anything (Ctrl-C, SIGALRM) therefore breaks one line, which is
thrown away with its cases, and no other case is affected. Locks are held only where a supervisor is started or replaced.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathturn_gym.errors import VerifierError
from mathturn_gym.verifier.symbolic._worker import CAN_WORK, Stream, read_frame, write_frame

_LOG = logging.getLogger(__name__)
_START_SECONDS = 120.0
# A supervisor says every second that it lives; after so long without a word it is stopped or stuck, and replaced.
_SILENCE_SECONDS = 20.0
# Supervisors that may die over the cases of one caller before these count as undecided.
_MAX_DEATHS = 3
_MAX_IDLE_LINES = 64
# Wall clock that a case may take, in multiples of its limit of processor time. A worker of low priority on a machine
# eight times overloaded gets a twentieth of a core.
_BACKSTOP = 30.0
# All that a supervisor gets of the environment: where the system's libraries are. Keys of servers are in there otherwise.
_PASSED = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "SYSTEMROOT", "TMPDIR")


@dataclass(frozen=True, slots=True)
class SymbolicResult:
    """What a worker found: `equal`, `different`, `unparsed`, `timeout`, `wall`, `memory` or `crash`, and its seconds.

    `absent`: this system has no workers.
    """

    name: str
    seconds: float

    @property
    def repeatable(self) -> bool:
        """Whether it would come out again: what is killed from outside or starved by the machine is an accident."""
        return self.name not in ("wall", "crash")


def _ready(descriptor: int, events: int, seconds: float) -> bool:
    """Waits for a descriptor; `poll`, since `select` refuses the numbers above 1023 that a large process has."""
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(1e3 * seconds))


class _Line(Stream):
    """A caller's socket to a supervisor."""

    def __init__(self, sock: socket.socket, supervisor: _Supervisor) -> None:
        super().__init__(sock)
        self.supervisor = supervisor

    def __del__(self) -> None:
        """A line that was lost with an interrupted call is closed, and its cases are dropped."""
        self.close()


class _Supervisor:
    """A running supervisor process, as its callers see it."""

    def __init__(self, settings: dict[str, Any]) -> None:
        # What a forked child must close is known before it can be forked.
        self.lines: weakref.WeakSet[_Line] = weakref.WeakSet()
        self.idle: list[_Line] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.control, theirs = socket.socketpair()
        command = [sys.executable, "-P", str(Path(__file__).with_name("_worker.py"))]
        try:
            with theirs:
                # A session of its own keeps Ctrl-C away from it; it ends when the last copy of `control` is closed.
                # Hashes are fixed: sympy's ways through sets, and so the work that a case takes, depend on them.
                self.process = subprocess.Popen(  # noqa: S603
                    command,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                    env={name: os.environ[name] for name in _PASSED if name in os.environ} | {"PYTHONHASHSEED": "0"},
                )
            self._greet(settings)
        except BaseException as error:
            self.end(kill=True)
            if isinstance(error, OSError | ValueError):
                raise VerifierError(
                    f"the verifier's workers did not start ({' '.join(command)}): {error}; see their error above"
                ) from error
            raise

    def _greet(self, settings: dict[str, Any]) -> None:
        """Sends the settings and waits until the supervisor is warm."""
        descriptor = self.control.fileno()
        write_frame(descriptor, settings)
        if not _ready(descriptor, select.POLLIN, _START_SECONDS):
            raise TimeoutError(f"no sign of life in {_START_SECONDS:.0f} s")
        ready = read_frame(descriptor)
        if ready is None:
            raise ConnectionError("they ended at once")
        _LOG.debug("the verifier's workers gave up their rights to: %s", ", ".join(ready["dropped"]) or "nothing")
        self.control.settimeout(_SILENCE_SECONDS)

    def __del__(self) -> None:
        """Closes the socket once no thread can be about to use it."""
        self.control.close()

    def line(self) -> _Line:
        """Returns a free line: one that was given back, or a new one.

        Raises:
            OSError: the supervisor has gone, or takes nothing.
        """
        with contextlib.suppress(IndexError):
            return self.idle.pop()
        ours, theirs = socket.socketpair()
        with theirs:
            line = _Line(ours, self)
            self.lines.add(line)
            # One byte for each line: messages of several callers cannot mix.
            socket.send_fds(self.control, [b"+"], [theirs.fileno()])
        return line

    def give_back(self, line: _Line) -> None:
        """Keeps a line on which nothing is open for the next caller."""
        if len(self.idle) < _MAX_IDLE_LINES:
            self.idle.append(line)
        else:
            line.close()

    def end(self, kill: bool = False) -> None:
        """Ends the process: it stops (and kills its workers) when `control` is shut."""
        # Shut and not closed: another thread may be about to use the descriptor, whose number would be somebody else's.
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        while self.idle:
            with contextlib.suppress(IndexError):
                self.idle.pop().close()
        process = self.process
        if process is None:
            return
        try:
            process.wait(timeout=0.0 if kill else 2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def disown(self) -> None:
        """In a forked child: lets go of it without ending it."""
        self.control.close()
        for line in list(self.lines):
            line.close()
        if self.process is not None:
            self.process.returncode = 0  # not ours: nothing to wait for, and no warning about it


class SymbolicPool:
    """Workers with one set of limits.

    Args:
        timeout: Seconds of processor time that one case may take.
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
        """A state without a process: at the start, and in a forked child, which must not share its parent's sockets."""
        self._supervisor: _Supervisor | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Process id of the supervisor, or None where none has been needed yet."""
        supervisor = self._supervisor
        return None if supervisor is None or supervisor.process is None else supervisor.process.pid

    def start(self) -> None:
        """Starts and warms the workers, if they are not running.

        Raises:
            VerifierError: they do not start.
        """
        if CAN_WORK:
            self._current()

    def close(self) -> None:
        """Ends the workers; a later case starts new ones."""
        with self._lock:
            self._stop()

    def session(self) -> Session:
        """A caller's cases."""
        return Session(self)

    def compare(self, cases: Sequence[tuple[str, str]]) -> list[SymbolicResult]:
        """Results of (gold, answer) pairs, in their order.

        Raises:
            VerifierError: the workers do not start.
        """
        with self.session() as session:
            for case in cases:
                session.ask(*case)
            return [session.result(*case) for case in cases]

    def _current(self) -> _Supervisor:
        supervisor = self._supervisor
        if supervisor is not None:
            return supervisor
        with self._lock:
            if self._supervisor is None:
                limits = {"workers": self.workers, "memory_mb": self.memory_mb, "backstop": _BACKSTOP}
                supervisor = _Supervisor({"path": sys.path, "pid": os.getpid(), "limits": limits})
                self._finalizer = weakref.finalize(self, supervisor.end)
                self._supervisor = supervisor
            return self._supervisor

    def _stop(self, kill: bool = False) -> None:
        supervisor, finalizer = self._supervisor, self._finalizer
        self._supervisor = None
        if supervisor is not None:
            supervisor.end(kill)
        if finalizer is not None:
            finalizer.detach()

    def _replace(self, dead: _Supervisor) -> None:
        """Ends a supervisor that has died or does not answer, unless somebody else already has."""
        with self._lock:
            if self._supervisor is dead:
                _LOG.warning("the verifier's supervisor (process %s) is replaced: it died or was stopped", self.pid)
                self._stop(kill=True)


class Session:
    """The cases of one caller, from the first question to the last answer; not for several threads.

    Pairs are asked once, however often they occur. Leaving the `with` block drops what has not been waited for.

    Args:
        pool: Whose workers look at the cases.
    """

    def __init__(self, pool: SymbolicPool) -> None:
        self._pool = pool
        self._line: _Line | None = None
        self._asked: set[tuple[str, str]] = set()
        self._open: dict[int, tuple[str, str]] = {}
        self._results: dict[tuple[str, str], SymbolicResult] = {}
        self._deaths = 0

    def ask(self, gold: str, answer: str) -> None:
        """Hands a case to the workers, which begin with it; never waits for them.

        Raises:
            VerifierError: the workers do not start.
        """
        pair = gold, answer
        if pair in self._asked:
            return
        number = len(self._asked)
        self._asked.add(pair)
        if not CAN_WORK:
            self._results[pair] = SymbolicResult("absent", 0.0)
            return
        self._open[number] = pair
        if self._line is None:
            self._connect()
        else:
            self._send(number)

    def result(self, gold: str, answer: str) -> SymbolicResult:
        """Waits for the result of a case that was asked for.

        Raises:
            VerifierError: the workers died, and do not start again.
        """
        pair = gold, answer
        heard = time.monotonic()
        while pair not in self._results:
            line = self._line
            if line is None:
                self._connect()
                heard = time.monotonic()
                continue
            _ready(line.fileno(), select.POLLIN | (select.POLLOUT if line.unsent else 0), 1.0)
            messages: list[dict[str, Any]] | None
            try:
                line.flush()
                messages = line.receive()
            except OSError:
                messages = None
            if messages:
                heard = time.monotonic()
                for message in messages:
                    self._take(message)
            elif messages is None or time.monotonic() - heard > _SILENCE_SECONDS:
                self._lose(line)
        return self._results[pair]

    def _take(self, message: dict[str, Any]) -> None:
        """Keeps a reply; a message without an id only says that the supervisor lives."""
        number: Any = message.get("id")
        pair = self._open.pop(number, None)
        if pair is not None:
            self._results[pair] = SymbolicResult(str(message["outcome"]), float(message["seconds"]))

    def _connect(self) -> None:
        """Takes a line and asks (again) for everything that is open."""
        supervisor = self._pool._current()
        try:
            self._line = supervisor.line()
            for number in list(self._open):
                self._send(number)
        except OSError:
            self._dead(supervisor)

    def _send(self, number: int) -> None:
        gold, answer = self._open[number]
        assert self._line is not None
        with contextlib.suppress(OSError):  # the other side has gone: `result` finds out
            self._line.send({"id": number, "gold": gold, "answer": answer, "timeout": self._pool.timeout})

    def _lose(self, line: _Line) -> None:
        line.close()
        self._dead(line.supervisor)

    def _dead(self, supervisor: _Supervisor) -> None:
        """Has a supervisor replaced; cases over which too many have died are given up."""
        self._line = None
        self._pool._replace(supervisor)
        self._deaths += 1
        if self._deaths >= _MAX_DEATHS:
            for pair in self._open.values():
                self._results[pair] = SymbolicResult("crash", 0.0)
            self._open.clear()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        line, self._line = self._line, None
        # After an exception it is unknown what has been read: a line that is not given back closes itself, with its cases.
        if line is not None and kind is None and not self._open and not line.unsent:
            line.supervisor.give_back(line)


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
        if pool._supervisor is not None:
            pool._supervisor.disown()
        if pool._finalizer is not None:
            pool._finalizer.detach()
        pool._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
