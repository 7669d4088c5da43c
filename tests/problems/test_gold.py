"""Gold answers judged against themselves."""

from __future__ import annotations

from typing import Any

from mathturn_gym.problems import check_gold
from mathturn_gym.types import Problem
from mathturn_gym.verifier import Verifier


def test_gold_answers_are_judged_against_themselves() -> None:
    problems = [Problem("a", "p", ("4", "2+2")), Problem("b", "p", "5"), Problem("c", "p", r"\text{Evelyn}")]

    class Deaf(Verifier):
        """Hears no fives."""

        def verify_batch(self, responses: Any, golds: Any, *, kind: Any = "response") -> Any:
            return super().verify_batch([r.replace("5", "6") for r in responses], golds, kind=kind)

    with Deaf() as verifier:
        failures = check_gold(problems, verifier)
    assert [(f.problem_id, f.gold) for f in failures if not f.as_text] == [("b", "5")]
    assert all(f.problem_id == "c" for f in failures if f.as_text)
