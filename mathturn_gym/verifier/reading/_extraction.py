r"""Which part of a response is its answer: found in linear time, with its place.

In this order: the last closed `\boxed{…}` (or `\fbox{…}`), what follows the last `####`, what follows an "answer is" near
the end, and, only where asked, the last number. Boxes that are given together (`\boxed{1} and \boxed{2}`) are one
answer of several parts. Text inside `<think>…</think>` is thinking, not answering.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["MAX_RESPONSE", "WINDOW", "Extraction", "closing_brace", "extract"]

MAX_RESPONSE = 200_000
"""Characters at the end of a response that are searched."""

_MAX_BOXES = 64
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_BARE = re.compile(r"-?\d[\d.,/]*")
_BOX_OR_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_HASH = re.compile(r"####[ \t]*([^\n]*)")
_CUE = re.compile(r"answer", re.IGNORECASE | re.ASCII)
_PHRASE = re.compile(
    r"answer(?:[ \t]*\*\*)?(?:[ \t]+(?:is|are|was|will be|equals)\b|[ \t]*[:=])(?:[ \t]*\*\*)?[ \t]*:?\s*([^\n]*)",
    re.IGNORECASE | re.ASCII,
)
_MATHS = re.compile(r"\$\$(.+?)\$\$|\$(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]|\*\*(.+?)\*\*")
_SENTENCE = re.compile(r"[.;](?:\s|$)|\s*<\|")
_NUMBER = re.compile(r"[-+−]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?")
# What may stand between two boxes that are given together.
_TOGETHER = re.compile(
    r"(?:[\s$,;.&*]|\\[\\,;:! ()\[\]]|\\q?quad|\\text\s*\{[^{}]*\}|\\mathrm\s*\{[^{}]*\}|and\b|or\b|[a-zA-Z](?:_\{?\w+\}?)?\s*=)*"
)
WINDOW = 80
"""The most characters between two boxes that are given together."""
_TAKEN_BACK = re.compile(r"\b(?:wait|actually|not right|incorrect|mistake|hmm|let me)\b", re.IGNORECASE)
# Characters that may follow the paragraph in which the answer is told, and not take it back.
_AFTERWORD = 60


@dataclass(frozen=True, slots=True)
class Extraction:
    """An answer as it stands in a response.

    Args:
        text: The answer; where several boxes are given together, their contents, joined by commas.
        start: Where it begins in the response.
        end: Where it ends.
        how: `boxed`, `hash`, `phrase` or `number`.
    """

    text: str
    start: int
    end: int
    how: str


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


def _boxed(text: str, box: tuple[int, int, int]) -> Extraction | None:
    """The last box, with those that are given together with it."""
    command, start, end = box
    contents = [text[start:end].strip()]
    while len(contents) < _MAX_BOXES and "}" in text[max(0, command - WINDOW) : command]:
        before = _last_box(text, command)
        if before is None or command - before[2] > WINDOW:
            break
        if _TOGETHER.fullmatch(text, before[2] + (text[before[2]] == "}"), command) is None:
            break
        command, start = before[0], before[1]
        contents.append(text[before[1] : before[2]].strip())
    if len(set(contents)) == 1:
        return _trimmed(text, box[1], end, "boxed")
    return Extraction(", ".join(reversed(contents)), start, end, "boxed")


def _trimmed(text: str, start: int, end: int, how: str) -> Extraction | None:
    """The extraction without the spaces around it; None where nothing is left."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return Extraction(text[start:end], start, end, how) if start < end else None


def _told(text: str) -> Extraction | None:
    """What follows the last "answer is", unless the response goes on after that paragraph, or takes it back."""
    for cue in reversed([match.start() for match in _CUE.finditer(text)]):
        match = _PHRASE.match(text, cue)
        if match is None:
            continue
        start, stop = match.span(1)
        paragraph = text.find("\n\n", stop)
        if _TAKEN_BACK.search(text, start) or (paragraph >= 0 and len(text[paragraph:].strip()) > _AFTERWORD):
            return None
        if (maths := _MATHS.match(text, start)) is not None:
            group = next(index for index in range(1, 6) if maths[index] is not None)
            return _trimmed(text, *maths.span(group), "phrase")
        sentence = _SENTENCE.search(text, start, stop)
        return _trimmed(text, start, sentence.start() if sentence else stop, "phrase")
    return None


def extract(response: str, *, last_number: bool = False) -> Extraction | None:
    r"""The answer of a response, or None.

    Args:
        response: Anything.
        last_number: Take the last number where nothing marks the answer.

    >>> extract("So $x=3$. Thus \\boxed{3}.").text
    '3'
    >>> extract("<think>\\boxed{46}</think> \\boxed{47}").text
    '47'
    >>> extract("\\boxed{1} and \\boxed{2}").text
    '1, 2'
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
    if "\\boxed" in text or "\\fbox" in text:
        box = _last_box(text, len(text)) or _last_box_of_many(text)
        if box is not None:
            return _boxed(text, box)
    hashes = text.rfind("####")
    if hashes >= 0 and (match := _HASH.match(text, hashes)) is not None:
        return _trimmed(text, *match.span(1), "hash")
    told = _told(text)
    if told is None and last_number:
        numbers = [match.span() for match in _NUMBER.finditer(text)]
        return _trimmed(text, *numbers[-1], "number") if numbers else None
    return told
