"""Sums and products."""

from __future__ import annotations

import re

import pytest

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems.families.arithmetic import Addition, Multiplication


@pytest.mark.parametrize(("source", "sign"), [(Addition(3), "+"), (Multiplication(2), "*"), (Multiplication(1), "*")])
def test_golds_are_what_the_question_asks(source: Addition | Multiplication, sign: str) -> None:
    for i in range(200):
        problem = source.get(seed=3, index=i)
        found = re.fullmatch(rf"What is (\d+){re.escape(sign)}(\d+)\?", problem.prompt)
        assert found is not None
        a, b = int(found[1]), int(found[2])
        assert problem.gold == (str(a + b if sign == "+" else a * b),)
        if sign == "*":
            assert {len(found[1]), len(found[2])} == {source.digits}


def test_digits_outside_their_range_are_refused() -> None:
    for wrong in (0, 10, 1.5):
        with pytest.raises(InvalidValueError, match="digits"):
            Multiplication(wrong)  # type: ignore[arg-type]
