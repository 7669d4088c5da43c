"""Runs a verifier over labelled cases in a process of its own: it may hang, crash or eat memory, and the audit goes on."""

from __future__ import annotations

import contextlib
import importlib.util
import select
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from mathturn_gym.errors import VerifierError, raise_unknown_name
from mathturn_gym.verifier.audit._child import BUILT_IN
from mathturn_gym.verifier.audit._report import AuditReport, Case
from mathturn_gym.verifier.symbolic._worker import read_frame, write_frame

_HANG_SECONDS = 5.0
_START_SECONDS = 180.0


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
        command = [sys.executable, "-P", str(Path(__file__).with_name("_child.py"))]
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


def installed_verifiers() -> list[str]:
    """Names of the verifiers that are to be had here, ours first."""
    homes = {
        "math-verify": "math_verify",
        "trl": "trl",
        "verifiers": "verifiers",
        "inspect": "inspect_ai",
        "lighteval": "lighteval",
    }
    return ["mathturn", *(name for name, module in homes.items() if importlib.util.find_spec(module) is not None)]


def run_audit(
    verifier: str, cases: Iterable[Case], *, form: str = "equivalent", progress: Callable[[], object] | None = None
) -> AuditReport:
    """Runs a verifier over cases, one after the other, in a process of its own.

    Args:
        verifier: `mathturn` (also `mathturn-boxed`, `mathturn-lenient`), `math-verify`, `trl`, `verifiers`, `inspect`, `lighteval`, or an
            import path `package.module:function` of a function that takes a response and a gold answer.
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
            report.executed += bool(reply.get("executed"))
            report.found.append(reply.get("correct"))
            report.seconds.append(float(reply.get("seconds", _HANG_SECONDS)))
            report.memory_mb = max(report.memory_mb, float(reply.get("memory_mb", 0.0)))
            if progress is not None:
                progress()
    return report
