"""The other side of `_pool.py`: a supervisor that forks a worker for every case, and ends the ones that take too much.

It is run as a file (`python -P _worker.py`), imports nothing of this package, and talks in length-prefixed JSON: no
pickle, no port, no signal handler in anybody else's process. The supervisor loads sympy and math-verify once. A worker
is a fork of it that looks at one case and ends, so that no case can change the verdict on another.

Its standard input is a socket: the settings, then nothing but other sockets ("lines"), one for each caller that waits
for something. A request on a line is `{"id", "gold", "answer", "timeout"}`, a reply `{"id", "outcome", "seconds"}` with
outcome `equal`, `different`, `unparsed`, `timeout` (processor time), `wall` (the backstop), `memory` or `crash`. A line
with open cases gets an empty message every second, so that a caller knows a busy supervisor from a stopped one.
A line that is closed takes its cases with it.

What is compared was written by a model, and the parsers that read it are large. Processes here therefore give up what no case
needs, as far as the system lets an ordinary process do so (issue 31): see `drop_rights` and `allow_few_calls`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import gc
import json
import logging
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

try:
    import resource
except ImportError:  # Windows: nothing here runs there, and its callers read names from this module
    resource = None  # type: ignore[assignment]
CAN_WORK = hasattr(os, "fork") and resource is not None
"""Whether this system has what workers need: `fork`, and limits of memory."""

_HEAD = struct.Struct("<I")
# Where somebody has set SIGPIPE back to its default, writing to a process that has gone would end us.
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
_MAX_FRAME = 1 << 26
BEAT_SECONDS = 1.0
"""How often a line with open cases is told that the supervisor lives."""
# Share of its limit after which a case makes room for others that wait, and how many may be parked at a time. All parked
# cases together hold no more memory than one case may take.
_SLICE = 0.4
_MAX_PARKED = 32
# Limits of time after which a parked case goes on although others still wait: else it would not while they keep coming.
_PATIENCE = 2.0
# A worker that is killed from outside (by the kernel when memory is short, say) has its case tried once more.
_TRIES = 2
# Workers that end one after the other before they got a case: then something is wrong with all of them.
_MAX_STILLBORN = 8
_REAP_SECONDS = 0.05
_MOST_DESCRIPTORS = 1 << 16
_LINUX = sys.platform == "linux"
# Of <linux/prctl.h> and <linux/sched.h>.
_SET_PDEATHSIG, _SET_DUMPABLE, _SET_NO_NEW_PRIVS = 1, 4, 38
_NEW_USER_AND_NETWORK = 0x10000000 | 0x40000000
# What Python and sympy need to compute, to load a module late, and to end. Not in it: sockets, new processes, signals to
# others, tracing, and everything that changes a file.
_CALLS = (
    "read pread64 write close fstat newfstatat stat lstat statx lseek readlink readlinkat getdents64 getcwd access faccessat"
    " faccessat2 dup fcntl mmap mprotect munmap mremap brk madvise futex rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack"
    " setitimer getrandom clock_gettime clock_nanosleep gettimeofday getpid gettid getuid geteuid getgid getegid uname sysinfo"
    " sched_yield restart_syscall exit exit_group"
)
_OPENING = {"open": 1, "openat": 2}  # which argument has the flags
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
    data = memoryview(_framed(message))
    while data:
        data = data[os.write(fd, data) :]


def _framed(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode()
    return _HEAD.pack(len(body)) + body


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


class Stream:
    """Messages over a socket without ever waiting: what the other side does not take yet stays here.

    Args:
        sock: One end of a socket pair; the stream owns it.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.unsent = bytearray()
        self._received = bytearray()

    def fileno(self) -> int:
        """For selectors."""
        return self.sock.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message, now or at the next `flush`.

        Raises:
            OSError: the other side has gone.
        """
        self.unsent += _framed(message)
        self.flush()

    def flush(self) -> None:
        """Sends what the other side takes.

        Raises:
            OSError: the other side has gone.
        """
        with contextlib.suppress(BlockingIOError):
            while self.unsent:
                del self.unsent[: self.sock.send(self.unsent, _NO_SIGNAL)]

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that have arrived; None where the other side has gone, or sends what is no message."""
        try:
            data = self.sock.recv(1 << 20)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        self._received += data
        try:
            return self._take_messages()
        except ValueError:
            return None

    def _take_messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        start = 0
        while len(self._received) >= start + _HEAD.size:
            (size,) = _HEAD.unpack_from(self._received, start)
            if size > _MAX_FRAME:
                raise ValueError("not a message")
            end = start + _HEAD.size + size
            if len(self._received) < end:
                break
            message = json.loads(self._received[start + _HEAD.size : end])
            if not isinstance(message, dict):
                raise ValueError("not a message")
            messages.append(message)
            start = end
        del self._received[:start]
        return messages

    def close(self) -> None:
        """Closes the socket."""
        self.sock.close()


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


# Functions that a large argument leaves as they are, or a small one, beyond any number of digits.
_SATURATED = frozenset(("exp", "Pow", "sinh", "cosh", "tanh", "coth", "sech", "csch", "erf", "erfc", "atan", "acot"))
_LARGEST_ARGUMENT = 300
# Digits in which an answer may differ from its gold: with as many, anything is near to anything.
_MOST_DIGITS = 200


def _not_only_near(gold: Any, answer: Any) -> bool:
    """False where two numbers differ in digits that math-verify rounds away, or may differ beyond all that are worked out."""
    from sympy import Expr, FiniteSet, Float, Interval, Rational, Tuple, preorder_traversal

    if not isinstance(gold, Expr) or not isinstance(answer, Expr):
        parts = [side.args if isinstance(side, (FiniteSet, Tuple, Interval)) else () for side in (gold, answer)]
        if len(parts[0]) != len(parts[1]):
            return True
        return all(any(_not_only_near(one, other) for one in parts[0]) for other in parts[1])
    names = sorted(gold.free_symbols | answer.free_symbols, key=str)
    if names:
        # Whole numbers for what counts, and fractions for the rest.
        points = [
            {
                name: index + 2 + k if str(name) in "nkmjNKM" else Rational(7 * index + 12 + k, 9)
                for k, name in enumerate(names)
            }
            for index in range(3)
        ]
        return gold == answer or all(_not_only_near(gold.subs(point), answer.subs(point)) for point in points)
    for part in (part for side in (gold, answer) for part in preorder_traversal(side) if gold != answer):
        if type(part).__name__ in _SATURATED:
            argument = abs(part.args[-1].evalf(15))
            if argument.is_comparable and argument > _LARGEST_ARGUMENT:
                return False
    # Decimals are exact.
    first, second = (side.xreplace({one: Rational(str(one)) for one in side.atoms(Float)}) for side in (gold, answer))
    if sum(len(str(part)) for part in answer.atoms(Rational) - gold.atoms(Rational)) > _MOST_DIGITS:
        return False
    # Sums are worked out first: sympy's own digits of one whose terms are all small are none.
    difference = (first - second).doit().evalf(30, maxn=500)
    if not difference.is_comparable:
        return True
    # What is left without one certain digit after 500 of them were worked out is nothing.
    return not difference or difference._prec == 1


def drop_rights() -> list[str]:
    """Gives up rights for this process and its children, and returns what the system took: "privileges", "network".

    A network namespace of its own has no device that is up. It needs a user namespace, which also keeps a process from tracing
    its caller and from reading the caller's environment in /proc. A container or a distribution may forbid both.
    """
    if not _LINUX:
        return []
    libc = ctypes.CDLL(None)
    dropped = ["network"] if libc.unshare(_NEW_USER_AND_NETWORK) == 0 else []
    # No other process of this user may read a case out of our memory, nor can a setuid program give us rights.
    if libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0) == libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        dropped.append("privileges")
    return dropped


class _Argument(ctypes.Structure):
    """A condition on a system call's argument: `struct scmp_arg_cmp` of libseccomp."""

    _fields_ = (("number", ctypes.c_uint), ("how", ctypes.c_int), ("mask", ctypes.c_uint64), ("value", ctypes.c_uint64))


@functools.cache
def _filter() -> tuple[Any, Any] | None:
    """Returns libseccomp and its filter, by which all calls but a few fail; None where the library is not installed."""
    try:
        library = ctypes.CDLL("libseccomp.so.2" if _LINUX else "")
    except OSError:
        return None
    library.seccomp_init.restype, deny, allow = ctypes.c_void_p, 0x00050000 | errno.EPERM, 0x7FFF0000
    made = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(deny)))
    masked_equal, writing = 7, os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    for name in _CALLS.split():  # names that an architecture lacks have negative numbers, and are not found
        library.seccomp_rule_add_array(made, allow, library.seccomp_syscall_resolve_name(name.encode()), 0, None)
    for name, place in _OPENING.items():
        only_reading = ctypes.byref(_Argument(place, masked_equal, writing, 0))
        library.seccomp_rule_add_array(
            made, allow, library.seccomp_syscall_resolve_name(name.encode()), 1, only_reading
        )
    return library, made


def allow_few_calls() -> bool:
    """Has every system call of this process fail, for good, that comparing does not need; False where that is not possible."""
    found = _filter()
    return found is not None and found[0].seccomp_load(found[1]) == 0


def _work(fd_in: int, fd_out: int, memory_mb: int) -> None:
    """A worker's life: one case, under a limit of memory and of processor time."""
    if _LINUX:
        # Dies with its supervisor, whatever it is busy with.
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, int(signal.SIGKILL))
    limit = memory_mb << 20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The kernel ends us when our processor time is used up, however long that takes on a busy machine; somebody may
    # have started the supervisor with the signal ignored or blocked, which is inherited.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    allow_few_calls()
    case = read_frame(fd_in)
    if case is None:
        return
    signal.setitimer(signal.ITIMER_PROF, case["timeout"])
    try:
        outcome = _compare(case["gold"], case["answer"])
    except MemoryError:
        outcome = "memory"
    except Exception:  # anything at all that a parser does with hostile text is one outcome
        outcome = "crash"
    signal.setitimer(signal.ITIMER_PROF, 0)
    write_frame(fd_out, {"outcome": outcome})


class _Line:
    """A caller, as the supervisor sees it, with its cases that have not been looked at yet."""

    def __init__(self, sock: socket.socket) -> None:
        self.stream = Stream(sock)
        self.waiting: deque[_Case] = deque()
        self.open = 0
        self.closed = False


class _Case(NamedTuple):
    """A request, and how many workers have died of it."""

    line: _Line | None
    request: dict[str, Any]
    deaths: int = 0


class _Child:
    """A forked worker, as its supervisor sees it: idle, running a case, or parked in the middle of one."""

    def __init__(self, memory_mb: int) -> None:
        task_read, self.task_write = os.pipe()
        self.reply_read, reply_write = os.pipe()
        self.limit = memory_mb << 20
        self.case: _Case | None = None
        self.parked = False
        self.used = 0.0
        self.resumed = 0.0
        self.stopped = 0.0
        self.born = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                # It keeps its own two pipes: not the callers' sockets, nor other workers' pipes.
                for old, new in ((os.open(os.devnull, os.O_RDWR), 2), (task_read, 0), (reply_write, 3)):
                    os.dup2(old, new)
                os.closerange(4, _MOST_DESCRIPTORS)
                _work(0, 3, memory_mb)
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
        """How long it has worked at its case by the wall clock, without the time it was parked."""
        return self.used + (0.0 if self.parked else now - self.resumed)

    def give(self, case: _Case) -> bool:
        """Hands a case over; False where the worker has died in the meantime."""
        self.used, self.resumed = 0.0, time.monotonic()
        try:
            write_frame(self.task_write, case.request)
        except BrokenPipeError:
            return False
        self.case = case
        return True

    def memory(self) -> int:
        """Bytes that it holds, those that it shares with its supervisor included; its limit where the system does not tell."""
        try:
            _, resident, of_files, *_ = map(int, Path(f"/proc/{self.pid}/statm").read_text().split())
        except OSError:
            return self.limit
        return (resident - of_files) * resource.getpagesize()

    def park(self, now: float) -> None:
        """Stops it in the middle of its case."""
        self.used, self.parked, self.stopped = self.seconds(now), True, now
        os.kill(self.pid, signal.SIGSTOP)

    def has_had_its_slice(self, now: float) -> bool:
        """Whether it has worked for so long that others come first."""
        return self.case is not None and self.seconds(now) - self.used >= _SLICE * self.case.request["timeout"]

    def has_waited(self, now: float) -> bool:
        """Whether it is parked, and has been for so long that new cases must not come first."""
        return self.case is not None and self.parked and now - self.stopped >= _PATIENCE * self.case.request["timeout"]

    def resume(self, now: float) -> None:
        """Lets it go on."""
        self.resumed, self.parked = now, False
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Ends the worker, which takes milliseconds to give its memory back: see `reap`."""
        os.kill(self.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Closes its pipes."""
        os.close(self.task_write)
        os.close(self.reply_read)

    def reap(self, wait: bool = False) -> bool:
        """Whether it has gone, after `kill`."""
        return os.waitpid(self.pid, 0 if wait else os.WNOHANG)[0] == self.pid


class Supervisor:
    """Deals cases out to workers and sends their outcomes back.

    A case that takes longer than a slice is parked while others wait, so that a few endless ones delay no other case. Callers
    take turns.

    Args:
        workers: Workers at work at the same time.
        memory_mb: Address space that one worker may take, in MiB.
        backstop: Wall clock that a case may take, in multiples of its limit of processor time: for what does not work.
        parent: Process id of the process that started us; this process ends once it has gone.
        control: The socket on which callers' lines arrive.
    """

    def __init__(self, workers: int, memory_mb: int, backstop: float, parent: int, control: socket.socket) -> None:
        self.workers = workers
        self.memory_mb = memory_mb
        self.backstop = backstop
        self.parent = parent
        self.control = control
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ, None)
        self.lines: list[_Line] = []
        self.turns: deque[_Line] = deque()
        """Lines with cases that wait, in the order of their turns."""
        self.children: list[_Child] = []
        self.killed: list[_Child] = []
        self.stillborn = 0
        self.beat = time.monotonic()
        self._try_out()
        for _ in range(workers):
            self._spawn()

    def _try_out(self) -> None:
        """Has a worker look at one case: what is wrong with all of them shows now, and not in a verdict."""
        child = self._spawn()
        if not child.give(_Case(None, {"gold": "1", "answer": "1", "timeout": 60.0})):
            raise SystemExit("a worker ended before it got its first case")
        reply = read_frame(child.reply_read)
        if reply != {"outcome": "equal"}:
            raise SystemExit(f"a worker could not compare 1 with 1: {reply}; memory_mb={self.memory_mb}")
        self._remove(child)

    def _spawn(self) -> _Child:
        child = _Child(self.memory_mb)
        self.children.append(child)
        self.selector.register(child.reply_read, selectors.EVENT_READ, child)
        return child

    def _remove(self, child: _Child) -> None:
        self.selector.unregister(child.reply_read)
        self.children.remove(child)
        child.kill()
        self.killed.append(child)

    def _reply(self, child: _Child, outcome: str) -> None:
        case = child.case
        assert case is not None
        child.case = None
        self.stillborn = 0
        line = case.line
        if line is None or line.closed:
            return
        line.open -= 1
        seconds = child.seconds(time.monotonic())
        self._tell(line, {"id": case.request["id"], "outcome": outcome, "seconds": seconds})

    def _tell(self, line: _Line, message: dict[str, Any]) -> None:
        """Sends a caller a message, when it reads; never waits for it."""
        try:
            line.stream.send(message)
        except OSError:
            self._hang_up(line)
            return
        self._watch(line)

    def _watch(self, line: _Line) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.stream.unsent else 0)
        if self.selector.get_key(line.stream).events != events:
            self.selector.modify(line.stream, events, line)

    def _hang_up(self, line: _Line) -> None:
        """Forgets a caller that has gone, with its cases."""
        if line.closed:
            return
        line.closed = True
        self.selector.unregister(line.stream)
        line.stream.close()
        self.lines.remove(line)
        if line.waiting:
            self.turns.remove(line)
        for child in [child for child in self.children if child.case is not None and child.case.line is line]:
            self._remove(child)

    def _accept(self) -> bool:
        """Takes the lines that have arrived; False where the caller's process has gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.control, 1, 1)
        except BlockingIOError:
            return True
        for descriptor in descriptors:
            line = _Line(socket.socket(fileno=descriptor))
            self.lines.append(line)
            self.selector.register(line.stream, selectors.EVENT_READ, line)
        return bool(data)

    def _hear(self, line: _Line) -> None:
        """Reads what a caller asks, and sends it what it did not take before."""
        requests = line.stream.receive()
        if requests is None:
            self._hang_up(line)
            return
        if requests and not line.waiting:
            self.turns.append(line)
        line.waiting.extend(_Case(line, request) for request in requests)
        line.open += len(requests)
        try:
            line.stream.flush()
        except OSError:
            self._hang_up(line)
            return
        self._watch(line)

    def _next_case(self) -> _Case:
        """The next case of the caller whose turn it is."""
        line = self.turns.popleft()
        case = line.waiting.popleft()
        if line.waiting:
            self.turns.append(line)
        return case

    def _put_back(self, case: _Case) -> None:
        """Puts a case in front, to be tried with another worker."""
        line = case.line
        if line is None or line.closed:
            return
        if line.waiting:
            self.turns.remove(line)
        line.waiting.appendleft(case)
        self.turns.appendleft(line)

    def _running(self) -> list[_Child]:
        return [child for child in self.children if child.running]

    def _deal(self) -> None:
        """Fills the free places: those that are parked for long, new cases, those that are parked; each in their order."""
        now = time.monotonic()
        late = [child for child in self._running() if child.has_had_its_slice(now)] if self.turns else []
        if late:
            held = [child.memory() for child in self.children if child.parked]
            room = (self.memory_mb << 20) - sum(held)
            for child in late[: _MAX_PARKED - len(held)]:
                room -= child.memory()
                if room < 0:
                    break  # it goes on, and those that wait come after it
                child.park(now)
        for _ in range(self.workers - len(self._running())):
            parked = min((child for child in self.children if child.parked), key=lambda one: one.stopped, default=None)
            if self.turns and not (parked is not None and parked.has_waited(now)):
                child = next((child for child in self.children if child.case is None), None) or self._spawn()
                case = self._next_case()
                if not child.give(case):
                    self._put_back(case)
                    self._bury(child)
            elif parked is not None:
                parked.resume(now)

    def _keep_spares(self) -> None:
        """Keeps an idle worker for each place, so that a case does not wait for a fork."""
        idle = [child for child in self.children if child.case is None]
        for child in idle[self.workers + 1 :]:
            self._remove(child)
        for _ in range(self.workers - len(idle)):
            self._spawn()

    def _read_reply(self, child: _Child) -> None:
        """Takes a worker's reply, or finds out how it ended."""
        try:
            reply = read_frame(child.reply_read)
        except (OSError, ValueError):
            reply = None
        if reply is not None and child.case is not None:
            self._reply(child, str(reply.get("outcome")))
            self._remove(child)
        else:
            self._bury(child)

    def _bury(self, child: _Child) -> None:
        """Decides what the end of a worker without a reply means for its case."""
        self.selector.unregister(child.reply_read)
        self.children.remove(child)
        os.kill(child.pid, signal.SIGKILL)
        status = os.waitpid(child.pid, 0)[1]
        child.close()
        case = child.case
        if case is None:
            self.stillborn += time.monotonic() - child.born < 1.0
            if self.stillborn >= _MAX_STILLBORN:
                raise SystemExit(f"workers end before they get a case (status {status}); memory_mb={self.memory_mb}")
            return
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
            self._reply(child, "timeout")
        elif case.deaths + 1 < _TRIES:
            self._put_back(case._replace(deaths=case.deaths + 1))
        else:
            self._reply(child, "crash")

    def _kill_late(self) -> None:
        now = time.monotonic()
        for child in self._running():
            assert child.case is not None
            if child.seconds(now) >= self.backstop * child.case.request["timeout"]:
                self._reply(child, "wall")
                self._remove(child)

    def _beat(self) -> None:
        """Tells callers that wait that we are there."""
        now = time.monotonic()
        if now - self.beat >= BEAT_SECONDS:
            self.beat = now
            for line in [line for line in self.lines if line.open and not line.stream.unsent]:
                self._tell(line, {})

    def _wait(self) -> float:
        """Seconds until something is to be done although nothing arrives."""
        now = time.monotonic()
        times = [BEAT_SECONDS if any(line.open for line in self.lines) else 5 * BEAT_SECONDS]
        for child in self._running():
            assert child.case is not None
            times.append(self.backstop * child.case.request["timeout"] - child.seconds(now))
            if self.turns:
                times.append(_SLICE * child.case.request["timeout"])
        if self.killed:
            times.append(_REAP_SECONDS)
        return max(0.0, min(times))

    def run(self) -> None:
        """Works until the caller's process closes its end or goes away."""
        while os.getppid() == self.parent:
            self._deal()
            self._keep_spares()
            self.killed = [child for child in self.killed if not child.reap()]
            for key, _ in self.selector.select(self._wait()):
                if key.data is None:
                    if not self._accept():
                        return
                elif isinstance(key.data, _Line):
                    if not key.data.closed:
                        self._hear(key.data)
                elif key.data in self.children:
                    self._read_reply(key.data)
            self._kill_late()
            self._beat()

    def close(self) -> None:
        """Kills every worker."""
        for child in self.children:
            child.kill()
        for child in self.children + self.killed:
            child.reap(wait=True)


def _warm() -> None:
    """Loads and exercises the symbolic stack, so that no time limit pays for it."""
    logging.disable(logging.CRITICAL)
    # A worker may start no thread, and sympy loads numpy for some sums.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for gold, answer in _WARM_UP:
        with contextlib.suppress(Exception):  # as in a worker: what matters is what was loaded
            _compare(gold, answer)
    gc.collect()
    # Workers share these pages; a collection in one of them must not copy them all.
    gc.freeze()


def main() -> None:
    """Reads the settings, warms up, says `ready`, and works."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = read_frame(0)
    if settings is None:
        return
    sys.path.extend(entry for entry in settings["path"] if entry not in sys.path)
    # A line for every thread of a busy caller may be more than the usual limit of open files.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS calls "unlimited" what it then refuses
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _warm()
    dropped = drop_rights()
    if _filter() is not None:
        dropped.append("calls")
    control = socket.socket(fileno=os.dup(0))
    supervisor = Supervisor(**settings["limits"], parent=settings["pid"], control=control)
    write_frame(0, {"ready": True, "dropped": dropped})
    control.setblocking(False)
    try:
        supervisor.run()
    except ConnectionResetError:
        pass  # the caller has gone: there is no one left to answer
    finally:
        supervisor.close()


if __name__ == "__main__":
    main()
