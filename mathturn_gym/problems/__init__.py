"""Problems: procedural generators, files and data sets, all as `ProblemSource`: (seed, index) -> Problem.

>>> load_problems("lins", split="test").get(seed=0, index=0).gold
('7',)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems import _data_sets
from mathturn_gym.problems._data_sets import FileOptions
from mathturn_gym.problems._names import at_path, by_name
from mathturn_gym.problems.base import Generator, ProblemSource
from mathturn_gym.problems.curriculum import Curriculum
from mathturn_gym.problems.lists import FiniteSource, ProblemList, SplitSource
from mathturn_gym.problems.mixtures import Mixture, filter_by_pass_rate, pass_rates
from mathturn_gym.problems.rows import RowProblems, check_gold, numbered
from mathturn_gym.problems.sets import check_disjoint, count_distinct, distinct, overlap
from mathturn_gym.types import Problem

__all__ = [
    "Curriculum",
    "Generator",
    "Mixture",
    "ProblemSource",
    "ProblemsLike",
    "check_disjoint",
    "check_gold",
    "count_distinct",
    "distinct",
    "filter_by_pass_rate",
    "load_problems",
    "overlap",
    "pass_rates",
]

ProblemsLike: TypeAlias = (
    "str | Path | Problem | Sequence[Problem] | Sequence[Mapping[str, Any]] | Mapping[str, Any] | ProblemSource | Any"
)
"""What `load_problems` takes; the last stands for a `datasets.Dataset`."""


def load_problems(
    problems: ProblemsLike,
    split: str | None = None,
    *,
    fields: Mapping[str, str] | None = None,
    skip_bad_rows: bool = False,
    shuffle: bool | None = None,
) -> ProblemSource:
    """The source behind what a user gives.

    Args:
        problems: One of these:

            - a name: `"lins"`, `"add2:test"`, `"guess8"`; a family `"quadratic"`, `"quadratic@2"`,
              `"quadratic@2:test:latex"` (`"families"` is all of them); a mixture `"3*linear@1+primes"`; a curriculum
              `"curriculum:integers,linear@1-3"`;
            - the path of a file (JSON lines, JSON, CSV, Parquet), or of a folder that `save_to_disk` wrote;
            - `"hf:NAME"`, `"hf:NAME:CONFIG"`, `"hf:NAME:CONFIG:SPLIT"`: a Hugging Face data set;
            - a `datasets.Dataset` or `DatasetDict`, a pandas `DataFrame`, a list of dictionaries, `Problem` objects;
            - `{"train": …, "test": …}`: any of these for each split;
            - a `ProblemSource`.
        split: "train", "validation", "test" or "all": that part (`source.part(split)`). A file or list that has no splits
            is divided by a hash of the prompt, which is logged. None leaves the choice open: generators and data sets
            with splits then play train problems, files and lists all they have.
        fields: Which columns of a file or data set hold what: `{"prompt": COLUMN, "gold": COLUMN}`, `"solution"` instead
            of `"gold"` for texts that end in their answer, and `"id"`. None recognizes the schema of each row.
        skip_bad_rows: Leave broken rows of a file or data set out (with a warning that counts them) instead of raising at
            the first.
        shuffle: True plays a list or file in an order that the seed decides, False (and None) in its own. A generator's
            order always comes from the seed: False is refused.

    Raises:
        InvalidValueError: unknown name (the nearest is suggested), type or split; options that do not go with it.
        ProblemFileError: a file or data set is missing or broken.

    >>> load_problems("add1:test").get(seed=1, index=0).gold
    ('6',)
    >>> load_problems([{"question": "1+1=?", "answer": 2}]).get(seed=0, index=0).gold
    ('2',)
    """
    source = _source(problems, FileOptions(fields, skip_bad_rows))
    if split is not None:
        source = source.part(split)
    if shuffle:
        return source.shuffled()
    # A generator has no order of its own to be played in: saying nothing would look like obedience.
    if shuffle is False and any(leaf.size is None for leaf in source.leaves()):
        raise InvalidValueError(
            f"shuffle=False is for lists and files: the order of {source.name!r} comes from the seed"
        )
    return source


def _source(problems: ProblemsLike, options: FileOptions) -> ProblemSource:
    if isinstance(problems, str):
        return by_name(problems, options)
    if isinstance(problems, Path):
        return at_path(problems, options)
    # Before Mapping: a DatasetDict is one.
    if _data_sets.is_data_set(problems):
        return _data_sets.from_loaded(problems, "problems", options)
    if isinstance(problems, Mapping):
        return SplitSource({split: _part(split, given, options) for split, given in problems.items()})
    if callable(to_dict := getattr(problems, "to_dict", None)) and hasattr(problems, "columns"):
        # A pandas DataFrame: its empty cells are NaN.
        problems = [{name: value for name, value in row.items() if not _is_nan(value)} for row in to_dict("records")]
    if isinstance(problems, Sequence) and problems and all(isinstance(row, Mapping) for row in problems):
        return RowProblems(numbered(problems), "problems", "problems", options.fields, options.skip_bad_rows)
    if options.given:
        raise InvalidValueError("fields and skip_bad_rows are for files, data sets and lists of dictionaries")
    if isinstance(problems, ProblemSource):
        return problems
    if isinstance(problems, Problem):
        return ProblemList([problems])
    if isinstance(problems, Sequence):
        ours = [item for item in problems if isinstance(item, Problem)]
        if len(ours) < len(problems):
            other = next(type(item).__name__ for item in problems if not isinstance(item, Problem))
            raise InvalidValueError(
                f"problems must hold Problem objects only, got {other} (or dictionaries only, as {{'question': '1+1=?',"
                " 'answer': '2'}})"
            )
        return ProblemList(ours)
    raise InvalidValueError(
        "problems must be a name, a path, Problem objects, dictionaries, a data set, a DataFrame, {split: …} or a ProblemSource, got"
        f" {problems!r}"
    )


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and value != value


def _part(split: object, given: ProblemsLike, options: FileOptions) -> ProblemSource:
    """What is given for one split: all of a list, and of a generator the part of that name (see `SplitSource`)."""
    if not isinstance(split, str):
        raise InvalidValueError(f"problems must have the names of splits as keys, got {split!r}")
    source = _source(given, options)
    # {"dev": "mine.csv"} means all of the file, not its tenth; a generator is endless and is divided.
    return source.called(split) if isinstance(source, FiniteSource) and source.split is None else source
