from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import pickle
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.env.dialogue import completion_ids
from mathturn_gym.env.verification import GIVE_UP_AFTER, TurnVerifier, get_verifier
from mathturn_gym.errors import InvalidValueError, RunError, UserFunctionError, VerifierError
from mathturn_gym.types import Problem, Status, TurnContext, Verdict
from mathturn_gym.verifier import Verifier

PROBLEM = Problem("p/1", "2+2?", "4")


def turns(*responses: str) -> list[TurnContext]:
    return [TurnContext(PROBLEM, k, 5, response) for k, response in enumerate(responses)]


def statuses(verifier: Any, *responses: str) -> list[Status]:
    return [verdict.status for verdict in TurnVerifier(verifier).verify_turns(turns(*responses))]


@pytest.mark.parametrize(
    ("name", "found"), [("boxed", [False, True]), ("marked", [False, True]), ("lenient", [True] * 2)]
)
def test_where_answers_are_looked_for_has_names(name: Any, found: list[bool]) -> None:
    said = turns("It is 4.", r"It is \boxed{4}.")
    assert [verdict.correct for verdict in get_verifier(name).verify_turns(said)] == found
    assert get_verifier(name) is get_verifier(name), "environments share its workers"


def pair(response: str, gold: Any) -> bool:
    return response in gold


def with_context(context: TurnContext) -> bool:
    return context.response in context.problem.gold


def short(turn: Any) -> bool:
    return turn.response in turn.problem.gold


def annotated(turn: TurnContext, strict: bool = True) -> bool:
    return strict and turn.response in turn.problem.gold


def with_default(response: str, gold: Any = ()) -> bool:
    return response in gold


async def apair(response: str, gold: Any) -> bool:
    await asyncio.sleep(0)
    return response in gold


async def acontext(context: TurnContext) -> float:
    await asyncio.sleep(0)
    return float(context.response in context.problem.gold)


class WithVerify:
    def verify(self, response: str, gold: Any) -> bool:
        return response in gold


class WithBatch:
    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def verify_batch(self, responses: Sequence[str], golds: Sequence[Any]) -> list[bool]:
        self.batches.append(list(responses))
        return [response in gold for response, gold in zip(responses, golds, strict=True)]


class WithAsyncBatch(WithBatch):
    async def verify_batch(self, responses: Sequence[str], golds: Sequence[Any]) -> list[bool]:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().verify_batch(responses, golds)


class CallableObject:
    def __call__(self, response: str, gold: Any) -> bool:
        return response in gold


class AsyncCallable:
    async def __call__(self, context: TurnContext) -> bool:
        return context.response in context.problem.gold


def several(mode: str, response: str, gold: Any) -> bool:
    return mode == "strict" and response in gold


def verdict_alone(response: str, gold: Any) -> Verdict:
    return Verdict(Status.WRONG)


@pytest.mark.parametrize("verifier", [lambda response, gold: False, lambda context: 0.5, verdict_alone])
def test_the_answer_is_found_where_the_verifier_does_not_say_it(verifier: Any) -> None:
    heard: list[str | None] = []

    def coach(context: TurnContext) -> str:
        heard.append(context.judged.answer)
        return "No."

    weights = {"repeated_answer": 1.0, "format": 1.0}
    env = MathMultiTurnEnv([PROBLEM], verifier=verifier, feedback=coach, reward_terms=weights)
    env.reset(seed=0)
    terms = []
    for text in (r"So \boxed{1}.", r"\boxed{1.0}", "no idea"):
        info = env.step(completion_ids(env.dialogue, text))[-1]
        terms.append((info["reward_terms"]["repeated_answer"], info["reward_terms"]["format"]))
    assert heard == ["1", "1.0", None]
    assert terms == [(0, 1), (-1, 1), (0, 0)]


def test_a_verdict_that_says_its_answer_is_kept() -> None:
    own = Verdict(Status.WRONG, "mine", answer="7")
    assert TurnVerifier(lambda response, gold: own).verify_turns(turns(r"\boxed{1}")) == [own]


FORMS = [
    pair,
    with_context,
    short,
    annotated,
    with_default,
    apair,
    acontext,
    WithVerify(),
    WithBatch(),
    WithAsyncBatch(),
    CallableObject(),
    AsyncCallable(),
    functools.partial(several, "strict"),
    WithVerify().verify,
    lambda *args: args[0] in args[1],
    lambda context: context.response in context.problem.gold,
    lambda response, gold: response in gold,
]


@pytest.mark.parametrize("verifier", FORMS, ids=lambda form: getattr(form, "__name__", type(form).__name__))
def test_every_form_of_a_verifier_is_asked_as_it_wants(verifier: Any) -> None:
    assert statuses(verifier, "4", "5", "4") == [Status.RIGHT, Status.WRONG, Status.RIGHT]
    assert statuses(verifier) == []
    env = MathMultiTurnEnv([PROBLEM], verifier=verifier, num_turns=1)
    env.reset(seed=0)
    ids = np.array(env.dialogue.tokenizer("4", add_special_tokens=False)["input_ids"], np.int64)
    assert env.step(ids)[1] == 1.0


def test_an_object_with_verify_batch_gets_all_turns_at_once() -> None:
    verifier = WithBatch()
    TurnVerifier(verifier).verify_turns(turns("4", "5", "6"))
    assert verifier.batches == [["4", "5", "6"]]


@pytest.mark.parametrize(
    ("verifier", "message"),
    [
        (3, "verifier must be None, an object with verify_batch"),
        ("linient", "unknown verifier 'linient': did you mean 'lenient'"),
        ("equivalent", "unknown verifier .equivalent. .allowed: boxed, lenient, marked, module:name"),
        (object(), "verifier must be None, an object with verify_batch"),
        (lambda: True, r"verifier is called as f\(context\), which .*<lambda>.* does not take"),
        (lambda a, b, c: True, r"verifier is called as f\(response, gold\), which .*<lambda>.* does not take.*'c'"),
        (lambda context, gold: True, r"verifier is called as f\(context\), which .*<lambda>"),
        (lambda answer, strict=True: True, r"can be called as f\(response, gold\) and as f\(context\)"),
        (lambda *, response, gold: True, r"verifier is called as f\(context\), which"),
    ],
)
def test_what_cannot_verify_is_refused_when_it_is_given(verifier: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        MathMultiTurnEnv([PROBLEM], verifier=verifier)


def test_none_is_the_built_in_verifier_once_per_process() -> None:
    assert get_verifier(None) is get_verifier(None)
    assert isinstance(get_verifier(None).verifier, Verifier)
    own = Verifier(form="equivalent")
    assert get_verifier(own).verifier is own


def test_the_same_verifier_is_wrapped_once_while_it_is_in_use() -> None:
    verifier = WithVerify()
    found = get_verifier(verifier)
    assert get_verifier(verifier) is found
    assert get_verifier(found) is found
    gone = weakref.ref(verifier)
    del verifier, found
    gc.collect()
    assert gone() is None, "nothing keeps a verifier that nobody uses"


# ---- what it may answer


@pytest.mark.parametrize(
    ("result", "status", "score"),
    [
        (True, Status.RIGHT, 1.0),
        (False, Status.WRONG, 0.0),
        (1, Status.RIGHT, 1.0),
        (np.True_, Status.RIGHT, 1.0),
        (np.float32(0.25), Status.WRONG, 0.25),
        (0.25, Status.WRONG, 0.25),
        (Verdict(Status.UNDECIDED, "slow"), Status.UNDECIDED, 0.0),
    ],
)
def test_what_a_verifier_may_answer(result: Any, status: Status, score: float) -> None:
    (verdict,) = TurnVerifier(lambda response, gold: result).verify_turns(turns("a"))
    assert (verdict.status, verdict.value) == (status, score)
    assert not verdict.is_verifier_error


@pytest.mark.parametrize("result", [None, "right", "1", 1.5, -0.1, float("nan"), [1], 2])
def test_anything_else_is_an_error_that_names_the_verifier(result: Any) -> None:
    class Batch:
        def verify_batch(self, responses: Any, golds: Any) -> list[Any]:
            return [result] * len(responses)

    def impossible(response: str, gold: Any) -> Any:
        return result

    async def aimpossible(context: TurnContext) -> Any:
        return result

    for verifier in (impossible, aimpossible, Batch()):
        message = r"verifier must return a Verdict, a bool or a number in \[0, 1\]; .*mpossible.* returned .* for problem 'p/1'"
        with pytest.raises(
            InvalidValueError, match=message.replace("mpossible", "") if verifier.__class__ is Batch else message
        ):
            TurnVerifier(verifier).verify_turns(turns("a"))


@pytest.mark.parametrize("result", [None, [], [True], 3, iter(())])
def test_a_batch_must_have_an_answer_for_every_response(result: Any) -> None:
    class Batch:
        def verify_batch(self, responses: Any, golds: Any) -> Any:
            return result

    with pytest.raises(InvalidValueError, match=r"verify_batch of verifier .*Batch must return 2 answers"):
        TurnVerifier(Batch()).verify_turns(turns("a", "b"))


def test_a_verifier_that_returns_none_does_not_end_the_episode() -> None:
    class Batch:
        def verify_batch(self, responses: Any, golds: Any) -> list[None]:
            return [None] * len(responses)

    env = MathMultiTurnEnv([PROBLEM], verifier=Batch())  # type: ignore[arg-type]
    env.reset(seed=0)
    with pytest.raises(InvalidValueError, match="returned None"):
        env.step(np.array([70]))
    assert env.get_state().turns == ()


# ---- when it raises


def picky(response: str, gold: Any) -> bool:
    return int(response) == int(gold[0])


async def apicky(context: TurnContext) -> bool:
    return int(context.response) == 4


class PickyBatch:
    def __init__(self) -> None:
        self.batches: list[int] = []

    def verify_batch(self, responses: Sequence[str], golds: Sequence[Any]) -> list[bool]:
        self.batches.append(len(responses))
        return [int(response) == 4 for response in responses]


class AsyncPickyBatch(PickyBatch):
    async def verify_batch(self, responses: Sequence[str], golds: Sequence[Any]) -> list[bool]:  # type: ignore[override]
        return super().verify_batch(responses, golds)


@pytest.mark.parametrize("make", [lambda: picky, lambda: apicky, PickyBatch, AsyncPickyBatch])
def test_where_it_raises_on_some_input_that_turn_is_undecided_and_counted(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    verifier = TurnVerifier(make())
    found = verifier.verify_turns(turns("4", "four", "5", "x", "y", "z"))
    assert [v.status for v in found] == [Status.RIGHT, Status.UNDECIDED, Status.WRONG] + [Status.UNDECIDED] * 3
    assert [v.is_verifier_error for v in found] == [False, True, False, True, True, True]
    assert found[1].reason.startswith("the verifier raised ValueError: invalid literal")
    assert found[1].value == 0.0
    for _ in range(2 * GIVE_UP_AFTER):  # it has answered once: it is never given up
        assert verifier.verify_turns(turns("four"))[0].is_verifier_error
    assert caplog.text.count("Traceback") == 1, "one traceback tells what a thousand would"
    assert "problem 'p/1', turn 1, which is undecided: invalid literal" in caplog.text


def broken(response: str, gold: Any) -> bool:
    raise TypeError("no such thing")


async def abroken(context: TurnContext) -> bool:
    raise TypeError("no such thing")


class BrokenBatch:
    def verify_batch(self, responses: Sequence[str], golds: Sequence[Any]) -> list[bool]:
        raise TypeError("no such thing")


@pytest.mark.parametrize("verifier", [broken, abroken, BrokenBatch()])
def test_one_that_raises_on_every_call_stops_the_run_and_is_named(verifier: Any) -> None:
    message = rf"verifier .*roken.* has raised on each of its {GIVE_UP_AFTER} calls, the last time TypeError for problem 'p/1'"
    one_by_one = TurnVerifier(verifier)
    for _ in range(GIVE_UP_AFTER - 1):
        assert one_by_one.verify_turns(turns("4"))[0].is_verifier_error
    with pytest.raises(UserFunctionError, match=message) as caught:
        one_by_one.verify_turns(turns("4"))
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(UserFunctionError, match="has raised on each of its 32 calls"):
        TurnVerifier(verifier).verify_turns(turns(*["4"] * 32))


def test_a_batch_whose_first_turns_raise_is_judged_to_its_end() -> None:
    found = TurnVerifier(picky).verify_turns(turns(*["x"] * 10, "4"))
    assert [v.status for v in found] == [Status.UNDECIDED] * 10 + [Status.RIGHT]


def test_what_the_package_raises_about_its_own_verifier_is_raised() -> None:
    class Dead(Verifier):
        def verify_batch(self, responses: Any, golds: Any, **kwargs: Any) -> list[Verdict]:
            raise VerifierError("the workers do not start")

    with pytest.raises(VerifierError, match="do not start"):
        TurnVerifier(Dead()).verify_turns(turns("4"))
    assert issubclass(UserFunctionError, RunError)
    assert issubclass(VerifierError, RunError)


def test_interrupts_are_no_verdicts() -> None:
    def interrupted(response: str, gold: Any) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TurnVerifier(interrupted).verify_turns(turns("4"))


def test_reasons_are_bounded() -> None:
    def long(response: str, gold: Any) -> bool:
        raise ValueError("x" * 10**6)

    assert len(TurnVerifier(long).verify_turns(turns("4"))[0].reason) <= 500


def test_errors_are_in_the_info_and_counted_there() -> None:
    env = MathMultiTurnEnv([PROBLEM], verifier=picky, num_turns=4)
    assert env.reset(seed=0)[1]["verifier_errors"] == 0
    tokenizer = env.dialogue.tokenizer
    counts = []
    for text in ("4", "x", "5", "y"):
        ids = np.array(tokenizer(text, add_special_tokens=False)["input_ids"], np.int64)
        _, reward, _, _, info = env.step(ids)
        assert info["verdict"].is_verifier_error == (text in "xy")
        assert reward == (1.0 if text == "4" else -1.0)
        counts.append(info["verifier_errors"])
    assert counts == [0, 1, 1, 2]
    assert env.set_state(env.get_state())[1]["verifier_errors"] == 2
    assert env.reset()[1]["verifier_errors"] == 0


# ---- async judges


def test_async_judges_of_a_batch_run_together() -> None:
    """Each waits until all 50 are there; one after the other, the first would wait in vain."""
    together = asyncio.Barrier(50)

    async def judge(response: str, gold: Any) -> bool:
        await asyncio.wait_for(together.wait(), 60)
        return True

    assert all(verdict.correct for verdict in TurnVerifier(judge).verify_turns(turns(*["4"] * 50)))


def test_async_judges_work_inside_a_running_loop_and_in_threads() -> None:
    verifier = TurnVerifier(apair)

    async def cell() -> list[Verdict]:  # as a cell of Jupyter: synchronous code under a running loop
        return verifier.verify_turns(turns("4", "5"))

    expected = [Status.RIGHT, Status.WRONG]
    assert [v.status for v in asyncio.run(cell())] == expected
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(lambda _: verifier.verify_turns(turns("4", "5")), range(40)):
            assert [v.status for v in found] == expected


def test_what_an_async_judge_opens_can_be_used_again() -> None:
    """Clients and locks belong to an event loop: it is the same in every call."""
    loops = set()

    async def judge(context: TurnContext) -> bool:
        loops.add(id(asyncio.get_running_loop()))
        return True

    verifier = TurnVerifier(judge)
    for _ in range(3):
        verifier.verify_turns(turns("4"))
    with ThreadPoolExecutor(1) as threads:
        threads.submit(verifier.verify_turns, turns("4")).result()
    assert len(loops) == 1


def test_an_async_judge_that_would_wait_for_itself_is_told() -> None:
    inner = TurnVerifier(apair)

    async def outer(context: TurnContext) -> bool:
        return inner.verify_turns([context])[0].correct

    verdict = TurnVerifier(outer).verify_turns(turns("4"))[0]
    assert verdict.is_verifier_error
    assert "would wait for itself" in verdict.reason


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of a process with threads: that is what is tried
def test_async_judges_work_in_a_forked_process() -> None:
    verifier = TurnVerifier(apair)
    assert verifier.verify_turns(turns("4"))[0].correct
    child = os.fork()
    if child == 0:
        os._exit(0 if verifier.verify_turns(turns("4"))[0].correct else 1)
    for _ in range(600):
        done, code = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(code) == 0
            return
        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the judge never answered in the forked process")


# ---- beside the caller


def test_functions_run_in_the_callers_thread_and_batches_beside_it() -> None:
    """Time limits made of signals, as math-verify's, work in the main thread alone."""
    seen: list[bool] = []

    def function(response: str, gold: Any) -> bool:
        seen.append(threading.current_thread() is threading.main_thread())
        return True

    class Batch:
        def verify_batch(self, responses: Any, golds: Any) -> list[bool]:
            seen.append(threading.current_thread() is threading.main_thread())
            return [True] * len(responses)

    for verifier, beside in ((function, False), (Batch(), True), (apair, True), (Verifier(), True)):
        wrapped = TurnVerifier(verifier)
        assert wrapped.runs_beside is beside
        (future,) = wrapped.submit_turns(turns("4"))
        assert beside or future.done()
        assert future.result(timeout=30).status in (Status.RIGHT, Status.NO_ANSWER)
    assert seen == [True, False]


def test_only_symbolic_work_of_the_built_in_verifier_is_waited_for() -> None:
    with Verifier() as verifier:
        contexts = turns(r"\boxed{4}", r"\boxed{\sum_{k=1}^{2} k + 1}", "no answer", r"\boxed{5}")
        wrapped = TurnVerifier(verifier)
        futures = wrapped.submit_turns(contexts)
        assert [future.done() for future in (futures[0], *futures[2:])] == [True] * 3
        assert [future.result(timeout=60) for future in futures] == wrapped.verify_turns(contexts)


def test_a_subclass_that_judges_single_responses_its_own_way_is_asked_for_them() -> None:
    class Lenient(Verifier):
        def verify(self, response: str, gold: Any, **kwargs: Any) -> Verdict:
            return Verdict(Status.RIGHT)

    wrapped = TurnVerifier(Lenient())
    assert wrapped.verify_turns(turns("x"))[0].correct
    assert wrapped.submit_turns(turns("x"))[0].result(timeout=30).correct


def test_what_is_raised_beside_the_caller_is_raised_where_the_future_is_asked() -> None:
    futures = TurnVerifier(BrokenBatch()).submit_turns(turns(*"4" * GIVE_UP_AFTER))
    for future in futures:
        with pytest.raises(UserFunctionError):
            future.result(timeout=30)


def test_a_verifier_can_be_sent_to_another_process(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    verifier = TurnVerifier(WithVerify())
    copied = pickle.loads(pickle.dumps(verifier))  # made here, a line above
    assert copied.verify_turns(turns("4"))[0].correct
