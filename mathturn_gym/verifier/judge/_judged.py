"""`JudgedVerifier`: what the verifier leaves undecided goes to a judge, remembered, budgeted and counted."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeAlias
from weakref import WeakSet

from mathturn_gym.base.import_paths import import_object, import_path_of
from mathturn_gym.base.user_functions import awaited_together, check_takes, name_of
from mathturn_gym.errors import InvalidValueError, MissingDependencyError, VerifierError, check_int
from mathturn_gym.types import Status, TurnContext, Verdict
from mathturn_gym.verifier._verifier import Gold, TextKind, Verifier, wait_in_thread
from mathturn_gym.verifier.judge._judge import (
    MAX_JUDGED,
    JudgeCounts,
    JudgeQuestion,
    Memory,
    Opinion,
    read_opinion,
    unsuitable,
)

_LOG = logging.getLogger(__name__)

Judge: TypeAlias = "Callable[[JudgeQuestion], bool | str | Awaitable[bool | str | None] | None]"

_GIVE_UP_AFTER: Final = 3
_LONGEST_REASON: Final = 300

_LEFT_OPEN: Final = {
    "unsure": "it is unsure",
    "unreadable": "its answer cannot be read",
    "over_budget": "not asked, the budget is used up",
}


class _Outcome(NamedTuple):
    """What came of a case: an opinion, or one of the ways in which it stays open, and why in words."""

    name: str
    why: str = ""
    remembered: bool = False


class _Case(NamedTuple):
    """A verdict that calls for the judge."""

    place: int
    question: JudgeQuestion
    disagreement: bool


class JudgedVerifier:
    r"""A verifier that asks a judge where it cannot decide: an object for `verifier=`, and for use alone.

    Whatever `Verifier` decides stays as it is. A case that it leaves `undecided` (a limit of time, memory or length) is put to the
    judge, and with `against` also a case on which another verifier says otherwise. A verdict that the judge gave has the tier
    `"judge"` (`verdict.is_judged`), and a reason that names it. Where the judge is unsure, does not answer, answers with what
    cannot be read, or may not be asked any more, an undecided case stays undecided and the verifier's verdict on a disagreement
    stands; the reason says which. `counts` tells what became of all of them.

    Not meant for training: a policy learns whatever convinces the judge, and the same answer may get another verdict tomorrow.

    It may be used from any number of threads, in asyncio (`averify`), and by a forked process, which goes on with the budget
    that was left; a pickled copy starts empty.

    Args:
        judge: `ServerJudge`, or a function of a `JudgeQuestion` (async or not) that returns True, False, None for unsure, or a
            text as `JudgeQuestion.messages` asks for; or its import path, "module:name".
        verifier: The verifier; None is `Verifier()`.
        against: Another verifier: an object with `verify_batch(responses, golds)` or a function `(response, gold)` whose answers
            are verdicts, truth values, or scores that are right above 0.5. Bare answers are given to it in a box, and a function
            gets one accepted answer at a time.
        budget: The most questions that may be sent; None for no limit.
        cache: A file in which answers are remembered, beside memory; it may be used by several processes.
        whole_response: Show the judge the response's end instead of the answer that was found in it. The text can then argue.

    Raises:
        InvalidValueError: an argument outside what is allowed.
        StorageError: the file cannot be read or made.

    >>> def counts_ones(question):
    ...     return question.answer.count("1") == int(question.gold[0])
    >>> too_long = "\\boxed{1" + " + 1" * 999 + "}"
    >>> with JudgedVerifier(counts_ones) as verifier:
    ...     [verifier.verify(text, "1000").tier for text in ("\\boxed{999}", too_long)]
    ...     print(verifier.counts)
    ['rational', 'judge']
    decided 1 of 2 verdicts (50.00 %): 1 right, 0 wrong; asked 1, 0 remembered
    """

    def __init__(
        self,
        judge: Judge | str,
        verifier: Verifier | None = None,
        *,
        against: Any = None,
        budget: int | None = 1000,
        cache: str | os.PathLike[str] | None = None,
        whole_response: bool = False,
    ) -> None:
        self.judge: Judge = _loaded(judge)
        if verifier is not None and not isinstance(verifier, Verifier):
            raise InvalidValueError(f"verifier must be a Verifier, got {verifier!r}")
        self.verifier = Verifier() if verifier is None else verifier
        self._against = None if against is None else _second(against)
        self.budget = None if budget is None else check_int("budget", budget, low=0)
        self.whole_response = whole_response
        self.judge_name: str = getattr(judge, "name", None) or import_path_of(self.judge) or name_of(self.judge)
        self._given = {"judge": judge, "verifier": verifier, "against": against, "budget": budget}
        self._given |= {"cache": cache, "whole_response": whole_response}
        self._memory = Memory(None if cache is None else Path(cache))
        self._counts = JudgeCounts()
        self._answered, self._failures = False, 0
        self._renew()
        _ALL.add(self)

    def _renew(self) -> None:
        """Resets what a forked process must not share: a lock that no thread there will open, and answers that none there awaits."""
        self._lock = threading.Lock()
        self._pending: dict[str, Future[_Outcome]] = {}

    @property
    def counts(self) -> JudgeCounts:
        """What was asked so far, and what came of it."""
        return self._counts

    # ---- verdicts

    def verify(self, response: str, gold: Gold, *, kind: TextKind = "response", prompt: str = "") -> Verdict:
        """Judges one response; see `verify_batch` and `Verifier.verify`. `prompt` is the problem's text, for the judge."""
        return self.verify_batch([response], [gold], kind=kind, prompts=[prompt])[0]

    async def averify(self, response: str, gold: Gold, *, kind: TextKind = "response", prompt: str = "") -> Verdict:
        """`verify` without blocking the event loop while the judge thinks."""
        return await wait_in_thread(functools.partial(self.verify, response, gold, kind=kind, prompt=prompt))

    def verify_turns(self, contexts: Sequence[TurnContext]) -> list[Verdict]:
        """Judges turns of an environment, whose prompts the judge is shown."""
        return self.verify_batch(
            [context.response for context in contexts],
            [context.problem.gold for context in contexts],
            prompts=[context.problem.prompt for context in contexts],
        )

    def verify_batch(
        self,
        responses: Sequence[str],
        golds: Sequence[Gold],
        *,
        kind: TextKind = "response",
        prompts: Sequence[str] | None = None,
    ) -> list[Verdict]:
        """Judges many responses, in order; what is put to the judge is asked together.

        Args:
            responses: What the model wrote.
            golds: The accepted answer, or several, of each response.
            kind: As in `Verifier.verify`.
            prompts: The problem's text of each response, for the judge.

        Raises:
            InvalidValueError: what `Verifier.verify_batch` raises; as many prompts as responses are needed; the judge returned
                what is no answer, or its key is not set.
            VerifierError: the symbolic workers do not start; or the judge did not answer any of its first questions.
            StorageError: the file of remembered answers cannot be written.
        """
        if prompts is not None and len(prompts) != len(responses):
            raise InvalidValueError(f"prompts must have one entry a response: {len(prompts)} for {len(responses)}")
        verdicts = self.verifier.verify_batch(responses, golds, kind=kind)
        cases = self._cases(verdicts, responses, golds, kind, prompts or [""] * len(responses))
        start = time.perf_counter()
        outcomes = self._outcomes([case.question for case in cases])
        seconds = time.perf_counter() - start
        for case, outcome in zip(cases, outcomes, strict=True):
            verdicts[case.place] = self._judged(verdicts[case.place], case, outcome, seconds)
        told = Counter(verdicts=len(verdicts), disagreements=sum(case.disagreement for case in cases))
        told.update([one.name for one in outcomes] + ["remembered" for one in outcomes if one.remembered])
        with self._lock:
            self._counts = self._counts.plus(**told)
        return verdicts

    def _cases(
        self,
        verdicts: Sequence[Verdict],
        responses: Sequence[str],
        golds: Sequence[Gold],
        kind: TextKind,
        prompts: Sequence[str],
    ) -> list[_Case]:
        """What calls for the judge: undecided cases, and those on which the other verifier says otherwise."""
        cases = []
        says = [one.correct for one in verdicts] if self._against is None else self._against(responses, golds, kind)
        for place, (verdict, response, gold, prompt, right) in enumerate(
            zip(verdicts, responses, golds, prompts, says, strict=True)
        ):
            if verdict.status is Status.UNDECIDED or right != verdict.correct:
                shown = response[-MAX_JUDGED:] if self.whole_response or verdict.answer is None else verdict.answer
                question = JudgeQuestion((gold,) if isinstance(gold, str) else tuple(gold), shown, prompt)
                cases.append(_Case(place, question, right != verdict.correct))
        return cases

    def _judged(self, verdict: Verdict, case: _Case, outcome: _Outcome, seconds: float) -> Verdict:
        """The verdict with what the judge made of it."""
        seconds = verdict.seconds + (0.0 if outcome.remembered else seconds)
        if outcome.name in ("right", "wrong"):
            told = f"judged {outcome.name} by {self.judge_name}" + (", two verifiers disagreed" * case.disagreement)
            status = Status(outcome.name)
            return replace(verdict, status=status, reason=told, score=None, tier="judge", seconds=seconds)
        why = outcome.why or _LEFT_OPEN[outcome.name]
        disagrees = "another verifier disagrees; " * (case.disagreement and verdict.status is not Status.UNDECIDED)
        reason = f"{verdict.reason}; {disagrees}judge: {why}"[:_LONGEST_REASON]
        return replace(verdict, reason=reason, score=verdict.score, seconds=seconds)

    # ---- asking

    def _outcomes(self, questions: Sequence[JudgeQuestion]) -> list[_Outcome]:
        """What comes of each question: remembered, under way in another thread, asked now, or not to be asked."""
        mine: dict[str, JudgeQuestion] = {}
        with self._lock:
            found = [self._begin(question, mine) for question in questions]
        if mine:
            self._ask(mine)
        return [one if isinstance(one, _Outcome) else one.result() for one in found]

    def _begin(self, question: JudgeQuestion, mine: dict[str, JudgeQuestion]) -> _Outcome | Future[_Outcome]:
        """An outcome that is known, or one to come; notes in `mine` what is to be asked now. The lock is held."""
        why = None if self.whole_response else unsuitable(question.answer)
        if why is not None:
            return _Outcome("unsuitable", f"not asked, the answer is {why}")
        key = question.key(self.judge_name)
        opinion = self._memory.get(key)
        if opinion is not None:
            return _Outcome(opinion, remembered=True)
        if key in self._pending:
            return self._pending[key]
        if self.budget is not None and self._counts.asked >= self.budget:
            return _Outcome("over_budget")
        self._counts = self._counts.plus(asked=1)
        self._pending[key] = Future()
        mine[key] = question
        return self._pending[key]

    def _ask(self, mine: dict[str, JudgeQuestion]) -> None:
        """Asks the judge, together, and hands the outcomes to the callers that wait for them."""
        pending = {key: self._pending[key] for key in mine}
        try:
            answers = self._answers(list(mine.values()))
            outcomes = [self._outcome(*pair) for pair in zip(mine.values(), answers, strict=True)]
            self._note_failures(answers)
            with self._lock:
                for (key, question), outcome in zip(mine.items(), outcomes, strict=True):
                    if outcome.name in ("right", "wrong", "unsure"):
                        self._memory.add(key, self.judge_name, question, outcome.name)  # type: ignore[arg-type]
        except BaseException as error:
            for future in pending.values():
                future.set_exception(error)
            raise
        else:
            for future, outcome in zip(pending.values(), outcomes, strict=True):
                future.set_result(outcome)
        finally:
            with self._lock:
                for key in mine:
                    self._pending.pop(key, None)

    def _answers(self, questions: Sequence[JudgeQuestion]) -> list[Any]:
        """What the judge answers to each question, or the exception that it raised."""
        answers: list[Any] = []
        for question in questions:
            try:
                answers.append(self.judge(question))
            except Exception as error:  # whatever a model's text provokes in a user's code
                answers.append(error)
        waiting = [place for place, answer in enumerate(answers) if inspect.isawaitable(answer)]
        if waiting:
            got = awaited_together([answers[place] for place in waiting])
            if got is None:
                raise InvalidValueError(
                    "an async judge cannot itself verify with the verifier that asks it: it would wait for itself"
                )
            for place, answer in zip(waiting, got, strict=True):
                answers[place] = answer
        for answer in answers:
            # A key that is not set, a library that is missing: no question is the reason.
            if isinstance(answer, (InvalidValueError, MissingDependencyError)) or (
                isinstance(answer, BaseException) and not isinstance(answer, Exception)
            ):
                raise answer
        return answers

    def _outcome(self, question: JudgeQuestion, answer: Any) -> _Outcome:
        """An answer, read.

        Raises:
            InvalidValueError: the judge returned what is none.
        """
        if isinstance(answer, Exception):
            return _Outcome("failed", f"no answer ({type(answer).__name__}: {answer})")
        if isinstance(answer, str):
            return _Outcome(read_opinion(answer, question.mark) or "unreadable")
        if answer is not None and not isinstance(answer, bool):
            raise InvalidValueError(
                f"a judge must return True, False, None or a text; {self.judge_name} returned {answer!r}"
            )
        opinion: Opinion = "unsure" if answer is None else "right" if answer else "wrong"
        return _Outcome(opinion)

    def _note_failures(self, answers: Sequence[Any]) -> None:
        """Logs what was raised; raises where the judge has never answered, and has had its chances."""
        raised = [answer for answer in answers if isinstance(answer, Exception)]
        with self._lock:
            self._answered = self._answered or len(raised) < len(answers)
            self._failures += len(raised)
            give_up = not self._answered and self._failures >= _GIVE_UP_AFTER
        for error in raised:
            _LOG.error("judge %s did not answer: %s: %s", self.judge_name, type(error).__name__, error)
        if give_up:
            raise VerifierError(
                f"judge {self.judge_name} has not answered any of its first {self._failures} questions, the last time"
                f" because of {type(raised[-1]).__name__}: {raised[-1]}"
            ) from raised[-1]

    # ---- life

    def warm(self) -> None:
        """Starts the verifier's symbolic workers now; see `Verifier.warm`."""
        self.verifier.warm()

    def close(self) -> None:
        """Lets go of the verifier's workers and of the judge's connections (`aclose`, where it has one); may be used again."""
        self.verifier.close()
        if hasattr(self.judge, "aclose"):
            awaited_together([self.judge.aclose()])

    def __repr__(self) -> str:
        """The judge, and what it was asked."""
        return f"JudgedVerifier({self.judge_name}: {self.counts})"

    def __getstate__(self) -> dict[str, Any]:
        """A copy (in another process, for example) starts with the same settings, and counts of its own."""
        return self._given

    def __setstate__(self, state: dict[str, Any]) -> None:
        JudgedVerifier.__init__(self, **state)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_ALL: WeakSet[JudgedVerifier] = WeakSet()


def _renew_all() -> None:
    """In a forked process, which inherits locks, and not the threads that hold them."""
    for one in _ALL:
        one._renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


def _loaded(judge: Judge | str) -> Judge:
    is_url = isinstance(judge, str) and judge.startswith(("http://", "https://"))
    found: Any = import_object("judge", judge) if isinstance(judge, str) and not is_url else judge
    if not callable(found):
        raise InvalidValueError(
            f"judge must be a ServerJudge(url, model), a function of a JudgeQuestion or 'module:name', got {judge!r}"
        )
    check_takes("judge", found, "question")
    loaded: Judge = found
    return loaded


def _second(against: Any) -> Callable[[Sequence[str], Sequence[Gold], TextKind], list[bool]]:
    """Another verifier, as a function that says which responses it calls right."""
    if isinstance(against, Verifier):
        return lambda responses, golds, kind: [
            verdict.correct for verdict in against.verify_batch(responses, golds, kind=kind)
        ]
    batch = getattr(against, "verify_batch", None)
    if batch is None and not callable(against):
        raise InvalidValueError(
            f"against must be an object with verify_batch(responses, golds) or a function (response, gold), got {against!r}"
        )
    check_takes("against", batch or against, "response", "gold")

    def says(responses: Sequence[str], golds: Sequence[Gold], kind: TextKind) -> list[bool]:
        texts = [f"\\boxed{{{text}}}" if kind == "answer" else text for text in responses]
        if batch is not None:
            return [_right(answer) for answer in batch(texts, golds)]
        accepted = [(gold,) if isinstance(gold, str) else gold for gold in golds]
        return [
            any(_right(against(text, one)) for one in several) for text, several in zip(texts, accepted, strict=True)
        ]

    return says


def _right(answer: Any) -> bool:
    """A verdict, a truth value or a score above 0.5, as `mathturn verify --audit` counts them."""
    correct = getattr(answer, "correct", answer)
    return correct > 0.5 if isinstance(correct, float) else bool(correct)
