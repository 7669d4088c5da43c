"""How good a verifier is on labelled cases: accuracy with confidence intervals, exploits, hangs, crashes, memory."""

from __future__ import annotations

import contextlib
import json
import math
import select
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Self

from mathturn_gym.errors import ProblemFileError, VerifierError, raise_unknown_name
from mathturn_gym.verifier.audit_child import BUILT_IN
from mathturn_gym.verifier.worker import read_frame, write_frame

__all__ = ["AuditReport", "Case", "audit", "check_verifier_name", "load_cases", "wilson"]

_HANG_SECONDS = 5.0
_START_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Case:
    """A labelled case.

    Args:
        gold: The accepted answer.
        response: What is judged.
        label: Whether it is right.
        kind: `"response"` or `"answer"`.
        category: What kind of case it is; `exploit` (and `hack`) are counted apart where they are accepted.
        group: Where it belongs in reports.
    """

    gold: str
    response: str
    label: bool
    kind: str = "response"
    category: str = ""
    group: str = ""

    @property
    def exploit(self) -> bool:
        """Whether accepting the case would pay a policy for gaming the verifier."""
        return not self.label and self.category in ("exploit", "hack", "exec", "bomb", "garbage")


def load_cases(path: Path | None = None) -> list[Case]:
    """Cases from a JSON-lines file, or those of the package.

    Args:
        path: Rows with `gold`, `response`, `label`, and perhaps `kind`, `category` (or `cat`) and `source`.

    Raises:
        ProblemFileError: a file that cannot be read, or a broken row: file, line and field are named.
    """
    if path is None:
        name = "verifier_suite.jsonl"
        text = resources.files("mathturn_gym").joinpath("assets", name).read_text(encoding="utf-8")
    else:
        name = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ProblemFileError(f"{name} cannot be read: {error}") from error
    return [_case(name, number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _case(name: str, number: int, line: str) -> Case:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ProblemFileError(f"{name}, line {number}: not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ProblemFileError(f"{name}, line {number}: must be an object, got {type(row).__name__}")
    for key, kind in (("gold", str), ("response", str), ("label", bool)):
        if not isinstance(row.get(key), kind):
            raise ProblemFileError(f"{name}, line {number}: {key} must be a {kind.__name__}, got {row.get(key)!r}")
    kind_of = row.get("kind", "response")
    if kind_of not in ("response", "answer"):
        raise ProblemFileError(f"{name}, line {number}: kind must be 'response' or 'answer', got {kind_of!r}")
    category = str(row.get("category") or row.get("cat") or "")
    return Case(row["gold"], row["response"], row["label"], kind_of, category, str(row.get("source", "")))


def wilson(hits: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion.

    >>> [round(bound, 3) for bound in wilson(0, 1000)]
    [0.0, 0.004]
    """
    if not total:
        return 0.0, 1.0
    z = 1.959964
    share = hits / total
    middle = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


@dataclass(slots=True)
class AuditReport:
    """What an audit found.

    Args:
        verifier: Its name.
        cases: The cases, as they were given.
        found: For each, True or False as the verifier said, None where it hung or crashed.
        seconds: For each, the time it took, at most the limit of a hang.
        hangs: Cases that took longer than the limit.
        crashes: Cases on which it raised or its process ended.
        memory_mb: Peak memory of the process that calls the verifier, MiB.
    """

    verifier: str
    cases: Sequence[Case]
    found: list[bool | None] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    hangs: int = 0
    crashes: int = 0
    memory_mb: float = 0.0

    def wrong(self) -> list[Case]:
        """Cases that were not judged as labelled."""
        return [case for case, found in zip(self.cases, self.found, strict=True) if bool(found) != case.label]

    def summary(self) -> dict[str, Any]:
        """The figures: counts, rates with their 95 % intervals, milliseconds, MiB."""
        wrong = self.wrong()
        total, positives = len(self.cases), sum(case.label for case in self.cases)
        false_positives = sum(not case.label for case in wrong)
        false_negatives = len(wrong) - false_positives
        times = sorted(1e3 * value for value in self.seconds)

        def at(share: float) -> float:
            return times[min(len(times) - 1, int(share * len(times)))] if times else 0.0

        rates = (
            ("accuracy", total - len(wrong), total),
            ("false_positives", false_positives, total - positives),
            ("false_negatives", false_negatives, positives),
        )
        figures: dict[str, Any] = {"verifier": self.verifier, "cases": total}
        for name, hits, of in rates:
            low, high = wilson(hits, of)
            figures[name] = {"share": hits / of if of else 0.0, "count": hits, "of": of, "low": low, "high": high}
        figures["exploits_accepted"] = sum(case.exploit for case in wrong)
        figures["exploits"] = sum(case.exploit for case in self.cases)
        figures |= {"hangs": self.hangs, "crashes": self.crashes, "memory_mb": self.memory_mb}
        figures["ms"] = {"mean": sum(times) / max(1, len(times)), "median": at(0.5), "p99": at(0.99)}
        return figures


class _Audited:
    """A verifier in a child process that is replaced when it hangs or dies."""

    def __init__(self, verifier: str, form: str) -> None:
        self.settings = {"verifier": verifier, "form": form}
        self.process: subprocess.Popen[bytes] | None = None

    def _pipes(self) -> tuple[int, int]:
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return self.process.stdin.fileno(), self.process.stdout.fileno()

    def start(self) -> None:
        command = [sys.executable, "-P", str(Path(__file__).with_name("audit_child.py"))]
        self.process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        write, read = self._pipes()
        write_frame(write, {"path": sys.path})
        write_frame(write, self.settings)
        ready = select.select([read], [], [], _START_SECONDS)[0]
        reply = read_frame(read) if ready else None
        if reply is None or "error" in reply:
            reason = "no answer" if reply is None else reply["error"]
            self.close()
            raise VerifierError(f"the verifier {self.settings['verifier']!r} does not start: {reason}")

    def ask(self, case: Case) -> dict[str, Any]:
        """The reply to a case; `hang` or `crash` where there is none."""
        if self.process is None:
            self.start()
        write, read = self._pipes()
        try:
            write_frame(write, {"gold": case.gold, "response": case.response, "kind": case.kind})
            ready = select.select([read], [], [], _HANG_SECONDS)[0]
            reply = read_frame(read) if ready else {"hang": True}
        except BrokenPipeError:
            reply = None
        if reply is None or "hang" in reply:
            self.close()
        return {"crash": True} if reply is None else reply

    def close(self) -> None:
        if self.process is None:
            return
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self.process.wait()
        self.process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def check_verifier_name(name: str) -> None:
    """Raises `InvalidValueError` for what is neither a known verifier nor an import path `package.module:function`."""
    if name not in BUILT_IN and ":" not in name:
        raise_unknown_name("verifier", name, [*BUILT_IN, "package.module:function"])


def audit(
    verifier: str, cases: Iterable[Case], *, form: str = "equivalent", progress: Callable[[], object] | None = None
) -> AuditReport:
    """Runs a verifier over cases, one after the other, in a process of its own.

    Args:
        verifier: `mathturn`, `math-verify`, `trl`, or an import path `package.module:function` of a function that
            takes a response and a gold answer.
        cases: The cases.
        form: The form of `mathturn`'s verifier.
        progress: Called after each case.

    Raises:
        InvalidValueError: an unknown verifier.
        VerifierError: a verifier that does not start.
    """
    check_verifier_name(verifier)
    report = AuditReport(verifier, list(cases))
    with _Audited(verifier, form) as audited:
        audited.start()
        for case in report.cases:
            reply = audited.ask(case)
            report.hangs += "hang" in reply
            report.crashes += "crash" in reply or "error" in reply
            report.found.append(reply.get("correct"))
            report.seconds.append(float(reply.get("seconds", _HANG_SECONDS)))
            report.memory_mb = max(report.memory_mb, float(reply.get("memory_mb", 0.0)))
            if progress is not None:
                progress()
    return report
