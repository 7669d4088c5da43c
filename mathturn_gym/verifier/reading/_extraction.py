r"""Which part of a response is its answer, by a declared policy, in linear time, with its place.

boxed     the last closed `\boxed{…}` (or `\fbox{…}`). Boxes that are given together are one answer of several parts.
marked    a box; or what stands in an answer's tags or after the last `####`; or what an "answer is" or the heading
          "Final answer" tells, unless the response goes on after it; or the whole response where it is one formula and
          nothing else.
lenient   the same, wherever it is told; or the formula, expression or number that the last lines hold.

Text inside `<think>…</think>` is thinking, not answering.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from mathturn_gym.verifier.reading._delimiters import WINDOW, Formula, Span, boxed, closing_brace, formulas
from mathturn_gym.verifier.reading._statements import (
    MAX_STATEMENT,
    is_expression,
    last_number,
    strip_span,
    value_in,
    words_behind,
)

ExtractionPolicy: TypeAlias = Literal["boxed", "marked", "lenient"]
POLICIES: Final[tuple[ExtractionPolicy, ...]] = get_args(ExtractionPolicy)

MAX_RESPONSE = 200_000
"""Characters at the end of a response that are searched."""

_MAX_WHOLE = 400
_MAX_CUES = 100
_MAX_LINES = 200
_TAG = re.compile(
    r"<(?P<close>/?)(?P<name>answer|final_answer)>|<\|(?P<side>begin|end)_of_box\|>|\[(?P<slash>/?)ANSWER\]",
    re.IGNORECASE,
)
# Boxes whose command came out wrong.
_BROKEN_BOX = re.compile(r"(?:\\beginboxed|(?<![\\a-zA-Z])boxed)\s{0,9}\{")
_HASH = re.compile(r"####[ \t]*([^\n]*)")

# "Answer" in the languages that models answer in most.
_ANSWER = (
    r"answers?|ans(?=\.?\s?[:=])|respuestas?|respostas?|r[ée]ponse|antwort|endergebnis|risposta|ответ|відповідь|odpowied[zź]|odpověď|cevap|"
    r"jawaban|antwoord|svar|đáp\s(?:án|số)|câu\strả\slời|答案|答え|答(?=[:：])|解答|정답|답|উত্তর|उत्तर|คำตอบ|సమాధానం|jibu|"
    r"الإجابة|الجواب|پاسخ"
)
_CUE = re.compile(_ANSWER, re.IGNORECASE)
_MARKUP = r"[ \t*_\"'“”’`)\],]{0,12}"
_IS = (
    r"(?:is|are|was|were|will\sbe|would\sbe|should\sbe|must\sbe|equals?|es|son|é|são|est|sont|ist|lautet|è|sono|là|adalah|ni|"
    r"равен|是|为|為|应为|应该是|等于|は|은|는|है|হল|হলো|คือ)"
)
_SENTENCE_CUE = re.compile(
    rf"(?:{_ANSWER}){_MARKUP}"
    # What the answer is to: "answer to the question is", "answer, in centimeters:".
    r"(?:[ \t]+(?!choice|key|option|sheet|must|should|can|could|may|might|does|do|did|has|have|not|cannot|"
    r"(?:no|non|never|ne|n['’]est|pas|nicht|kein\w*|niet|não|nem|ikke|inte|nie|не|bukan|tidak|không|nunca|jamais)\b)"
    r"[^\s.:;!?。：！？=]{1,24}){0,8}?(?:[^\s\x00-\x7f。：！？]{0,10}?)"
    rf"(?:[ \t]*(?:(?<![a-zA-Z]){_IS}(?![a-zA-Z])|[:：=])|(?<=[案え답]))(?:\s?(?:option|choice|选项)(?=[\s(]{{0,3}}[A-Z]\b))?",
    re.IGNORECASE,
)
_NO_ANSWER = re.compile(
    r"[ \t*]{0,9}(?:not|no longer|correct|incorrect|wrong|right|reasonable|valid|clear|unclear|unknown|obtained|found|given|in)\b",
    re.IGNORECASE,
)
_HEADING = re.compile(
    rf"[ \t#>*_\-\d.]{{0,20}}(?:(?:the|our|my|so|thus|and|final|correct|step)[ \t]{{1,9}}){{0,5}}(?:{_ANSWER})"
    rf"{_MARKUP}(?:\([^()\n]{{0,40}}\))?{_MARKUP}[:：.]?{_MARKUP}(?=\n|$|\$|\\\[|\\\()",
    re.IGNORECASE,
)
# What may stand in front of "the answer is": the beginning of a clause, or words that conclude. "I doubt that", "suppose" and
# "nobody says" announce none.
_ANNOUNCED = re.compile(
    r"(?:\A|[^\w\s'’]\s{0,9}|\n\s{0,9}|\b(?:so|thus|hence|therefore|then|and|now|finally|also|daher|folglich|donc|alors|ainsi|quindi|"
    r"dunque|portanto|logo|luego|tanto|así|entonces|dus|итак|следовательно|поэтому|we (?:get|have)|"
    r"(?:we|i|can|we can) (?:conclude|find|see|know|have|deduce|obtain|get|verify|say)(?: that)?|"
    r"(?:this|it|which) (?:means|implies|shows|follows|gives)(?: that)?)\s{1,9}|所以|因此|故|因而|于是|则|综上|即|よって|したがって|따라서\s{0,9})"
    r"(?:(?:the|our|my|your|this|final|correct|right|required|desired|numerical|exact|simplified|complete|overall|resulting|actual|"
    r"la|el|le|die|das|der|a|o|il|lo|het|de|den|finale?|richtige|endgültige|korrekte|correct[ao]|corret[ao]|corretta|bonne|"
    r"правильный|окончательный|итоговый)\s{1,9}|最终|最后|正确|本题|该题|此题|题目|的|最終的な|最終|최종\s{0,9}|正解の){0,6}[ \t*_\"'“]{0,12}\Z",
    re.IGNORECASE,
)
_OR = re.compile(r"\bor\b")
_MATHS = re.compile(r"[\d\\=<>^+*/√π∞-]|\$|^\(?[A-Z]\)?$")
_SENTENCE = re.compile(r"[.;!?](?:\s|$)|[。；！？]")
_STOP = re.compile(r"(?<!\.\.)[.;](?:\s|$)|<\||\n")
_TAKEN_BACK = re.compile(
    r"\b(?:wait|actually|not right|incorrect|mistake|hmm|let me(?! know)|(?:real|true|actual|correct) "
    r"(?:answer|value|result|one) (?:is|was|should))\b",
    re.IGNORECASE,
)
_ITEM = re.compile(r"[ \t]{0,20}(?:[-*•]|\(?\d{1,2}[.)])[ \t]+")
# Letters that are words of English where a sentence ends in them: "This is a".
_PROSE_LETTERS = frozenset("aI")
_BULLET = re.compile(r"[ \t]{0,20}[-*•][ \t]+")
# Characters that may follow the paragraph in which the answer is told, and not take it back.
_AFTERWORD = 60


# In a sentence `3 5` is no 35; in a formula no space is drawn.
_APART = re.compile(r"(?<![\d.,])\d(?: \d)+(?![\d.,/])")


class Extraction(NamedTuple):
    """An answer as it stands in a response.

    Args:
        text: The answer; where several places together make it, their contents, joined by commas.
        start: Where it begins in the response.
        end: Where it ends.
        rule: What found it: `box`, `tag`, `hash`, `phrase`, `whole`, `formula`, `line`, `number`, or `answer` where the
            text was given as the answer.
        behind: Words behind the answer that say what it counts or measures.
    """

    text: str
    start: int
    end: int
    rule: str
    behind: str = ""

    @property
    def measured(self) -> str:
        """The answer as it is compared: with what it counts, and with the spaces between digits that a sentence draws."""
        text = self.text
        if " " in text and "\\" not in text and self.rule in _SENTENCES:
            text = _APART.sub(lambda digits: digits.group().replace(" ", "\\ "), text)
        return f"{text}\\text{{ {self.behind}}}" if self.behind else text


_SENTENCES = ("tag", "hash", "phrase", "whole", "line")


def extract(response: str, policy: ExtractionPolicy = "marked") -> Extraction | None:
    r"""The answer of a response, or None.

    Args:
        response: Anything.
        policy: `"boxed"`, `"marked"` or `"lenient"`.

    >>> extract("So $x=3$. Thus \\boxed{3}.").text
    '3'
    >>> extract("<think>\\boxed{46}</think> \\boxed{47}").text
    '47'
    >>> extract("\\boxed{1} and \\boxed{2}").text
    '1, 2'
    >>> extract("Final Answer: The largest $n$ is 34."), extract("It is 34?", "lenient").rule
    (Extraction(text='34', start=33, end=35, rule='phrase', behind=''), 'number')
    """
    if (quick := _only_box(response)) is not None:
        return quick
    offset = max(0, len(response) - MAX_RESPONSE)
    text = response[offset:] if offset else response
    begin = text.rfind("</think>")
    begin = begin + len("</think>") if begin >= 0 else 0
    if begin and not text[begin:].strip() and (again := text.rfind("<think>", 0, begin)) > 0:
        # Thinking once more after the answer takes nothing back.
        before = text.rfind("</think>", 0, again)
        if before >= 0 and text[before + len("</think>") : again].strip():
            text, begin = text[:again], before + len("</think>")
    think = text.find("<think>", begin)
    end = think if think >= 0 else len(text)
    if begin or end < len(text):
        offset += begin
        text = text[begin:end]
    found = _FIND[policy](text)
    if found is None or not offset:
        return found
    return Extraction(found.text, found.start + offset, found.end + offset, found.rule)


def _only_box(response: str) -> Extraction | None:
    """The last box, where no other box, thought or end of a thought can change what `extract` finds: most responses.

    Every policy takes a box first; all the rest would be most of the time that a response takes.
    """
    command = response.rfind("\\boxed{")
    if command < 0 or len(response) > MAX_RESPONSE or "think>" in response:
        return None
    end = closing_brace(response, command + 7)
    before = max(0, command - WINDOW)
    if end < 0 or response.find("box", end) >= 0 or response.find("box", before, command) >= 0:
        return None
    if response.find("}", before, command) >= 0 and response.find("box", 0, before) >= 0:
        return None  # a long box may end there
    return _trimmed(response, command + 7, end, "box")


def _boxed(text: str) -> Extraction | None:
    places = boxed(text)
    return None if places is None else _joined(text, places, "box")


def _joined(text: str, places: list[Span], rule: str) -> Extraction | None:
    """The answer that stands in one place, or in several; None where nothing stands there."""
    if len(places) == 1:
        return _trimmed(text, *places[0], rule)
    between = text[places[0][1] : places[1][0]]
    contents = (" \\text{ or } " if _OR.search(between) else ", ").join(
        text[start:end].strip() for start, end in places
    )
    return Extraction(contents, places[0][0], places[-1][1], rule)


def _trimmed(text: str, start: int, end: int, rule: str) -> Extraction | None:
    """The extraction without the spaces around it; None where nothing is left."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return Extraction(text[start:end], start, end, rule) if start < end else None


def _marked(text: str) -> Extraction | None:
    return _mark(text) or _told(text, strict=True) or _whole(text)


def _lenient(text: str) -> Extraction | None:
    return _mark(text) or _told(text, strict=False) or _whole(text) or _last_lines(text)


def _mark(text: str) -> Extraction | None:
    """What stands in a box, or else in tags or after `####`."""
    # A box outranks any sentence: where a sentence after it counted, a response could box one answer and tell another.
    places = boxed(text)
    if places is not None:
        return _joined(text, places, "box")
    marks = [mark for mark in (_tagged(text), _hashed(text)) if mark is not None]
    return max(marks, key=lambda mark: mark.start) if marks else None


_FIND = {"boxed": _boxed, "marked": _marked, "lenient": _lenient}


def _tagged(text: str) -> Extraction | None:
    """What stands between the last pair of an answer's tags, or in a box whose command came out wrong."""
    opened: re.Match[str] | None = None
    pair: Span | None = None
    for match in _TAG.finditer(text):
        if not (match["close"] or match["slash"] or (match["side"] or "").lower() == "end"):
            opened = match
        elif opened is not None and opened["name"] == match["name"]:
            pair = opened.end(), match.start()
            opened = None
    for match in list(_BROKEN_BOX.finditer(text))[-1:]:
        close = closing_brace(text, match.end())
        if close >= 0 and (pair is None or close > pair[1]):
            pair = match.end(), close
    return None if pair is None else _content(text, *pair, "tag")


def _hashed(text: str) -> Extraction | None:
    """What follows the last `####` on its line."""
    at = text.rfind("####")
    match = _HASH.match(text, at) if at >= 0 else None
    return None if match is None else _content(text, *match.span(1), "hash")


def _content(text: str, start: int, end: int, rule: str) -> Extraction | None:
    """What a place for an answer holds: the value, where it holds a sentence."""
    whole = _trimmed(text, start, end, rule)
    if whole is None or is_expression(whole.text):
        return whole
    return _value(text, start, end, rule) or whole


def _value(text: str, start: int, end: int, rule: str) -> Extraction | None:
    """The value that a statement tells, with the unit behind it; None where it tells none, or says more."""
    span = value_in(text, start, end)
    behind = None if span is None else words_behind(text, start, span, end)
    if span is None or behind is None:
        return None
    found = _trimmed(text, *_undelimited(text, *span), rule)
    return found and found._replace(behind=behind)


def _told(text: str, *, strict: bool) -> Extraction | None:
    """What the last "answer is", or the last heading of this kind, tells.

    Args:
        text: The text.
        strict: Nothing where the response goes on after that paragraph.
    """
    for cue in [match.start() for match in _CUE.finditer(text)][: -_MAX_CUES - 1 : -1]:
        begin = _statement_start(text, cue)
        if begin is None:
            continue
        found = _statement(text, begin)
        if found is None:
            continue
        if _TAKEN_BACK.search(text, found.end):
            return None
        if strict:
            paragraph = text.find("\n\n", found.end)
            if paragraph >= 0 and len(text[paragraph:].strip()) > _AFTERWORD:
                return None
        return found
    return None


def _statement_start(text: str, cue: int) -> int | None:
    """Where the statement begins that a cue announces; None where it announces none."""
    line = text.rfind("\n", max(0, cue - WINDOW), cue) + 1
    heading = _HEADING.match(text, line) if line or cue <= WINDOW else None
    if heading is not None and heading.end() > cue:
        return heading.end()
    match = _SENTENCE_CUE.match(text, cue) if _ANNOUNCED.search(text, max(0, cue - WINDOW), cue) else None
    if match is None or _NO_ANSWER.match(text, match.end()):
        return None
    return match.end()


def _statement(text: str, begin: int) -> Extraction | None:
    """The value of the statement that begins here: on this line, or in the lines after it."""
    limit = min(len(text), begin + MAX_STATEMENT)
    first = _line_end(text, begin, limit)
    if text[begin:first].strip(" \t*_:：.\"'`"):
        return _content_of_statement(text, begin, _formula_end(text, begin, first, limit))
    while first < limit and text[first] in " \t\r\n*_":
        first += 1
    end = text.find("\n\n", first, limit)
    end = limit if end < 0 else end
    items = _items(text, first, end)
    if items is not None:
        return items
    return _content_of_statement(text, first, _formula_end(text, first, end, limit))


def _line_end(text: str, start: int, limit: int) -> int:
    end = text.find("\n", start, limit)
    return limit if end < 0 else end


def _formula_end(text: str, start: int, end: int, limit: int) -> int:
    """Where a line ends, with the formula that begins on it and is closed on another."""
    for formula in formulas(text[start:limit]):
        if start + formula.start < end < start + formula.end:
            return start + formula.end
    return end


def _items(text: str, start: int, end: int) -> Extraction | None:
    """An answer of several lines, each of which is an expression, with or without bullets."""
    places: list[Span] = []
    at = start
    while at < end:
        stop = _line_end(text, at, end)
        bullet = _ITEM.match(text, at, stop)
        span = strip_span(text, at if bullet is None else bullet.end(), stop)
        if not is_expression(text[slice(*span)]):
            return None
        places.append(span)
        at = stop + 1
    return _joined(text, places, "phrase") if len(places) > 1 else None


def _content_of_statement(text: str, start: int, end: int) -> Extraction | None:
    """The value that a statement tells, or its words where it tells none ("The answer is Evelyn")."""
    told = _value(text, start, end, "phrase")
    if told is not None:
        return told
    # A point inside of braces ends no sentence.
    stops = (match.start() for match in _STOP.finditer(text, start, end))
    stop = next((at for at in stops if text.count("{", start, at) == text.count("}", start, at)), end)
    start, end = strip_span(text, start, stop)
    if text[start : start + 1] == "$" == text[end - 1 : end] and not set("$\\") & set(text[start + 1 : end - 1]):
        start, end = start + 1, end - 1
    return _trimmed(text, start, end, "phrase")


def _undelimited(text: str, start: int, end: int) -> Span:
    """A place without the delimiters of the one formula that it is."""
    found = formulas(text[start:end])
    if len(found) == 1 and (found[0].start, found[0].end) == (0, end - start):
        return start + found[0].inner_start, start + found[0].inner_end
    return start, end


def _whole(text: str) -> Extraction | None:
    """The whole response, where it is one formula and nothing else."""
    start, end = strip_span(text, 0, len(text))
    # A box that was never closed is an answer that was cut off.
    if not 0 < end - start <= _MAX_WHOLE or "\n\n" in text[start:end] or "\\boxed" in text:
        return None
    # A dollar sign in front may be one of currency, and then has no partner.
    inner = _undelimited(text, start, end)
    # A letter may be a choice; several without a sign of mathematics are rather a word.
    formula = text[slice(*inner)]
    if not is_expression(formula) or not (len(formula) == 1 or _MATHS.search(formula)):
        return None
    return _trimmed(text, *inner, "whole")


def _last_lines(text: str) -> Extraction | None:
    """The last sentence of the last line that holds a formula, an expression or a number: the first of these it holds."""
    bullets = _last_bullets(text)
    if bullets is not None:
        return bullets
    found = formulas(text)
    for start, end in itertools.islice(_lines_from_the_end(text), _MAX_LINES):
        while found and found[-1].start >= end:
            found.pop()
        inside = list(itertools.takewhile(lambda formula: formula.end > start, reversed(found)))[::-1]  # noqa: B023
        if inside and inside[-1].end > end:
            continue  # the middle of a displayed formula: it counts where it ends
        begin = max(min([start, *(formula.start for formula in inside)]), end - MAX_STATEMENT)
        for sentence in _sentences_from_the_end(text, begin, end, inside):
            value = _value_of_sentence(text, *sentence, bool(inside))
            if value is not None:
                return value
    return None


def _last_bullets(text: str) -> Extraction | None:
    """The list that a response ends with, where each of its points is an expression; a line of its own may be a negative number."""
    places: list[Span] = []
    for start, end in itertools.islice(_lines_from_the_end(text), _MAX_LINES):
        bullet = _BULLET.match(text, start, end)
        span = (start, end) if bullet is None else strip_span(text, bullet.end(), end)
        if bullet is None or not is_expression(text[slice(*span)]):
            break
        places.append(span)
    return _joined(text, places[::-1], "line") if len(places) > 1 else None


def _value_of_sentence(text: str, start: int, end: int, has_formulas: bool) -> Extraction | None:
    start, end = strip_span(text, start, end)
    if start >= end:
        return None
    span = value_in(text, start, end, only_one=False)
    if span is None:
        number = None if has_formulas else last_number(text, start, end)
        return None if number is None else _trimmed(text, *number, "number")
    if text[slice(*span)] in _PROSE_LETTERS and span[0] > start:
        return None
    whole = span == (start, end)
    inner = _undelimited(text, *span)
    rule = "formula" if has_formulas else "line" if whole else "number"
    return _trimmed(text, *inner, rule)


def _sentences_from_the_end(text: str, start: int, end: int, inside: list[Formula]) -> list[Span]:
    """Places of the sentences of a line, the last one first; a formula's points end no sentence."""
    ends = [
        match.end()
        for match in _SENTENCE.finditer(text, start, end)
        if not any(formula.start < match.start() < formula.end for formula in inside)
    ]
    edges = sorted({start, *ends[-_MAX_LINES:], end})
    return list(itertools.pairwise(edges))[::-1]


def _lines_from_the_end(text: str) -> Iterator[Span]:
    end = len(text)
    while end >= 0:
        start = text.rfind("\n", 0, end) + 1
        if text[start:end].strip():
            yield start, end
        end = start - 1
