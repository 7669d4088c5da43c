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
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from light_worker import light_workers

from mathturn_gym.errors import VerifierError
from mathturn_gym.verifier import Status, Verifier
from mathturn_gym.verifier.symbolic import _pool, _worker
from mathturn_gym.verifier.symbolic._pool import SymbolicPool, shared_pool

QUICK = ("6", "\\sum_{k=1}^{3} k")
ENDLESS = ("42", "\\prod_{k=1}^{100000000} k")

ENDLESS_ONES = [("42", f"{ENDLESS[1]} + {number}") for number in range(4)]


@pytest.fixture(scope="module", autouse=True)
def light(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Most tests are of processes, not of mathematics."""
    with light_workers(tmp_path_factory.mktemp("light")):
        yield


@pytest.fixture(scope="module")
def pool(light: None) -> Iterator[SymbolicPool]:
    pool = SymbolicPool(timeout=0.4, memory_mb=1024, workers=2)
    pool.start()
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def verifier(light: None) -> Iterator[Verifier]:
    """One with the workers that everybody has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_pool, "__file__", str(Path(_worker.__file__).with_name("_pool.py")))
        verifier = Verifier(form="equivalent", timeout=0.5)
        verifier.warm()
    yield verifier
    verifier.close()


def _stat(pid: int) -> list[str]:
    """State and counters of a process; state "X" of one that has gone, before the file is opened or after."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["X"]


def alive(pid: int) -> bool:
    return _state(pid) not in "XZ"


def gone(pid: int) -> bool:
    """Waits for a process to end."""
    end = time.monotonic() + 60.0
    while alive(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_results_are_in_the_order_of_the_cases(verifier: Verifier) -> None:
    cases = [("x", "x"), ("\\frac{", "x"), ("x", "y"), QUICK]
    found = [result.name for result in verifier._symbolic().compare(cases)]
    assert found == ["equal", "unparsed", "different", "equal"]


def test_a_case_ends_at_its_limit_and_the_next_one_is_judged(pool: SymbolicPool) -> None:
    endless, quick = pool.compare([ENDLESS, ("x", "x")])
    assert (endless.name, quick.name) == ("timeout", "equal")
    # `timeout` is the limit of processor time: the backstop on the clock, which a busy machine may reach, is `wall`.
    assert endless.seconds >= pool.timeout
    assert pool.compare([("x", "x")])[0].name == "equal"


def test_endless_cases_do_not_delay_the_others() -> None:
    pool = SymbolicPool(timeout=0.4, memory_mb=1024, workers=2)
    pool.start()
    done: dict[str, float] = {}

    def work(name: str, cases: list[tuple[str, str]]) -> None:
        results = pool.compare(cases)
        done[name] = time.monotonic()
        expected = "timeout" if name == "endless" else "equal"
        assert {result.name for result in results} == {expected}

    endless = threading.Thread(target=work, args=("endless", ENDLESS_ONES))
    endless.start()
    time.sleep(0.1)
    quick = threading.Thread(target=work, args=("quick", [("x+1", "1+x")] * 20))
    quick.start()
    endless.join()
    quick.join()
    pool.close()
    # Both workers were busy for twice the limit each time; in turn, the quick cases would have come last.
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
    """What a worker replies to one case, or the signal that ended it: a worker of this process."""
    monkeypatch.setattr(_worker, "_compare", compare)
    child = _worker._Child(2048)
    assert child.give(_worker._Case(None, {"gold": gold, "answer": "", "timeout": timeout}))
    reply = _worker.read_frame(child.reply_read)
    status = os.waitpid(child.pid, 0)[1]
    child.close()
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
    return _stat(pid)[0]


def test_a_case_that_waits_instead_of_working_ends_at_the_backstop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pool, "_BACKSTOP", 0.2)
    slow = SymbolicPool(timeout=5.0, memory_mb=1024, workers=1)
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
    assert result.seconds >= 1.0


def _busy(pid: int) -> bool:
    """Whether a worker is at a case: one that has just been forked, and waits for its first, has used no time yet."""
    fields = _stat(pid)
    return fields[0] == "R" and int(fields[11]) + int(fields[12]) >= 10


def test_a_worker_killed_from_outside_has_its_case_tried_again() -> None:
    pool = SymbolicPool(timeout=60.0, memory_mb=1024, workers=2)
    pool.start()
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
    pool.close()


def test_a_caller_that_gives_up_takes_its_cases_along(pool: SymbolicPool) -> None:
    assert pool.pid is not None
    long = SymbolicPool(timeout=60.0, memory_mb=1024, workers=2)
    with long.session() as session:
        session.ask(*ENDLESS)
    assert long.compare([QUICK])[0].name == "equal"
    assert long.pid is not None
    end = time.monotonic() + 60.0
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
    end = time.monotonic() + 60.0
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
    assert pool._supervisor is not None
    while pool._supervisor.idle:  # without a line from before, too
        pool._supervisor.idle.pop().close()
    assert pool.pid is not None
    os.kill(pool.pid, signal.SIGKILL)
    assert gone(pool.pid)
    assert pool.compare([QUICK])[0].name == "equal"


def test_cases_over_which_three_supervisors_died_are_given_up(pool: SymbolicPool) -> None:
    with pool.session() as session:
        session.ask(*ENDLESS)
        for _ in range(3):
            assert pool.pid is not None
            os.kill(pool.pid, signal.SIGKILL)
            assert session._line is not None
            session._lose(session._line)
            if session._open:
                session._connect()
        assert session.result(*ENDLESS).name == "crash"
        session.ask(*QUICK)
        assert session.result(*QUICK).name == "equal"
        assert not session._open, "what was given up is not asked again"


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_supervisor_keeps_nothing_of_what_has_ended() -> None:
    pool = SymbolicPool(timeout=5.0, memory_mb=1024, workers=1)
    pool.start()
    pid = pool.pid
    assert pid is not None
    for child in children_of(pid):  # before the first case
        os.kill(child, signal.SIGKILL)
    pool.compare([QUICK])

    def held() -> int:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))

    before = held()
    for number in range(8):
        with pool.session() as session:  # a line that is closed with its case
            session.ask("42", f"{ENDLESS[1]} + {number}")
    assert [result.name for result in pool.compare([QUICK, *((str(n), str(n)) for n in range(8))])] == ["equal"] * 9
    end = time.monotonic() + 10.0
    while held() > before + 2:
        assert time.monotonic() < end, f"{before} descriptors became {held()}"
        time.sleep(0.02)
    assert pool.pid == pid
    pool.close()


def test_a_line_that_has_gone_is_forgotten_with_its_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_worker, "_compare", lambda gold, answer: "equal")
    ours, theirs = socket.socketpair()
    caller, line_end = socket.socketpair()
    with ours, theirs, caller:
        supervisor = _worker.Supervisor(1, 1024, 30.0, os.getpid(), theirs)
        with line_end:
            socket.send_fds(ours, [b"+"], [line_end.fileno()])
        assert supervisor._accept()
        (line,) = supervisor.lines
        case = _worker._Case(line, {"id": 0, "gold": "", "answer": "", "timeout": 60.0})
        supervisor._put_back(case)
        assert list(supervisor.turns) == [line]
        supervisor._hang_up(line)
        supervisor._put_back(case)
        assert not supervisor.lines
        assert not supervisor.turns
        supervisor.close()
        supervisor.selector.close()


def test_numbers_that_are_only_near_are_different(verifier: Verifier) -> None:
    near = [("1.00000000001", "1"), ("1", "1.00000000001"), ("\\sqrt{2}", "1.4142135623730951"), ("1", "1.0")]
    found = [result.name for result in verifier._symbolic().compare(near)]
    assert found == ["different", "different", "different", "equal"]


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
        "import sys, os, signal\n"
        "from mathturn_gym.verifier import Verifier\n"
        "from mathturn_gym.verifier.symbolic import _pool\n"
        "_pool.__file__ = sys.argv[2]\n"
        "v = Verifier(timeout=9.0); v.warm(); print(v._symbolic().pid, flush=True)\n"
        "if sys.argv[1] == 'killed': os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for how in ("ended", "killed"):
        # Another working directory: workers are found by the package, not by where one stands.
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script, how, _pool.__file__],
            capture_output=True,
            text=True,
            cwd=tmp_path,
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


def test_undecided_is_not_right(verifier: Verifier) -> None:
    verdict = verifier.verify(ENDLESS[1], ENDLESS[0], kind="answer")
    assert (verdict.status, verdict.reason, verdict.correct) == (Status.UNDECIDED, "time limit", False)
    assert verdict.seconds >= 0.5


def test_no_text_is_run_as_code(tmp_path: Path, verifier: Verifier) -> None:
    marker = tmp_path / "made"
    attacks = [
        f"__import__('os').system('touch {marker}')",
        f"open('{marker}','w')",
        f"\\frac{{open('{marker}','w')}}{{2}}",
        f"(lambda: open('{marker}','w'))()",
        f"sympify(\"open('{marker}','w')\")",
        f"5\nopen('{marker}','w')",
    ]
    for attack in attacks:
        assert not verifier.verify(attack, "42", kind="answer").correct
        assert not verifier.verify("42", attack, kind="answer").correct
    assert not marker.exists()


# ---- what a case can reach


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone lets a process give up these rights")


def _attempt(gold: str, answer: str) -> str:
    """Runs an attack by its name: hostile text that has taken a worker over."""
    attacks: dict[str, Callable[[], object]] = {
        "connect": lambda: socket.create_connection(("127.0.0.1", 9), timeout=1.0),
        "write": lambda: os.open("/tmp/mathturn-was-here", os.O_WRONLY | os.O_CREAT),
        "append": lambda: os.open(__file__, os.O_RDWR),
        "delete": lambda: os.unlink("/tmp/mathturn-was-here"),  # noqa: PTH108
        "start a process": os.fork,
        "run a program": lambda: os.execv("/bin/true", ["true"]),
        "signal its caller": lambda: os.kill(os.getppid(), 0),
        "read": lambda: Path(__file__).read_text(),
    }
    try:
        attacks[gold]()
    except PermissionError:
        return "refused"
    return "done"


@LINUX
@pytest.mark.skipif(_worker._filter() is None, reason="libseccomp is not installed")
@pytest.mark.parametrize(
    "attack",
    ["connect", "write", "append", "delete", "start a process", "run a program", "signal its caller"],
)
def test_a_worker_can_compute_and_read_and_nothing_else(monkeypatch: pytest.MonkeyPatch, attack: str) -> None:
    assert _outcome(monkeypatch, _attempt, attack, 10.0) == "refused"
    assert _outcome(monkeypatch, _attempt, "read", 10.0) == "done"


@LINUX
def test_a_worker_holds_its_own_pipes_and_nothing_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller's socket in a worker's hands would let a case answer another one."""

    def held(gold: str, answer: str) -> str:
        links = [str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
        return " ".join(sorted(link.partition(":")[0] for link in links if link != "/dev/null"))

    ours, theirs = socket.socketpair()
    with ours, theirs:
        others = _worker._Child(2048)
        opened = _outcome(monkeypatch, held, "", 10.0).split()
        others.kill()
        others.reap(wait=True)
    assert opened.count("pipe") == 2
    assert "socket" not in opened


def test_a_supervisor_gets_no_key_and_the_same_hashes_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []
    whole = subprocess.Popen

    def recorded(*args: Any, **options: Any) -> Any:
        started.append(options["env"])
        return whole(*args, **options)

    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setattr(subprocess, "Popen", recorded)
    pool = SymbolicPool(timeout=1.0, memory_mb=1024, workers=1)
    pool.start()
    if sys.platform == "linux":
        assert "NoNewPrivs:\t1" in Path(f"/proc/{pool.pid}/status").read_text()
    pool.close()
    assert started[0]["PYTHONHASHSEED"] == "0"
    assert not {name for name in started[0] if "KEY" in name or "TOKEN" in name}
    assert set(started[0]) <= {*_pool._PASSED, "PYTHONHASHSEED"}


@LINUX
def test_a_supervisor_gives_up_network_and_privileges(tmp_path: Path) -> None:
    """Without the network, even a service of this machine cannot be reached; where the system refuses, nothing is claimed."""
    script = (
        "import os, socket, sys\n"
        "from mathturn_gym.verifier.symbolic._worker import drop_rights\n"
        "dropped = drop_rights()\n"
        "def fails(call, *args):\n"
        "    try: call(*args)\n"
        "    except OSError: return True\n"
        "with open('/proc/self/status') as file: text = file.read()\n"
        "assert ('privileges' in dropped) == ('NoNewPrivs:\\t1' in text), (dropped, text)\n"
        "alone = fails(socket.create_connection, ('127.0.0.1', int(sys.argv[1])), 5.0)\n"
        "assert ('network' in dropped) == alone, dropped\n"
        "parents = fails(open, f'/proc/{os.getppid()}/environ')\n"
        "assert not ('network' in dropped and not parents), 'the keys of the caller can be read'\n"
        "print(*dropped)"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", script, str(server.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "privileges" in done.stdout


@LINUX
@pytest.mark.parametrize(
    ("before", "held", "parked"),
    [(0, (300, 300, 300), 3), (0, (600, 500, 10), 1), (0, (1025, 10, 10), 0), (500, (300, 300, 300), 1)],
)
def test_a_case_is_parked_while_there_is_room_for_its_memory(
    monkeypatch: pytest.MonkeyPatch, before: int, held: tuple[int, ...], parked: int
) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(_worker, "_compare", lambda gold, answer: "equal" if gold == "1" else _spin(gold, answer))
    with ours, theirs:
        line = _worker._Line(ours)
        supervisor = _worker.Supervisor(3, 1024, 30.0, os.getpid(), theirs)
        cases = [_worker._Case(line, {"id": number, "gold": "", "answer": "", "timeout": 60.0}) for number in range(7)]
        for child, case, size in zip(supervisor.children, cases[:3], held, strict=True):
            assert child.give(case)
            child.resumed -= 59.0
            monkeypatch.setattr(child, "memory", lambda size=size: size << 20)
        if before:
            first = supervisor._spawn()
            assert first.give(cases[6])
            first.park(time.monotonic())
            monkeypatch.setattr(first, "memory", lambda: before << 20)
        line.waiting.extend(cases[3:6])
        supervisor.turns.append(line)
        supervisor._deal()
        stopped = [child.pid for child in supervisor.children if child.parked]
        end = time.monotonic() + 60.0
        while not all(_state(pid) == "T" for pid in stopped):  # it uses no processor while it is parked
            assert time.monotonic() < end
        supervisor.close()
        supervisor.selector.close()
    assert len(stopped) == parked + bool(before)


def test_the_memory_of_a_worker_is_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    child = _worker._Child(2048)
    seen = child.memory()
    assert 2**20 < seen < 2**31
    monkeypatch.setattr(_worker, "Path", lambda name: Path("/nowhere"))
    assert child.memory() == 2**31
    child.kill()
    child.reap(wait=True)


def test_a_busy_worker_does_not_outlive_its_supervisor() -> None:
    """One that waits sees its pipe close; one at a case would go on until its limit, or for ever where it has none."""
    pool = SymbolicPool(timeout=3600.0, memory_mb=1024, workers=1)
    pool.start()
    assert pool.pid is not None
    with pool.session() as session:
        session.ask(*ENDLESS)
        while not (busy := [child for child in children_of(pool.pid) if _busy(child)]):
            time.sleep(0.001)
        os.kill(pool.pid, signal.SIGKILL)
        assert gone(busy[0])
    pool.close()


def _in_a_fork(check: Callable[[], bool]) -> int:
    """The exit code of a forked child: 0 where the check holds, 14 where it does not come back within 30 seconds."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(120)
        code = 1
        try:
            code = int(not check())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_has_no_process_of_its_parents_to_wait_for(
    pool: SymbolicPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.compare([QUICK])  # a line that is kept refers to its supervisor, so that only a collection finds both
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _in_a_fork(lambda: gc.collect() >= 0 and not told) == 0


def test_a_forked_child_shares_neither_a_supervisor_nor_a_held_lock(pool: SymbolicPool) -> None:
    """A lock that a thread of the parent holds at that moment is never opened in the child."""
    pool.start()
    supervisor = pool._supervisor
    assert supervisor is not None
    assert _in_a_fork(lambda: supervisor.control.fileno() == -1) == 0
    with pool._lock, _pool._shared_lock:
        assert _in_a_fork(lambda: pool.pid is None and pool._lock.acquire(timeout=5.0)) == 0
        assert _in_a_fork(lambda: shared_pool(3.5, 1024, 1).timeout == 3.5) == 0
    assert pool.compare([QUICK])[0].name == "equal"
