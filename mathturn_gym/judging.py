"""Whatever a user gives as a verifier, as one interface: `verify(response, gold)` and `verify_batch`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.types import Status, Verdict
from mathturn_gym.verifier import Verifier

__all__ = ["BatchVerifier", "CustomVerifier", "VerifierLike", "get_verifier"]

_LOG = logging.getLogger(__name__)
Gold: TypeAlias = "str | Sequence[str]"


class BatchVerifier(Protocol):
    """What the environment needs of a verifier."""

    def verify(self, response: str, gold: Gold) -> Verdict:
        """Judges one response."""
        ...

    def verify_batch(self, responses: Sequence[str], golds: Sequence[Gold]) -> list[Verdict]:
        """Judges many, in order."""
        ...


VerifierLike: TypeAlias = "BatchVerifier | Callable[[str, Gold], Verdict | bool | float] | None"


class CustomVerifier:
    """A user's function `(response, gold) -> Verdict | bool | float`, or an object with such a `verify`.

    A bool is right or wrong; a float in [0, 1] is a score, right from 1.0 on. An exception is a verdict (undecided,
    with the exception as its reason), since a model's text may have caused it, and is logged with its traceback.

    >>> CustomVerifier(lambda response, gold: response == gold).verify("4", "4").correct
    True
    """

    def __init__(self, function: Callable[[str, Gold], Verdict | bool | float]) -> None:
        self._function = function

    def verify(self, response: str, gold: Gold) -> Verdict:
        """Judges one response with the user's function."""
        try:
            result = self._function(response, gold)
        except Exception as error:  # whatever a model's text provokes in a user's code
            _LOG.exception("the verifier %r raised; the turn is undecided", self._function)
            return Verdict(Status.UNDECIDED, f"the verifier raised {type(error).__name__}: {error}", tier="custom")
        if isinstance(result, Verdict):
            return result
        try:
            score = float(result)
        except (TypeError, ValueError):
            score = -1.0
        if not 0.0 <= score <= 1.0:
            raise InvalidValueError(
                f"verifier must return a Verdict, a bool or a float in [0, 1], got {result!r} from {self._function!r}"
            )
        return Verdict(Status.RIGHT if score == 1.0 else Status.WRONG, "custom verifier", score, tier="custom")

    def verify_batch(self, responses: Sequence[str], golds: Sequence[Gold]) -> list[Verdict]:
        """Judges one after the other."""
        return [self.verify(response, gold) for response, gold in zip(responses, golds, strict=True)]


def get_verifier(verifier: VerifierLike) -> BatchVerifier:
    """The verifier behind what a user gives (None: the built-in one with its defaults).

    Raises:
        InvalidValueError: it can verify nothing.
    """
    if verifier is None:
        return _default_verifier()
    candidate: Any = verifier
    if hasattr(candidate, "verify") and hasattr(candidate, "verify_batch"):
        return candidate  # type: ignore[no-any-return]
    function = getattr(candidate, "verify", candidate)
    if not callable(function):
        raise InvalidValueError(
            f"verifier must be None, have verify(response, gold), or be a callable (response, gold), got {verifier!r}"
        )
    return CustomVerifier(function)


@functools.cache
def _default_verifier() -> Verifier:
    """One for all environments of a process: they share its workers and its cache."""
    return Verifier()
