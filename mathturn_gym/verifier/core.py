"""`Verifier`: a response and a gold answer in, a `Verdict` out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Literal, Self

from mathturn_gym.errors import InvalidValueError, check_float, check_int, raise_unknown_name
from mathturn_gym.types import Status, Verdict
from mathturn_gym.verifier.extract import Extraction, extract
from mathturn_gym.verifier.judge import MAX_ANSWER, judge, prepare
from mathturn_gym.verifier.pool import Outcome, SymbolicPool, shared_pool
from mathturn_gym.verifier.scalar import Rounding

__all__ = ["Form", "Kind", "Verifier"]

Form = Literal["evaluated", "equivalent"]
Kind = Literal["response", "answer"]


class Verifier:
    """Judges answers to mathematics problems.

    Args:
        form: `"evaluated"`: where the gold is a literal number, an answer that still has arithmetic to do is wrong;
            `"equivalent"`: mathematical equality alone.
        timeout: Seconds of symbolic work that one case may take, > 0.
        memory_mb: Address space that a symbolic worker may take, in MiB, at least 256.
        workers: Symbolic workers, shared by all verifiers of the process with the same limits.
        last_number: Take the last number of a response where nothing marks its answer.

    Raises:
        InvalidValueError: an argument outside what is allowed.

    >>> with Verifier() as verifier:
    ...     verifier.verify("So it is \\\\boxed{0.5}.", "1/2").status.value
    'right'
    """

    def __init__(
        self,
        form: Form = "evaluated",
        timeout: float = 1.0,
        memory_mb: int = 1024,
        workers: int = 2,
        *,
        last_number: bool = False,
        rel_tol: float = 0.0,
        decimals: int | None = None,
    ) -> None:
        if form not in ("evaluated", "equivalent"):
            raise_unknown_name("form", form, ["evaluated", "equivalent"])
        self.form = form
        self.timeout = check_float("timeout", timeout, low=1e-3, high=3600.0)
        self.memory_mb = check_int("memory_mb", memory_mb, low=256)
        self.workers = check_int("workers", workers, low=1, high=256)
        self.last_number = bool(last_number)
        places = None if decimals is None else check_int("decimals", decimals, low=0, high=300)
        self.rounding = Rounding(check_float("rel_tol", rel_tol, low=0.0, high=1.0), places)
        self._pool: SymbolicPool | None = None

    def verify(self, response: str, gold: str | Sequence[str], *, kind: Kind = "response") -> Verdict:
        """Judges one response.

        Args:
            response: What the model wrote; anything.
            gold: The accepted answer, or several.
            kind: `"response"`: find the answer in the text; `"answer"`: the text is the answer.

        Raises:
            InvalidValueError: `gold` or `kind` is not what is allowed.
        """
        return self.verify_batch([response], [gold], kind=kind)[0]

    def verify_batch(
        self, responses: Sequence[str], golds: Sequence[str | Sequence[str]], *, kind: Kind = "response"
    ) -> list[Verdict]:
        """Judges many responses, in their order; slow ones do not delay the others.

        Raises:
            InvalidValueError: `golds` or `kind` is not what is allowed.
        """
        if kind not in ("response", "answer"):
            raise_unknown_name("kind", kind, ["response", "answer"])
        if len(responses) != len(golds):
            raise InvalidValueError(f"golds must have one entry a response: {len(golds)} for {len(responses)}")
        verdicts: list[Verdict | None] = []
        cases: list[tuple[int, Extraction, str]] = []
        for index, (response, gold) in enumerate(zip(responses, golds, strict=True)):
            accepted = _accepted(gold)
            verdict, found = self._quick(response, accepted, kind)
            verdicts.append(verdict)
            if verdict is None:
                assert found is not None
                cases.extend((index, found, text) for text in accepted)
        outcomes = self._symbolic().judge([(prepare(gold).text, prepare(found.text).text) for _, found, gold in cases]) if cases else []
        for (index, found, gold), outcome in zip(cases, outcomes, strict=True):
            before = verdicts[index]
            if before is None or not before.correct:
                verdicts[index] = _from_outcome(found, gold, outcome)
        return [verdict for verdict in verdicts if verdict is not None]

    async def averify(self, response: str, gold: str | Sequence[str], *, kind: Kind = "response") -> Verdict:
        """`verify` without blocking the event loop."""
        return await asyncio.to_thread(self.verify, response, gold, kind=kind)

    def _quick(self, response: str, accepted: tuple[str, ...], kind: Kind) -> tuple[Verdict | None, Extraction | None]:
        start = time.perf_counter()
        if kind == "answer":
            stripped = response.strip()
            found = Extraction(stripped, 0, len(response), "answer") if stripped else None
        else:
            found = extract(response, last_number=self.last_number)
        if found is None:
            return Verdict(Status.NO_ANSWER, "no answer found", seconds=time.perf_counter() - start), None
        status, reason, tier, gold = self._judge_quick(found.text, accepted)
        if status is None:
            return None, found
        verdict = Verdict(
            status,
            reason,
            answer=found.text,
            span=(found.start, found.end),
            gold=gold,
            tier=tier,
            seconds=time.perf_counter() - start,
        )
        return verdict, found

    def _judge_quick(self, answer: str, accepted: tuple[str, ...]) -> tuple[Status | None, str, str, str]:
        gold = accepted[-1]
        if len(answer) > MAX_ANSWER:
            equal = answer in accepted
            return (Status.RIGHT, "equal", "exact", gold) if equal else (Status.UNDECIDED, "too long", "exact", gold)
        prepared = prepare(answer)
        worst: tuple[Status | None, str, str, str] | None = None
        for gold in accepted:
            finding = judge(prepare(gold), prepared, evaluated=self.form == "evaluated", rounding=self.rounding)
            if finding.status is Status.RIGHT:
                return finding.status, finding.reason, finding.tier, gold
            if worst is None or finding.status is None:
                worst = finding.status, finding.reason, finding.tier, gold
        assert worst is not None
        return worst

    def _symbolic(self) -> SymbolicPool:
        if self._pool is None:
            self._pool = shared_pool(self.timeout, self.memory_mb, self.workers)
        return self._pool

    def warm(self) -> None:
        """Starts the symbolic workers now, rather than at the first case that needs them."""
        self._symbolic().start()

    def close(self) -> None:
        """Lets go of the workers; they end when no other verifier of the process uses them."""
        self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _accepted(gold: str | Sequence[str]) -> tuple[str, ...]:
    """Gold answers as a tuple of non-empty texts."""
    accepted = (gold,) if isinstance(gold, str) else tuple(gold)
    if not accepted or not all(isinstance(text, str) and text.strip() for text in accepted):
        raise InvalidValueError(f"gold must be a non-empty text, or several of them, got {gold!r}")
    return tuple(text.strip() for text in accepted)


def _from_outcome(found: Extraction, gold: str, outcome: Outcome) -> Verdict:
    status = {"equal": Status.RIGHT, "different": Status.WRONG, "unparsed": Status.WRONG}.get(
        outcome.name, Status.UNDECIDED
    )
    return Verdict(
        status,
        outcome.name,
        answer=found.text,
        span=(found.start, found.end),
        gold=gold,
        tier="symbolic",
        seconds=outcome.seconds,
    )
