"""What an audit found, as figures: shares with their confidence intervals, exploits, hangs, crashes, time, memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mathturn_gym.verifier.audit._cases import Case

__all__ = ["AuditReport", "wilson"]


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
        executed: Cases during which the process that calls the verifier started a program, or wrote, removed or sent something.
        memory_mb: Peak memory of the process that calls the verifier, MiB.
    """

    verifier: str
    cases: Sequence[Case]
    found: list[bool | None] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    hangs: int = 0
    crashes: int = 0
    executed: int = 0
    memory_mb: float = 0.0

    def wrong(self) -> list[Case]:
        """Cases that were not judged as labelled."""
        return [case for case, found in zip(self.cases, self.found, strict=True) if bool(found) != case.label]

    def by_group(self) -> dict[str, AuditReport]:
        """The same for the cases of each group alone, in the order in which the groups come; time and verdicts only."""
        places: dict[str, list[int]] = {}
        for index, case in enumerate(self.cases):
            places.setdefault(case.group, []).append(index)
        return {
            group: AuditReport(
                self.verifier,
                [self.cases[i] for i in chosen],
                [self.found[i] for i in chosen],
                [self.seconds[i] for i in chosen],
            )
            for group, chosen in places.items()
        }

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
        figures |= {
            "hangs": self.hangs,
            "crashes": self.crashes,
            "executed": self.executed,
            "memory_mb": self.memory_mb,
        }
        figures["ms"] = {"mean": sum(times) / max(1, len(times)), "median": at(0.5), "p99": at(0.99)}
        return figures
