"""What happens to a verifier on a bad day, counted: forks while threads verify, interrupts, deaths, stopped workers.

    python benchmarks/verifier_faults.py [--forks 500] [--interrupts 1000] [--out runs/benchmarks/verifier_faults.json]

forks        A process with three threads that verify forks again and again; each child verifies too, and every
             twenty-fifth asks for symbolic work. A child that does not come back in time hangs.
interrupts   SIGALRM raises an exception at random moments of symbolic verdicts, as Ctrl-C would, while another thread
             verifies. Afterwards every verdict must still come, nothing may be left open, and no process too many.
deaths       The supervisor of the symbolic workers is killed, again and again, in the middle of cases.
stops        The supervisor is stopped (SIGSTOP) under a caller with more cases than a pipe holds.

Exit code 1 where anything hung, failed, or came out wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from mathturn_gym.verifier import Verifier
from mathturn_gym.verifier.symbolic import _pool

SYMBOLIC = ("6", "\\sum_{k=1}^{3} k")
TIMEOUT = 11.0
"""A limit that no other verifier of the process has, so that the workers are this script's own."""


def _kill(pid: int) -> None:
    """Kills a process that may have ended by itself in the meantime."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """Process ids of a process' children (Linux)."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Background:
    """Threads that verify until they are told to stop: quick verdicts, remembered ones, and symbolic ones."""

    def __init__(self, verifier: Verifier, threads: int, symbolic: bool) -> None:
        self.verdicts = 0
        self.wrong: list[str] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(verifier, number, symbolic)) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, verifier: Verifier, number: int, symbolic: bool) -> None:
        turn = number * 1_000_000
        while not self._stop.is_set():
            turn += 1
            cases = [(f"\\frac{{{2 * turn}}}{{2}}", str(turn)), ("x+1", "1+x")]
            if symbolic and turn % 50 == 0:
                cases.append((f"\\sum_{{k=1}}^{{3}} k + {turn}", str(6 + turn)))
            for response, gold in cases:
                verdict = verifier.verify(response, gold, kind="answer")
                self.verdicts += 1
                if not verdict.correct:
                    self.wrong.append(f"{response} for {gold}: {verdict}")

    def stop(self) -> None:
        """Waits for the threads; one that does not end is reported."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60.0)
            if thread.is_alive():
                self.wrong.append("a thread hangs")


def forks(count: int, threads: int = 3, symbolic_every: int = 25, patience: float = 600.0) -> dict[str, Any]:
    """Forks while threads verify; counts the children that hung or failed."""
    verifier = Verifier(form="equivalent", timeout=TIMEOUT)
    verifier.warm()
    background = Background(verifier, threads, symbolic=True)
    found: dict[str, Any] = {"forks": count, "threads": threads, "hung": 0, "failed": 0}
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                right = [verifier.verify(f"\\frac{{{number}}}{{1}}", str(number), kind="answer").correct]
                right.append(verifier.verify("x + 1 ", "1+x", kind="answer").correct)
                right.append(Verifier().verify(f"\\boxed{{{number}}}", str(number)).correct)
                if number % symbolic_every == 0:
                    right.append(verifier.verify(SYMBOLIC[1], SYMBOLIC[0], kind="answer").correct)
                verifier.close()
                code = 0 if all(right) else 2
            finally:
                os._exit(code)
        end = time.monotonic() + patience
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < end:
            time.sleep(0.001)
        if ended[0] == 0:
            found["hung"] += 1
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        else:
            found["failed"] += ended[1] != 0
    while background.verdicts <= 100 and not background.wrong:
        time.sleep(0.01)
    background.stop()
    found |= {"verdicts_of_threads": background.verdicts, "wrong": background.wrong[:5]}
    found["ok"] = not (found["hung"] or found["failed"] or found["wrong"])
    verifier.close()
    return found


class AlarmError(Exception):
    """What the signal handler raises."""


def interrupts(count: int, seed: int = 0) -> dict[str, Any]:
    """Interrupts symbolic verdicts at random moments; then everything must be as before."""
    rng = random.Random(seed)
    verifier = Verifier(form="equivalent", timeout=TIMEOUT)
    verifier.warm()
    background = Background(verifier, 1, symbolic=True)
    pid = verifier._symbolic().pid
    found: dict[str, Any] = {"interrupts": 0, "verdicts": 0, "dropped": 0, "wrong": []}

    def handler(number: int, frame: FrameType | None) -> None:
        raise AlarmError

    def unraisable(told: Any) -> None:
        # Python drops what is raised inside a finalizer or a callback of the garbage collector, and tells this hook.
        if isinstance(told.exc_value, AlarmError):
            found["dropped"] += 1
        else:
            hook(told)

    hook, sys.unraisablehook = sys.unraisablehook, unraisable
    before = signal.signal(signal.SIGALRM, handler)
    turn, span = 0, 0.05
    try:
        while found["interrupts"] < count or found["verdicts"] <= 10:
            turn += 1
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, span))
                if turn % 3:
                    verdict = verifier.verify(f"\\sum_{{k=1}}^{{3}} k + {turn}", str(6 + turn), kind="answer")
                    right = verdict.correct
                else:
                    sums = [f"\\sum_{{k=1}}^{{2}} k + {turn + n}" for n in range(4)]
                    golds = [str(3 + turn + n) for n in range(4)]
                    right = all(verdict.correct for verdict in verifier.verify_batch(sums, golds, kind="answer"))
                signal.setitimer(signal.ITIMER_REAL, 0)
                found["verdicts"] += 1
                span *= 0.97
                if not right:
                    found["wrong"].append(f"turn {turn}")
            except AlarmError:
                found["interrupts"] += 1
                # About as many verdicts come as are interrupted, however fast the machine is at the moment.
                span *= 1.03
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = hook
    background.stop()
    found["wrong"] += background.wrong[:5]
    found["verdicts_of_thread"] = background.verdicts
    start = time.monotonic()
    found["right_afterwards"] = verifier.verify(*reversed(SYMBOLIC), kind="answer").correct
    found["seconds_afterwards"] = round(time.monotonic() - start, 3)
    # The same supervisor, with idle workers only: no worker still computes a case that its caller has left.
    found["same_supervisor"] = verifier._symbolic().pid == pid
    end = time.monotonic() + 10.0
    while len(children_of(pid or 0)) > verifier.workers + 1 and time.monotonic() < end:
        time.sleep(0.05)
    found["workers_left"] = len(children_of(pid or 0))
    found["ok"] = bool(
        found["right_afterwards"]
        and found["same_supervisor"]
        and found["workers_left"] <= verifier.workers + 1
        and not found["wrong"]
    )
    verifier.close()
    return found


def deaths(count: int = 12) -> dict[str, Any]:
    """Kills the supervisor in the middle of cases; every verdict must come, and be right."""
    verifier = Verifier(form="equivalent", timeout=TIMEOUT)
    found: dict[str, Any] = {"deaths": count, "right": 0}
    for number in range(count):
        verifier.warm()
        pid = verifier._symbolic().pid
        assert pid is not None
        killer = threading.Timer(0.01 * (number % 4), _kill, (pid,))
        killer.start()
        verdict = verifier.verify(f"\\sum_{{k=1}}^{{4}} k + {number}", str(10 + number), kind="answer")
        killer.join()
        found["right"] += verdict.correct
    # Whatever happened, a fresh verifier with the same limits works.
    found["right_afterwards"] = (
        Verifier(form="equivalent", timeout=TIMEOUT).verify(*reversed(SYMBOLIC), kind="answer").correct
    )
    found["ok"] = found["right"] == count and found["right_afterwards"]
    verifier.close()
    return found


def stops(cases: int = 3000, silence: float = 2.0) -> dict[str, Any]:
    """Stops the supervisor under a caller with megabytes of cases; another thread must not wait for it for ever."""
    usual, _pool._SILENCE_SECONDS = _pool._SILENCE_SECONDS, silence
    try:
        verifier = Verifier(form="equivalent", timeout=TIMEOUT)
        verifier.warm()
        pid = verifier._symbolic().pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        # Long to send and easy to decide: cases of seconds would be parked for one another, which is not what is asked here.
        filler = " " * 1400
        start = time.monotonic()
        with verifier._symbolic().session() as session:
            for number in range(cases):
                session.ask(f"{filler}{number}", f"{filler}{number + 1}")
            asked = time.monotonic() - start
            first = session.result(f"{filler}0", f"{filler}1").name
        waited = time.monotonic() - start
        found = {"cases": cases, "asked_s": round(asked, 2), "first_result_s": round(waited, 2), "first_result": first}
        found["right_afterwards"] = verifier.verify(*reversed(SYMBOLIC), kind="answer").correct
        found["ok"] = found["right_afterwards"] and first == "different"
        verifier.close()
        return found
    finally:
        _pool._SILENCE_SECONDS = usual


def main() -> None:
    """Runs all four and prints what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forks", type=int, default=500)
    parser.add_argument("--interrupts", type=int, default=1000)
    parser.add_argument("--deaths", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/verifier_faults.json"))
    arguments = parser.parse_args()
    report: dict[str, Any] = {}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "forks": lambda: forks(arguments.forks),
        "interrupts": lambda: interrupts(arguments.interrupts),
        "deaths": lambda: deaths(arguments.deaths),
        "stops": stops,
    }
    for name, run in parts.items():
        start = time.monotonic()
        report[name] = run() | {"seconds": round(time.monotonic() - start, 1)}
        print(name, json.dumps(report[name]), flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if all(found["ok"] for found in report.values()) else 1)


if __name__ == "__main__":
    main()
