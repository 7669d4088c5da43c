from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest

from mathturn_gym.base.user_functions import call_with_turn, check_takes, name_of, place_of
from mathturn_gym.errors import InvalidValueError, UserFunctionError
from mathturn_gym.types import Problem, TurnContext

TURN = TurnContext(Problem("p/1", "1+1?", 2), 3, 5, "2")


def plain(context: TurnContext) -> str:
    return "x"


@functools.wraps(plain)
def wrapping(*args: Any) -> str:
    return plain(*args)


class Object:
    def __call__(self, context: TurnContext) -> str:
        return "x"

    def method(self, context: TurnContext) -> str:
        return "x"


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (plain, r"plain \(test_user_functions.py, line \d+\)"),
        (wrapping, r"plain \(test_user_functions.py, line \d+\)"),
        (functools.partial(plain), r"plain \(test_user_functions.py, line \d+\)"),
        (lambda context: "x", r"<lambda> \(test_user_functions.py, line \d+\)"),
        (Object(), r"Object \(test_user_functions.py, line \d+\)"),
        (Object().method, r"Object.method \(test_user_functions.py, line \d+\)"),
        (len, "builtins.len"),
        (3, "builtins.int"),
    ],
)
def test_functions_are_named_so_that_one_finds_them(function: Any, name: str) -> None:
    assert re.search(f"{name}$", name_of(function))


@pytest.mark.parametrize("function", [plain, wrapping, Object(), Object().method, str, len, lambda *args: "x"])
def test_what_takes_a_turn_is_taken(function: Callable[..., Any]) -> None:
    check_takes("feedback", function, "context")


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda: "x", "too many positional arguments"),
        (lambda a, b: "x", "missing a required argument: 'b'"),
        (lambda a, *, b: "x", "missing a required.* argument: 'b'"),
        (Object.method, "missing a required argument: 'context'"),
    ],
)
def test_what_does_not_is_refused_with_the_reason(function: Callable[..., Any], why: str) -> None:
    with pytest.raises(InvalidValueError, match=rf"feedback is called as f\(context\), which .* does not take: {why}"):
        check_takes("feedback", function, "context")


def test_whatever_it_raises_is_told_with_the_place() -> None:
    def broken(context: TurnContext) -> str:
        raise KeyError("x")

    with pytest.raises(UserFunctionError) as caught:
        call_with_turn("feedback", broken, TURN)
    assert re.search(r"^feedback .*broken \(.*\) raised KeyError for problem 'p/1', turn 3: 'x'$", str(caught.value))
    assert isinstance(caught.value.__cause__, KeyError)
    assert place_of(TURN) == "problem 'p/1', turn 3"
    assert call_with_turn("feedback", plain, TURN) == "x"
