"""Numbers that need no algebra: integers, decimals, fractions, in plain text or LaTeX."""

from __future__ import annotations

import re
from fractions import Fraction

__all__ = ["rational"]

_MAX = 400
_NUMBER = re.compile(
    r"\s*([-+−]?)\s*(?:"
    r"(?P<number>(?:\d{1,3}(?:(?:,|\{,\}|\\,|\\!,)\d{3})+|\d+)(?:\.\d*)?|\.\d+)"
    r"(?:\s*/\s*(?P<bottom>\d+))?"
    r"|\\[dtc]?frac\s*(?:\{\s*(?P<a>-?\d+)\s*\}|(?P<b>\d))\s*(?:\{\s*(?P<c>-?\d+)\s*\}|(?P<d>\d))"
    r")\s*"
)


def rational(text: str) -> Fraction | None:
    r"""The value of a literal integer, decimal or fraction; None for anything else.

    >>> rational("1,234.50"), rational("-\\frac{3}{4}"), rational("12+34")
    (Fraction(2469, 2), Fraction(-3, 4), None)
    """
    if len(text) > _MAX:
        return None
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign = -1 if match[1] in ("-", "−") else 1
    if match["number"] is not None:
        top = Fraction(re.sub(r"[^\d.]", "", match["number"]))
        bottom = int(match["bottom"] or 1)
    else:
        top = Fraction(int(match["a"] or match["b"]))
        bottom = int(match["c"] or match["d"])
    return sign * top / bottom if bottom else None
