r"""Boxes: `\boxed{…}` and `\fbox{…}`, found in linear time, those that are given together as one answer."""

from __future__ import annotations

import re

__all__ = ["WINDOW", "Span", "boxed", "closing_brace"]

Span = tuple[int, int]

_MAX_BOXES = 64
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
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


def boxed(text: str) -> list[Span] | None:
    """Places of the contents of the last box and of those that are given together with it; None where there is no box.

    One place where all of them hold the same text. A box may be empty, which is an answer left out.
    """
    if "\\boxed" not in text and "\\fbox" not in text:
        return None
    box = _last_box(text, len(text)) or _last_box_of_many(text)
    if box is None:
        return None
    command, start, end = box
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
