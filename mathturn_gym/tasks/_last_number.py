"""A verifier for models that say a sum and its result: the last number counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

__all__ = ["last_number"]

_NUMBER: Final = re.compile(r"-?\d{1,20}")


def last_number(response: str, gold: str | Sequence[str]) -> bool:
    """True where the last whole number of a response is an accepted answer.

    `4 + 1 = 5` is an equation, which the built-in verifier takes for work left undone. A small chat model answers sums in
    just this way; here what stands last is what it says the result is.

    Args:
        response: What the model wrote.
        gold: The accepted answer, or several; whole numbers.

    >>> last_number("4 + 1 = 5", "5"), last_number("It is 4+1.", "5"), last_number("No idea", "5")
    (True, False, False)
    """
    found = _NUMBER.findall(response)
    accepted = (gold,) if isinstance(gold, str) else gold
    return bool(found) and any(_NUMBER.fullmatch(one) and int(found[-1]) == int(one) for one in accepted)
