"""`Verifier`: a response and a gold answer in, a `Verdict` out."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple, Self, TypeAlias

from mathturn_gym.errors import InvalidValueError, check_float, check_int, raise_unknown_name
from mathturn_gym.types import Status, Verdict
from mathturn_gym.verifier._fast_path import quick_integer, quick_verdict
from mathturn_gym.verifier.reading._extraction import POLICIES, Extraction, ExtractionPolicy
from mathturn_gym.verifier.reading._extraction import extract as find_answer
from mathturn_gym.verifier.reading._prepared import MAX_ANSWER, MAX_GOLD, Prepared, prepare
from mathturn_gym.verifier.reading._statements import has_prose, told_anywhere, told_value
from mathturn_gym.verifier.symbolic._pool import Session, SymbolicPool, SymbolicResult, shared_pool
from mathturn_gym.verifier.tiers._decide import Finding, decide, is_rounded
from mathturn_gym.verifier.tiers._scalar import Rounding

AnswerForm: TypeAlias = Literal["evaluated", "equivalent"]
UnitPolicy: TypeAlias = Literal["optional", "required"]
TolerancePolicy: TypeAlias = Literal["exact", "rounded"]
TextKind: TypeAlias = Literal["response", "answer"]
Gold: TypeAlias = str | Sequence[str]

_REMEMBERED = 16_384
_MAX_REMEMBERED = 400
# What may stand before and after all that is told.
_TOLD_BEFORE = re.compile(r"(?:[:：>#=\]\n]|(?<![a-zA-Z])(?:is|are)|[是为])[\s$*_\"'“]*\Z")
_TOLD_AFTER = re.compile(r"[ \t$*_\"”.。]*(?:\Z|\n|</|<\||\[/)")
_SOMETHING = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z0-9]")


class _Decision(NamedTuple):
    """What is known of an (accepted answers, answer) pair; `open` are the golds that only symbolic work can decide.

    `otherwise` is what was found of the other golds, none of which is met.
    """

    status: Status
    reason: str
    tier: str
    gold: str
    open: tuple[str, ...] = ()
    otherwise: _Decision | None = None


_OpenCase: TypeAlias = tuple[Gold, str, _Decision]

_RESULTS = {
    "equal": (Status.RIGHT, "equal"),
    "different": (Status.WRONG, "different"),
    "unparsed": (Status.WRONG, "not understood"),
    "timeout": (Status.UNDECIDED, "time limit"),
    "wall": (Status.UNDECIDED, "wall-clock limit"),
    "memory": (Status.UNDECIDED, "memory limit"),
    "crash": (Status.UNDECIDED, "symbolic worker failed"),
    "absent": (Status.UNDECIDED, "no symbolic workers on this system"),
}


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Threads in which `averify` waits for symbolic workers: as many as may be waiting, not as many as there are cores."""
    return ThreadPoolExecutor(max_workers=64, thread_name_prefix="mathturn-verify")


async def wait_in_thread(work: Callable[[], Verdict]) -> Verdict:
    """What a function returns that waits for other processes, without blocking the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_threads(), work)


# A forked process inherits the object, and none of its threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)


class Verifier:
    r"""Judges answers to mathematics problems.

    Certain and quick tiers work in the calling process; what they leave open goes to symbolic workers, processes with
    a limit of time and memory, which start when they are first needed and are shared by all verifiers of a process
    with the same limits. A verifier may be used from any number of threads, and by a forked process.

    Args:
        form: `"evaluated"`: where the gold is a literal number, an answer that still has arithmetic to do is wrong;
            `"equivalent"`: mathematical equality alone.
        timeout: Seconds of processor time that symbolic work on one case may take, > 0; what a busy machine makes of it
            on the clock does not matter.
        memory_mb: Address space that a symbolic worker may take, in MiB, 256 to 1,048,576.
        workers: Symbolic workers.
        extract: Which part of a response is its answer: `"boxed"` for training, `"marked"`, or `"lenient"` for evaluation
            and for other people's outputs; see `mathturn_gym.verifier.extract`.
        rel_tol: Relative difference at which numbers count as equal; 0 for equality only (0.33 is not 1/3).
        decimals: Compare numbers after rounding both to this many places; None for no rounding.
        units: Whether an answer without the gold's unit counts (`3.5` for `3.5 gal`): `"optional"`, or `"required"`. A unit
            that is told must be the gold's, or convert to it, in either case.
        tolerance: `"exact"`; or `"rounded"`: a decimal of two places or more counts that is the other value correctly
            rounded (2.67 for 8/3), and the verdict's reason says `equal when rounded`.

    Raises:
        InvalidValueError: an argument outside what is allowed.

    >>> with Verifier() as verifier:
    ...     [verifier.verify(text, "46").reason for text in ("So \\boxed{46.0}.", "\\boxed{12+34}", "It is 46?")]
    ['equal', 'unevaluated', 'no answer found']
    """

    def __init__(
        self,
        form: AnswerForm = "evaluated",
        timeout: float = 1.0,
        memory_mb: int = 1024,
        workers: int = 2,
        *,
        extract: ExtractionPolicy = "marked",
        rel_tol: float = 0.0,
        decimals: int | None = None,
        units: UnitPolicy = "optional",
        tolerance: TolerancePolicy = "exact",
    ) -> None:
        if form not in ("evaluated", "equivalent"):
            raise_unknown_name("form", form, ["evaluated", "equivalent"])
        self.form: AnswerForm = form
        self.timeout = check_float("timeout", timeout, low=1e-3, high=3600.0)
        self.memory_mb = check_int("memory_mb", memory_mb, low=256, high=1 << 20)
        self.workers = check_int("workers", workers, low=1, high=256)
        if extract not in POLICIES:
            raise_unknown_name("extract", extract, POLICIES)
        self.extract: ExtractionPolicy = extract
        if units not in ("optional", "required"):
            raise_unknown_name("units", units, ["optional", "required"])
        self.units: UnitPolicy = units
        if tolerance not in ("exact", "rounded"):
            raise_unknown_name("tolerance", tolerance, ["exact", "rounded"])
        self.tolerance: TolerancePolicy = tolerance
        places = None if decimals is None else check_int("decimals", decimals, low=0, high=300)
        self.rounding = Rounding(check_float("rel_tol", rel_tol, low=0.0, high=1.0), places)
        self._quick = self.rounding.exact and extract != "lenient"
        self._hashes = extract == "marked"
        self._pool: SymbolicPool | None = None
        # No lock guards it: each step is one operation on a dictionary, whole in any thread, after a fork, and when a
        # signal handler raises in between.
        self._known: dict[tuple[Gold, str], _Decision] = {}

    def verify(self, response: str, gold: Gold, *, kind: TextKind = "response") -> Verdict:
        """Judges one response.

        Args:
            response: What the model wrote; anything.
            gold: The accepted answer, or several.
            kind: `"response"`: find the answer in the text; `"answer"`: the text is the answer.

        Raises:
            InvalidValueError: `gold` or `kind` is not what is allowed, or `response` is no text.
            VerifierError: the symbolic workers do not start.
        """
        start = time.perf_counter()
        if kind == "response" and self._quick:
            verdict = quick_integer(response, gold, self._hashes, start)
            if verdict is not None:
                return verdict
        verdict, left = self._begin_slowly(response, gold, kind, start)
        if verdict is None:
            assert left is not None
            found, case = left
            with self._symbolic().session() as session:
                _ask(session, case)
                decision, _ = self._decided(case, session)
            verdict = _verdict(decision, found, time.perf_counter() - start)
        return verdict

    def verify_batch(
        self, responses: Sequence[str], golds: Sequence[Gold], *, kind: TextKind = "response"
    ) -> list[Verdict]:
        """Judges many responses; the verdicts are in their order, and slow cases do not delay the others.

        Args:
            responses: What the model wrote.
            golds: The accepted answer, or several, of each response.
            kind: As in `verify`.

        Raises:
            InvalidValueError: lengths that differ, or what `verify` raises.
            VerifierError: the symbolic workers do not start.
        """
        if len(responses) != len(golds):
            raise InvalidValueError(f"golds must have one entry a response: {len(golds)} for {len(responses)}")
        verdicts: list[Verdict | None] = []
        left: list[tuple[int, Extraction, _OpenCase]] = []
        with self._symbolic().session() as session:
            for index, (response, gold) in enumerate(zip(responses, golds, strict=True)):
                verdict, rest = self._begin(response, gold, kind, time.perf_counter())
                verdicts.append(verdict)
                if rest is not None:
                    left.append((index, *rest))
                    # The workers begin while the other cases are still being read.
                    _ask(session, rest[1])
            for index, found, case in left:
                decision, seconds = self._decided(case, session)
                verdicts[index] = _verdict(decision, found, seconds)
        return [verdict for verdict in verdicts if verdict is not None]

    def verify_at_once(self, response: str, gold: Gold, *, kind: TextKind = "response") -> Verdict | None:
        """`verify` without symbolic work: the verdict, or None where only a symbolic worker can tell.

        Raises:
            InvalidValueError: as for `verify`.
        """
        return self._begin(response, gold, kind, time.perf_counter())[0]

    async def averify(self, response: str, gold: Gold, *, kind: TextKind = "response") -> Verdict:
        """`verify` without blocking the event loop while symbolic workers are busy."""
        verdict, _ = self._begin(response, gold, kind, time.perf_counter())
        if verdict is not None:
            return verdict
        return await wait_in_thread(functools.partial(self.verify, response, gold, kind=kind))

    def _begin(
        self, response: str, gold: Gold, kind: TextKind, start: float
    ) -> tuple[Verdict | None, tuple[Extraction, _OpenCase] | None]:
        """A verdict, or what is left for the symbolic workers."""
        if kind == "response" and self._quick:
            verdict = quick_integer(response, gold, self._hashes, start)
            if verdict is not None:
                return verdict, None
        return self._begin_slowly(response, gold, kind, start)

    def _begin_slowly(
        self, response: str, gold: Gold, kind: TextKind, start: float
    ) -> tuple[Verdict | None, tuple[Extraction, _OpenCase] | None]:
        if type(gold) is tuple and len(gold) == 1 and type(gold[0]) is str:
            gold = gold[0]
        accepted, found = self._read(response, gold, kind)
        if found is None:
            return Verdict(Status.NO_ANSWER, "no answer found", seconds=time.perf_counter() - start), None
        decision = self._decide(accepted, found.measured)
        if decision.open:
            return None, (found, (accepted, found.measured, decision))
        return _verdict(decision, found, time.perf_counter() - start), None

    def _read(self, response: str, gold: Gold, kind: TextKind) -> tuple[Gold, Extraction | None]:
        """The gold, hashable, and the answer as it stands in the response."""
        if not isinstance(response, str):
            raise InvalidValueError(f"response must be a text, got {type(response).__name__}")
        if not isinstance(gold, str) and not (isinstance(gold, Sequence) and all(isinstance(g, str) for g in gold)):
            raise InvalidValueError(f"gold must be a non-empty text, or several of them, got {gold!r}")
        accepted = gold if isinstance(gold, str) else tuple(gold)
        if not accepted or not (accepted.strip() if isinstance(accepted, str) else all(map(str.strip, accepted))):
            raise InvalidValueError(f"gold must be a non-empty text, or several of them, got {gold!r}")
        if kind == "response":
            found = find_answer(response, self.extract)
            if self.extract == "lenient" and found is not None and found.rule not in ("box", "tag", "hash"):
                # An answer with its conditions is several formulas, of which any rule finds but one.
                whole = response.strip()
                if whole in ((accepted,) if isinstance(accepted, str) else accepted):
                    found = Extraction(whole, response.index(whole), response.index(whole) + len(whole), "whole")
            if found is not None and found.rule in ("tag", "hash", "phrase"):
                found = _as_told(response, found, (accepted,) if isinstance(accepted, str) else accepted)
            return accepted, found
        if kind != "answer":
            raise_unknown_name("kind", kind, ["response", "answer"])
        text = response.strip()
        if self.extract == "lenient" and "\n" in text and has_prose(text):
            # What others took as the answer may be the lines in which it was found.
            found = find_answer(response, "lenient")
            if found is not None:
                return accepted, found
        start = len(response) - len(response.lstrip())
        return accepted, Extraction(text, start, start + len(text), "answer") if text else None

    def _decide(self, accepted: Gold, answer: str) -> _Decision:
        """What is remembered of a pair, or what the tiers in this process find."""
        known = self._known.get((accepted, answer))
        if known is not None:
            return known
        decision = self._decide_now((accepted,) if isinstance(accepted, str) else tuple(accepted), answer)
        if not decision.open:
            self._remember(accepted, answer, decision)
        return decision

    def _remember(self, accepted: Gold, answer: str, decision: _Decision) -> None:
        if len(answer) > _MAX_REMEMBERED:
            return
        if len(self._known) >= _REMEMBERED:
            self._known = {}
        self._known[accepted, answer] = decision

    def _decide_now(self, accepted: tuple[str, ...], answer: str) -> _Decision:
        if len(answer) > MAX_ANSWER:
            equal = [text for text in accepted if text.strip() == answer]
            if equal:
                return _Decision(Status.RIGHT, "equal", "exact", equal[0])
            return _Decision(Status.UNDECIDED, "answer too long", "exact", accepted[-1])
        decision: _Decision | None = None
        left: list[str] = []
        for gold in accepted:
            found = self._compare(gold, answer)
            if found.status is Status.RIGHT:
                return found
            if found.open:
                left.append(gold)
            elif decision is None or decision.status is not Status.UNDECIDED:
                # One accepted answer that could not be looked into leaves the whole case undecided.
                decision = found
        if not left:
            assert decision is not None
            return decision
        return _Decision(Status.UNDECIDED, "", "symbolic", left[-1], tuple(left), decision)

    def _compare(self, gold: str, answer: str) -> _Decision:
        """An answer against one gold, as far as it goes without symbolic work."""
        if answer == gold and _SOMETHING.search(answer):
            # Nothing needs to be read to see that a text is itself.
            return _Decision(Status.RIGHT, "equal", "exact", gold)
        if len(gold) > MAX_GOLD:
            return _Decision(Status.UNDECIDED, "gold too long", "exact", gold)
        first, second = prepare(gold), prepare(answer)
        finding = self._find(first, second)
        if finding.status is not Status.WRONG or second.value is not None:
            pass
        elif (told := told_value(second.text)) is not None:
            # A sentence, and not its letters multiplied: what counts is the value that it tells.
            finding = self._find(first, prepare(told))
        elif self.extract == "lenient" and (told := told_anywhere(answer)) is not None:
            # What others took as the answer may be the sentence in which it was found.
            finding = self._find(first, prepare(told))
        if finding.status is None:
            return _Decision(Status.UNDECIDED, "", "symbolic", gold, (gold,))
        return _Decision(finding.status, finding.reason, finding.tier, gold)

    def _find(self, gold: Prepared, answer: Prepared) -> Finding:
        found = decide(
            gold, answer, evaluated=self.form == "evaluated", rounding=self.rounding, units=self.units == "required"
        )
        if self.tolerance == "rounded" and found.status is not Status.RIGHT and is_rounded(gold, answer):
            return Finding(Status.RIGHT, "equal when rounded", "rational")
        return found

    def _decided(self, case: _OpenCase, session: Session) -> tuple[_Decision, float]:
        """What the symbolic workers found, which is remembered unless it was an accident, and the seconds it took them."""
        accepted, answer, decision = case
        found = [(gold, session.result(prepare(gold).text, prepare(answer).text)) for gold in decision.open]
        verdict = _combined(found, decision.otherwise)
        if verdict.status is Status.RIGHT or all(result.repeatable for _, result in found):
            self._remember(accepted, answer, verdict)
        return verdict, sum(result.seconds for _, result in found)

    def _symbolic(self) -> SymbolicPool:
        if self._pool is None:
            self._pool = shared_pool(self.timeout, self.memory_mb, self.workers)
        return self._pool

    def warm(self) -> None:
        """Starts the symbolic workers now, rather than at the first case that needs them.

        Raises:
            VerifierError: they do not start.
        """
        self._symbolic().start()

    def close(self) -> None:
        """Lets go of the workers; they end when no other verifier of the process uses them. May be used again."""
        self._pool = None

    def __getstate__(self) -> dict[str, object]:
        """A copy (in another process, for example) starts with the same settings, and workers of its own."""
        return {key: value for key, value in self.__dict__.items() if key not in ("_pool", "_known")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._pool, self._known = None, {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _as_told(response: str, found: Extraction, golds: Sequence[str]) -> Extraction:
    """What was found, or the accepted answer that stands around it and is all that was told.

    A sentence may be the answer: of `1.5 meters wide by 1.25 meters tall` the rules find the first value.
    """
    for gold in golds:
        text = gold.strip()
        if len(text) <= found.end - found.start or len(text) > _MAX_REMEMBERED:
            continue
        # A sign of money or of a formula may stand in front of what was found.
        start = response.rfind(text, max(0, found.end - len(text)), found.start + 1 + len(text))
        end = start + len(text)
        if start >= 0 and _TOLD_BEFORE.search(response, max(0, start - 40), start) and _TOLD_AFTER.match(response, end):
            return Extraction(text, start, end, found.rule)
    return found


def _ask(session: Session, case: _OpenCase) -> None:
    """Sends what is open of a case."""
    for gold in case[2].open:
        session.ask(prepare(gold).text, prepare(case[1]).text)


def _combined(found: Sequence[tuple[str, SymbolicResult]], otherwise: _Decision | None) -> _Decision:
    """Right where one accepted answer is met, undecided where one was not looked into to the end."""
    decisions = [] if otherwise is None else [otherwise]
    decisions += [_Decision(*_RESULTS[result.name], "symbolic", gold) for gold, result in found]
    for status in (Status.RIGHT, Status.UNDECIDED):
        for decision in decisions:
            if decision.status is status:
                return decision
    return decisions[-1]


def _verdict(decision: _Decision, found: Extraction, seconds: float) -> Verdict:
    span = found.start, found.end
    return quick_verdict(
        decision.status, decision.reason, found.text, span, decision.gold, decision.tier, found.rule, seconds
    )


_STATUS_WORDS = {
    Status.RIGHT: "Right",
    Status.WRONG: "Wrong",
    Status.NO_ANSWER: "No answer",
    Status.UNDECIDED: "Undecided (not counted as right)",
}


def explain(verdict: Verdict) -> str:
    """A verdict in one or two sentences for people.

    >>> explain(Verdict(Status.WRONG, "different", answer="41", span=(7, 9), gold="42", tier="rational"))
    "Wrong: '41' (characters 7 to 9) against '42': different. Decided by the rational tier in 0.00 ms."
    """
    text = _STATUS_WORDS[verdict.status]
    if verdict.answer is not None and verdict.span is not None:
        text += f": {verdict.answer!r} (characters {verdict.span[0]} to {verdict.span[1]}) against {verdict.gold!r}"
    text += f": {verdict.reason}."
    if verdict.tier is not None:
        text += f" Decided by the {verdict.tier} tier in {verdict.seconds * 1e3:.2f} ms."
    return text
