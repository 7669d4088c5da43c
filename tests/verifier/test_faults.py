"""A verifier on a bad day: a slice of `benchmarks/verifier_faults.py`, whose whole is run by hand."""

from __future__ import annotations

import runpy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from light_worker import light_workers

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.verifier import Status, Verifier
from mathturn_gym.verifier.symbolic._pool import SymbolicResult

SCRIPT = runpy.run_path(str(Path(__file__).resolve().parents[2] / "benchmarks" / "verifier_faults.py"))


@pytest.fixture
def light(tmp_path: Path) -> Iterator[None]:
    with light_workers(tmp_path):
        yield


@pytest.mark.usefixtures("light")
def test_a_child_forked_while_threads_verify_can_verify() -> None:
    # A lock that a thread of the parent held was locked for ever in the child: 29 of 43 forks hung.
    found = SCRIPT["forks"](30, threads=3, symbolic_every=29)
    assert found["ok"], found
    assert found["verdicts_of_threads"] > 100


# Within `socket.socketpair` itself, an exception leaves two sockets to Python's collector.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("light")
def test_an_exception_from_a_signal_handler_breaks_one_verdict_only() -> None:
    # Within 40 to 1,640 interrupts, all later symbolic verdicts hung.
    found = SCRIPT["interrupts"](80)
    assert found["ok"], found
    assert found["verdicts"] > 10


@pytest.mark.usefixtures("light")
def test_no_number_of_deaths_poisons_a_verifier() -> None:
    # After the sixth death of its supervisor, every verifier with the same limits raised.
    found = SCRIPT["deaths"](7)
    assert found["ok"], found


@pytest.mark.usefixtures("light")
def test_a_stopped_supervisor_blocks_nobody() -> None:
    found = SCRIPT["stops"](1500)
    assert found["ok"], found


class FakeSession:
    """Results in the order in which they are given, whatever is asked."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def session(self) -> FakeSession:
        return self

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def ask(self, gold: str, answer: str) -> None:
        pass

    def result(self, gold: str, answer: str) -> SymbolicResult:
        return SymbolicResult(self.names.pop(0), 0.1)


@pytest.mark.parametrize(
    ("names", "statuses"),
    [
        (["crash", "equal"], ["undecided", "right"]),
        (["wall", "equal"], ["undecided", "right"]),
        (["timeout"], ["undecided", "undecided"]),
        (["memory"], ["undecided", "undecided"]),
        (["different"], ["wrong", "wrong"]),
    ],
)
def test_accidents_are_not_remembered(names: list[str], statuses: list[str]) -> None:
    # A right answer whose worker was killed from outside stayed undecided for the life of the process.
    verifier: Any = Verifier(form="equivalent")
    verifier._pool = FakeSession(list(names))
    for status in statuses:
        assert verifier.verify("\\sum_{k=1}^{3} k", "6", kind="answer").status == status
    assert not verifier._pool.names


def test_limits_that_no_machine_has_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="memory_mb must be an integer in"):
        Verifier(memory_mb=10**14)


@pytest.mark.parametrize("digits", [4_301, 100_000])
def test_golds_of_any_length_are_judged(digits: int) -> None:
    gold = "9" * digits
    verifier = Verifier()
    assert verifier.verify("\\boxed{9}", gold).status is Status.UNDECIDED
    assert verifier.verify("\\boxed{9}", gold).reason == "gold too long"
    assert verifier.verify(gold, gold, kind="answer").correct
    golds: Sequence[str] = [gold, "9"]
    assert verifier.verify("\\boxed{9}", golds).correct
    assert verifier.verify("\\boxed{8}", golds).status is Status.UNDECIDED


def test_fewer_digits_than_usual_may_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        one, other = "1" * 700, "1" * 699 + "2"
        verifier = Verifier(timeout=0.5)
        assert verifier.verify(f"\\boxed{{{one} }}", f"{one}").correct
        assert not verifier.verify(f"\\boxed{{{other}}}", one).correct
        assert not verifier.verify(f"\\boxed{{{other}+x}}", one).correct
    finally:
        sys.set_int_max_str_digits(before)
