"""Problems made of rows: ids, repeated rows, rows left out, memory."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from mathturn_gym.errors import InvalidValueError, ProblemFileError
from mathturn_gym.problems import load_problems
from mathturn_gym.problems.rows import RowProblems


def source_of(*rows: Any, **options: Any) -> RowProblems:
    source = load_problems(list(rows), **options)
    assert isinstance(source, RowProblems)
    return source


def test_ids_follow_content() -> None:
    one, two = {"question": "1+1=?", "answer": 2, "note": "a"}, {"question": "1+2=?", "answer": 3}
    first, second = source_of(one, two), source_of({"question": "0+1=?", "answer": 1}, two, {**one, "note": "b"})
    assert first[0].id == second[2].id != first[1].id == second[1].id
    assert first[0].id.startswith("problems/")
    assert first[0].id != source_of({**one, "answer": 3})[0].id


def test_rows_have_their_own_ids_where_their_schema_has() -> None:
    row = {"query_id": "q7", "prompt": "p", "solutions": ["2"], "task": "math"}
    assert source_of(row)[0].id == "q7"
    with pytest.raises(ProblemFileError, match="line 3: field 'id' 'q7' comes twice, in line 1 first"):
        source_of(row, {**row, "query_id": "q8"}, row)
    by_column = source_of({"q": "1+1=?", "a": 2, "key": 12}, fields={"prompt": "q", "gold": "a", "id": "key"})
    assert by_column[0].id == "12"


def test_rows_that_repeat_another_are_one_problem_with_it(caplog: pytest.LogCaptureFixture) -> None:
    row, other = {"question": "1+1=?", "answer": 2}, {"question": "1+2=?", "answer": 3}
    with caplog.at_level(logging.WARNING, "mathturn_gym"):
        source = source_of(row, other, {**row, "note": "again"}, row)
    assert [problem.prompt for problem in source] == ["1+1=?", "1+2=?"]
    assert source.num_repeated == 2
    assert "problems: 2 rows repeat an earlier one" in caplog.text


def test_a_problem_knows_its_row() -> None:
    source = source_of({"question": "1+1=?", "answer": 2}, {"question": "1+2=?", "answer": 3})
    assert source.line_of(source[1].id) == 2
    with pytest.raises(InvalidValueError, match="problem_id 'x' is not in source"):
        source.line_of("x")


def test_rows_left_out_are_kept_counted_and_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mathturn_gym.problems.rows.KEPT", 3)
    with caplog.at_level(logging.WARNING, "mathturn_gym"):
        source = source_of({"question": "1+1=?", "answer": 2}, *[{"question": ""}] * 5, skip_bad_rows=True)
    assert (source.num_skipped, [bad.line for bad in source.skipped]) == (5, [2, 3, 4])
    assert "problems: 5 rows left out (lines 2, 3, 4: the row has no known schema" in caplog.text
    assert source.skipped_report() in caplog.text
    assert source_of({"question": "1+1=?", "answer": 2}).skipped_report() == ""


def test_without_a_usable_row_there_is_no_source() -> None:
    with pytest.raises(
        ProblemFileError, match=r"problems: no usable problem; known schemas: .*; line 1: field 'answer'"
    ):
        source_of({"question": "1", "answer": ""}, skip_bad_rows=True)


def test_rows_must_be_dictionaries() -> None:
    with pytest.raises(InvalidValueError, match="Problem objects only, got list"):
        source_of(["1+1=?", "2"])


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mathturn_gym.problems.rows.MAX_MEMORY", 10 * 2**20)
    rows = [{"question": f"{i}+1=?", "answer": i + 1, "pad": str(i % 10) * 2**20} for i in range(20)]
    assert source_of(*rows[:8]).size == 8
    with pytest.raises(
        ProblemFileError, match=r"line 10: its rows take more than 10 MiB in memory; StreamedFile reads"
    ):
        source_of(*rows)
