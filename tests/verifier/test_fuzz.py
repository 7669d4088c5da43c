"""A few seconds of `benchmarks/fuzz_verifier.py`; an hour of it is run by hand."""

from __future__ import annotations

import random
import runpy
from pathlib import Path

import pytest

from mathturn_gym.verifier import Status, Verdict
from mathturn_gym.verifier.audit import load_cases
from mathturn_gym.verifier.reading._extraction import Extraction

SCRIPT = runpy.run_path(str(Path(__file__).resolve().parents[2] / "benchmarks" / "fuzz_verifier.py"))


@pytest.mark.parametrize(
    "sizes", [(75, 30, 2), pytest.param((150, 60, 8), marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_mutated_cases_are_judged_alike_twice(sizes: tuple[int, int, int]) -> None:
    fuzz = SCRIPT["Fuzz"](seed=3, timeout=0.5)
    cases = [case for case in load_cases() if case.category != "pathological"]
    rng = random.Random(5)
    kinds = ("evaluated", "answer"), ("evaluated", "response"), ("equivalent", "answer")
    for (form, kind), size in zip(kinds, sizes, strict=True):
        fuzz.round(rng, fuzz.batch(rng, [case for case in cases if case.kind == kind], size), kind, form)
    assert fuzz.cases == sum(sizes)
    assert not fuzz.failures
    assert set(fuzz.statuses) <= {"right", "wrong", "no_answer", "undecided"}


def test_a_verdict_that_changes_is_a_failure() -> None:
    fuzz = SCRIPT["Fuzz"]()
    fuzz.compare(Verdict(Status.RIGHT, "equal"), Verdict(Status.WRONG, "different"), "1", "1")
    assert len(fuzz.failures) == 1
    fuzz.compare(Verdict(Status.UNDECIDED, "time limit"), Verdict(Status.WRONG, "different"), "1", "1")
    assert len(fuzz.failures) == 1
    assert fuzz.time_limited == 1


PARSER = runpy.run_path(str(Path(__file__).resolve().parents[2] / "benchmarks" / "fuzz_parser.py"))


def test_what_fuzzing_found_is_replayed() -> None:
    """A part of the corpus that an hour of `benchmarks/fuzz_parser.py` left: `make fuzz` takes all of it."""
    inputs = PARSER["kept"]()
    assert len(inputs) > 1000
    for data in inputs[::8]:
        PARSER["check"](data)


def test_a_law_that_is_broken_is_a_failure() -> None:
    tools = (lambda response, policy: Extraction("b", 0, 1, "tag"), ("marked",), None, ())
    check = PARSER["check"]
    check.__globals__["_tools"], before = lambda: tools, check.__globals__["_tools"]
    try:
        with pytest.raises(PARSER["LawError"], match="'b' does not stand at 0:1"):
            check(b"a")
    finally:
        check.__globals__["_tools"] = before
