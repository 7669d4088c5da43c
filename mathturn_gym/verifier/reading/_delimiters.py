r"""Places in a text that delimiters mark: boxes (`\\boxed{…}`, `\\fbox{…}`) and formulas (`$…$`, `\\(…\\)`, `\\[…\\]`), found in linear time."""

from __future__ import annotations

import re
from typing import NamedTuple

Span = tuple[int, int]

_MAX_BOXES = 64
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_OPENED = re.compile(r"\\(?:boxed|fbox)\s{0,9}\{")
_BARE = re.compile(r"-?\d[\d.,/]*")
_BOX_OR_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
# What may stand between two boxes that are given together.
_TOGETHER = re.compile(
    r"(?:[\s$,;.&*]|\\[\\,;:! ()\[\]]|\\q?quad|\\text\s*\{[^{}]*\}|\\mathrm\s*\{[^{}]*\}|and\b|or\b|[a-zA-Z](?:_\{?\w+\}?)?\s*=)*"
)
WINDOW = 80
"""The most characters between two boxes that are given together."""


def closing_brace(text: str, start: int) -> int:
    """Where the brace closes that was opened just before `start`, or -1."""
    first = text.find("}", start)
    if first < 0 or not ("{" in (inner := text[start:first]) or "\\" in inner):
        return first
    depth = 1
    for match in _BRACE.finditer(text, start):
        brace = match.group()
        if brace == "{":
            depth += 1
        elif brace == "}":
            depth -= 1
            if not depth:
                return match.start()
    return -1


def _last_box(text: str, end: int) -> tuple[int, int, int] | None:
    """The box that is opened last among those that are closed before `end`: its command, its content's start and end."""
    last = max(text.rfind("\\boxed", 0, end), text.rfind("\\fbox", 0, end))
    if last < 0:
        return None
    match = _BOX.match(text, last)
    assert match is not None
    start = match.end()
    if text[start : start + 1] == "{":
        close = closing_brace(text, start + 1)
        if 0 <= close < end:
            return last, start + 1, close
    elif (bare := _BARE.match(text, start)) is not None:
        return last, start, bare.end()
    return None


def _last_box_of_many(text: str) -> tuple[int, int, int] | None:
    """The same in one pass over all braces, for texts whose last box is not closed."""
    found: tuple[int, int, int] | None = None
    opened: list[tuple[int, int]] = []
    for match in _BOX_OR_BRACE.finditer(text):
        brace = match.group()
        if brace == "}":
            command, start = opened.pop() if opened else (-1, -1)
            if command >= 0 and (found is None or command > found[0]):
                found = command, start, match.start()
        elif brace == "{":
            opened.append((-1, -1))
        elif brace[-1] == "{" and len(brace) > 2:
            opened.append((match.start(), match.end()))
    return found


def _with_what_is_around(text: str, box: tuple[int, int, int]) -> tuple[int, int, int]:
    r"""A box, or the box around it where that holds more: `\\boxed{\\boxed{18}+1}` is no 18."""
    command, _start, end = box
    before = _last_opened(text, command)
    if before is None or closing_brace(text, before.end()) < end:
        return box
    close = closing_brace(text, before.end())
    inside = text[before.end() : command] + text[end + 1 : close]
    return (before.start(), before.end(), close) if inside.strip() else box


def _last_opened(text: str, end: int) -> re.Match[str] | None:
    """The last box command with a brace before a place, within the distance that one answer may have."""
    found = None
    for found in _OPENED.finditer(text, max(0, end - WINDOW), end):  # noqa: B007 - the last one is looked at
        pass
    return found


def boxed(text: str) -> list[Span] | None:
    """Places of the contents of the last box and of those that are given together with it; None where there is no box.

    One place where all of them hold the same text. A box may be empty, which is an answer left out.
    """
    if "\\boxed" not in text and "\\fbox" not in text:
        return None
    box = _last_box(text, len(text)) or _last_box_of_many(text)
    if box is None:
        return None
    command, start, end = _with_what_is_around(text, box)
    places = [(start, end)]
    while len(places) < _MAX_BOXES and "}" in text[max(0, command - WINDOW) : command]:
        before = _last_box(text, command)
        if before is None or command - before[2] > WINDOW:
            break
        if _TOGETHER.fullmatch(text, before[2] + (text[before[2]] == "}"), command) is None:
            break
        command = before[0]
        places.append((before[1], before[2]))
    if len({text[start:end].strip() for start, end in places}) == 1:
        return places[:1]
    return places[::-1]


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
