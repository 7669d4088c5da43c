from __future__ import annotations

from typing import Any

import pytest

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.judging import CustomVerifier, get_verifier
from mathturn_gym.types import Status, Verdict
from mathturn_gym.verifier import Verifier


def test_none_is_the_built_in_verifier_once_per_process() -> None:
    assert get_verifier(None) is get_verifier(None)
    assert isinstance(get_verifier(None), Verifier)
    own = Verifier(form="equivalent")
    assert get_verifier(own) is own


@pytest.mark.parametrize(
    ("result", "status", "score"),
    [
        (True, Status.RIGHT, 1.0),
        (False, Status.WRONG, 0.0),
        (1, Status.RIGHT, 1.0),
        (0.25, Status.WRONG, 0.25),
        (Verdict(Status.UNDECIDED, "slow"), Status.UNDECIDED, 0.0),
    ],
)
def test_what_a_function_may_return(result: Any, status: Status, score: float) -> None:
    verdict = get_verifier(lambda response, gold: result).verify("a", "b")
    assert (verdict.status, verdict.value) == (status, score)


@pytest.mark.parametrize("result", [None, "right", 1.5, -0.1, float("nan"), [1]])
def test_anything_else_is_the_users_mistake(result: Any) -> None:
    with pytest.raises(InvalidValueError, match="verifier must return a Verdict, a bool or a float"):
        get_verifier(lambda response, gold: result).verify("a", "b")


def test_an_object_with_verify_alone_is_enough() -> None:
    class One:
        def verify(self, response: str, gold: Any) -> bool:
            return response in gold

    verdicts = get_verifier(One()).verify_batch(["4", "5"], [("4",), ("4",)])  # type: ignore[arg-type]
    assert [v.correct for v in verdicts] == [True, False]
    with pytest.raises(ValueError, match="shorter"):
        CustomVerifier(lambda r, g: True).verify_batch(["4"], [])


def test_what_can_verify_nothing_is_refused() -> None:
    for value in (3, "equivalent", object()):
        with pytest.raises(InvalidValueError, match="verifier must be None, have verify"):
            get_verifier(value)  # type: ignore[arg-type]
