"""`TurnVerifier`: one interface, turns in and verdicts out, for every form of verifier that a user can give."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args, runtime_checkable
from weakref import WeakValueDictionary

from mathturn_gym.base.user_functions import awaited_together, check_takes, name_of, place_of, positional_parameters
from mathturn_gym.errors import InvalidValueError, MathTurnError, UserFunctionError, raise_unknown_name
from mathturn_gym.types import Gold, Status, TurnContext, Verdict
from mathturn_gym.verifier import ExtractionPolicy, Verifier, extract
from mathturn_gym.verifier.judge import JudgedVerifier

_LOG = logging.getLogger(__name__)

GIVE_UP_AFTER: Final = 3
"""The run stops once a verifier that has never answered has raised this many times."""

_LONGEST_REASON: Final = 500


@runtime_checkable
class BatchVerifier(Protocol):
    """An object that verifies many responses in one call.

    `verify_batch` may be called from several threads at once (`collect` decodes while it verifies). It may be a coroutine
    function. Each entry of its result is what a verifier function may return (see `TurnVerifier`).
    """

    def verify_batch(self, responses: Sequence[str], golds: Sequence[Gold]) -> Sequence[Verdict | bool | float]:
        """Judges many responses, in order."""
        ...


class _TurnsVerifier(Protocol):
    def verify_turns(self, contexts: Sequence[TurnContext]) -> Sequence[Verdict | bool | float]: ...


class _SingleVerifier(Protocol):
    def verify(self, response: str, gold: Gold) -> Verdict | bool | float: ...


Answer: TypeAlias = Verdict | bool | float
VerifierFunction: TypeAlias = (
    "Callable[[str, Gold], Answer | Awaitable[Answer]] | Callable[[TurnContext], Answer | Awaitable[Answer]]"
)
VerifierLike: TypeAlias = "Verifier | BatchVerifier | _TurnsVerifier | _SingleVerifier | VerifierFunction | TurnVerifier | ExtractionPolicy | None"


@dataclass(frozen=True, slots=True)
class _Raised:
    """Stands for the answer of a verifier that raised."""

    error: BaseException


class TurnVerifier:
    """A verifier of any form, called with turns.

    A verifier is one of

    * an object with `verify_turns(contexts)` (such as `JudgedVerifier`), which gets all turns of a call at once, as
      `TurnContext`s, or with `verify_batch(responses, golds)` (such as `Verifier`), which gets their texts;
    * an object with `verify(response, gold)`, or a function `(response, gold)`, called for one turn after the other;
    * a function `(context)` of a `TurnContext`: one that has a single parameter, or whose first one is called `context` or
      annotated as `TurnContext`;
    * a coroutine function of either form: the turns of a call are awaited together, in an event loop that all environments
      of the process share. It runs in a thread of its own, so that this works in Jupyter and in threads too.

    It answers with a `Verdict`, a bool (right or wrong), or a score in [0, 1] (right from 1.0 on). Where it does not say
    what it took as the answer, the verdict has the answer that `extract` finds. Where it raises, the turn
    is undecided: a model's text may be the reason. Such a verdict has `is_verifier_error`, and the exception as its reason;
    it is logged. A verifier that has raised on each of its first calls stops the run instead.

    Args:
        verifier: The verifier.

    Raises:
        InvalidValueError: it is none of these, or its signature leaves open which.

    >>> from mathturn_gym.types import Problem
    >>> turn = TurnContext(Problem("p/1", "2+2?", "4"), 0, 1, "4")
    >>> TurnVerifier(lambda response, gold: response in gold).verify_turns([turn])[0].correct
    True
    """

    def __init__(self, verifier: Any) -> None:
        self.verifier = verifier
        self._answered, self._failures = False, 0
        self._batch: Callable[..., Any] | None = getattr(verifier, "verify_batch", None)
        self._turns: Callable[..., Any] | None = getattr(verifier, "verify_turns", None)
        if (
            isinstance(verifier, Verifier)
            and _overrides(verifier, "verify")
            and not _overrides(verifier, "verify_batch")
        ):
            self._batch = None  # a subclass that judges single responses its own way means them all
        self._call: Callable[..., Any] | None = None
        self._form: Literal["pair", "context"] = "pair"
        if self._turns is not None:
            check_takes("verifier.verify_turns", self._turns, "contexts")
            self._batch = self._turns
            return
        if self._batch is not None:
            check_takes("verifier.verify_batch", self._batch, "responses", "golds")
            return
        function = getattr(verifier, "verify", verifier)
        if not callable(function):
            raise InvalidValueError(
                "verifier must be None, an object with verify_batch(responses, golds) or verify(response, gold), or a"
                f" function (response, gold) or (context), got {verifier!r}"
            )
        self._call, self._form = function, _form_of(function)

    @property
    def name(self) -> str:
        """Its name in error messages."""
        return name_of(self.verifier)

    @property
    def is_async(self) -> bool:
        """True for coroutine functions: what they wait for is elsewhere."""
        return _is_coroutine_function(self._call if self._batch is None else self._batch)

    @property
    def runs_beside(self) -> bool:
        """True where it may work in another thread: objects that get all turns at once, and coroutine functions.

        A plain function may rely on the thread that calls it (time limits made of signals work in the main thread alone).
        """
        return self._batch is not None or self.is_async

    def verify_turns(self, contexts: Sequence[TurnContext]) -> list[Verdict]:
        """Judges turns, in order.

        Raises:
            InvalidValueError: it answered with something that is no verdict.
            UserFunctionError: it has never answered, and has raised several times.
            MathTurnError: what the package's own `Verifier` raises about its user.
        """
        if type(self.verifier) is Verifier:  # it answers with verdicts, and whatever it raises is no response's fault
            if len(contexts) == 1:
                return [self.verifier.verify(contexts[0].response, contexts[0].problem.gold)]
            return self.verifier.verify_batch([c.response for c in contexts], [c.problem.gold for c in contexts])
        answers = self._ask(contexts) if contexts else []
        if any(isinstance(answer, _Raised) for answer in answers):
            self._note_errors(answers, contexts)
        elif answers:
            self._answered = True
        return [self._verdict(answer, context) for answer, context in zip(answers, contexts, strict=True)]

    def submit_turns(self, contexts: Sequence[TurnContext]) -> list[Future[Verdict]]:
        """`verify_turns` as a future for each turn.

        What needs no waiting is done on return: the turns that the built-in `Verifier` decides without symbolic work, and
        all turns of a function that does not `runs_beside`. The others are judged in another thread, together.

        Raises:
            MathTurnError: what `verify_turns` raises, where that is known at once; else the futures raise it.
        """
        futures: list[Future[Verdict]] = [Future() for _ in contexts]
        for future in futures:
            future.set_running_or_notify_cancel()  # a waiter that cancels must not make it refuse its result
        left = list(range(len(contexts)))
        if type(self.verifier) is Verifier:
            left = [k for k in left if not self._done_at_once(contexts[k], futures[k])]
        asked = [contexts[k] for k in left]

        def work() -> None:
            try:
                found = self.verify_turns(asked)
            except BaseException as error:  # it is raised where the future is asked
                for k in left:
                    futures[k].set_exception(error)
            else:
                for k, verdict in zip(left, found, strict=True):
                    futures[k].set_result(verdict)

        if left and self.runs_beside:
            # a daemon: a verifier that never returns must not keep the program from ending.
            threading.Thread(target=work, name="verification", daemon=True).start()
        elif left:
            for k, verdict in zip(left, self.verify_turns(asked), strict=True):
                futures[k].set_result(verdict)
        return futures

    def _done_at_once(self, context: TurnContext, future: Future[Verdict]) -> bool:
        verdict = self.verifier.verify_at_once(context.response, context.problem.gold)
        if verdict is not None:
            future.set_result(verdict)
        return verdict is not None

    # ---- asking

    def _ask(self, contexts: Sequence[TurnContext]) -> list[Any]:
        """An answer, or a `_Raised`, per turn."""
        if self._batch is None:
            return self._ask_one_by_one(contexts)
        answers = self._ask_batch(contexts)
        if isinstance(answers, _Raised):
            # One turn after the other, so that only the turn that makes it raise is undecided.
            found = [answers] if len(contexts) == 1 else [self._ask_batch([context]) for context in contexts]
            return [one if isinstance(one, _Raised) else one[0] for one in found]
        return answers

    def _ask_batch(self, contexts: Sequence[TurnContext]) -> list[Any] | _Raised:
        """The object's answers to all turns at once."""
        assert self._batch is not None
        try:
            if self._turns is None:
                found = self._batch([c.response for c in contexts], [c.problem.gold for c in contexts])
            else:
                found = self._turns(contexts)
            if inspect.isawaitable(found):
                (found,) = _gathered([found])
        except Exception as error:
            if isinstance(self.verifier, (Verifier, JudgedVerifier)) and isinstance(error, MathTurnError):
                raise  # the workers do not start, a gold answer is no text: no response is the reason
            return _Raised(error)
        if isinstance(found, _Raised):
            return found
        answers = list(found) if isinstance(found, Iterable) else []
        if len(answers) != len(contexts):
            raise InvalidValueError(
                f"{'verify_batch' if self._turns is None else 'verify_turns'} of verifier {self.name} must return {len(contexts)} answers for as many responses, got"
                f" {found!r}"
            )
        return answers

    def _ask_one_by_one(self, contexts: Sequence[TurnContext]) -> list[Any]:
        """The function's answers, one call per turn; coroutines of all turns are awaited together."""
        assert self._call is not None
        answers: list[Any] = []
        for context in contexts:
            arguments = (context,) if self._form == "context" else (context.response, context.problem.gold)
            try:
                answers.append(self._call(*arguments))
            except Exception as error:  # whatever a model's text provokes in a user's code
                answers.append(_Raised(error))
        return _gathered(answers) if any(map(inspect.isawaitable, answers)) else answers

    # ---- answers

    def _note_errors(self, answers: Sequence[Any], contexts: Sequence[TurnContext]) -> None:
        """Logs what was raised; raises where the verifier has never answered and has raised `GIVE_UP_AFTER` times."""
        raised = [(a.error, c) for a, c in zip(answers, contexts, strict=True) if isinstance(a, _Raised)]
        if len(raised) < len(answers):
            self._answered = True
        for error, context in raised:
            # Only the first error is logged with its traceback: the others are mostly the same.
            trace = error if not self._failures else None
            self._failures += 1
            _LOG.error(
                "verifier %s raised %s for %s, which is undecided: %s",
                self.name,
                type(error).__name__,
                place_of(context),
                error,
                exc_info=trace,
            )
        if not self._answered and self._failures >= GIVE_UP_AFTER:
            error, context = raised[-1]
            raise UserFunctionError(
                f"verifier {self.name} has raised on each of its {self._failures} calls, the last time"
                f" {type(error).__name__} for {place_of(context)}: {error}"
            ) from error

    def _verdict(self, answer: Any, context: TurnContext) -> Verdict:
        if isinstance(answer, Verdict):
            if answer.answer is not None or answer.status not in (Status.RIGHT, Status.WRONG):
                return answer
            return replace(answer, **_said(context.response))
        if isinstance(answer, _Raised):
            reason = f"the verifier raised {type(answer.error).__name__}: {answer.error}"
            return Verdict(Status.UNDECIDED, reason[:_LONGEST_REASON], tier="error")
        score = -1.0
        if not isinstance(answer, (str, bytes)):
            try:
                score = float(answer)
            except (TypeError, ValueError):
                score = -1.0
        if not 0.0 <= score <= 1.0:
            raise InvalidValueError(
                f"verifier must return a Verdict, a bool or a number in [0, 1]; {self.name} returned {answer!r} for"
                f" {place_of(context)}"
            )
        status = Status.RIGHT if score == 1.0 else Status.WRONG
        return Verdict(status, "custom verifier", score, tier="custom", **_said(context.response))


def _said(response: str) -> dict[str, Any]:
    """Returns the fields of a verdict that say which answer a response gives.

    Feedback, `repeated_answer` and `format` read them: a verifier that answers with a bool must not make them say that
    there was no answer.
    """
    found = extract(response)
    return {} if found is None else {"answer": found.text, "span": (found.start, found.end), "rule": found.rule}


_KNOWN: WeakValueDictionary[int, TurnVerifier] = WeakValueDictionary()


def get_verifier(verifier: VerifierLike = None) -> TurnVerifier:
    """Wraps a user's verifier as a `TurnVerifier`; returns the same one for the same verifier.

    Args:
        verifier: See `TurnVerifier`; or `"boxed"`, `"marked"` or `"lenient"`: `Verifier(extract=…)`. None is `Verifier()`.

    Raises:
        InvalidValueError: it can verify nothing, or cannot be called.

    >>> get_verifier() is get_verifier("marked")
    True
    """
    if isinstance(verifier, TurnVerifier):
        return verifier
    if verifier is None or isinstance(verifier, str):
        return _named_verifier("marked" if verifier is None else verifier)
    # a `TurnVerifier` keeps its verifier alive, so no other object can have its id while it stands here.
    known = _KNOWN.get(id(verifier))
    if known is None:
        known = _KNOWN[id(verifier)] = TurnVerifier(verifier)
    return known


@functools.cache
def _named_verifier(name: Any) -> TurnVerifier:
    """One for all environments of a process: they share its workers and its cache."""
    if name not in get_args(ExtractionPolicy):
        raise_unknown_name("verifier", name, (*get_args(ExtractionPolicy), "module:name"))
    return TurnVerifier(Verifier(extract=name))


def _form_of(function: Callable[..., Any]) -> Literal["pair", "context"]:
    """The form of call that a verifier function takes."""
    parameters = positional_parameters(function)
    if parameters is None:
        return "pair"
    required = [one for one in parameters if one.default is one.empty and one.kind is not one.VAR_POSITIONAL]
    first = parameters[0] if parameters else None
    if first is not None and (first.name == "context" or "TurnContext" in str(first.annotation)):
        check_takes("verifier", function, "context")
        return "context"
    several = len(parameters) > 1 or any(one.kind is one.VAR_POSITIONAL for one in parameters)
    if not several:
        check_takes("verifier", function, "context")
        return "context"
    if len(required) == 1 and len(parameters) > 1 and parameters[1].name not in ("gold", "golds"):
        raise InvalidValueError(
            f"verifier {name_of(function)} can be called as f(response, gold) and as f(context): call its first parameter"
            " `context` (or annotate it as TurnContext), or its second one `gold`"
        )
    check_takes("verifier", function, "response", "gold")
    return "pair"


def _overrides(verifier: Verifier, method: str) -> bool:
    """True where a verifier's class replaces a method of `Verifier`."""
    return getattr(type(verifier), method) is not getattr(Verifier, method)


def _is_coroutine_function(function: object) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 - of an object, it may be a coroutine function
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


# ---- awaiting, whatever thread or event loop the caller is in


def _gathered(results: Sequence[Any]) -> list[Any]:
    """The results, awaitables replaced by what they give or by a `_Raised`; they are awaited together."""
    waiting = {i: result for i, result in enumerate(results) if inspect.isawaitable(result)}
    if not waiting:
        return list(results)
    found = awaited_together(list(waiting.values()))
    if found is None:
        raise InvalidValueError(
            "an async verifier has verified synchronously, in the event loop that it runs in, which would wait for itself:"
            " await the judge that it calls, or step the environment in a thread (asyncio.to_thread)"
        )
    answers = [_Raised(one) if isinstance(one, BaseException) else one for one in found]
    return [answers.pop(0) if i in waiting else result for i, result in enumerate(results)]
