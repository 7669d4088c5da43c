r"""Is a gold answer right when it is judged against itself? Where it is not, no response can be judged by it.

The judge takes a text that is spelt like its gold for right without looking into it, so a second question is asked: is
the answer still right when it stands in braces of its own, `\boxed{{gold}}`? Where it is not, the verifier knows the gold
as a text only, and another spelling of the same answer may be called wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mathturn_gym.types import Problem, Verdict

if TYPE_CHECKING:
    from mathturn_gym.verifier import Verifier

__all__ = ["GoldFailure", "check_gold"]


@dataclass(frozen=True, slots=True)
class GoldFailure:
    """A gold answer that does not verify.

    Args:
        problem_id: Whose it is.
        gold: The answer.
        as_text: It is right as it stands, and only as a text.
        verdict: The judge's, of the response that failed.
    """

    problem_id: str
    gold: str
    as_text: bool
    verdict: Verdict


def check_gold(problems: Iterable[Problem], verifier: Verifier) -> list[GoldFailure]:
    r"""The gold answers that are not right when a response gives exactly them.

    Args:
        problems: Any number; every accepted answer of each is judged against itself alone.
        verifier: The judge.

    Returns:
        Those that fail as `\boxed{gold}`, and those (`as_text`) that fail only as `\boxed{{gold}}`.

    >>> from mathturn_gym.verifier import Verifier
    >>> check_gold([Problem("p", "1+1=?", "2")], Verifier())
    []
    """
    cases = [(problem.id, gold) for problem in problems for gold in problem.gold]
    golds = [gold for _, gold in cases]
    plain = verifier.verify_batch([rf"\boxed{{{gold}}}" for gold in golds], golds)
    braced = verifier.verify_batch([rf"\boxed{{{{{gold}}}}}" for gold in golds], golds)
    return [
        GoldFailure(problem_id, gold, itself.correct, again if itself.correct else itself)
        for (problem_id, gold), itself, again in zip(cases, plain, braced, strict=True)
        if not (itself.correct and again.correct)
    ]
