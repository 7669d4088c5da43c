"""What a caller waits for, counted in processor time and in pairs that workers are asked for, not in seconds of a clock."""

from __future__ import annotations

import time

import pytest

from mathturn_gym.verifier import Status, Verifier
from mathturn_gym.verifier.symbolic._pool import SymbolicResult

_ABS = [f"|x-{i}|" for i in range(1, 30)]
_PLANES = [f"|x+y-{i}|" for i in range(1, 22)]
_KINKS = [f"|{7 * i + 1}x-{i * i + 3}|" for i in range(1, 17)]
_FLOORS = [f"\\lfloor\\frac{{n+{i}}}{{900}}\\rfloor" for i in range(45)]
_ROOTS = [f"\\sqrt[3]{{{i}}}" for i in range(2, 150)]
# Equal as far as is seen at first, so that the long ways of showing it are begun: sums of pieces, floors, long lists.
HOSTILE = [
    ("+".join(_ABS), "+".join(_ABS[::-1])),
    ("+".join(_KINKS), "+".join(_KINKS[::-1]) + "+0"),
    ("+".join(_PLANES), "+".join(_PLANES[::-1]) + "+0"),
    ("+".join(_FLOORS), "+".join(_FLOORS[::-1]) + "+0"),
    (f"\\{{{','.join(_ROOTS)}\\}}", f"\\{{{','.join(_ROOTS[::-1])}, 5\\}}"),
    ("|x+y+z|", "|" + "+".join(["x-x"] * 150) + "+x+y+z|"),
    ("x", "\\sin(" * 250 + "x" + ")" * 250),
    ("x^{12}", "(x^{12}-" + "(" * 300 + "1" + ")" * 300 + ")"),
]


@pytest.mark.parametrize(("gold", "answer"), HOSTILE)
def test_an_answer_costs_its_caller_little_time(gold: str, answer: str) -> None:
    verifier = Verifier(form="equivalent")
    start = time.thread_time()
    verifier.verify_at_once(answer[:2000], gold, kind="answer")
    assert time.thread_time() - start < 2.0


class CountingPool:
    """Workers that never find anything: what is asked of them is kept."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def session(self) -> CountingPool:
        return self

    def ask(self, gold: str, answer: str) -> None:
        self.asked.append((gold, answer))

    def result(self, gold: str, answer: str) -> SymbolicResult:
        assert (gold, answer) in self.asked
        return SymbolicResult("timeout", 1.0)

    def __enter__(self) -> CountingPool:
        return self

    def __exit__(self, *exc: object) -> None: ...


def test_workers_are_asked_for_a_pair_of_answer_and_gold_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = CountingPool()
    monkeypatch.setattr(Verifier, "_symbolic", lambda self: pool)
    endless = "\\prod_{k=1}^{10000000} k"
    golds = ("41", "42", "\\int_0^1 x^x dx")
    verdict = Verifier(form="equivalent").verify(endless, golds, kind="answer")
    assert (verdict.status, verdict.reason) == (Status.UNDECIDED, "time limit")
    assert len(pool.asked) == len(golds)
    pool.asked.clear()
    # `Session.ask` sends a pair once, however often it occurs.
    verdicts = Verifier(form="equivalent").verify_batch([endless, "7", endless], [golds, "7", golds], kind="answer")
    assert [one.status for one in verdicts] == [Status.UNDECIDED, Status.RIGHT, Status.UNDECIDED]
    assert len(set(pool.asked)) == len(golds)
