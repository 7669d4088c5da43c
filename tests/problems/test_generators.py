"""The families with fixed wording."""

from __future__ import annotations

import re

import pytest

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems import NAMES, Addition, Multiplication, load_problems


@pytest.mark.parametrize("name", NAMES)
def test_splits_of_a_name_share_no_prompt_and_no_stream(name: str) -> None:
    sets = [{load_problems(f"{name}:{split}").get(0, i).prompt for i in range(300)} for split in ("train", "test")]
    if name == "guess8":  # one prompt; its numbers are drawn apart
        golds = [[load_problems(f"{name}:{split}").get(0, i).gold for i in range(50)] for split in ("train", "test")]
        assert golds[0] != golds[1]
    else:
        assert not sets[0] & sets[1]


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
