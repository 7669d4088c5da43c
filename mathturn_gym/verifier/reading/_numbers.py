"""Numbers that need no algebra: integers, decimals, fractions, in plain text or LaTeX."""

from __future__ import annotations

import re
from fractions import Fraction

__all__ = ["literal_value"]

_MAX = 400
_NUMBER = re.compile(
    r"\s*(?:([-+−])\s*)?(?:"
    r"(?P<number>(?:[1-9]\d{0,2}(?:(?:,|\{,\}|\\,|\\!,)\d{3})+|\d+)(?:\.\d*)?|\.\d+)"
    r"(?:\s*/\s*(?P<bottom>\d+))?"
    r"|\\[dtc]?frac\s*(?:\{\s*(?P<a>-?\d+)\s*\}|(?P<b>\d))\s*(?:\{\s*(?P<c>-?\d+)\s*\}|(?P<d>\d))"
    r")\s*"
)
_NO_DIGIT = re.compile(r"[^\d.]")


def literal_value(text: str) -> Fraction | None:
    r"""The value of a literal integer, decimal or fraction; None for anything else.

    >>> literal_value("1,234.50"), literal_value("-\\frac{3}{4}"), literal_value("12+34")
    (Fraction(2469, 2), Fraction(-3, 4), None)
    """
    match = _NUMBER.fullmatch(text) if len(text) <= _MAX else None
    if match is None:
        return None
    sign, number, below, a, b, c, d = match.groups()
    if number is None:
        top, bottom = int(a or b), int(c or d)
    else:
        whole, _, places = (number if number.isdigit() else _NO_DIGIT.sub("", number)).partition(".")
        top, bottom = int(whole + places), int(below or 1) * 10 ** len(places)
    if not bottom:
        return None
    if sign in ("-", "−"):
        top = -top
    return Fraction(top) if bottom == 1 else Fraction(top, bottom)
