r"""Rows to problems: the schemas of public data sets, mappings, and what is refused."""

from __future__ import annotations

import datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mathturn_gym.errors import InvalidValueError, ProblemFileError
from mathturn_gym.problems import load_problems
from mathturn_gym.problems.rows import RowProblems

MESSAGES = [{"role": "system", "content": "Think."}, {"role": "user", "content": "1+1=?"}]


def source_of(*rows: Any, **options: Any) -> RowProblems:
    source = load_problems(list(rows), **options)
    assert isinstance(source, RowProblems)
    return source


@pytest.mark.parametrize(
    ("schema", "row", "gold"),
    [
        ("GSM8K", {"question": "1+1=?", "answer": "One and one. <<1+1=2>>\n#### 2"}, ("2",)),
        ("GSM8K, separators", {"question": "1+1=?", "answer": "#### 1,002"}, ("1,002",)),
        ("GSM8K and more columns", {"question": "1+1=?", "answer": "So\n#### 2", "id": 4}, ("2",)),
        (
            "MATH",
            {"problem": "1+1=?", "solution": r"It is $\boxed{\frac{4}{2}}$.", "level": "Level 1"},
            (r"\frac{4}{2}",),
        ),
        ("MATH-500", {"problem": "1+1=?", "solution": r"\boxed{3}", "answer": "2", "subject": "Algebra"}, ("2",)),
        ("AIME 2024", {"ID": "2024-I-1", "Problem": "1+1=?", "Solution": "…", "Answer": 2}, ("2",)),
        ("AIME", {"id": 60, "problem": "1+1=?", "solution": "…", "answer": "204", "url": "u"}, ("204",)),
        ("AMC", {"id": 0, "problem": "1+1=?", "answer": 27.0, "question": "1+1=?"}, ("27",)),
        ("AMC, decimals", {"id": 0, "problem": "1+1=?", "answer": 0.5}, ("0.5",)),
        ("OlympiadBench", {"question": "1+1=?", "final_answer": ["$2$", "$3$"], "solution": ["…"]}, ("$2$", "$3$")),
        (
            "AReaL",
            {"query_id": "q7", "prompt": "1+1=?", "solutions": [r"\boxed{2}", "2.0"], "task": "math"},
            ("2", "2.0"),
        ),
        ("DeepScaleR", {"problem": "1+1=?", "answer": "2", "solution": ""}, ("2",)),
        (
            "NuminaMath",
            {"source": "cn_k12", "problem": "1+1=?", "solution": r"So \boxed{2}", "messages": MESSAGES},
            ("2",),
        ),
        (
            "DAPO",
            {"prompt": MESSAGES, "reward_model": {"ground_truth": '["2"]', "style": "rule"}, "ability": "MATH"},
            ("2",),
        ),
        ("verl", {"data_source": "x", "prompt": MESSAGES, "reward_model": {"ground_truth": "2"}}, ("2",)),
        ("plain", {"question": "1+1=?", "answer": "2", "id": 4}, ("2",)),
        ("plain, no more columns", {"question": "1+1=?", "answer": "2"}, ("2",)),
        ("plain, a number", {"question": "1+1=?", "answer": 2}, ("2",)),
        ("plain, prompt", {"prompt": "1+1=?", "answer": ["2", "two"]}, ("2", "two")),
    ],
)
def test_known_schemas_are_recognized(schema: str, row: dict[str, Any], gold: tuple[str, ...]) -> None:
    source = source_of(row)
    assert (source[0].prompt, source[0].gold) == ("1+1=?", gold), schema
    assert source.by_id(source[0].id) is source[0]


def test_a_row_of_gsm8k_that_lost_its_mark_is_no_row_with_a_plain_answer() -> None:
    good, broken = {"question": "1+1=?", "answer": "So\n#### 2"}, {"question": "1+2=?", "answer": "So it is three."}
    with pytest.raises(ProblemFileError, match="line 2: field 'answer' must end in '#### n' like the rows before"):
        source_of(good, broken)
    assert source_of({"question": "1+2=?", "answer": "3"}, good)[1].gold == ("2",)


def test_metadata_are_the_other_fields_as_json() -> None:
    row = {
        "problem": "1+1=?",
        "answer": 2,
        "level": np.int64(3),
        "when": datetime.date(2024, 1, 2),
        "share": Decimal("0.5"),
        "scores": np.array([1.5, 2.0]),
        "nothing": None,
        "odd": float("nan"),
        "image": b"\x89PNG",
        "nested": {"a": (1, float("inf"), "x"), 7: "lost"},
        "large": 10**5000,
    }
    assert source_of(row)[0].metadata == {
        "level": 3,
        "when": "2024-01-02",
        "share": "0.5",
        "scores": [1.5, 2.0],
        "nested": {"a": [1, "x"]},
    }


class TestMapping:
    def test_reads_any_other_schema(self) -> None:
        row = {"data": {"q": "1+1=?", "a": ["2", 2.5]}, "key": 9, "more": True}
        source = source_of(row, fields={"prompt": "data.q", "gold": "data.a", "id": "key"})
        assert (source[0].id, source[0].prompt, source[0].gold) == ("9", "1+1=?", ("2", "2.5"))
        assert source[0].metadata == {"more": True}

    def test_takes_the_answer_out_of_a_solution(self) -> None:
        rows = [{"q": "1+1=?", "s": r"So \boxed{2}."}, {"q": "1+2=?", "s": "So it is.\n#### 3"}]
        source = source_of(*rows, fields={"prompt": "q", "solution": "s"})
        assert [problem.gold for problem in source] == [("2",), ("3",)]
        with pytest.raises(ProblemFileError, match=r"field 's' has no \\boxed\{\} answer, nor one after ####"):
            source_of({"q": "1+1=?", "s": "two"}, fields={"prompt": "q", "solution": "s"})

    def test_a_dot_may_be_part_of_a_column(self) -> None:
        assert source_of({"a.b": "1+1=?", "c": 2}, fields={"prompt": "a.b", "gold": "c"})[0].metadata == {}

    def test_an_unknown_schema_names_the_columns_and_the_mapping(self) -> None:
        row = {"q": "1+1=?", "a": "2"}
        with pytest.raises(
            ProblemFileError,
            match=r"fields found: 'q', 'a': say which columns they are: fields=\{'prompt': 'COLUMN'.*--question-column",
        ):
            source_of(row)
        with pytest.raises(ProblemFileError, match=r"field 'b' is missing: fields found: 'q', 'a'"):
            source_of(row, fields={"prompt": "q", "gold": "b"})

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"prompt": "q"}, "must name the column of 'gold' or of 'solution'"),
            ({"prompt": "q", "gold": "a", "solution": "a"}, "must name the column of 'gold' or of 'solution'"),
            ({"gold": "a"}, "must name the column of 'prompt'"),
            ({"promt": "q", "gold": "a"}, "did you mean 'prompt'"),
            ({"prompt": "", "gold": "a"}, r"fields\['prompt'\] must be the name of a column, got ''"),
            ({"prompt": 3, "gold": "a"}, r"fields\['prompt'\] must be the name of a column, got 3"),
        ],
    )
    def test_impossible_ones_are_refused(self, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidValueError, match=message):
            source_of({"q": "1+1=?", "a": "2"}, fields=fields)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (3, "3"),
        (-4.0, "-4"),
        (0.1, "0.1"),
        (10**400, "1" + "0" * 400),
        (1e300, str(int(1e300))),
        (Decimal("1.50"), "1.50"),
        (Fraction(3, 4), "3/4"),
        (np.int64(7), "7"),
        (np.float32(0.5), "0.5"),
        (" 5 ", "5"),
    ],
)
def test_numbers_are_answers(answer: Any, gold: str) -> None:
    assert source_of({"question": "q", "answer": answer})[0].gold == (gold,)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q", "answer": "  "}, "field 'answer' is empty or says that there is no answer"),
        ({"question": "q", "answer": "nan"}, "field 'answer' is empty or says that there is no answer: 'nan'"),
        ({"question": "q", "answer": []}, "field 'answer' must hold at least one answer"),
        ({"question": "q", "answer": True}, "field 'answer' must be a text or a number, got True"),
        ({"question": "q", "answer": {"a": 1}}, "field 'answer' must be a text or a number"),
        ({"question": "q", "answer": float("inf")}, "field 'answer' must be finite, got inf"),
        ({"question": "q", "answer": Decimal("NaN")}, "field 'answer' must be a text or a number"),
        ({"question": "q", "answer": 10**5000}, "field 'answer' has more than 4,000 digits"),
        ({"question": "q", "answer": "7" * 5000}, "field 'answer' has 5,000 characters; at most 4,000 can be judged"),
        ({"problem": "q", "solution": rf"\boxed{{{'7' * 5000}}}"}, "field 'solution' has 5,000 characters"),
        ({"question": "q", "answer": "#### " + "7" * 5000}, "field 'answer' has 5,000 characters"),
        (
            {"question": "q\ud800", "answer": "2"},
            r"field 'question' is not Unicode text: a lone surrogate U\+D800 at character 1",
        ),
        ({"question": "q", "answer": "\udfff"}, r"field 'answer' is not Unicode text: a lone surrogate U\+DFFF"),
        ({"question": "q", "answer": "2", "note": ["\ud800"]}, "field 'note' is not Unicode text"),
        ({"question": "q", "answer": "2", "\ud800": 1}, "is not Unicode text|line 1"),
        ({"question": "q", "answer": "2", 3: 1}, "the row has a field whose name is no text: 3"),
        ({"question": " ", "answer": "2"}, "field 'question' must be a non-empty text, got ' '"),
        ({"question": 5, "answer": "2"}, "field 'question' must be a text, or messages"),
        ({"problem": "q", "solution": "2"}, r"field 'solution' has no \\boxed\{\} answer"),
        ({"problem": "q"}, "field 'answer' is missing or empty, and so is 'solution'"),
        ({"problem": "q", "answer": "proof"}, "says that there is no answer: 'proof'"),
        ({"query_id": "q", "prompt": "p", "solutions": "2"}, "field 'solutions' must be a list of texts"),
        (
            {"query_id": "q", "prompt": "p", "solutions": ["2"], "task": "code"},
            "field 'task' is 'code', and only 'math'",
        ),
        ({"query_id": " ", "prompt": "p", "solutions": ["2"]}, "field 'query_id' must be a non-empty text or a number"),
        ({"prompt": [], "reward_model": {"ground_truth": "2"}}, "field 'prompt' must be a text, or messages"),
        ({"prompt": MESSAGES, "reward_model": {}}, "field 'reward_model' must hold 'ground_truth'"),
    ],
)
def test_broken_rows_name_line_field_and_reason(row: dict[Any, Any], message: str) -> None:
    good = [{"question": f"{i}+1=?", "answer": i + 1} for i in range(2)]
    with pytest.raises(ProblemFileError, match=message):
        source_of(row, good[0])
    kept = source_of(good[0], row, good[1], skip_bad_rows=True)
    assert [problem.prompt for problem in kept] == ["0+1=?", "1+1=?"]
    assert [bad.line for bad in kept.skipped] == [2]


def test_nesting_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    deep: Any = "x"
    for _ in range(40):
        deep = [deep]
    with pytest.raises(ProblemFileError, match="the row is nested more than 32 deep"):
        source_of({"question": "q", "answer": "2", "more": deep})
    loop: list[Any] = []
    loop += [loop, loop]
    monkeypatch.setattr("mathturn_gym.problems._values.MAX_BYTES", 2**20)
    monkeypatch.setattr("mathturn_gym.problems.schemas.MAX_BYTES", 2**20)
    with pytest.raises(ProblemFileError, match="the row takes more than 1 MiB in memory"):
        source_of({"question": "q", "answer": "2", "more": loop})


class TestWhatIsSaidOfColumns:
    """The usual mistakes of a first file, each with what to do about it."""

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (
                "The Question,The Answer\n1+1=?,2\n",
                "did you mean fields={'prompt': 'The Question', 'gold': 'The Answer'}",
            ),
            ("What is 1+1?,2\nWhat is 2+2?,4\n", "begins with the names of its columns, as question,answer"),
            ("question;answer\n1+1=?;2\n", "separated by semicolons"),
            ("question\tanswer\n1+1=?\t2\n", "separated by tabs"),
            ("q,a\n1+1=?,2\n", "--question-column 'COLUMN' --answer-column 'COLUMN' on the command line"),
            ("", "no usable problem: it is empty"),
            ("question,answer\n", "no usable problem: it is empty, or has nothing but the names of its columns"),
        ],
    )
    def test_a_csv_file(self, text: str, said: str, tmp_path: Path) -> None:
        (tmp_path / "mine.csv").write_text(text, encoding="utf-8")
        with pytest.raises(ProblemFileError) as error:
            load_problems(tmp_path / "mine.csv")
        assert said in str(error.value)
        assert len(str(error.value)) < 400 + len(str(tmp_path)), "one line, not a page"

    def test_a_column_nearly_named(self) -> None:
        rows = [{"The Question": "1+1=?", "The Answer": "2"}]
        with pytest.raises(ProblemFileError, match="field 'question' is missing: did you mean 'The Question'"):
            load_problems(rows, fields={"prompt": "question", "gold": "answer"})

    def test_rows_left_out_for_one_reason_are_said_once(self, caplog: pytest.LogCaptureFixture) -> None:
        rows = [{"question": "1+1=?", "answer": "2"}, *({"q": f"{k}+1=?", "a": "2"} for k in range(5))]
        load_problems(rows, skip_bad_rows=True)
        assert caplog.text.count("has no known schema") == 1
        assert "lines 2, 3, 4, 5, 6: the row has no known schema" in caplog.text


class Frame:
    """What is used of a pandas DataFrame."""

    columns = ("question", "answer")

    def to_dict(self, orient: str) -> list[dict[str, object]]:
        assert orient == "records"
        return [{"question": "1+1=?", "answer": 2, "note": float("nan")}]


def test_a_data_frame_is_rows() -> None:
    source = load_problems(Frame())
    problem = source.get(0, 0)
    assert (problem.prompt, problem.gold, dict(problem.metadata)) == ("1+1=?", ("2",), {})


def test_pairs_are_answered_with_what_to_write() -> None:
    with pytest.raises(InvalidValueError, match=r"got tuple \(or dictionaries only, as \{'question': '1\+1=\?'"):
        load_problems([("1+1=?", "2")])
