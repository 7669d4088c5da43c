"""Labelled cases: a response, a gold answer, and whether the one is right."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from mathturn_gym.base.files import parse_json
from mathturn_gym.errors import ProblemFileError

__all__ = ["Case", "load_cases"]


@dataclass(frozen=True, slots=True)
class Case:
    """A labelled case.

    Args:
        gold: The accepted answer.
        response: What is judged.
        label: Whether it is right.
        kind: `"response"` or `"answer"`.
        category: What kind of case it is; `exploit` (and `hack`) are counted apart where they are accepted.
        group: Where it belongs in reports.
    """

    gold: str
    response: str
    label: bool
    kind: str = "response"
    category: str = ""
    group: str = ""

    @property
    def exploit(self) -> bool:
        """Whether accepting the case would pay a policy for gaming the verifier."""
        return not self.label and self.category in ("exploit", "hack", "exec", "bomb", "garbage")


def load_cases(path: Path | None = None) -> list[Case]:
    """Cases from a JSON-lines file, or those of the package.

    Args:
        path: Rows with `gold`, `response`, `label`, and perhaps `kind`, `category` (or `cat`) and `source`.

    Raises:
        ProblemFileError: a file that cannot be read, or a broken row: file, line and field are named.
    """
    if path is None:
        name = "verifier_suite.jsonl"
        text = resources.files("mathturn_gym").joinpath("assets", name).read_text(encoding="utf-8")
    else:
        name = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ProblemFileError(f"{name} cannot be read: {error}") from error
    return [_case(name, number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _case(name: str, number: int, line: str) -> Case:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise ProblemFileError(f"{name}, line {number}: not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ProblemFileError(f"{name}, line {number}: must be an object, got {type(row).__name__}")
    for key, kind in (("gold", str), ("response", str), ("label", bool)):
        if not isinstance(row.get(key), kind):
            raise ProblemFileError(f"{name}, line {number}: {key} must be a {kind.__name__}, got {row.get(key)!r}")
    kind_of = row.get("kind", "response")
    if kind_of not in ("response", "answer"):
        raise ProblemFileError(f"{name}, line {number}: kind must be 'response' or 'answer', got {kind_of!r}")
    category = str(row.get("category") or row.get("cat") or "")
    return Case(row["gold"], row["response"], row["label"], kind_of, category, str(row.get("source", "")))
