"""Problems: procedural generators and files, all as `ProblemSource`: (seed, index) -> Problem."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

from mathturn_gym.errors import InvalidValueError, raise_unknown_name
from mathturn_gym.problems.base import SPLITS, FiniteSource, Generator, ProblemSource, split_of
from mathturn_gym.problems.curriculum import Curriculum
from mathturn_gym.problems.families import FAMILIES, FORMS, LEVELS, Family
from mathturn_gym.problems.files import BadRow, DataSet, ProblemFile, StreamedFile
from mathturn_gym.problems.generators import Addition, GuessNumber, LinearEquation, Multiplication
from mathturn_gym.problems.gold import GoldFailure, check_gold
from mathturn_gym.problems.mixtures import Mixture, filter_by_pass_rate, pass_rates
from mathturn_gym.types import Problem

__all__ = [
    "FAMILIES",
    "FORMS",
    "LEVELS",
    "NAMES",
    "SPLITS",
    "Addition",
    "BadRow",
    "Curriculum",
    "DataSet",
    "Family",
    "FiniteSource",
    "Generator",
    "GoldFailure",
    "GuessNumber",
    "LinearEquation",
    "Mixture",
    "Multiplication",
    "ProblemFile",
    "ProblemSource",
    "ProblemsLike",
    "StreamedFile",
    "check_gold",
    "filter_by_pass_rate",
    "load_problems",
    "pass_rates",
    "split_of",
]

ProblemsLike: TypeAlias = "str | Path | Problem | Sequence[Problem] | ProblemSource"

NAMES: Final = ("lins", "add1", "add2", "add3", "mul2", "guess8")
"""Built-in sources by name; `NAME:SPLIT` chooses a split. `addN`, `mulN` and `guessN` take other numbers too."""

_NAME: Final = re.compile(r"(?P<family>[a-z]+)(?P<number>\d*)(?::(?P<split>\w+))?")
_FILE: Final = re.compile(r"\.(?:(?:jsonl|ndjson|json|csv)(?:\.gz)?|parquet)$", re.IGNORECASE)
_FAMILY: Final = re.compile(r"(?P<family>[a-z-]+)(?:@(?P<level>\d+))?(?::(?P<split>\w+))?(?::(?P<form>\w+))?")
_WEIGHTED: Final = re.compile(r"(?:(?P<weight>\d+(?:\.\d+)?)\*)?(?P<name>.+)")


def load_problems(problems: ProblemsLike) -> ProblemSource:
    """The source behind what a user gives.

    Args:
        problems: A name (`"lins"`, `"lins:test"`, `"add2"`, `"guess8"`), a family (`"quadratic"`, `"quadratic@2"`,
            `"quadratic@2:test:latex"`; `"families"` is all of them), a mixture of these (`"3*linear@1+primes"`), the path
            of a file of problems (with `:test` for the part that a stable hash puts there), `"hf:NAME:CONFIG:SPLIT"` for a
            Hugging Face data set, a `Problem`, a sequence of them, or a `ProblemSource`.

    Raises:
        InvalidValueError: unknown name (the nearest is suggested) or type.
        ProblemFileError: the file is missing or broken.

    >>> load_problems("add1:test").get(seed=1, index=0).gold
    ('6',)
    """
    if isinstance(problems, ProblemSource):
        return problems
    if isinstance(problems, Problem):
        return FiniteSource([problems])
    if isinstance(problems, Sequence) and not isinstance(problems, str):
        wrong = [type(item).__name__ for item in problems if not isinstance(item, Problem)]
        if wrong:
            raise InvalidValueError(f"problems must hold Problem objects only, got {wrong[0]}")
        return FiniteSource(problems)
    if not isinstance(problems, (str, Path)):
        raise InvalidValueError(
            f"problems must be a name, a path, Problem objects or a ProblemSource, got {problems!r}"
        )
    if isinstance(problems, Path):
        return DataSet(problems) if problems.is_dir() else ProblemFile(problems)
    if problems.startswith("hf:"):
        return _data_set(problems.removeprefix("hf:"))
    file, _, split = problems.rpartition(":")
    if split in (*SPLITS, "all") and _FILE.search(file):
        return ProblemFile(file).part(split)
    return ProblemFile(problems) if _FILE.search(problems) else _by_name(problems)


def _data_set(name: str) -> DataSet:
    """`NAME`, `NAME:SPLIT` or `NAME:CONFIG:SPLIT`."""
    parts = name.split(":")
    if not 1 <= len(parts) <= 3 or not all(parts):
        raise InvalidValueError(f"a data set is 'hf:NAME', 'hf:NAME:SPLIT' or 'hf:NAME:CONFIG:SPLIT', got 'hf:{name}'")
    return DataSet(parts[0], parts[1] if len(parts) == 3 else None, parts[-1] if len(parts) > 1 else "train")


def _by_name(name: str) -> ProblemSource:
    if "+" in name:
        parts = [_WEIGHTED.fullmatch(part.strip()) for part in name.split("+")]
        found = [part for part in parts if part is not None]
        if len(found) == len(parts):
            weights = [float(part["weight"] or 1) for part in found]
            return Mixture([load_problems(part["name"]) for part in found], weights, name)
    match = _NAME.fullmatch(name)
    if match is not None:
        family, number, split = match["family"], match["number"], match["split"] or "train"
        if family == "lins" and not number:
            return LinearEquation(split)
        if family == "add" and number:
            return Addition(int(number), split)
        if family == "mul" and number:
            return Multiplication(int(number), split)
        if family == "guess" and number:
            return GuessNumber(int(number), split)
    match = _FAMILY.fullmatch(name)
    if match is not None and match["family"] in (*FAMILIES, "families"):
        level = None if match["level"] is None else int(match["level"])
        place = level, match["split"] or "train", match["form"] or "plain"
        if match["family"] != "families":
            return Family(match["family"], *place)
        return Mixture([Family(family, *place) for family in FAMILIES], name=name)
    known = [*NAMES, *(f"{known}:test" for known in NAMES), *FAMILIES, "families", "FAMILY@LEVEL:SPLIT:FORM"]
    raise_unknown_name("problems", name, [*known, "FILE.jsonl"])
