r"""Rows to problems, in the schemas that public data sets use.

    areal          query_id, prompt, solutions (a list of texts, boxed or bare)
    verl           prompt (messages or text), reward_model.ground_truth: verl, DAPO
    olympiadbench  question, final_answer (a list)
    gsm8k          question, answer ending in `#### n`
    math           problem, answer and/or solution with \boxed{}: MATH, MATH-500, AIME, AMC, DeepScaleR, NuminaMath
    question       question (or prompt), and a plain answer

The first that fits is used. Any other row needs a mapping of fields.
"""

from __future__ import annotations

import difflib
import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np

from mathturn_gym.base.files import parse_json
from mathturn_gym.errors import InvalidValueError, raise_unknown_name
from mathturn_gym.problems._values import MAX_BYTES, MAX_DEPTH, json_types, measure, short
from mathturn_gym.verifier import extract

MAX_GOLD: Final = 4_000
"""Characters of one gold answer; far more than the verifier takes for an answer."""

_GSM8K_ANSWER: Final = re.compile(r"####\s*(\S[^\n]*?)\s*$")
_NO_ANSWER: Final = frozenset({"", "nan", "none", "null", "n/a", "notfound", "proof"})
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


class RowError(Exception):
    """A field of a row is unusable (a loader makes it a `ProblemFileError` or leaves the row out)."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field, self.reason = field, reason


@dataclass(frozen=True, slots=True)
class Found:
    """What a schema reads out of a row; `metadata` holds every other field, `size` is the bytes of the row in memory."""

    prompt: str
    gold: tuple[str, ...]
    id: str | None
    metadata: Mapping[str, Any]
    size: int


@dataclass(frozen=True, slots=True)
class Schema:
    """How one kind of row becomes a problem; `read` gives prompt, gold answers, id (or None) and the fields used."""

    name: str
    fields: str
    fits: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Mapping[str, Any]], tuple[str, tuple[str, ...], str | None, tuple[str, ...]]]


class RowReader:
    """Reads the rows of one file or data set.

    Args:
        mapper: How to read them; None recognizes the schema of each row. A row without GSM8K's mark is a broken row of
            GSM8K, and not one with a plain answer, where an earlier row of the same columns had the mark.
    """

    def __init__(self, mapper: Mapper | None = None) -> None:
        self._mapper = mapper
        self._marked: set[frozenset[str]] = set()

    def read(self, row: Mapping[str, Any]) -> Found:
        """One row.

        Raises:
            RowError: a field is unusable, or no schema fits.
        """
        for field in row:
            if not isinstance(field, str):
                raise RowError("", f"has a field whose name is no text: {short(field)}")
        depth, size = measure(row)
        if size > MAX_BYTES:
            raise RowError("", f"takes more than {MAX_BYTES // 2**20} MiB in memory")
        if depth > MAX_DEPTH:
            raise RowError("", f"is nested more than {MAX_DEPTH} deep")
        prompt, gold, own_id, used = self._parts(row)
        metadata: dict[str, Any] = {}
        for key, value in row.items():
            if key not in used:
                try:
                    metadata |= json_types({key: value})
                except UnicodeError as error:
                    raise RowError(
                        key.encode("ascii", "backslashreplace").decode(), f"is not Unicode text: {error}"
                    ) from error
        return Found(prompt, gold, own_id, metadata, size)

    def _parts(self, row: Mapping[str, Any]) -> tuple[str, tuple[str, ...], str | None, tuple[str, ...]]:
        if self._mapper is not None:
            return self._mapper.read(row)
        # By the row, not by the file: files are joined from data sets of several schemas.
        schema = next((schema for schema in SCHEMAS if schema.fits(row)), None)
        if schema is None:
            raise RowError("", f"has no known schema; fields found: {_columns(row)}: {_advice(list(row))}")
        if schema.read is _question and frozenset(row) in self._marked:
            raise RowError("answer", f"must end in '#### n' like the rows before, got {short(row['answer'])}")
        found = schema.read(row)
        if schema.read is _gsm8k:
            self._marked.add(frozenset(row))
        return found


def text_field(row: Mapping[str, Any], field: str) -> str:
    """A row's non-empty text, or a `RowError` that says what is wrong with it."""
    if field not in row:
        raise RowError(field, "is missing or empty")
    value = row[field]
    if not isinstance(value, str) or not value.strip():
        raise RowError(field, f"must be a non-empty text, got {short(value)}")
    _check_unicode(value, field)
    return value


def _check_unicode(text: str, field: str) -> None:
    found = _SURROGATE.search(text)
    if found is not None:
        raise RowError(
            field, f"is not Unicode text: a lone surrogate U+{ord(found[0]):04X} at character {found.start()}"
        )


def _answer(value: object, field: str) -> str:
    """An answer as a text: numbers as they are written, and nothing that only says there is none."""
    text = value.strip() if isinstance(value, str) else _number_text(value, field)
    if text.lower() in _NO_ANSWER:
        raise RowError(field, f"is empty or says that there is no answer: {value!r}")
    if len(text) > MAX_GOLD:
        raise RowError(field, f"has {len(text):,} characters; at most {MAX_GOLD:,} can be judged")
    _check_unicode(text, field)
    return text


def _number_text(value: object, field: str) -> str:
    if isinstance(value, bool):
        raise RowError(field, f"must be a text or a number, got {value!r}")
    if isinstance(value, numbers.Integral):
        # str() of an integer refuses more than 4,300 digits; log10(2) is .30103.
        if int(value).bit_length() * 0.30103 > MAX_GOLD:
            raise RowError(field, f"has more than {MAX_GOLD:,} digits, which is the most that can be judged")
        return str(int(value))
    if isinstance(value, (float, np.floating)):
        number = float(value)
        if not math.isfinite(number):
            raise RowError(field, f"must be finite, got {number!r}")
        return str(int(number)) if number.is_integer() else repr(number)
    if isinstance(value, (Decimal, Fraction)) and (not isinstance(value, Decimal) or value.is_finite()):
        return str(value)
    raise RowError(field, f"must be a text or a number, got {short(value)}")


def _answers(value: object, field: str) -> tuple[str, ...]:
    """One answer, or a list of them."""
    if isinstance(value, (list, tuple)):
        if not value:
            raise RowError(field, "must hold at least one answer, got an empty list")
        return tuple(_answer(part, f"{field}[{i}]") for i, part in enumerate(value))
    return (_answer(value, field),)


def _solved(solution: str, field: str) -> str:
    """The answer of a worked solution: in its last box, or after GSM8K's mark."""
    found = extract(solution)
    # The verifier also reads a solution's last number: good enough for a model's answer, not for gold.
    if found is None or found.rule not in ("box", "hash"):
        raise RowError(field, "has no \\boxed{} answer, nor one after ####")
    return _answer(found.text, field)


def _boxed(solution: str, field: str) -> str:
    found = extract(solution, "boxed")
    if found is None:
        raise RowError(field, "has no \\boxed{} answer, and there is no field 'answer'")
    return _answer(found.text, field)


def _gsm8k(row: Mapping[str, Any]) -> tuple[str, tuple[str, ...], None, tuple[str, ...]]:
    answer = text_field(row, "answer")
    match = _GSM8K_ANSWER.search(answer)
    if match is None:
        raise RowError("answer", f"must end in '#### n', got {short(answer[-40:])}")
    return text_field(row, "question"), (_answer(match[1], "answer"),), None, ("question", "answer")


def _math(row: Mapping[str, Any]) -> tuple[str, tuple[str, ...], None, tuple[str, ...]]:
    names = {key.lower(): key for key in row}  # AIME 2024 has capitals
    answer = names.get("answer")
    if answer is not None and row[answer] is not None:
        gold = _answers(row[answer], answer)
    elif "solution" in names:
        gold = (_boxed(text_field(row, names["solution"]), names["solution"]),)
    else:
        raise RowError("answer", "is missing or empty, and so is 'solution'")
    # NuminaMath repeats the problem and its solution as messages.
    used = [names[name] for name in ("problem", "answer", "solution", "question", "messages") if name in names]
    return text_field(row, names["problem"]), gold, None, tuple(used)


def _olympiad(row: Mapping[str, Any]) -> tuple[str, tuple[str, ...], None, tuple[str, ...]]:
    gold = _answers(row["final_answer"], "final_answer")
    return text_field(row, "question"), gold, None, ("question", "final_answer")


def _areal(row: Mapping[str, Any]) -> tuple[str, tuple[str, ...], str, tuple[str, ...]]:
    task = row.get("task", "math")
    if task != "math":
        raise RowError("task", f"is {short(task)}, and only 'math' can be judged here")
    solutions = row["solutions"]
    if not isinstance(solutions, list) or not solutions or not all(isinstance(s, str) for s in solutions):
        raise RowError("solutions", f"must be a list of texts, got {short(solutions)}")
    gold = tuple(_boxed_or_bare(solution, f"solutions[{i}]") for i, solution in enumerate(solutions))
    used = ("query_id", "prompt", "solutions", "task")
    return text_field(row, "prompt"), gold, _own_id(row["query_id"], "query_id"), used


def _own_id(value: object, field: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)) or not (text := _plain(value)).strip():
        raise RowError(field, f"must be a non-empty text or a number, got {short(value)}")
    _check_unicode(text, field)
    return text


def _plain(value: str | int) -> str:
    return value if isinstance(value, str) else _number_text(value, "id")


def _boxed_or_bare(solution: str, field: str) -> str:
    found = extract(solution, "boxed")
    return _answer(found.text if found is not None else solution, field)


def _verl(row: Mapping[str, Any]) -> tuple[str, tuple[str, ...], None, tuple[str, ...]]:
    model = row["reward_model"]
    if not isinstance(model, Mapping) or "ground_truth" not in model:
        raise RowError("reward_model", f"must hold 'ground_truth', got {short(model)}")
    gold = _answers(_listed(model["ground_truth"]), "reward_model.ground_truth")
    return _message(row["prompt"], "prompt"), gold, None, ("prompt", "reward_model")


def _listed(truth: object) -> object:
    """DAPO writes lists of answers as JSON."""
    if isinstance(truth, str) and truth.startswith("[") and len(truth) <= MAX_GOLD:
        try:
            return parse_json(truth)
        except ValueError:
            return truth
    return truth


def _message(value: object, field: str) -> str:
    """A text, or the last user message of a dialogue."""
    if isinstance(value, str):
        return text_field({field: value}, field)
    if isinstance(value, (list, tuple)):
        users = [m for m in value if isinstance(m, Mapping) and m.get("role") == "user"]
        if users:
            return text_field({field: users[-1].get("content")}, field)
    raise RowError(field, f"must be a text, or messages with one of the user, got {short(value)}")


def _question(row: Mapping[str, Any]) -> tuple[str, tuple[str, ...], None, tuple[str, ...]]:
    name = "question" if "question" in row else "prompt"
    return _message(row[name], name), _answers(row["answer"], "answer"), None, (name, "answer")


def _is_gsm8k(row: Mapping[str, Any]) -> bool:
    answer = row.get("answer")
    return "question" in row and "problem" not in row and isinstance(answer, str) and "####" in answer


SCHEMAS: Final = (
    Schema("areal", "query_id, prompt, solutions", lambda row: "query_id" in row and "solutions" in row, _areal),
    Schema("verl", "prompt, reward_model.ground_truth", lambda row: "prompt" in row and "reward_model" in row, _verl),
    Schema(
        "olympiadbench", "question, final_answer", lambda row: "question" in row and "final_answer" in row, _olympiad
    ),
    Schema("gsm8k", "question, answer ending in '#### n'", _is_gsm8k, _gsm8k),
    Schema(
        "math",
        "problem, answer and/or solution with \\boxed{}",
        lambda row: any(key.lower() == "problem" for key in row),
        _math,
    ),
    Schema(
        "question",
        "question or prompt, answer",
        lambda row: "answer" in row and bool({"question", "prompt"} & set(row)),
        _question,
    ),
)
"""Tried in this order."""

KNOWN: Final = "; ".join(f"{schema.name} {{{schema.fields}}}" for schema in SCHEMAS)
"""All schemas in one line, for messages."""

_SEPARATORS: Final = {";": "semicolons", "\t": "tabs", "|": "bars"}
_ASKED: Final = ("question", "problem", "prompt", "query", "instruction", "input")
_ACCEPTED: Final = ("answer", "gold", "solution", "label", "target", "output", "result")


def _columns(row: Mapping[str, Any]) -> str:
    return ", ".join(short(field) for field in list(row)[:12]) or "none"


def _advice(columns: Sequence[str]) -> str:
    """Says what to do about rows whose columns no schema knows: the three usual reasons first."""
    if len(columns) == 1:
        for separator, name in _SEPARATORS.items():
            if separator in columns[0]:
                return f"they are separated by {name}, and a CSV file has commas between its columns"
    if any(re.fullmatch(r"\W*-?\d[\d.,/]*\W*", one) or one.rstrip().endswith("?") for one in columns):
        return "they look like a problem: a CSV file begins with the names of its columns, as question,answer"
    asked, accepted = _named(columns, _ASKED), _named(columns, _ACCEPTED)
    say = "did you mean" if asked and accepted else "say which columns they are:"
    prompt, gold = (asked, accepted) if asked and accepted else ("COLUMN", "COLUMN")
    return (
        f"{say} fields={{'prompt': {short(prompt)}, 'gold': {short(gold)}}} in Python, --question-column {short(prompt)}"
        f" --answer-column {short(gold)} on the command line"
    )


def _named(columns: Sequence[str], words: Sequence[str]) -> str | None:
    """Returns the column whose name has one of the words in it, the first word first."""
    return next((one for word in words for one in columns if word in one.lower()), None)


_KEYS: Final = ("prompt", "gold", "solution", "id")


class Mapper:
    """Reads rows of any schema.

    Args:
        fields: `prompt`; `gold` (a text, a number, or a list of accepted answers) or `solution` (a text that ends in
            its answer, boxed or after `####`); and `id` where rows have one. Values name columns, dots going into
            objects: `{"prompt": "data.text", "gold": "label"}`.

    Raises:
        InvalidValueError: a key is unknown, or one is missing.

    >>> RowReader(Mapper({"prompt": "q", "gold": "a.value"})).read({"q": "1+1=?", "a": {"value": 2}}).gold
    ('2',)
    """

    def __init__(self, fields: Mapping[str, str]) -> None:
        for name, column in fields.items():
            if name not in _KEYS:
                raise_unknown_name("key of fields", name, _KEYS)
            if not isinstance(column, str) or not column:
                raise InvalidValueError(f"fields[{name!r}] must be the name of a column, got {column!r}")
        if "prompt" not in fields:
            raise InvalidValueError(f"fields must name the column of 'prompt', got {dict(fields)!r}")
        if ("gold" in fields) == ("solution" in fields):
            raise InvalidValueError(f"fields must name the column of 'gold' or of 'solution', got {dict(fields)!r}")
        self.fields = dict(fields)

    def read(self, row: Mapping[str, Any]) -> tuple[str, tuple[str, ...], str | None, tuple[str, ...]]:
        """The prompt, the gold answers, the id, and the columns used."""
        fields = self.fields
        prompt = _message(self._get(row, fields["prompt"]), fields["prompt"])
        if "gold" in fields:
            gold = _answers(self._get(row, fields["gold"]), fields["gold"])
        else:
            solution = self._get(row, fields["solution"])
            gold = (_solved(text_field({fields["solution"]: solution}, fields["solution"]), fields["solution"]),)
        own_id = _own_id(self._get(row, fields["id"]), fields["id"]) if "id" in fields else None
        used = tuple(path if path in row else path.split(".")[0] for path in fields.values())
        return prompt, gold, own_id, used

    def _get(self, row: Mapping[str, Any], path: str) -> Any:
        if path in row:  # a column's own name may have a dot in it
            return row[path]
        value: Any = row
        for part in path.split("."):
            if not isinstance(value, Mapping) or part not in value:
                known = value if isinstance(value, Mapping) else {}
                near = difflib.get_close_matches(part.lower(), [str(one).lower() for one in known], n=1, cutoff=0.5)
                meant = [short(one) for one in known if near and str(one).lower() == near[0]]
                hint = f"did you mean {meant[0]}? " if meant else ""
                raise RowError(path, f"is missing: {hint}fields found: {_columns(known)}")
            value = value[part]
        return value
