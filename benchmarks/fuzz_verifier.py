"""Feeds mutated cases to the verifier: no exception, no growth, no verdict that changes on a second run in another order.

    python benchmarks/fuzz_verifier.py --seconds 3600

Prints and writes (runs/fuzz_verifier.json) the number of cases, verdicts by status, the slowest case in the calling
process, the memory at the start and at the end, and every failure with the case that shows it. Exit code 1 on failure.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mathturn_gym.types import Status, Verdict
from mathturn_gym.verifier import Verifier
from mathturn_gym.verifier.audit import Case, load_cases

PIECES = ["\\boxed{", "}", "{", "(", ")", "[", "]", "\\{", "\\}", "\\frac", "\\sqrt", "^", "_", "!", "%", ",", ";", ":", "=", "<", ">", "+", "-", "*", "/", "|", "$", "\\", "\\\\", "&", "\\text{", "\\pm", "\\cup", "\\cap", "\\infty", "\\pi", "e", "i", "x", "n", "0", "1", "7", ".", "...", "\\left(", "\\right)", "\\begin{pmatrix}", "\\end{pmatrix}", "\\le", "\\ge", "\\ne", "\\in", "\\sum", "\\int", "\\lim", "\\log", "\\sin", "^{", "_{", "####", "<think>", "</think>", "or", "and", "answer", "999999999", "0.3", "1e9", "\\mathbb{R}", "\\equiv", "\\pmod", "\\binom", "½", "−", "²", "π", "√", "∞", "\u200b", "�", "\x00"]  # fmt: skip


def mutate(rng: random.Random, text: str, texts: list[str]) -> str:
    """A text changed in one to four places: pieces put in, taken out, repeated, or exchanged with another text."""
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.randrange(1, 8))
        kind = rng.randrange(6)
        if kind == 0:
            text = text[:at] + rng.choice(PIECES) + text[at:]
        elif kind == 1:
            text = text[:at] + text[end:]
        elif kind == 2:
            text = text[:at] + text[at:end] * rng.choice((2, 3, 30)) + text[end:]
        elif kind == 3:
            text = text[:at] + rng.choice(texts)[-60:] + text[end:]
        elif kind == 4:
            text = f"{rng.choice(PIECES)}{text}{rng.choice(PIECES)}"
        else:
            text = text.replace(rng.choice(text), rng.choice(PIECES), rng.randrange(1, 4)) if text else "x"
    return text[:4000]


def rss_mb() -> float:
    """Resident memory of this process, MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


@dataclass
class Fuzz:
    """One run.

    Args:
        seed: Decides the cases.
        timeout: Seconds of symbolic work a case.
    """

    seed: int = 0
    timeout: float = 0.5
    cases: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    time_limited: int = 0
    slowest: float = 0.0
    slowest_case: tuple[str, str] = ("", "")
    memory: list[float] = field(default_factory=list)

    def fail(self, what: str, gold: str, response: str) -> None:
        """Keeps and prints a failure."""
        self.failures.append({"what": what, "gold": gold, "response": response})
        print("FAILURE", self.failures[-1], file=sys.stderr, flush=True)

    def compare(self, first: Verdict, second: Verdict, gold: str, response: str) -> None:
        """A verdict must come out again, unless the clock or the memory limit decided it."""
        limits = ("time limit", "memory limit", "symbolic worker failed")
        if Status.UNDECIDED in (first.status, second.status) and (first.reason in limits or second.reason in limits):
            self.time_limited += first != second
        elif first != second:
            self.fail(f"{first} became {second}", gold, response)

    def batch(self, rng: random.Random, cases: list[Case], size: int) -> list[tuple[str, str]]:
        """Cases with their responses, and now and then their golds, changed; golds are never empty."""
        texts = [case.response[:600] for case in rng.sample(cases, 50)]
        batch = []
        for case in rng.choices(cases, k=size):
            response = mutate(rng, case.response[:600], texts)
            gold = case.gold if rng.random() < 0.8 else mutate(rng, case.gold, texts)
            batch.append((response, gold if gold.strip() else "1"))
        return batch

    def round(self, rng: random.Random, batch: list[tuple[str, str]], kind: Any, form: str) -> None:
        """One batch, judged case by case, and again by another verifier, all at once and in another order."""
        size = len(batch)
        first = Verifier(form=form, timeout=self.timeout)  # type: ignore[arg-type]
        verdicts: list[Verdict] = []
        for response, gold in batch:
            start = time.perf_counter()
            try:
                verdicts.append(first.verify(response, gold, kind=kind))
            except Exception as error:
                self.fail(f"{type(error).__name__}: {error}", gold, response)
                verdicts.append(Verdict(Status.UNDECIDED, "time limit"))
            seconds = time.perf_counter() - start
            if verdicts[-1].tier != "symbolic" and seconds > self.slowest:
                self.slowest, self.slowest_case = seconds, (gold, response)
        order = list(range(size))
        rng.shuffle(order)
        again = Verifier(form=form, timeout=self.timeout)  # type: ignore[arg-type]
        repeated = again.verify_batch([batch[i][0] for i in order], [batch[i][1] for i in order], kind=kind)
        for index, verdict in zip(order, repeated, strict=True):
            self.compare(verdicts[index], verdict, batch[index][1], batch[index][0])
        self.cases += size
        self.statuses.update(verdict.status.value for verdict in verdicts)

    def run(self, seconds: float, size: int = 100) -> dict[str, Any]:
        """Rounds until the time is over; the report."""
        rng = random.Random(self.seed)
        cases = {kind: [case for case in load_cases() if case.kind == kind] for kind in ("answer", "response")}
        keep_alive = Verifier(timeout=self.timeout)
        keep_alive.warm()
        end = time.monotonic() + seconds
        rounds = 0
        while time.monotonic() < end:
            kind = rng.choices(("answer", "response"), (3, 1))[0]
            self.round(rng, self.batch(rng, cases[kind], size), kind, ("equivalent", "evaluated")[rounds % 2])
            rounds += 1
            self.memory.append(rss_mb())
        keep_alive.close()
        # The caches fill first; what counts is that memory stands still afterwards.
        settled = self.memory[len(self.memory) // 2 :]
        growth = max(settled) - settled[0] if settled else 0.0
        return {
            "seconds": seconds,
            "cases": self.cases,
            "statuses": dict(self.statuses),
            "failures": self.failures,
            "time_limited": self.time_limited,
            "slowest_in_process_s": round(self.slowest, 4),
            "slowest_case": self.slowest_case,
            "memory_start_mb": round(self.memory[0], 1),
            "memory_end_mb": round(self.memory[-1], 1),
            "growth_in_second_half_mb": round(growth, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz_verifier.json"))
    arguments = parser.parse_args()
    report = Fuzz(seed=arguments.seed).run(arguments.seconds)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in report.items() if key != "slowest_case"}, indent=1))
    sys.exit(1 if report["failures"] else 0)


if __name__ == "__main__":
    main()
