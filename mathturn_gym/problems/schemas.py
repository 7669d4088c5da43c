r"""Rows to problems, in the schemas that public data sets use.

    gsm8k          question, answer ending in `#### n`
    math           problem, answer and/or solution with \boxed{}: MATH, MATH-500, AIME, AMC, DeepScaleR, NuminaMath
    olympiadbench  question, final_answer (a list)
    areal          query_id, prompt, solutions (a list of texts, boxed or bare)
    verl           prompt (messages or text), reward_model.ground_truth: verl, DAPO
    question       question (or prompt), and a plain answer

The first that fits is used. Any other row needs a mapping of fields.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mathturn_gym.errors import InvalidValueError, raise_unknown_name
from mathturn_gym.types import Problem
from mathturn_gym.verifier import extract

__all__ = ["KNOWN", "SCHEMAS", "Mapper", "RowError", "Schema", "read_row", "text_field"]

_GSM8K_ANSWER: Final = re.compile(r"####\s*(\S[^\n]*?)\s*$")
_NO_ANSWER: Final = frozenset({"", "nan", "none", "null", "n/a", "notfound", "proof"})


class RowError(Exception):
    """A field of a row is unusable (a loader makes it a `ProblemFileError` or leaves the row out)."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field, self.reason = field, reason


@dataclass(frozen=True, slots=True)
class Schema:
    """How one kind of row becomes a problem.

    Args:
        name: For messages.
        fields: What it looks like, for messages.
        fits: Decides by the row's fields.
        read: The prompt, the gold answers, the id (or None) and the fields used.
    """

    name: str
    fields: str
    fits: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Mapping[str, Any]], tuple[str, tuple[str, ...], str | None, tuple[str, ...]]]


def read_row(row: Mapping[str, Any], problem_id: str, mapper: Mapper | None = None) -> Problem:
    """One row as a problem.

    Args:
        row: The row.
        problem_id: Its id, where the schema has none.
        mapper: How to read it; None recognises the schema.

    Raises:
        RowError: a field is unusable, or no schema fits.
    """
    if mapper is not None:
        prompt, gold, own_id, used = mapper.read(row)
    else:
        schema = next((schema for schema in SCHEMAS if schema.fits(row)), None)
        if schema is None:
            columns = ", ".join(map(repr, list(row)[:12])) or "none"
            raise RowError("", f"has no known schema; fields found: {columns}; known: {KNOWN}; {_MAPPING_HELP}")
        prompt, gold, own_id, used = schema.read(row)
    metadata = {key: value for key, value in row.items() if key not in used}
    try:
        return Problem(own_id or problem_id, prompt, gold, metadata=metadata)
    except InvalidValueError as error:
        raise RowError("", str(error)) from error


def text_field(row: Mapping[str, Any], field: str) -> str:
    """A row's non-empty text, or a `RowError` that says what is wrong with it."""
    if field not in row:
        raise RowError(field, "is missing")
    value = row[field]
    if not isinstance(value, str) or not value.strip():
        raise RowError(field, f"must be a non-empty text, got {_short(value)}")
    return value


def _answer(value: object, field: str) -> str:
    """An answer as a text: numbers as they are written, and nothing that only says there is none."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise RowError(field, f"must be finite, got {value!r}")
        return str(int(value)) if float(value).is_integer() else repr(value)
    if not isinstance(value, str):
        raise RowError(field, f"must be a text or a number, got {_short(value)}")
    text = value.strip()
    if text.lower() in _NO_ANSWER:
        raise RowError(field, f"is empty or says that there is no answer: {value!r}")
    return text


def _answers(value: object, field: str) -> tuple[str, ...]:
    """One answer, or a list of them."""
    if isinstance(value, (list, tuple)):
        if not value:
            raise RowError(field, "must hold at least one answer, got an empty list")
        return tuple(_answer(part, f"{field}[{i}]") for i, part in enumerate(value))
    return (_answer(value, field),)


def _boxed(solution: str, field: str) -> str:
    found = extract(solution, "boxed")
    if found is None:
        raise RowError(field, "has no \\boxed{} answer, and there is no field 'answer'")
    return found.text


def _gsm8k(row: Mapping[str, Any]) -> tuple[str, tuple[str, ...], None, tuple[str, ...]]:
    answer = text_field(row, "answer")
    match = _GSM8K_ANSWER.search(answer)
    if match is None:
        raise RowError("answer", f"must end in '#### n', got {answer[-40:]!r}")
    return text_field(row, "question"), (match.group(1),), None, ("question", "answer")


def _math(row: Mapping[str, Any]) -> tuple[str, tuple[str, ...], None, tuple[str, ...]]:
    names = {key.lower(): key for key in row}  # AIME 2024 has capitals
    answer = names.get("answer")
    if answer is not None and row[answer] is not None:
        gold = _answers(row[answer], answer)
    else:
        gold = (_boxed(text_field(row, names.get("solution", "solution")), "solution"),)
    # NuminaMath repeats the problem and its solution as messages.
    used = [names[name] for name in ("problem", "answer", "solution", "question", "messages") if name in names]
    return text_field(row, names["problem"]), gold, None, tuple(used)


def _olympiad(row: Mapping[str, Any]) -> tuple[str, tuple[str, ...], None, tuple[str, ...]]:
    return (
        text_field(row, "question"),
        _answers(row["final_answer"], "final_answer"),
        None,
        ("question", "final_answer"),
    )


def _areal(row: Mapping[str, Any]) -> tuple[str, tuple[str, ...], str, tuple[str, ...]]:
    task = row.get("task", "math")
    if task != "math":
        raise RowError("task", f"is {_short(task)}, and only 'math' can be judged here")
    solutions = row["solutions"]
    if not isinstance(solutions, list) or not solutions or not all(isinstance(s, str) for s in solutions):
        raise RowError("solutions", f"must be a list of texts, got {_short(solutions)}")
    query = row["query_id"]
    if isinstance(query, bool) or not isinstance(query, (str, int)) or not str(query).strip():
        raise RowError("query_id", f"must be a non-empty text or a number, got {_short(query)}")
    gold = tuple(_solution(solution, f"solutions[{i}]") for i, solution in enumerate(solutions))
    return text_field(row, "prompt"), gold, str(query), ("query_id", "prompt", "solutions", "task")


def _solution(solution: str, field: str) -> str:
    found = extract(solution, "boxed")
    return found.text if found is not None else _answer(solution, field)


def _verl(row: Mapping[str, Any]) -> tuple[str, tuple[str, ...], None, tuple[str, ...]]:
    model = row["reward_model"]
    if not isinstance(model, Mapping) or "ground_truth" not in model:
        raise RowError("reward_model", f"must hold 'ground_truth', got {_short(model)}")
    truth = model["ground_truth"]
    if isinstance(truth, str) and truth.startswith("["):  # DAPO writes lists of answers as JSON
        try:
            truth = json.loads(truth)
        except ValueError:
            truth = model["ground_truth"]
    return (
        _message(row["prompt"], "prompt"),
        _answers(truth, "reward_model.ground_truth"),
        None,
        ("prompt", "reward_model"),
    )


def _message(value: object, field: str) -> str:
    """A text, or the last user message of a dialogue."""
    if isinstance(value, str):
        return text_field({field: value}, field)
    if isinstance(value, (list, tuple)):
        users = [m for m in value if isinstance(m, Mapping) and m.get("role") == "user"]
        if users:
            return text_field({field: users[-1].get("content")}, field)
    raise RowError(field, f"must be a text, or messages with one of the user, got {_short(value)}")


def _question(row: Mapping[str, Any]) -> tuple[str, tuple[str, ...], None, tuple[str, ...]]:
    name = "question" if "question" in row else "prompt"
    return _message(row[name], name), _answers(row["answer"], "answer"), None, (name, "answer")


def _is_gsm8k(row: Mapping[str, Any]) -> bool:
    # A row of GSM8K has nothing beside its two fields, and one without its mark is broken rather than another schema.
    answer = row.get("answer")
    return (
        "question" in row and "problem" not in row and isinstance(answer, str) and ("####" in answer or len(row) == 2)
    )


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
KNOWN: Final = "; ".join(f"{schema.name} {{{schema.fields}}}" for schema in SCHEMAS)
_MAPPING_HELP: Final = "for any other give fields={'prompt': FIELD, 'gold': FIELD} (also 'id'; 'a.b' goes into objects)"


class Mapper:
    """Reads rows of any schema.

    Args:
        fields: `prompt` and `gold` (a text, a number, or a list of accepted answers), and `id` where rows have one; values
            name fields, dots going into objects: `{"prompt": "data.text", "gold": "label"}`.
        boxed: The gold field is a solution whose answer is boxed.

    Raises:
        InvalidValueError: a key is unknown, or one is missing.

    >>> read_row({"q": "1+1=?", "a": {"value": 2}}, "x/1", Mapper({"prompt": "q", "gold": "a.value"})).gold
    ('2',)
    """

    def __init__(self, fields: Mapping[str, str], *, boxed: bool = False) -> None:
        for name in fields:
            if name not in ("prompt", "gold", "id"):
                raise_unknown_name("key of fields", name, ("prompt", "gold", "id"))
        missing = [name for name in ("prompt", "gold") if not isinstance(fields.get(name), str)]
        if missing:
            raise InvalidValueError(f"fields must name the field of {missing[0]!r}, got {dict(fields)!r}")
        self.fields = dict(fields)
        self.boxed = boxed

    def read(self, row: Mapping[str, Any]) -> tuple[str, tuple[str, ...], str | None, tuple[str, ...]]:
        """The prompt, the gold answers, the id, and the fields used."""
        prompt, gold = (self._get(row, self.fields[name]) for name in ("prompt", "gold"))
        field = self.fields["gold"]
        answers = (_boxed(text_field({field: gold}, field), field),) if self.boxed else _answers(gold, field)
        own_id = _answer(self._get(row, self.fields["id"]), self.fields["id"]) if "id" in self.fields else None
        used = tuple(path.split(".")[0] for path in self.fields.values())
        return _message(prompt, self.fields["prompt"]), answers, own_id, used

    def _get(self, row: Mapping[str, Any], path: str) -> Any:
        value: Any = row
        for part in path.split("."):
            if not isinstance(value, Mapping) or part not in value:
                known: Sequence[str] = list(value) if isinstance(value, Mapping) else []
                raise RowError(path, f"is missing; fields found: {', '.join(map(repr, known[:12])) or 'none'}")
            value = value[part]
        return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
