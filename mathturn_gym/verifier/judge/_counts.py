"""What a judge was asked, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["JudgeCounts"]


@dataclass(frozen=True, slots=True)
class JudgeCounts:
    """What a judge was asked, and what came of it. Every case that called for a judge is in exactly one of the last seven.

    Args:
        verdicts: All verdicts, judged or not.
        disagreements: Those on which two verifiers did not agree.
        asked: Questions that were sent: what the budget limits.
        remembered: Cases that a remembered answer settled.
        right: Cases that the judge called right.
        wrong: Cases that it called wrong.
        unsure: Cases of which it said that it does not know.
        unreadable: Cases on which its answer could not be read.
        failed: Cases on which it did not answer.
        over_budget: Cases on which it was not asked, because the budget was used up.
        unsuitable: Cases on which it was not asked, because the answer is too long, or a text.

    >>> counts = JudgeCounts(verdicts=200, asked=3, right=2, failed=1)
    >>> counts.share
    0.01
    >>> print(counts)
    decided 2 of 200 verdicts (1.00 %): 2 right, 0 wrong; asked 3, 0 remembered; left open: 1 failed
    """

    verdicts: int = 0
    disagreements: int = 0
    asked: int = 0
    remembered: int = 0
    right: int = 0
    wrong: int = 0
    unsure: int = 0
    unreadable: int = 0
    failed: int = 0
    over_budget: int = 0
    unsuitable: int = 0

    @property
    def share(self) -> float:
        """Of all verdicts: those that the judge decided."""
        return (self.right + self.wrong) / self.verdicts if self.verdicts else 0.0

    def plus(self, **more: int) -> JudgeCounts:
        """These counts with others added."""
        return JudgeCounts(**{one.name: getattr(self, one.name) + more.get(one.name, 0) for one in fields(self)})

    def __str__(self) -> str:
        """One line for people."""
        left = {name: getattr(self, name) for name in ("unsure", "unreadable", "failed", "over_budget", "unsuitable")}
        open_cases = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in left.items() if count)
        return (
            f"decided {self.right + self.wrong} of {self.verdicts} verdicts ({100 * self.share:.2f} %): {self.right} right,"
            f" {self.wrong} wrong; asked {self.asked}, {self.remembered} remembered"
            + (f"; {self.disagreements} disagreements" if self.disagreements else "")
            + (f"; left open: {open_cases}" if open_cases else "")
        )
