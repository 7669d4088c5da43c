r"""The value that a sentence tells: `The largest $n$ is 34.` tells 34, `42 because …` tells 42."""

from __future__ import annotations

import re

from mathturn_gym.verifier.reading._cleaning import COMMANDS
from mathturn_gym.verifier.reading._delimiters import Formula, Span, boxed, formulas
from mathturn_gym.verifier.reading._lexer import FUNCTIONS, listed
from mathturn_gym.verifier.reading._numbers import is_unit, literal_value
from mathturn_gym.verifier.reading._phrases import may_follow, may_precede
from mathturn_gym.verifier.reading._prepared import prepare

_MAX_EXPRESSION = 600
MAX_STATEMENT = 2_000
"""Characters of a statement that are looked into."""

_COMMAND = re.compile(
    r"\\(?:text|mbox|mathrm|operatorname)[a-z]*\s*\{[^{}]*\}|\\(?:begin|end)\s*\{[^{}]*\}(?:\{[^{}]*\})?|\\[a-zA-Z]+"
)
_LONG_COMMAND = re.compile(r"\\([a-zA-Z]{4,})")
_WORD = re.compile(r"[a-zA-Z]+|[^\W\d_a-zA-Zα-ωΑ-Ωπ∞√½⅓⅔¼¾⅐-⅞²³¹⁰ⁱ⁴-₎]+")
# Short words of sentences; longer ones are taken for prose unless they are known to mathematics.
_STOP = listed(
    """
    a an the of to is in it its if on at by as we so be do he her his she my you are was has had not for but can how
    why who all any out use let get now per set thus then each one two see
    """
)
_MATHS_WORDS = FUNCTIONS | {"pi", "infinity", "inf", "or", "and", "mod", "deg", "degrees", "degree", "percent", "pct"}
_LEADING = " \t\r\n*_:：=\"'“”‘`>→⇒∴~>,，、"
_TRAILING = " \t\r\n*_\"'“”’`.,;:。．，；！!"
_NUMBER = r"[-+−]?(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:[.,]\d+)?|\.\d+)(?:\s?/\s?\d+)?(?:\s?%)?"
# A script without spaces between its words may stand right before a number.
_NUMBERS = re.compile(rf"(?<![^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])(?<![.\\^])(?<!not )\$?({_NUMBER})")
# `Step 5:`, `3.` at the beginning of a line, `(11)` at the end of one: numbers that count lines.
_LABEL = re.compile(
    r"(?:(?:step|equation|eq\.?|case|part|question|problem|line|figure|table|section|page|note)\s*\(?\d+\)?[.:)]?)"
    r"|(?:^|\n)[ \t]*(?:[-*•][ \t]*)?\(?\d{1,2}[.)](?=\s)|(?<!\s)\s{2,}\(\d{1,3}\)[ \t]*(?:$|\n)",
    re.IGNORECASE,
)
_COPULA = re.compile(
    r"(?<![a-zA-Z\\])(?:is|are|was|were|equals?|becomes?|gives?|yields?|be|es|son|est|sont|ist|sind|lautet|beträgt|"
    r"é|são|è|sono|là|adalah|ni)(?![a-zA-Z])(?!\s+(?:not|no|neither)\b)(?:\s+(?:approximately|about|simply|just|thus|therefore|"
    r"equal to|given by|exactly|then|indeed|the number|the value)\b)*|[:：=→]|(?<!不)[是为為](?:[:：])?|等于|равн[оаы]|равен|=|は|は、|은|는"
)
_ASSIGNMENT = re.compile(r"(?<![a-zA-Z\\_^{])[a-zA-Z](?:_\{?\w\}?)?\s{0,3}=")
_NEGATION = re.compile(r"\b(?:not|neither|nor|wrong|incorrect|instead)\b", re.IGNORECASE)
_JOIN = re.compile(r"\s{0,9}(?:,|;|、|，|\b(?:and|or|und|oder|et|ou|y|o|и|или)\b|和|或|及|与)\s{0,9}")
# Before a word of prose: what belongs to it, and not to the value in front (`20, I think`, `7 and then`).
_DANGLING = re.compile(
    r"(?<!\s)(?:\s{0,3}[,;]\s{0,3}(?:(?:and|or|so)\b\s{0,3})?[Ia]?|\s{1,3}(?:and|or)(?:\s{1,3}[Ia])?|\s{1,3}[Ia])\Z"
)
_HALF = re.compile(r"\s+and\s+(?:a|one|two|three)\s+(?:half|thirds?|quarters?|fourths?)\b")
_AFTER_UNIT = re.compile(r"\s*(?:[a-zA-Z]+\b|°\s?[CF]?|%|²|³)")
_SENTENCE = re.compile(r"[.;!?](?:\s|$)|[。；！？\n]")


_QUOTES = "'\"’"
_OPENS = re.compile(r"(?<![\w)}'])['\"‘’“”]")


def has_prose(text: str) -> bool:
    """Whether a text holds words that belong to a sentence rather than to a formula."""
    if any(name not in COMMANDS for name in _LONG_COMMAND.findall(text)):
        return True
    for word in _WORD.findall(_COMMAND.sub(" ", text)):
        if not word.isascii():
            return True
        lower = word.lower()
        if lower in _MATHS_WORDS or (word.isupper() and len(word) > 1):
            continue
        if len(word) > 3 or (lower in _STOP and len(word) > 1):
            return True
    return False


def is_expression(text: str) -> bool:
    r"""Whether all of a text is mathematics: a number, an expression, a list, a relation; no sentence.

    >>> [is_expression(text) for text in ("x=3 or x=5", "12 cm", "The volume is 3", "n", "", "\\int_0^1 f(x) dx")]
    [True, True, False, True, False, True]
    """
    if not text.strip() or len(text) > _MAX_EXPRESSION or text.count("{") != text.count("}"):
        return False
    if has_prose(text):
        words = text.split()
        # A unit behind a number is no sentence.
        return len(words) <= 3 and all(map(is_unit, words[1:])) and prepare(words[0]).value is not None
    read = prepare(text)
    return read.value is not None or bool(read.readings) or read.choice is not None or bool(_COMMAND.search(text))


def strip_span(text: str, start: int, end: int) -> Span:
    """A place without the quotes, emphasis, punctuation and spaces around it."""
    begin = start
    while start < end and text[start] in _LEADING:
        if text[start] == ">" and text[start + 1 : start + 2].isalnum() and text[start - 1 : start] not in ("=", "-"):
            break  # a relation, and no mark of a quotation
        start += 1
    while end > start and text[end - 1] in _TRAILING:
        # A quote that nothing opened is a prime: `45'`, `f(x)'`.
        if (
            text[end - 1] in _QUOTES
            and _OPENS.search(text, begin, end - 1) is None
            and text[end - 2].isalnum() | (text[end - 2] in ")}'")
        ):
            break
        if text[end - 3 : end] == "...":
            break
        if text[end - 1] == "_" and "_" not in text[begin : end - 1]:
            break
        # A factorial's sign, a bracket's dot: punctuation only where something else is left.
        if text[end - 1] == "!" and (text[end - 2 : end - 1].isalnum() or text[end - 2 : end - 1] in tuple(")}]!")):
            break
        end -= 1
    return start, end


def value_in(text: str, start: int = 0, end: int | None = None, *, only_one: bool = True) -> Span | None:
    r"""Where the value stands that a statement tells, or None where it tells none.

    Args:
        text: The text.
        start: Where the statement begins.
        end: Where it ends; the end of the text by default.
        only_one: Several numbers outside of formulas, none of them after an "is", tell nothing; False: the last one does.

    >>> for text in ("The largest $n$ is 34.", "$x=3$ or $x=5$, as shown", "42 because 6*7=42", "$5 + 6 = 11$ apples"):
    ...     span = value_in(text)
    ...     print(text[slice(*span)])
    34
    $x=3$ or $x=5$
    42
    $5 + 6 = 11$
    """
    end = min(len(text) if end is None else end, start + MAX_STATEMENT)
    start, end = strip_span(text, start, end)
    if start >= end:
        return None
    inside = boxed(text[start:end])
    if inside is not None:
        return start + inside[0][0], start + inside[-1][1]
    if is_expression(text[start:end]):
        return start, end
    found = [f for f in formulas(text[start:end]) if text[start + f.inner_start : start + f.inner_end].strip()]
    leading = _leading_value(text, start, end, found)
    if leading is not None:
        return leading
    stop = _SENTENCE.search(text, start, end)
    stop_at = stop.start() if stop is not None else end
    names = [
        match
        for match in _ASSIGNMENT.finditer(text, start, stop_at)
        if not any(start + f.start < match.start() < start + f.end for f in found)
    ]
    if len(names) > 1:
        # `So x = 3 and y = 4`: all of them, where nothing but "and" or a comma stands between them.
        told = _leading_value(text, names[0].start(), end, found, start)
        if told is not None and told[1] > names[-1].end():
            return told
    for copula in reversed(list(_COPULA.finditer(text, start, stop_at))):
        if any(start + f.start < copula.start() < start + f.end for f in found):
            continue
        after, _ = strip_span(text, copula.end(), end)
        told = _leading_value(text, after, end, found, start)
        if told is not None:
            return told
    if _NEGATION.search(text, start, end):
        return None
    return _last_value(text, start, end, found, only_one)


_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
# Two letters side by side that are no command: without them there is no word.
_LETTERS = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2}")
_INDEX = re.compile(r"_\s*(?:\{[^{}]*\}|\w)")
# What may follow a value and not change it: a reason, or where it comes from.
_REASON = re.compile(
    r"[\s,;:(\-–—$*]*(?:because|since|as (?:shown|required|desired|needed|claimed|above|expected|wanted|we|it|there|each|you|can)|so|i think|i believe|obtained|by|using|from|and (?:so|thus|hence)|due to|given|"
    r"calculated|rounded|if rounded|approximately|or (?:about|approximately)|i\.e\.|that is"
    r"|(?:and (?:we|this|that|the)|which (?:was|we|makes|means)|found)\b(?!.*\b(?:is|are|be|as|to|too)\b)"
    # "Which is 18 cm" repeats the value, and "which is impossible" refuses it.
    r"|which (?:is|equals|gives|simplifies to|can be written as)(?=\s+(?:about|approximately|the same as|equal to)?\s*[-\d$\\(]"
    r"|\s+(?:an? |the )?(?:(?:required|correct|desired|right|final|largest|smallest|valid|positive|integer|even|odd|prime)\b|answer))"
    r")\b",
    re.IGNORECASE | re.DOTALL,
)
_TAKEN_BACK = re.compile(
    r"\b(?:not|no|never|neither|nor|wrong|incorrect|instead|maybe|perhaps|possibly|either|but|if|unless|except|lucky|"
    r"guess|rather|actually|minus|plus|negative|times|half|twice|false|mistake|error|opposite|\w*n['’]t|cannot|\w+possible|"
    r"contradict\w*|reject\w*|discard\w*|eliminat\w*|exclud\w*|fail\w*|invalid|absurd|ruled)\b",
    re.IGNORECASE,
)
_ORDINAL = re.compile(r"\d+\s*\^?[\s{]*(?:\\text\s*\{\s*)?(?:st|nd|rd|th)[}\s]*")
# Another value that a reason ends in: `18 was my first guess, so it is 20`.
_ENDS_IN = re.compile(r"\b(?:is|it['’]s|are|be|get|take|choose|becomes|:)\s*\$?\s*(-?\d[\d,.]*\d|-?\d)(?![\w\\^*+/-])")


def words_behind(text: str, start: int, value: Span, end: int) -> str | None:
    """The words behind a value that say what it counts, empty where a reason or nothing follows; None where others stand around it.

    Args:
        text: The text.
        start: Where the statement begins.
        value: Where the value stands.
        end: Where the statement ends.
    """
    if not may_precede(_INDEX.sub("", text[start : value[0]])):
        return None
    rest = text[value[1] : end]
    if rest.startswith(("...", "…")):
        return None
    if rest[:1] in _QUOTES and rest[:1] and text[value[0] - 1 : value[0]] not in ("'", '"', "‘", "’", "“"):
        # Minutes or inches, and no quote.
        return None
    stop = _SENTENCE.search(rest)
    if stop is not None and stop.group()[0] in "?？":
        # A question tells nothing.
        return None
    rest = _TEXT.sub(r" \1 ", rest if stop is None else rest[: stop.start()])
    told = text[slice(*value)]
    around = text[start : value[0]] + rest
    if around.count("(") != around.count(")") or (rest.strip() and _ORDINAL.fullmatch(told.strip(" $"))):
        # Half of a pair of brackets; `12th from last`.
        return None
    if _REASON.match(rest):
        others = [number for number in _ENDS_IN.findall(rest) if number not in told]
        return None if others or _TAKEN_BACK.search(rest) else ""
    number = literal_value(told.strip(" $"))
    if not may_follow(rest, one=number is not None and number <= 1):
        return None
    # Words of other scripts are measure words that are known, and no unit of ours.
    return rest.strip(" \t$*_()[]\"'.,;:!") if rest.isascii() else ""


def told_value(answer: str) -> str | None:
    r"""The value that an answer tells in a sentence; None where it is no sentence, or where its words say more.

    Stricter than `value_in`: a word that is not known to introduce a value may change it.

    Args:
        answer: A cleaned answer.

    >>> told_value("\\text{The largest value is } 34"), told_value("7\\text{ is wrong, it is }8"), told_value("34")
    ('34', None, None)
    """
    if "\\text" not in answer and answer.isascii() and _LETTERS.search(answer) is None:
        return None
    plain = _TEXT.sub(r" \1 ", answer)
    if not has_prose(plain):
        return None
    span = value_in(plain)
    behind = None if span is None else words_behind(plain, 0, span, len(plain))
    if span is None or behind is None:
        return None
    # In a box, a second sentence is not there to explain.
    if _SENTENCE.search(plain, span[1], len(plain.rstrip(". "))) is not None:
        return None
    value = plain[slice(*span)]
    if value.strip() == plain.strip():
        return None
    # A measure is compared with the gold's.
    return f"{value}\\text{{ {behind}}}" if behind else value


def told_anywhere(answer: str) -> str | None:
    r"""The value of an answer that is a sentence, or the lines in which others found one; None where it tells none.

    >>> told_anywhere("\\text{Bob wins, and the requested sum is }505."), told_anywhere("x + 1")
    ('505', None)
    """
    plain = _TEXT.sub(r" \1 ", answer)
    span = value_in(plain) if has_prose(plain) else None
    if span is None or _CHANGED.search(plain, 0, span[0]) or not may_follow_here(plain, span[1]):
        return None
    if len(plain[: span[0]].split()) <= _FEW_WORDS and words_behind(plain, 0, span, len(plain)) is None:
        # A short phrase is not a sentence in which a value was found: `half of 18`.
        return None
    return plain[slice(*span)]


_FEW_WORDS = 3
# A word right in front of a value that changes it.
_CHANGED = re.compile(
    r"\b(?:not|never|negative|minus|plus|times|half|twice|double|triple|thrice|squared?|cubed?|root|reciprocal|inverse|opposite|"
    r"supplement|complement|least|most|than|over|under|above|below|almost|nearly|other|except|but|without|non|percent)\b"
    r"(?:\s+(?:of|to|the|a|an|is|from|for|as|than|by|at|equal))*[\s$(:]*\Z",
    re.IGNORECASE,
)


def may_follow_here(text: str, end: int) -> bool:
    """Whether the word right behind a value leaves it as it is."""
    word = re.compile(r"\s*([a-zA-Z]+)").match(text, end)
    return word is None or word[1].lower() not in _SCALES


_SCALES = listed(
    """
    hundred thousand million billion trillion dozen squared cubed factorial halves thirds quarters fourths fifths
    sixths sevenths eighths ninths tenths hundredths thousandths
    """
)


def _leading_value(text: str, start: int, end: int, found: list[Formula], base: int | None = None) -> Span | None:
    """The value that a statement begins with, with those that "and", "or" or a comma join to it."""
    base = start if base is None else base
    at, last = start, -1
    while True:
        formula = next((f for f in found if base + f.start == at), None)
        if formula is not None:
            at = base + formula.end
        else:
            prefix = _expression_end(text, at, end, found, base)
            if prefix is None:
                break
            half = _HALF.match(text, prefix, end)
            at = prefix if half is None else half.end()
        last = at
        unit = _AFTER_UNIT.match(text, at, end)
        if unit is not None and is_unit(unit.group().strip()):
            at = last = unit.end()
        join = _JOIN.match(text, at, end)
        if join is None or not join.group():
            break
        at = join.end()
    return strip_span(text, start, last) if last >= 0 else None


def _expression_end(text: str, start: int, end: int, found: list[Formula], base: int) -> int | None:
    """Where the expression ends that begins here outside of any formula; None where none does."""
    stops = [base + f.start for f in found if base + f.start > start]
    limit = min([end, start + _MAX_EXPRESSION, *stops[:1]])
    chunk = text[start:limit]
    cut = _first_prose(chunk)
    candidate = text[start : strip_span(text, start, start + cut)[1]].rstrip("([ ")
    if cut < len(chunk):
        candidate = _DANGLING.sub("", candidate)
    telling = any(char.isdigit() or char in "\\=<>∞π√" for char in candidate)
    # A letter alone may be the article of a sentence, or a choice.
    if not telling and not (cut == len(chunk) and is_expression(candidate)):
        return None
    sentence = _SENTENCE.search(candidate)
    if sentence is not None:
        candidate = candidate[: sentence.start()]
    return start + len(candidate) if is_expression(candidate) else None


def _first_prose(text: str) -> int:
    """Where the first word of a sentence stands; the length of the text where none does."""
    masked = _COMMAND.sub(lambda match: " " * len(match.group()), text)
    for match in _WORD.finditer(masked):
        word = match.group()
        lower = word.lower()
        if not word.isascii():
            return match.start()
        if lower in _MATHS_WORDS or (word.isupper() and len(word) > 1):
            continue
        if len(word) > 3 or (lower in _STOP and (len(word) > 1 or match.start() > 0)):
            return match.start()
    return len(text)


def _last_value(text: str, start: int, end: int, found: list[Formula], only_one: bool) -> Span | None:
    """The last formula that tells something, or else the only (or last) number."""
    telling = [f for f in found if _tells(text[start + f.inner_start : start + f.inner_end])]
    if telling:
        return start + telling[-1].inner_start, start + telling[-1].inner_end
    return last_number(text, start, end, only_one=only_one)


def _tells(formula: str) -> bool:
    """Whether a formula may be an answer rather than the name of something."""
    return any(char.isdigit() or char in "=<>\\" for char in formula) and is_expression(formula)


def last_number(text: str, start: int, end: int, *, only_one: bool = False) -> Span | None:
    """Where the last number stands that counts no line; None where there is none, or several and only one is asked for."""
    labelled = {at for match in _LABEL.finditer(text, start, end) for at in range(*match.span())}
    numbers = [match.span(1) for match in _NUMBERS.finditer(text, start, end) if match.start(1) not in labelled]
    if not numbers or (only_one and len(numbers) > 1):
        return None
    first, last = numbers[-1]
    half = _HALF.match(text, last, end)
    return first, last if half is None else half.end()
