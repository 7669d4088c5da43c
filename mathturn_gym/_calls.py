"""Functions that a user gives: named, checked before they are called, and named again where they raise."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mathturn_gym.errors import InvalidValueError, UserFunctionError
from mathturn_gym.types import TurnContext

__all__ = ["call_with_turn", "check_takes", "name_of", "place_of", "positional_parameters"]

T = TypeVar("T")


def name_of(function: object) -> str:
    """A function as an error should name it: its name, and file and line where it has them.

    >>> name_of(len)
    'builtins.len'
    """
    inner = inspect.unwrap(function) if callable(function) else function
    inner = getattr(inner, "func", inner)  # of a functools.partial
    inner = getattr(inner, "__func__", inner)  # of a method
    code = getattr(inner, "__code__", None)
    if not hasattr(inner, "__qualname__"):
        kind = type(inner)
        inner, code = kind, getattr(getattr(kind, "__call__", None), "__code__", None)  # noqa: B004 - its code is wanted
    name = f"{inner.__module__}.{inner.__qualname__}"
    return name if code is None else f"{name} ({Path(code.co_filename).name}, line {code.co_firstlineno})"


def positional_parameters(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """The parameters that can be given by position, or None where Python does not know them (some of C's)."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    by_position = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return [one for one in signature.parameters.values() if one.kind in by_position]


def check_takes(role: str, function: Callable[..., Any], *arguments: str, keywords: Sequence[str] = ()) -> None:
    """Raises where a call with these arguments cannot succeed, whatever they are.

    Args:
        role: What the user gave the function as, for the message.
        function: The function.
        *arguments: Names for the arguments by position, for the message.
        keywords: Names of the arguments by keyword.

    Raises:
        InvalidValueError: the signature does not take so many arguments.

    >>> check_takes("feedback", divmod, "context")
    Traceback (most recent call last):
    ...
    mathturn_gym.errors.InvalidValueError: feedback is called as f(context), which builtins.divmod does not take: missing a required argument: 'y'
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments, **dict.fromkeys(keywords))
    except TypeError as error:
        call = ", ".join([*arguments, *(f"{name}=…" for name in keywords)])
        raise InvalidValueError(
            f"{role} is called as f({call}), which {name_of(function)} does not take: {error}"
        ) from error


def call_with_turn(role: str, function: Callable[[TurnContext], T], context: TurnContext) -> T:
    """Calls a function with a turn.

    Raises:
        UserFunctionError: it raised; the message names it and the turn.
    """
    try:
        return function(context)
    except Exception as error:  # whatever a user's code raises
        raise UserFunctionError(
            f"{role} {name_of(function)} raised {type(error).__name__} for {place_of(context)}: {error}"
        ) from error


def place_of(context: TurnContext) -> str:
    """Which turn it is, for messages."""
    return f"problem {context.problem.id!r}, turn {context.turn}"
