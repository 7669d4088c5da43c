"""Options of every command that takes problems, spelled once.

    def command(
        problems: ProblemsOption = "lins:test",
        question_column: QuestionColumn = None,
        answer_column: AnswerColumn = None,
        skip_bad_rows: SkipBadRows = False,
    ) -> None:
        source = load_source(problems, None, question_column, answer_column, skip_bad_rows=skip_bad_rows)

The split, where a command needs one, is the second argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from mathturn_gym.errors import InvalidValueError

if TYPE_CHECKING:
    from mathturn_gym.problems import ProblemSource

__all__ = [
    "PROBLEMS_HELP",
    "AnswerColumn",
    "ProblemsOption",
    "QuestionColumn",
    "SkipBadRows",
    "fields_of",
    "load_source",
]

PROBLEMS_HELP: Final = (
    "A name (lins:test, add2, guess8), a family (quadratic@2:test), a mixture (3*linear@1+primes), a curriculum"
    " (curriculum:integers,linear@1-3), a file (.jsonl, .json, .csv, .parquet), a folder of save_to_disk, or"
    " hf:NAME:CONFIG:SPLIT."
)

ProblemsOption = Annotated[str, typer.Option(help=PROBLEMS_HELP)]
QuestionColumn = Annotated[
    str | None, typer.Option(help="Column of a file or data set that holds the question, where it is not recognized.")
]
AnswerColumn = Annotated[str | None, typer.Option(help="Column that holds the accepted answer (or a list of them).")]
SkipBadRows = Annotated[bool, typer.Option(help="Leave broken rows of a file or data set out, and say which.")]


def load_source(
    problems: str,
    split: str | None = None,
    question_column: str | None = None,
    answer_column: str | None = None,
    *,
    skip_bad_rows: bool = False,
    shuffle: bool | None = None,
) -> ProblemSource:
    """The source that the options name.

    Args:
        problems: See `PROBLEMS_HELP`.
        split: "train", "validation", "test" or "all", or None.
        question_column: With `answer_column`, or neither.
        answer_column: With `question_column`, or neither.
        skip_bad_rows: Leave broken rows out.
        shuffle: See `load_problems`.

    Raises:
        InvalidValueError: one column without the other, or what `load_problems` refuses.
        ProblemFileError: a file or data set is missing or broken.
    """
    from mathturn_gym.problems import load_problems

    fields = fields_of(question_column, answer_column)
    return load_problems(problems, split, fields=fields, skip_bad_rows=skip_bad_rows, shuffle=shuffle)


def fields_of(question_column: str | None, answer_column: str | None) -> dict[str, str] | None:
    """The two columns as `load_problems` takes them; None where neither was given.

    Raises:
        InvalidValueError: one without the other.
    """
    if question_column is None and answer_column is None:
        return None
    if question_column is None or answer_column is None:
        given, other = ("question", "answer") if answer_column is None else ("answer", "question")
        raise InvalidValueError(f"--{given}-column needs --{other}-column: say which columns both are")
    return {"prompt": question_column, "gold": answer_column}
