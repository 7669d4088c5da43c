"""What `Verifier` promises: arguments, statuses, forms, rounding, batches, threads, asyncio."""

from __future__ import annotations

import asyncio
import pickle
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.types import Status
from mathturn_gym.verifier import Verifier, explain

SUM = "\\sum_{k=1}^{3} k"


@pytest.fixture(scope="module")
def equivalent() -> Iterator[Verifier]:
    with Verifier(form="equivalent", timeout=20.0) as verifier:
        yield verifier


def test_says_what_it_found_and_where() -> None:
    response = "Therefore \\boxed{0.5}."
    verdict = Verifier().verify(response, "1/2")
    assert verdict.status is Status.RIGHT
    assert verdict.correct
    assert verdict.value == 1.0
    assert verdict.answer == "0.5"
    assert verdict.span is not None
    assert response[slice(*verdict.span)] == "0.5"
    assert (verdict.gold, verdict.reason, verdict.tier) == ("1/2", "equal", "rational")
    assert verdict.seconds > 0.0


def test_no_answer_is_a_status_of_its_own() -> None:
    verdict = Verifier().verify("I do not know.", "1")
    assert verdict.status is Status.NO_ANSWER
    assert verdict.answer is None
    assert not verdict.correct


def test_several_golds_accept_any() -> None:
    verifier = Verifier()
    verdict = verifier.verify("\\boxed{x+1}", ["7", "1+x"])
    assert (verdict.status, verdict.gold) == (Status.RIGHT, "1+x")
    assert verifier.verify("\\boxed{x+2}", ("7", "1+x")).status is Status.WRONG


@pytest.mark.parametrize(
    ("answer", "gold", "correct"),
    [
        ("{\\text{Evelyn}}", "\\text{Evelyn}", True),
        ("{{ \\text{Evelyn} }}", "Evelyn", True),
        ("\\mathbf{Evelyn}", "\\text{Evelyn}", True),
        ("{\\text{no solution}}", "\\emptyset", True),
        ("{\\text{Evelyn}}{x}", "\\text{Evelyn}", False),
        ("{\\text{Carla}}", "\\text{Evelyn}", False),
        ("{}", "0", False),
        ("{0,5}", "0.5", False),
    ],
)
def test_braces_around_an_answer_say_nothing(equivalent: Verifier, answer: str, gold: str, correct: bool) -> None:
    assert equivalent.verify(f"\\boxed{{{answer}}}", gold).correct is correct
    assert equivalent.verify(f"\\boxed{{{gold}}}", answer).correct is correct


@pytest.mark.parametrize(
    "answer", ["12+34", "\\sqrt{2116}", "\\frac{92}{2}", "92 \\div 2", "46^1", "\\lfloor 46.9 \\rfloor", "50-4=46"]
)
def test_forms_differ_on_arithmetic_that_is_left_to_do(answer: str) -> None:
    evaluated = Verifier().verify(answer, "46", kind="answer")
    assert (evaluated.status, evaluated.reason) == (Status.WRONG, "unevaluated")
    assert Verifier(form="equivalent").verify(answer, "46", kind="answer").correct


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("\\frac{2}{4}", "\\frac12"),
        ("1/2", "0.5"),
        ("2\\frac12", "2.5"),
        ("4.6\\times 10^{1}", "46"),
        ("46\\text{ cm}", "46"),
        ("x=46", "46"),
        ("46\\%", "46"),
        ("forty-six", "46"),
    ],
)
def test_evaluated_takes_any_literal_number(answer: str, gold: str) -> None:
    assert Verifier().verify(answer, gold, kind="answer").correct


def test_evaluated_asks_nothing_of_golds_that_are_expressions() -> None:
    verifier = Verifier()
    assert verifier.verify("2\\cdot 2^{99}", "2^{100}", kind="answer").correct
    assert verifier.verify("x+x", "2x", kind="answer").correct
    assert verifier.verify("1+1, 3", "2, 3", kind="answer").correct


def test_rounding_is_exact_unless_asked_for() -> None:
    assert not Verifier().verify("0.33", "\\frac13", kind="answer").correct
    assert Verifier(decimals=2).verify("0.33", "\\frac13", kind="answer").correct
    assert not Verifier(decimals=3).verify("0.33", "\\frac13", kind="answer").correct
    assert Verifier(rel_tol=0.01).verify("1.41", "\\sqrt{2}", kind="answer").correct
    assert not Verifier(rel_tol=0.001).verify("1.41", "\\sqrt{2}", kind="answer").correct
    assert Verifier(rel_tol=0.01).verify("(1.41, 2)", "(\\sqrt{2}, 2)", kind="answer").correct


def test_symbolic_work_is_done_elsewhere(equivalent: Verifier) -> None:
    verdict = equivalent.verify(SUM, "6", kind="answer")
    assert (verdict.status, verdict.tier) == (Status.RIGHT, "symbolic")
    assert equivalent.verify(SUM, "7", kind="answer").status is Status.WRONG
    assert equivalent.verify(SUM, ["7", "6"], kind="answer").gold == "6"


def test_a_batch_is_what_its_cases_are(equivalent: Verifier) -> None:
    cases = [(f"\\boxed{{{n}}}", str(n % 3)) for n in range(40)] + [(f"\\boxed{{{SUM}}}", "6"), ("nothing", "6")]
    random.Random(0).shuffle(cases)
    batch = equivalent.verify_batch([case[0] for case in cases], [case[1] for case in cases])
    assert batch == [Verifier(form="equivalent", timeout=20.0).verify(*case) for case in cases]
    assert equivalent.verify_batch([], []) == []


def test_verdicts_do_not_depend_on_what_was_asked_before(equivalent: Verifier) -> None:
    first = equivalent.verify("x^2", "x^2+0", kind="answer")
    for other in ("x^3", "1", SUM):
        equivalent.verify(other, "x^2+0", kind="answer")
    assert equivalent.verify("x^2", "x^2+0", kind="answer") == first


def test_memory_of_pairs_is_bounded() -> None:
    verifier = Verifier()
    for n in range(40_000):
        verifier.verify(str(n), "1", kind="answer")
    assert len(verifier._known) <= 16_384


def test_averify_does_not_block_the_loop(equivalent: Verifier) -> None:
    async def main() -> tuple[list[bool], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.002)
                ticks += 1

        ticker = asyncio.create_task(tick())
        found = await asyncio.gather(
            *(equivalent.averify(f"\\sum_{{k=1}}^{{4}} k + {n}", "12", kind="answer") for n in range(4))
        )
        ticker.cancel()
        return [verdict.correct for verdict in found], ticks

    found, ticks = asyncio.run(main())
    assert found == [False, False, True, False]
    assert ticks > 0


def test_threads_share_a_verifier(equivalent: Verifier) -> None:
    found: dict[int, bool] = {}

    def work(n: int) -> None:
        found[n] = equivalent.verify(f"\\sum_{{k=1}}^{{5}} k - {n}", "10", kind="answer").correct

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: n == 5 for n in range(8)}


def test_a_pickled_copy_works(equivalent: Verifier) -> None:
    copy = pickle.loads(pickle.dumps(equivalent))
    assert copy.form == "equivalent"
    assert copy.verify("1+1", "2", kind="answer").correct


def test_closing_is_not_the_end() -> None:
    verifier = Verifier(form="equivalent", timeout=20.0)
    verifier.close()
    assert verifier.verify("1+1", "2", kind="answer").correct
    verifier.close()


@pytest.mark.parametrize(
    ("keywords", "part"),
    [
        ({"form": "evalauted"}, "did you mean 'evaluated'"),
        ({"timeout": 0}, "timeout must be"),
        ({"timeout": "1"}, "timeout must be"),
        ({"memory_mb": 10}, "memory_mb must be"),
        ({"workers": 0}, "workers must be"),
        ({"rel_tol": -1.0}, "rel_tol must be"),
        ({"decimals": -1}, "decimals must be"),
    ],
)
def test_bad_arguments_are_named(keywords: dict[str, object], part: str) -> None:
    with pytest.raises(InvalidValueError, match=part):
        Verifier(**keywords)  # type: ignore[arg-type]


def test_bad_golds_and_kinds_are_named() -> None:
    verifier = Verifier()
    bad: list[Any] = ["", "  ", [], [""], ["1", " "], 1, None, (1,), [["1"]]]
    for gold in bad:
        with pytest.raises(InvalidValueError, match="gold must be"):
            verifier.verify("\\boxed{1}", gold)
    with pytest.raises(InvalidValueError, match="did you mean 'answer'"):
        verifier.verify("1", "1", kind="anwser")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="one entry a response: 1 for 2"):
        verifier.verify_batch(["1", "2"], ["1"])
    with pytest.raises(InvalidValueError, match="response must be a text"):
        verifier.verify(b"1", "1")  # type: ignore[arg-type]


def test_explain_is_for_people() -> None:
    verifier = Verifier()
    assert "'12+34'" in explain(verifier.verify("\\boxed{12+34}", "46"))
    assert explain(verifier.verify("nothing", "46")) == "No answer: no answer found."


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("8/3", "2.67", True),
        ("8/3", "2.667", True),
        ("8/3", "2.66", False),
        ("8/3", "2.7", False),
        ("\\sqrt{2}", "1.41", True),
        ("\\sqrt{2}", "1.42", False),
        ("2.67", "8/3", True),
        ("3.1416", "3.14", False),
        ("3.14", "3.1416", True),
        ("-8/3", "-2.67", True),
        ("x", "2.67", False),
        ("3", "3.00", True),
        ("3", "2.996", False),
    ],
)
def test_a_rounded_decimal_counts_only_under_its_policy_which_the_verdict_names(
    gold: str, answer: str, right: bool
) -> None:
    with Verifier(form="equivalent", tolerance="rounded") as rounded, Verifier(form="equivalent") as exact:
        verdict = rounded.verify(answer, gold, kind="answer")
        assert verdict.correct is right
        if not exact.verify(answer, gold, kind="answer").correct:
            assert (verdict.reason == "equal when rounded") is right
    with pytest.raises(InvalidValueError, match="unknown tolerance"):
        Verifier(tolerance="about")  # type: ignore[arg-type]
