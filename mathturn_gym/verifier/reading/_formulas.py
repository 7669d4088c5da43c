r"""Formulas in a text: `$…$`, `$$…$$`, `\(…\)`, `\[…\]`, found in one pass."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Formula", "formulas"]

_DELIMITER = re.compile(
    r"\\[()\[\]]|(?<!\\)\$\$?|\\begin\{(?:align|equation|gather)\*?\}|\\end\{(?:align|equation|gather)\*?\}"
)
_CLOSES = {"\\)": "\\(", "\\]": "\\[", "$": "$", "$$": "$$"}
_MAX_INLINE = 400
# What stands between two signs of currency: `$5 and 12 apples cost $`.
_TEXT = re.compile(r"\\(?:text|mbox|mathrm|operatorname)[a-z]*\s*\{[^{}]*\}")
_PROSE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]?[a-z]{4,}")


class Formula(NamedTuple):
    """A formula's place with its delimiters, and the place of what is between them."""

    start: int
    end: int
    inner_start: int
    inner_end: int


def formulas(text: str) -> list[Formula]:
    r"""All formulas, in their order; one inside of another does not count.

    >>> [text[f.inner_start : f.inner_end] for text in (r"so $x=3$ or \(x=5\)",) for f in formulas(text)]
    ['x=3', 'x=5']
    """
    found: list[Formula] = []
    opened: re.Match[str] | None = None
    for match in _DELIMITER.finditer(text):
        sign = match.group()
        if opened is not None and _ends(opened, match, text):
            found.append(Formula(opened.start(), match.end(), opened.end(), match.start()))
            opened = None
        elif opened is None or sign[0] != "$":
            opened = None if sign.startswith("\\end") or sign in ("\\)", "\\]") else match
        elif opened.group() in ("$", "$$"):
            # What the sign before opened was no formula: money, or a line's end before it was closed.
            opened = match
    return found


def _ends(opened: re.Match[str], match: re.Match[str], text: str) -> bool:
    """Whether a delimiter closes what another one opened."""
    before, sign = opened.group(), match.group()
    if before.startswith("\\begin"):
        return sign == before.replace("begin", "end")
    if _CLOSES.get(sign) != before:
        return False
    if sign != "$":
        return True
    inner = text[opened.end() : match.start()]
    return len(inner) <= _MAX_INLINE and "\n\n" not in inner and not _PROSE.search(_TEXT.sub("", inner))
