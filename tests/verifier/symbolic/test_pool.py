"""Symbolic work: bounded in time and memory, killed and replaced, shared, and gone when nobody needs it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mathturn_gym.errors import VerifierError
from mathturn_gym.verifier import Status, Verifier
from mathturn_gym.verifier.symbolic import _pool, _worker
from mathturn_gym.verifier.symbolic._pool import SymbolicPool, shared_pool

QUICK = ("6", "\\sum_{k=1}^{3} k")
ENDLESS = ("42", "\\prod_{k=1}^{100000000} k")

ENDLESS_ONES = [("42", f"{ENDLESS[1]} + {number}") for number in range(4)]


@pytest.fixture(scope="module")
def pool() -> Iterator[SymbolicPool]:
    pool = SymbolicPool(timeout=1.0, memory_mb=1024, workers=2)
    pool.start()
    yield pool
    pool.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def gone(pid: int) -> bool:
    """Waits for a process to end."""
    end = time.monotonic() + 10.0
    while alive(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_results_are_in_the_order_of_the_cases(pool: SymbolicPool) -> None:
    cases = [("x", "x"), ("\\frac{", "x"), ("x", "y"), QUICK]
    assert [result.name for result in pool.compare(cases)] == ["equal", "unparsed", "different", "equal"]


def test_a_case_ends_at_its_limit_and_the_next_one_is_judged(pool: SymbolicPool) -> None:
    endless, quick = pool.compare([ENDLESS, ("x", "x")])
    assert (endless.name, quick.name) == ("timeout", "equal")
    # `timeout` is the limit of processor time: the backstop on the clock, which a busy machine may reach, is `wall`.
    assert endless.seconds >= pool.timeout
    assert pool.compare([("x", "x")])[0].name == "equal"


def test_endless_cases_do_not_delay_the_others() -> None:
    pool = SymbolicPool(timeout=1.0, memory_mb=1024, workers=2)
    pool.start()
    done: dict[str, float] = {}

    def work(name: str, cases: list[tuple[str, str]]) -> None:
        results = pool.compare(cases)
        done[name] = time.monotonic()
        expected = "timeout" if name == "endless" else "equal"
        assert {result.name for result in results} == {expected}

    endless = threading.Thread(target=work, args=("endless", ENDLESS_ONES))
    endless.start()
    time.sleep(0.3)
    quick = threading.Thread(target=work, args=("quick", [("x+1", "1+x")] * 20))
    quick.start()
    endless.join()
    quick.join()
    pool.close()
    # Both workers were busy for two seconds each time; in turn, the quick cases would have come last.
    assert done["quick"] < done["endless"]


def test_a_slow_case_ends_however_many_quick_ones_come() -> None:
    """One that was parked goes on although somebody else always waits."""
    pool = SymbolicPool(timeout=0.25, memory_mb=1024, workers=1)
    pool.start()
    ended = threading.Event()

    def wait() -> None:
        assert pool.compare([ENDLESS])[0].name == "timeout"
        ended.set()

    slow = threading.Thread(target=wait)
    slow.start()
    with pool.session() as session:
        cases = [(str(number), f"{number}+0") for number in range(5_000)]
        for number, case in enumerate(cases):
            session.ask(*case)
            if number >= 40:
                session.result(*cases[number - 40])
            if ended.is_set():
                break
    slow.join()
    pool.close()
    assert number < len(cases) - 1


def _eat(gold: str, answer: str) -> str:
    return "equal" if len(bytearray(int(gold) << 20)) else "different"


def _spin(gold: str, answer: str) -> str:
    while True:
        pass


def _outcome(monkeypatch: pytest.MonkeyPatch, compare: Callable[[str, str], str], gold: str, timeout: float) -> Any:
    """What a worker replies to one case, or the signal that ended it: the worker itself, in a fork of this process."""
    monkeypatch.setattr(_worker, "_compare", compare)
    task_read, task_write = os.pipe()
    reply_read, reply_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _worker._work(task_read, reply_write, 2048)
        finally:
            os._exit(0)
    os.close(reply_write)
    _worker.write_frame(task_write, {"gold": gold, "answer": "", "timeout": timeout})
    reply = _worker.read_frame(reply_read)
    status = os.waitpid(pid, 0)[1]
    for fd in (task_read, task_write, reply_read):
        os.close(fd)
    return signal.Signals(os.WTERMSIG(status)) if reply is None else reply["outcome"]


@pytest.mark.parametrize(("megabytes", "outcome"), [(10, "equal"), (4096, "memory")])
def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch, megabytes: int, outcome: str) -> None:
    assert _outcome(monkeypatch, _eat, str(megabytes), 10.0) == outcome


def test_processor_time_is_bounded_even_where_the_signal_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGPROF, signal.SIG_IGN)
    try:
        assert _outcome(monkeypatch, _spin, "", 0.1) is signal.SIGPROF
    finally:
        signal.signal(signal.SIGPROF, before)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_a_case_that_waits_instead_of_working_ends_at_the_backstop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pool, "_BACKSTOP", 1.0)
    slow = SymbolicPool(timeout=2.0, memory_mb=1024, workers=1)
    slow.start()
    assert slow.pid is not None
    with slow.session() as session:
        session.ask(*ENDLESS)
        while not (running := [child for child in children_of(slow.pid) if _state(child) == "R"]):
            time.sleep(0.001)
        # A worker that somebody stops uses no processor time.
        os.kill(running[0], signal.SIGSTOP)
        result = session.result(*ENDLESS)
    slow.close()
    assert (result.name, result.repeatable) == ("wall", False)
    assert result.seconds >= 2.0


def _busy(pid: int) -> bool:
    """Whether a worker is at a case: one that has just been forked, and waits for its first, has used no time yet."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except FileNotFoundError:
        return False
    return fields[0] == "R" and int(fields[11]) + int(fields[12]) >= 10


def test_a_worker_killed_from_outside_has_its_case_tried_again(pool: SymbolicPool) -> None:
    assert pool.pid is not None
    with pool.session() as session:
        session.ask(*ENDLESS)
        for _ in range(2):
            while not (running := [child for child in children_of(pool.pid) if _busy(child)]):
                time.sleep(0.001)
            os.kill(running[0], signal.SIGKILL)
            while _busy(running[0]):
                time.sleep(0.001)
        result = session.result(*ENDLESS)
    assert (result.name, result.repeatable) == ("crash", False)
    assert pool.compare([QUICK])[0].name == "equal"


def test_a_caller_that_gives_up_takes_its_cases_along(pool: SymbolicPool) -> None:
    assert pool.pid is not None
    long = SymbolicPool(timeout=60.0, memory_mb=1024, workers=2)
    with long.session() as session:
        session.ask(*ENDLESS)
    assert long.compare([QUICK])[0].name == "equal"
    assert long.pid is not None
    end = time.monotonic() + 10.0
    while any(_state(child) in "RT" for child in children_of(long.pid)):
        assert time.monotonic() < end, "somebody works at a case that nobody waits for"
        time.sleep(0.02)
    long.close()


def test_callers_take_turns(pool: SymbolicPool) -> None:
    with pool.session() as first, pool.session() as second:
        for number in range(40):
            first.ask("42", f"{ENDLESS[1]} + {number}")
        second.ask(*QUICK)
        assert second.result(*QUICK).name == "equal"
        assert not first._results


def test_lines_are_used_again(pool: SymbolicPool) -> None:
    pool.compare([QUICK])
    assert pool._supervisor is not None
    for _ in range(5):
        pool.compare([QUICK])
    assert len(pool._supervisor.idle) <= 3  # those of the tests before


def test_what_a_supervisor_says_must_be_a_message() -> None:
    ours, theirs = socket.socketpair()
    stream = _worker.Stream(ours)
    _worker.write_frame(theirs.fileno(), {"id": 1})
    assert stream.receive() == [{"id": 1}]
    assert stream.receive() == []
    stream.close()
    theirs.close()
    for garbage in (b"\x03\x00\x00\x00[1]", b"\x02\x00\x00\x00{]", b"\xff\xff\xff\xffx"):
        ours, theirs = socket.socketpair()
        with theirs:
            stream = _worker.Stream(ours)
            theirs.sendall(garbage)
            assert stream.receive() is None
            stream.close()


def test_more_than_a_pipeful_never_blocks_the_sender() -> None:
    ours, theirs = socket.socketpair()
    stream, other = _worker.Stream(ours), _worker.Stream(theirs)
    sent = [{"text": "x" * 100_000, "number": number} for number in range(30)]
    for message in sent:
        stream.send(message)
    assert stream.unsent
    heard: list[dict[str, Any]] = []
    while len(heard) < len(sent):
        messages = other.receive()
        assert messages is not None
        heard += messages
        stream.flush()
    assert heard == sent
    stream.close()
    other.close()


def test_a_killed_worker_is_replaced(pool: SymbolicPool) -> None:
    assert pool.pid is not None
    for child in children_of(pool.pid):
        os.kill(child, signal.SIGKILL)
    assert pool.compare([QUICK, ("x", "x")])[0].name in ("equal", "crash")
    assert [result.name for result in pool.compare([QUICK, ("x", "x")])] == ["equal", "equal"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_that_were_killed_are_waited_for(pool: SymbolicPool) -> None:
    assert pool.compare([QUICK])[0].name == "equal"
    assert pool.pid is not None
    before = children_of(pool.pid)
    assert {result.name for result in pool.compare(ENDLESS_ONES)} == {"timeout"}
    end = time.monotonic() + 10.0
    while not all(alive(pid) for pid in children_of(pool.pid)):
        assert time.monotonic() < end, "a process that has ended is still listed"
        time.sleep(0.02)
    # As many as it takes: one at work and one spare for each worker, and one over.
    assert set(before) - set(children_of(pool.pid))
    assert len(children_of(pool.pid)) <= 2 * pool.workers + 1


def test_a_killed_supervisor_is_replaced(pool: SymbolicPool) -> None:
    before = pool.pid
    assert before is not None
    workers = children_of(before)
    os.kill(before, signal.SIGKILL)
    assert pool.compare([QUICK])[0].name == "equal"
    assert pool.pid != before
    assert all(gone(worker) for worker in workers)


def test_nothing_is_started_before_it_is_needed_and_nothing_stays() -> None:
    verifier = Verifier(form="equivalent", timeout=7.0)
    assert verifier.verify("\\boxed{1}", "1").correct
    assert shared_pool(7.0, 1024, 2).pid is None
    assert verifier.verify(QUICK[1], QUICK[0], kind="answer").correct
    pid = shared_pool(7.0, 1024, 2).pid
    assert pid is not None
    other = Verifier(timeout=7.0)
    other.warm()
    assert shared_pool(7.0, 1024, 2).pid == pid
    workers = children_of(pid)
    verifier.close()
    assert alive(pid)
    del other
    gc.collect()
    assert gone(pid)
    assert all(gone(worker) for worker in workers)


def test_workers_end_with_their_process(tmp_path: Path) -> None:
    script = (
        "from mathturn_gym.verifier import Verifier\n"
        "v = Verifier(timeout=9.0); v.warm(); print(v._symbolic().pid, flush=True)\n"
        "import sys, os, signal\n"
        "if sys.argv[1] == 'killed': os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for how in ("ended", "killed"):
        # Another working directory: workers are found by the package, not by where one stands.
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script, how], capture_output=True, text=True, cwd=tmp_path
        )
        assert not done.stderr
        assert gone(int(done.stdout))


def _verify_in_child(connection: object) -> None:
    verdicts = [_PARENT.verify(QUICK[1], QUICK[0], kind="answer").correct, Verifier().verify("\\boxed{2}", "2").correct]
    connection.send((verdicts, _PARENT._symbolic().pid))  # type: ignore[attr-defined]


_PARENT = Verifier(form="equivalent", timeout=15.0)


def test_a_forked_daemonic_process_gets_workers_of_its_own() -> None:
    _PARENT.warm()
    pid = _PARENT._symbolic().pid
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_verify_in_child, args=(theirs,), daemon=True)
    child.start()
    assert ours.poll(60.0)
    verdicts, child_pid = ours.recv()
    child.join()
    assert verdicts == [True, True]
    assert child_pid not in (None, pid)
    assert gone(child_pid)
    assert _PARENT.verify("\\sum_{k=1}^{3} k + 1", "7", kind="answer").correct
    assert _PARENT._symbolic().pid == pid
    _PARENT.close()


def test_workers_that_do_not_start_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(VerifierError, match="did not start"):
        SymbolicPool(timeout=1.0, memory_mb=1024, workers=1).start()


def test_undecided_is_not_right() -> None:
    with Verifier(form="equivalent", timeout=0.5) as verifier:
        verifier.warm()
        verdict = verifier.verify(ENDLESS[1], ENDLESS[0], kind="answer")
    assert (verdict.status, verdict.reason, verdict.correct) == (Status.UNDECIDED, "time limit", False)
    assert verdict.seconds >= 0.5


def test_no_text_is_run_as_code(tmp_path: Path) -> None:
    marker = tmp_path / "made"
    attacks = [
        f"__import__('os').system('touch {marker}')",
        f"open('{marker}','w')",
        f"\\frac{{open('{marker}','w')}}{{2}}",
        f"(lambda: open('{marker}','w'))()",
        f"sympify(\"open('{marker}','w')\")",
        f"5\nopen('{marker}','w')",
    ]
    with Verifier(form="equivalent", timeout=5.0) as verifier:
        for attack in attacks:
            assert not verifier.verify(attack, "42", kind="answer").correct
            assert not verifier.verify("42", attack, kind="answer").correct
    assert not marker.exists()
