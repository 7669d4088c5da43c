"""The other side of `_pool.py`: a supervisor that forks workers, and kills the ones that take too long.

It is run as a file (`python -P _worker.py`), imports nothing of this package, and talks in length-prefixed JSON over
its standard input and output: no pickle, no port, no signal handler in anybody else's process. The supervisor loads
sympy and math-verify once; a worker is a fork of it, so that a killed one is replaced in milliseconds. A request
is `{"id", "gold", "answer", "timeout"}`, a reply `{"id", "outcome", "seconds"}` with outcome `equal`, `different`,
`unparsed`, `timeout`, `memory` or `crash`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import selectors
import signal
import struct
import sys
import time
from collections import deque
from typing import Any

_HEAD = struct.Struct("<I")
_CPU_GRACE = 5
# Share of its limit after which a case makes room for others that wait, and how many may be parked at a time.
_SLICE = 0.4
_MAX_PARKED = 32
# No worker is forked this shortly before another one is late; how often killed ones are looked after.
_FORK_SECONDS = 0.05
_REAP_SECONDS = 0.05
# One of each kind of answer: parsers and caches that are warm before the fork are warm in every worker.
_WARM_UP = (
    ("\\frac{1}{2}", "0.5"),
    ("x^2+1", "1+x\\cdot x"),
    ("\\sqrt{12}+\\pi", "2\\sqrt{3}-e^{2}"),
    ("(1, \\sqrt{2})", "(1, x)"),
    ("\\{1,2\\}", "[0,1)\\cup(2,\\infty)"),
    ("x=\\frac{-3\\pm\\sqrt{5}}{2}", "y<3"),
    ("\\sin^2 x", "1-\\cos^{2}(x)"),
    ("\\sum_{k=1}^{4} k", "\\log_2 1024"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\binom{5}{2}!"),
    ("\\int_0^1 x dx", "\\frac{\\ln|x|}{3}"),
    ("\\text{word}", "50\\%"),
)


def write_frame(fd: int, message: dict[str, Any]) -> None:
    """Writes one message: four bytes of length, then JSON in UTF-8."""
    body = json.dumps(message).encode()
    data = memoryview(_HEAD.pack(len(body)) + body)
    while data:
        data = data[os.write(fd, data) :]


def read_exactly(fd: int, size: int) -> bytes | None:
    """Reads `size` bytes, or gives None where the other side has gone."""
    parts: list[bytes] = []
    while size:
        part = os.read(fd, min(size, 1 << 16))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_frame(fd: int) -> dict[str, Any] | None:
    """Reads one message, or gives None at the end of the stream."""
    head = read_exactly(fd, _HEAD.size)
    body = None if head is None else read_exactly(fd, _HEAD.unpack(head)[0])
    if body is None:
        return None
    message: dict[str, Any] = json.loads(body)
    return message


def _compare(gold: str, answer: str) -> str:
    """Asks math-verify; only its LaTeX parser is used, since its other one hands text to `parse_expr`."""
    from math_verify import LatexExtractionConfig, parse, verify

    config = [LatexExtractionConfig(boxed_match_priority=0)]
    sides = [
        parse(f"\\boxed{{{text}}}", extraction_config=config, fallback_mode="no_fallback", parsing_timeout=None)
        for text in (gold, answer)
    ]
    if not sides[0] or not sides[1]:
        return "unparsed"
    if not verify(sides[0], sides[1], timeout_seconds=None):
        return "different"
    return "equal" if _not_only_near(sides[0][0], sides[1][0]) else "different"


def _not_only_near(gold: Any, answer: Any) -> bool:
    """False where two numbers differ in digits that math-verify rounds away."""
    from sympy import Expr

    if not isinstance(gold, Expr) or not isinstance(answer, Expr) or gold.free_symbols or answer.free_symbols:
        return True
    difference, size = abs((gold - answer).evalf(30)), abs(gold.evalf(30))
    return not (difference.is_comparable and size.is_comparable) or bool(difference <= size * 1e-20)


def _work(fd_in: int, fd_out: int, memory_mb: int) -> None:
    """A worker's life: one case after the other, under a limit of memory and of processor time."""
    import resource  # not everywhere: the rest of the package must import where there is none

    if sys.platform == "linux":
        # Dies with its supervisor, whatever it is busy with.
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
    limit = memory_mb << 20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while (case := read_frame(fd_in)) is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = int(used.ru_utime + used.ru_stime + case["timeout"]) + _CPU_GRACE
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
        try:
            outcome = _compare(case["gold"], case["answer"])
        except MemoryError:
            outcome = "memory"
        except RecursionError:
            outcome = "crash"
        except Exception:  # anything at all that a parser does with hostile text is one outcome
            outcome = "crash"
        write_frame(fd_out, {"outcome": outcome})


class _Child:
    """A forked worker, as its supervisor sees it: idle, running a case, or parked in the middle of one."""

    def __init__(self, memory_mb: int, others: list[_Child]) -> None:
        task_read, self.task_write = os.pipe()
        self.reply_read, reply_write = os.pipe()
        self.case: dict[str, Any] | None = None
        self.parked = False
        self.used = 0.0
        self.resumed = 0.0
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                for fd in [0, 1, self.task_write, self.reply_read]:
                    os.close(fd)
                for other in others:
                    os.close(other.task_write)
                    os.close(other.reply_read)
                os.dup2(os.open(os.devnull, os.O_RDWR), 2)
                _work(task_read, reply_write, memory_mb)
                code = 0
            finally:
                os._exit(code)
        os.close(task_read)
        os.close(reply_write)

    @property
    def running(self) -> bool:
        """Whether it is at work now."""
        return self.case is not None and not self.parked

    def seconds(self, now: float) -> float:
        """How long it has worked at its case, without the time it was parked."""
        return self.used + (0.0 if self.parked else now - self.resumed)

    def give(self, case: dict[str, Any]) -> bool:
        """Hands a case over; False where the worker has died in the meantime."""
        self.used, self.resumed = 0.0, time.monotonic()
        try:
            write_frame(self.task_write, case)
        except BrokenPipeError:
            return False
        self.case = case
        return True

    def park(self, now: float) -> None:
        """Stops it in the middle of its case."""
        self.used, self.parked = self.seconds(now), True
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self, now: float) -> None:
        """Lets it go on."""
        self.resumed, self.parked = now, False
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Ends the worker, which takes milliseconds to give its memory back: see `reap`."""
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.task_write)
        os.close(self.reply_read)

    def reap(self, wait: bool = False) -> bool:
        """Whether it has gone, after `kill`."""
        return os.waitpid(self.pid, 0 if wait else os.WNOHANG)[0] == self.pid


class Supervisor:
    """Deals cases out to workers and sends their outcomes back.

    A case that takes longer than a slice is parked while others wait, so that a few endless ones delay nobody; the
    time limit counts the time at work.

    Args:
        workers: Judges at work at the same time.
        memory_mb: Address space that one worker may take, in MiB.
        fd_in: Where requests are read.
        fd_out: Where replies are written.
    """

    def __init__(self, workers: int, memory_mb: int, fd_in: int, fd_out: int) -> None:
        self.workers = workers
        self.memory_mb = memory_mb
        self.fd_in = fd_in
        self.fd_out = fd_out
        self.waiting: deque[dict[str, Any]] = deque()
        self.buffer = bytearray()
        self.replies = bytearray()
        os.set_blocking(fd_out, False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(fd_in, selectors.EVENT_READ, None)
        self.children: list[_Child] = []
        self.killed: list[_Child] = []
        for _ in range(workers + 1):
            self._spawn()

    def _spawn(self) -> _Child:
        child = _Child(self.memory_mb, self.children)
        self.children.append(child)
        self.selector.register(child.reply_read, selectors.EVENT_READ, child)
        return child

    def _remove(self, child: _Child) -> None:
        self.selector.unregister(child.reply_read)
        self.children.remove(child)
        child.kill()
        self.killed.append(child)

    def _reply(self, child: _Child, outcome: str) -> None:
        assert child.case is not None
        seconds = child.seconds(time.monotonic())
        body = json.dumps({"id": child.case["id"], "outcome": outcome, "seconds": seconds}).encode()
        self.replies += _HEAD.pack(len(body)) + body
        child.case = None

    def _write_replies(self) -> None:
        """Writes what the pipe takes; never waits, or we and a caller who is still writing would wait for each other."""
        with contextlib.suppress(BlockingIOError):
            while self.replies:
                del self.replies[: os.write(self.fd_out, self.replies)]
        wanted = bool(self.replies)
        if wanted != (self.fd_out in self.selector.get_map()):
            if wanted:
                self.selector.register(self.fd_out, selectors.EVENT_WRITE, "replies")
            else:
                self.selector.unregister(self.fd_out)

    def _running(self) -> list[_Child]:
        return [child for child in self.children if child.running]

    def _deal(self) -> None:
        """Fills the free places: new cases first, then those that were parked, in their order."""
        now = time.monotonic()
        if self.waiting and len(self.children) < self.workers + _MAX_PARKED:
            for child in self._running():
                if child.case is not None and child.seconds(now) - child.used >= _SLICE * child.case["timeout"]:
                    child.park(now)
        for _ in range(self.workers - len(self._running())):
            parked = next((child for child in self.children if child.parked), None)
            if self.waiting:
                child = next((child for child in self.children if child.case is None), None) or self._spawn()
                if child.give(self.waiting[0]):
                    self.waiting.popleft()
                else:
                    self._remove(child)
            elif parked is not None:
                parked.resume(now)

    def _keep_spares(self) -> None:
        """Keeps a worker spare for each worker: a fork takes milliseconds, which are spent while nobody is nearly late."""
        idle = [child for child in self.children if child.case is None]
        for child in idle[self.workers + 1 :]:
            self._remove(child)
        while len(idle) < self.workers and ((left := self._wait()) is None or left > _FORK_SECONDS):
            idle.append(self._spawn())

    def _read_requests(self) -> bool:
        """Takes in what has arrived; False at the end of the stream."""
        data = os.read(self.fd_in, 1 << 20)
        self.buffer += data
        start = 0
        while len(self.buffer) >= start + _HEAD.size:
            end = start + _HEAD.size + _HEAD.unpack_from(self.buffer, start)[0]
            if len(self.buffer) < end:
                break
            self.waiting.append(json.loads(self.buffer[start + _HEAD.size : end]))
            start = end
        del self.buffer[:start]
        return bool(data)

    def _read_reply(self, child: _Child) -> None:
        reply = read_frame(child.reply_read)
        if reply is not None:
            self._reply(child, reply["outcome"])
        else:
            if child.case is not None:
                self._reply(child, "crash")
            self._remove(child)

    def _kill_late(self) -> None:
        now = time.monotonic()
        for child in self._running():
            assert child.case is not None
            if child.seconds(now) >= child.case["timeout"]:
                self._reply(child, "timeout")
                self._remove(child)

    def _wait(self) -> float | None:
        """Seconds until a worker is late, or has had its slice while others wait."""
        now = time.monotonic()
        times = [child.case["timeout"] - child.seconds(now) for child in self._running() if child.case is not None]
        if self.waiting:
            times += [
                _SLICE * case["timeout"] for case in (child.case for child in self._running()) if case is not None
            ]
        return max(0.0, min(times)) if times else None

    def run(self) -> None:
        """Works until the caller closes the stream or goes away."""
        while True:
            self._deal()
            self._write_replies()
            self._keep_spares()
            self.killed = [child for child in self.killed if not child.reap()]
            wait = self._wait()
            if self.killed:
                wait = _REAP_SECONDS if wait is None else min(wait, _REAP_SECONDS)
            for key, _ in self.selector.select(wait):
                if key.data is None:
                    if not self._read_requests():
                        return
                elif key.data in self.children:
                    self._read_reply(key.data)
            self._kill_late()

    def close(self) -> None:
        """Kills every worker."""
        for child in self.children:
            child.kill()
        for child in self.children + self.killed:
            child.reap(wait=True)


def _warm() -> None:
    """Loads and exercises the symbolic stack, so that no time limit pays for it."""
    logging.disable(logging.CRITICAL)
    for gold, answer in _WARM_UP:
        with contextlib.suppress(Exception):  # as in a worker: what matters is what was loaded
            _compare(gold, answer)
    gc.collect()
    # Judges share these pages; a collection in one of them must not copy them all.
    gc.freeze()


def main() -> None:
    """Reads the settings from the first message, warms up, says `ready`, and works."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = read_frame(0)
    if settings is None:
        return
    sys.path.extend(entry for entry in settings["path"] if entry not in sys.path)
    _warm()
    supervisor = Supervisor(settings["workers"], settings["memory_mb"], 0, 1)
    write_frame(1, {"ready": True})
    try:
        supervisor.run()
    except BrokenPipeError:
        pass  # the caller has gone: nobody is left to tell
    finally:
        supervisor.close()


if __name__ == "__main__":
    main()
