"""Which part of a response is its answer: found in linear time, with its place.

In this order: the last closed `\\boxed{…}` (or `\\fbox{…}`), what follows the last `####`, what follows the last "the
answer is", and, only where asked, the last number. Text inside `<think>…</think>` is thinking, not answering.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["MAX_RESPONSE", "Extraction", "extract"]

MAX_RESPONSE = 200_000
"""Characters at the end of a response that are searched."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_BOX_OR_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_HASH = re.compile(r"####[ \t]*([^\n]*)")
_PHRASE = re.compile(
    r"answer(?:[ \t]*\*\*)?(?:[ \t]+(?:is|are|was|will be|equals)\b|[ \t]*[:=])(?:[ \t]*\*\*)?[ \t]*:?\s*([^\n]*)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[-+−]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?")


@dataclass(frozen=True, slots=True)
class Extraction:
    """An answer as it stands in a response.

    Args:
        text: The answer.
        start: Where it begins in the response.
        end: Where it ends.
        how: `boxed`, `hash`, `phrase` or `number`.
    """

    text: str
    start: int
    end: int
    how: str


def _closing(text: str, start: int) -> int:
    """Where the brace closes that was opened just before `start`, or -1."""
    depth = 1
    for match in _BRACE.finditer(text, start):
        token = match.group()
        if token == "{":
            depth += 1
        elif token == "}":
            depth -= 1
            if not depth:
                return match.start()
    return -1


def _last_box(text: str) -> tuple[int, int] | None:
    """The content of the box that is opened last among those that are closed."""
    last = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if last < 0:
        return None
    match = _BOX.match(text, last)
    assert match is not None
    start = match.end()
    if text[start : start + 1] == "{":
        end = _closing(text, start + 1)
        if end >= 0:
            return start + 1, end
    return _last_box_of_many(text)


def _last_box_of_many(text: str) -> tuple[int, int] | None:
    """The same in one pass over all braces, for texts whose last box is not closed."""
    found: tuple[int, int] | None = None
    open_braces: list[int] = []
    for match in _BOX_OR_BRACE.finditer(text):
        token = match.group()
        if token == "}":
            start = open_braces.pop() if open_braces else -1
            if start >= 0 and (found is None or start > found[0]):
                found = start, match.start()
        elif token == "{":
            open_braces.append(-1)
        elif token[-1] == "{" and len(token) > 2:
            open_braces.append(match.end())
    return found


def _last(pattern: re.Pattern[str], text: str, cue: str) -> re.Match[str] | None:
    """The last match of a pattern that begins with `cue` (lower case), found from the end."""
    lower = text.lower()
    at = len(text)
    while (at := lower.rfind(cue, 0, at)) >= 0:
        match = pattern.match(text, at)
        if match is not None:
            return match
    return None


def _trimmed(text: str, start: int, end: int, how: str) -> Extraction | None:
    """The extraction without the spaces around it; None where nothing is left."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return Extraction(text[start:end], start, end, how) if start < end else None


def extract(response: str, *, last_number: bool = False) -> Extraction | None:
    """The answer of a response, or None.

    Args:
        response: Anything.
        last_number: Take the last number where nothing marks the answer.

    >>> extract("So $x=3$. Thus \\\\boxed{3}.").text
    '3'
    >>> extract("<think>\\\\boxed{46}</think> \\\\boxed{47}").text
    '47'
    """
    offset = max(0, len(response) - MAX_RESPONSE)
    text = response[offset:] if offset else response
    begin = text.rfind("</think>")
    begin = begin + len("</think>") if begin >= 0 else 0
    think = text.find("<think>", begin)
    end = think if think >= 0 else len(text)
    if begin or end < len(text):
        offset += begin
        text = text[begin:end]
    found = _find(text, last_number)
    if found is None or not offset:
        return found
    return Extraction(found.text, found.start + offset, found.end + offset, found.how)


def _find(text: str, last_number: bool) -> Extraction | None:
    box = _last_box(text)
    if box is not None:
        return _trimmed(text, *box, "boxed")
    if (match := _last(_HASH, text, "####")) is not None:
        return _trimmed(text, *match.span(1), "hash")
    if (match := _last(_PHRASE, text, "answer")) is not None:
        start, stop = match.span(1)
        sentence = re.search(r"\.(?:\s|$)", text[start:stop])
        return _trimmed(text, start, start + sentence.start() if sentence else stop, "phrase")
    if last_number:
        numbers = [match.span() for match in _NUMBER.finditer(text)]
        if numbers:
            return _trimmed(text, *numbers[-1], "number")
    return None
