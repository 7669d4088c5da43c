"""A verifier under audit, in a process of its own: it may hang, crash or eat memory, and the audit goes on.

Run as a file, like `_worker.py`, and spoken to in the same frames: settings, then cases, each answered with what the
verifier said, its seconds, and the peak memory of the process in MiB.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

Check: TypeAlias = Callable[[str, str, str], bool]


def _ours(settings: dict[str, Any]) -> Check:
    from mathturn_gym.verifier import Verifier

    verifier = Verifier(form=settings["form"], extract=settings["verifier"].partition("-")[2] or "marked")
    verifier.warm()
    return lambda response, gold, kind: (
        verifier.verify(response, gold, kind="answer" if kind == "answer" else "response").correct
    )


def _boxed(response: str, kind: str) -> str:
    return f"\\boxed{{{response}}}" if kind == "answer" else response


def _math_verify(settings: dict[str, Any]) -> Check:
    from math_verify import parse, verify

    def check(response: str, gold: str, kind: str) -> bool:
        return bool(verify(parse(f"\\boxed{{{gold}}}"), parse(_boxed(response, kind))))

    return check


def _trl(settings: dict[str, Any]) -> Check:
    from trl.rewards import accuracy_reward

    def check(response: str, gold: str, kind: str) -> bool:
        completions = [[{"role": "assistant", "content": _boxed(response, kind)}]]
        return bool(accuracy_reward(completions, [f"\\boxed{{{gold}}}"])[0])

    return check


def _verifiers(settings: dict[str, Any]) -> Check:
    from verifiers.v1.utils.score import verify_boxed_math_answer

    def check(response: str, gold: str, kind: str) -> bool:
        return bool(verify_boxed_math_answer(_boxed(response, kind), f"\\boxed{{{gold}}}") > 0.5)

    return check


def _inspect(settings: dict[str, Any]) -> Check:
    from inspect_ai.scorer import Target, math

    score, loop = math(), asyncio.new_event_loop()

    def check(response: str, gold: str, kind: str) -> bool:
        state: Any = SimpleNamespace(output=SimpleNamespace(completion=_boxed(response, kind)))
        try:
            found = loop.run_until_complete(score(state, Target(gold)))
        except ValueError as error:
            if "mathematical target" in str(error):
                return False  # a gold that it cannot read makes no answer right
            raise
        return found is not None and found.value == "C"

    return check


def _lighteval(settings: dict[str, Any]) -> Check:
    """Its metric for mathematics, reading numbers and LaTeX in gold and answer, a box first, as its benchmarks set it up."""
    from lighteval.metrics.dynamic_metrics import MultilingualExtractiveMatchMetric
    from lighteval.metrics.utils.extractive_match_utils import ExprExtractionConfig, LatexExtractionConfig
    from lighteval.models.model_output import ModelResponse
    from lighteval.tasks.requests import Doc

    metric = MultilingualExtractiveMatchMetric(
        gold_extraction_target=(ExprExtractionConfig(), LatexExtractionConfig()),
        pred_extraction_target=(ExprExtractionConfig(), LatexExtractionConfig(boxed_match_priority=0)),
        precision=5,
    )

    def check(response: str, gold: str, kind: str) -> bool:
        doc = Doc(query="", choices=[f"\\boxed{{{gold}}}"], gold_index=0)
        return bool(metric.compute(doc=doc, model_response=ModelResponse(text=[_boxed(response, kind)])) > 0.5)

    return check


def _by_path(settings: dict[str, Any]) -> Check:
    """`package.module:function`, called with response and gold; a verdict, a truth value or a score above 0.5 is right."""
    module, _, name = settings["verifier"].partition(":")
    function = getattr(importlib.import_module(module), name)

    def check(response: str, gold: str, kind: str) -> bool:
        result = function(_boxed(response, kind), gold)
        correct = getattr(result, "correct", result)
        return correct > 0.5 if isinstance(correct, float) else bool(correct)

    return check


BUILT_IN: dict[str, Callable[[dict[str, Any]], Check]] = {
    "mathturn": _ours,
    "mathturn-boxed": _ours,
    "mathturn-lenient": _ours,
    "math-verify": _math_verify,
    "trl": _trl,
    "verifiers": _verifiers,
    "inspect": _inspect,
    "lighteval": _lighteval,
}

# What a verifier has no reason to do while it looks at an answer; raised by the interpreter itself, whatever code asks for it.
_DEEDS = frozenset(
    [
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "subprocess.Popen",
        "pty.spawn",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.mkdir",
        "os.chmod",
        "os.truncate",
        "os.link",
        "os.symlink",
        "shutil.rmtree",
        "socket.connect",
        "builtins.input",
    ]
)


class _Deeds:
    """Counts what is done to the machine while a case is looked at."""

    def __init__(self) -> None:
        self.watching, self.count = False, 0
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.watching:
            return
        writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
        self.count += bool(event in _DEEDS or writes)


def main() -> None:
    """Reads the settings, loads and warms the verifier, says `ready`, and answers cases until its input ends."""
    sys.path[:0] = [entry for entry in _read(0)["path"] if entry not in sys.path]
    from mathturn_gym.verifier.symbolic._worker import read_frame, write_frame

    settings = read_frame(0)
    if settings is None:
        return
    logging.disable(logging.CRITICAL)
    try:
        check = BUILT_IN.get(settings["verifier"], _by_path)(settings)
        check("\\boxed{1}", "1", "response")
    except Exception as error:
        write_frame(1, {"error": f"{type(error).__name__}: {error}"})
        return
    write_frame(1, {"ready": True})
    deeds = _Deeds()
    while (case := read_frame(0)) is not None:
        deeds.count, deeds.watching = 0, True
        start = time.perf_counter()
        try:
            reply: dict[str, Any] = {"correct": check(case["response"], case["gold"], case["kind"])}
        except Exception as error:  # whatever a verifier under audit raises is its result
            reply = {"error": f"{type(error).__name__}: {error}"[:500]}
        reply["seconds"] = time.perf_counter() - start
        deeds.watching = False
        reply["executed"] = deeds.count > 0
        reply["memory_mb"] = peak_memory_mb()
        write_frame(1, reply)


def peak_memory_mb() -> float:
    """The most memory that this process has had, MiB.

    On Linux from /proc: `ru_maxrss` there begins with what the *parent* had when it started us.
    """
    try:
        with Path("/proc/self/status").open(encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 2**20)


def _read(fd: int) -> dict[str, Any]:
    """The first frame, before anything of the package can be imported: where to import it from."""
    import json
    import os
    import struct

    size = struct.unpack("<I", os.read(fd, 4))[0]
    body = b""
    while len(body) < size:
        body += os.read(fd, size - len(body))
    path: dict[str, Any] = json.loads(body)
    return path


if __name__ == "__main__":
    main()
