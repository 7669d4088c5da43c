import csv
import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from mathturn_gym.errors import InvalidValueError, ProblemFileError
from mathturn_gym.problems import DataSet, FiniteSource, ProblemFile, StreamedFile, check_gold, load_problems, readers
from mathturn_gym.types import Problem
from mathturn_gym.verifier import Verifier


def lines(path: Path, *rows: Any) -> Path:
    path.write_bytes(b"\n".join(row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows) + b"\n")
    return path


MESSAGES = [{"role": "system", "content": "Think."}, {"role": "user", "content": "1+1=?"}]


@pytest.mark.parametrize(
    ("schema", "row", "gold"),
    [
        ("GSM8K", {"question": "1+1=?", "answer": "One and one. <<1+1=2>>\n#### 2"}, ("2",)),
        ("GSM8K, separators", {"question": "1+1=?", "answer": "#### 1,002"}, ("1,002",)),
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
    ],
)
def test_known_schemas_are_recognised(tmp_path: Path, schema: str, row: dict[str, Any], gold: tuple[str, ...]) -> None:
    source = ProblemFile(lines(tmp_path / "data.jsonl", row))
    assert (source[0].prompt, source[0].gold) == ("1+1=?", gold), schema
    assert source.by_id(source[0].id) is source[0]


def test_ids_are_lines_unless_the_schema_has_its_own(tmp_path: Path) -> None:
    row = {"problem": "1+1=?", "answer": "2", "level": 3}
    source = ProblemFile(lines(tmp_path / "data.jsonl", row, b"", row))
    assert [problem.id for problem in source.problems] == ["data/1", "data/3"]
    assert source[0].metadata == {"level": 3}
    own = lines(tmp_path / "areal.jsonl", {"query_id": "q7", "prompt": "p", "solutions": ["2"], "task": "math"})
    assert load_problems(own)[0].id == "q7"  # type: ignore[index]


def test_a_mapping_reads_any_other_schema(tmp_path: Path) -> None:
    path = lines(tmp_path / "d.jsonl", {"data": {"q": "1+1=?", "a": ["2", 2.5]}, "key": 9, "more": True})
    source = ProblemFile(path, fields={"prompt": "data.q", "gold": "data.a", "id": "key"})
    assert (source[0].id, source[0].prompt, source[0].gold) == ("9", "1+1=?", ("2", "2.5"))
    assert source[0].metadata == {"more": True}


def test_an_unknown_schema_names_the_columns_and_the_mapping(tmp_path: Path) -> None:
    path = lines(tmp_path / "d.jsonl", {"q": "1+1=?", "a": "2"})
    with pytest.raises(
        ProblemFileError, match=r"fields found: 'q', 'a'; known: .*gsm8k.*give fields=\{'prompt': FIELD"
    ):
        ProblemFile(path)
    with pytest.raises(ProblemFileError, match=r"field 'b' is missing; fields found: 'q', 'a'"):
        ProblemFile(path, fields={"prompt": "q", "gold": "b"})
    with pytest.raises(InvalidValueError, match="must name the field of 'gold'"):
        ProblemFile(path, fields={"prompt": "q"})
    with pytest.raises(InvalidValueError, match="did you mean 'prompt'"):
        ProblemFile(path, fields={"promt": "q", "gold": "a"})


GOOD = {"question": "1+1=?", "answer": "2", "id": 1}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b'{"question": "1+1=?", "answer": NaN, "id": 1}', "line 2: the row is not JSON: NaN is not a JSON value"),
        (b"\xff\xfe", "line 2: the row is not UTF-8 at byte 0"),
        (b"[1, 2]", "line 2: the row is a list, not an object"),
        (b'{"question": "1+1', "line 2: the row is not JSON"),
        (b"[" * 100_000, "line 2: the row is not JSON"),
        (
            {"question": "1+1=?", "answer": "  ", "id": 1},
            "line 2: field 'answer' is empty or says that there is no answer",
        ),
        ({"question": "1+1=?", "answer": None, "id": 1}, "line 2: field 'answer' must be a text or a number, got None"),
        (
            {"question": "1+1=?", "answer": "nan", "id": 1},
            "field 'answer' is empty or says that there is no answer: 'nan'",
        ),
        ({"question": "1+1=?", "answer": [], "id": 1}, "field 'answer' must hold at least one answer"),
        ({"question": " ", "answer": "2", "id": 1}, "field 'question' must be a non-empty text, got ' '"),
        ({"question": "1+1=?", "answer": "2"}, "field 'answer' must end in '#### n'"),
        ({"problem": "1+1=?", "solution": "2"}, r"field 'solution' has no \\boxed\{\} answer"),
        ({"problem": "1+1=?", "answer": "proof"}, "says that there is no answer: 'proof'"),
        ({"query_id": "q", "prompt": "p", "solutions": "2"}, "field 'solutions' must be a list of texts"),
        (
            {"query_id": "q", "prompt": "p", "solutions": ["2"], "task": "code"},
            "field 'task' is 'code', and only 'math'",
        ),
        ({"query_id": " ", "prompt": "p", "solutions": ["2"]}, "field 'query_id' must be a non-empty text or a number"),
        ({"prompt": [], "reward_model": {"ground_truth": "2"}}, "field 'prompt' must be a text, or messages"),
        ({"prompt": MESSAGES, "reward_model": {}}, "field 'reward_model' must hold 'ground_truth'"),
        ({"question": "1+1=?", "final_answer": [1e400]}, "not JSON: Infinity"),
    ],
)
def test_broken_rows_name_line_field_and_reason(tmp_path: Path, row: Any, message: str) -> None:
    path = lines(tmp_path / "d.jsonl", GOOD, row, {**GOOD, "id": 3})
    with pytest.raises(ProblemFileError, match=message):
        ProblemFile(path)
    source = ProblemFile(path, skip_bad_rows=True)
    assert [problem.id for problem in source.problems] == ["d/1", "d/3"]
    assert [bad.line for bad in source.skipped] == [2]


def test_rows_left_out_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mathturn_gym"):
        source = ProblemFile(lines(tmp_path / "d.jsonl", GOOD, b"{"), skip_bad_rows=True)
    assert source.skipped_report() in caplog.text
    assert "1 rows left out (line 2: row is not JSON" in caplog.text


def test_duplicate_ids_name_both_lines(tmp_path: Path) -> None:
    row = {"query_id": "q7", "prompt": "p", "solutions": ["2"]}
    with pytest.raises(ProblemFileError, match="line 3: field 'id' 'q7' comes twice, in line 1 first"):
        ProblemFile(lines(tmp_path / "d.jsonl", row, b"", row))


def test_a_file_without_a_usable_problem_is_an_error(tmp_path: Path) -> None:
    for content in (b"", b"\n \n", b"{\n"):
        (tmp_path / "d.jsonl").write_bytes(content)
        with pytest.raises(ProblemFileError, match="no usable problem"):
            ProblemFile(tmp_path / "d.jsonl", skip_bad_rows=True)
    with pytest.raises(ProblemFileError, match="cannot be read: No such file"):
        ProblemFile(tmp_path / "missing.jsonl")
    with pytest.raises(InvalidValueError, match="ending of a problem file"):
        ProblemFile(tmp_path / "d.txt")


def test_a_line_without_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_LINE", 1_000)
    path = lines(tmp_path / "d.jsonl", GOOD, b" " * 1_001)
    with pytest.raises(ProblemFileError, match="line 2: is longer than 1000 bytes"):
        ProblemFile(path)


def test_a_gigabyte_line_is_refused_in_little_memory(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "d.jsonl"
    with path.open("wb") as stream:
        stream.truncate(2**30)  # a hole: 1 GB of zero bytes without a line's end
    tracemalloc.start()
    with pytest.raises(ProblemFileError, match="line 1: is longer than"):
        ProblemFile(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * readers.MAX_LINE


def test_gzip_is_read_and_a_truncated_one_says_how_far_it_went(tmp_path: Path) -> None:
    raw = b"".join(json.dumps({**GOOD, "id": i, "pad": f"{i * 7919:x}" * 9}).encode() + b"\n" for i in range(2_000))
    path = tmp_path / "d.jsonl.gz"
    path.write_bytes(gzip.compress(raw))
    whole = ProblemFile(path)
    assert len(whole) == 2_000
    assert whole[0].id == "d/1"
    path.write_bytes(gzip.compress(raw)[:-2_000])
    with pytest.raises(ProblemFileError, match=r"gzip archive is broken or cut off after row \d{3,}"):
        ProblemFile(path)
    path.write_bytes(b"no archive")
    with pytest.raises(ProblemFileError, match="gzip archive is broken"):
        ProblemFile(path)


def test_json_csv_and_parquet_hold_the_same_problems(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"problem": f"{i}+1=?", "answer": str(i + 1), "note": 'a,\n"b"'} for i in range(3)]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "b.json").write_text(json.dumps({"version": 1, "data": rows}))
    (tmp_path / "c.json").write_text("\n".join(map(json.dumps, rows)))
    with (tmp_path / "d.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ["problem", "answer", "note"])
        writer.writeheader()
        writer.writerows(rows)
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "e.parquet")
    for name in ("a.json", "b.json", "c.json", "d.csv", "e.parquet"):
        source = load_problems(tmp_path / name)
        assert isinstance(source, FiniteSource)
        assert [(p.prompt, p.gold, p.metadata["note"]) for p in source.problems] == [
            (row["problem"], (row["answer"],), row["note"]) for row in rows
        ], name


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.csv", b"problem,answer\n1+1=?,2,3\n", "line 2: the row has 3 fields, the header has 2"),
        ("d.csv", b"problem,answer\n1+1=?\n", "line 2: the row has 1 fields, the header has 2"),
        ("d.csv", b"problem,answer\n1+1=?,\n", r"line 2: field 'solution' is missing"),
        ("d.csv", b'problem,answer\n"1+1=?,2\n', "is not CSV"),
        ("d.csv", b"problem,answer\n1+1=?,\xff\n", "line 2: is not UTF-8 at byte 6"),
        ("d.json", b'{"a": 1}', "must be a list of objects, or an object with one list in it"),
        ("d.json", b'"text"', "must be a list of objects, got a str"),
        ("d.json", b"[1]", "line 1: the row is a int, not an object"),
        ("d.json", b'[{"problem": NaN}]', "NaN is not a JSON value"),
        ("d.json", b"\xff", "is not UTF-8 at byte 0"),
        ("d.parquet", b"PAR1 no", "is not a Parquet file"),
    ],
)
def test_broken_files_of_other_formats_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ProblemFileError, match=message):
        ProblemFile(tmp_path / name)


def test_a_saved_data_set_folder_loads(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"question": ["1+1=?", "1+2=?"], "answer": ["#### 2", "#### 3"]}
    datasets.DatasetDict({"test": datasets.Dataset.from_dict(rows)}).save_to_disk(str(tmp_path / "sums"))
    source = DataSet(tmp_path / "sums", split="test")
    assert [(p.id, p.gold) for p in source.problems] == [("sums-test/1", ("2",)), ("sums-test/2", ("3",))]
    with pytest.raises(ProblemFileError, match=r"sums.*cannot be loaded"):
        load_problems(f"hf:{tmp_path / 'sums'}:dev")
    with pytest.raises(InvalidValueError, match="'hf:NAME:SPLIT'"):
        load_problems("hf:")


def test_a_split_of_a_file_is_named_with_a_colon(tmp_path: Path) -> None:
    path = lines(tmp_path / "d.jsonl", *({"problem": f"{i}+1=?", "answer": str(i + 1)} for i in range(60)))
    parts = [load_problems(f"{path}:{split}") for split in ("train", "validation", "test")]
    assert all(isinstance(part, FiniteSource) for part in parts)
    assert sum(len(part) for part in parts if isinstance(part, FiniteSource)) == 60


class TestStreaming:
    def test_gives_what_the_whole_file_gives(self, tmp_path: Path) -> None:
        path = lines(tmp_path / "d.jsonl", *({"problem": f"{i}+1=?", "answer": str(i + 1)} for i in range(20)), b"")
        whole, streamed = ProblemFile(path), StreamedFile(path)
        assert len(streamed) == 20
        assert [streamed.get(3, i) for i in range(45)] == [whole.get(3, i) for i in range(45)]
        assert streamed.by_id("d/7") == whole.by_id("d/7")

    def test_counts_lines_as_the_whole_file_does(self, tmp_path: Path) -> None:
        row = {"problem": "1+1=?", "answer": "2"}
        streamed = StreamedFile(lines(tmp_path / "d.jsonl", b"", row, b"", row))
        assert streamed.by_id("d/4").gold == ("2",)
        for bad in ("d/1", "d/9", "e/2", "d/x"):
            with pytest.raises(InvalidValueError, match="whose ids are 'd/LINE'"):
                streamed.by_id(bad)

    def test_names_a_broken_row_when_it_is_read(self, tmp_path: Path) -> None:
        streamed = StreamedFile(lines(tmp_path / "d.jsonl", {"problem": "p"}, b"{"))
        with pytest.raises(ProblemFileError, match="line 1: field 'solution' is missing"):
            streamed.by_id("d/1")
        with pytest.raises(ProblemFileError, match="line 2: the row is not JSON"):
            streamed.by_id("d/2")

    def test_refuses_a_file_that_cannot_be(self, tmp_path: Path) -> None:
        (tmp_path / "d.jsonl").write_bytes(b"\n")
        with pytest.raises(ProblemFileError, match="has no line"):
            StreamedFile(tmp_path / "d.jsonl")
        with pytest.raises(ProblemFileError, match="cannot be read"):
            StreamedFile(tmp_path / "e.jsonl")


def test_gold_answers_are_judged_against_themselves() -> None:
    problems = [Problem("a", "p", ("4", "2+2")), Problem("b", "p", "5"), Problem("c", "p", r"\text{Evelyn}")]

    class Deaf(Verifier):
        """Hears no fives."""

        def verify_batch(self, responses: Any, golds: Any, *, kind: Any = "response") -> Any:
            return super().verify_batch([r.replace("5", "6") for r in responses], golds, kind=kind)

    with Deaf() as verifier:
        failures = check_gold(problems, verifier)
    assert [(f.problem_id, f.gold) for f in failures if not f.as_text] == [("b", "5")]
    assert all(f.problem_id == "c" for f in failures if f.as_text)


@pytest.mark.parametrize(
    ("name", "count", "most"),
    [
        ("gsm8k_train", 7473, 0),
        ("gsm8k_test", 1319, 0),
        ("math500_test", 500, 2),
        ("aime24_test", 30, 0),
        ("amc23_test", 40, 0),
    ],
)
def test_public_data_sets_load_and_their_gold_verifies(shared: Path, name: str, count: int, most: int) -> None:
    source = load_problems(shared / "data" / f"{name}.jsonl")
    assert isinstance(source, FiniteSource)
    assert len(source) == count
    with Verifier() as verifier:
        failures = check_gold(source.problems, verifier)
    assert len([f for f in failures if not f.as_text]) <= most
