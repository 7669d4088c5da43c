"""Files of every format, whole and broken."""

from __future__ import annotations

import csv
import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from mathturn_gym.errors import InvalidValueError, MissingDependencyError, ProblemFileError
from mathturn_gym.problems import _readers, load_problems
from mathturn_gym.problems.files import ProblemFile
from mathturn_gym.problems.lists import FiniteSource

GOOD = {"question": "1+1=?", "answer": "2", "id": 1}


def lines(path: Path, *rows: Any) -> Path:
    path.write_bytes(b"\n".join(row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows) + b"\n")
    return path


def sums(count: int) -> list[dict[str, str]]:
    return [{"problem": f"{i}+1=?", "answer": str(i + 1), "note": 'a,\n"b"'} for i in range(count)]


def test_the_documented_csv_loads(tmp_path: Path) -> None:
    path = tmp_path / "problems.csv"
    path.write_text('question,answer\nWhat is 6 times 7?,42\n"Half of 9, exactly?",9/2\n')
    source = load_problems(str(path))
    assert [(problem.prompt, problem.gold) for problem in source] == [  # type: ignore[attr-defined]
        ("What is 6 times 7?", ("42",)),
        ("Half of 9, exactly?", ("9/2",)),
    ]


def test_every_format_holds_the_same_problems(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = sums(3)
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "b.json").write_text(json.dumps({"version": 1, "data": rows, "more": {"x": None}}, indent=2))
    (tmp_path / "c.json").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "f.JSONL").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(map(json.dumps, rows)).encode())
    (tmp_path / "g.ndjson.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    (tmp_path / "h.json.gz").write_bytes(gzip.compress(json.dumps(rows).encode()))
    for name, encoding in (("d.csv", "utf-8"), ("i.csv", "utf-8-sig")):
        with (tmp_path / name).open("w", newline="", encoding=encoding) as stream:
            writer = csv.DictWriter(stream, ["problem", "answer", "note"])
            writer.writeheader()
            writer.writerows(rows)
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "e.parquet")
    for path in sorted(tmp_path.iterdir()):
        source = load_problems(path)
        assert isinstance(source, FiniteSource)
        assert [(p.prompt, p.gold, p.metadata["note"]) for p in source] == [
            (row["problem"], (row["answer"],), row["note"]) for row in rows
        ], path.name


class TestJsonLines:
    @pytest.mark.parametrize(
        ("row", "message"),
        [
            (b'{"question": "q", "answer": NaN}', "line 2: the row is not JSON: NaN is not a JSON value"),
            (b'{"question": "q", "answer": 1e400}', "line 2: field 'answer' must be finite, got inf"),
            (b'{"question": "q", "answer": 1' + b"0" * 400 + b"}", None),
            (b'{"question": "q", "answer": 1' + b"0" * 5000 + b"}", "line 2: the row is not JSON: Exceeds the limit"),
            (b'{"question": "q\\ud800", "answer": 1}', "line 2: field 'question' is not Unicode text"),
            (b'{"question": "q\\u0000", "answer": 1}', None),
            (b"\xff\xfe", "line 2: the row is not UTF-8 at byte 0"),
            (b"[1, 2]", "line 2: the row is a list, not an object"),
            (b'{"question": "1+1', "line 2: the row is not JSON"),
            (b"[" * 100_000, "line 2: the row is not JSON that can be read: it is nested too deeply"),
            (
                b'{"question": "q", "answer": ' + b"[" * 400 + b"1" + b"]" * 400 + b"}",
                "line 2: .*nested more than 32 deep",
            ),
        ],
    )
    def test_broken_lines_are_named_or_left_out(self, tmp_path: Path, row: bytes, message: str | None) -> None:
        path = lines(tmp_path / "d.jsonl", {**GOOD, "question": "a"}, row, {**GOOD, "question": "b"})
        if message is None:
            assert ProblemFile(path).size == 3
            return
        with pytest.raises(ProblemFileError, match=message):
            ProblemFile(path)
        source = ProblemFile(path, skip_bad_rows=True)
        assert [problem.prompt for problem in source] == ["a", "b"]
        assert [bad.line for bad in source.skipped] == [2]
        assert [source.line_of(problem.id) for problem in source] == [1, 3]

    def test_a_line_that_is_too_long_is_read_past(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_readers, "MAX_ROW", 1_000)
        path = lines(tmp_path / "d.jsonl", GOOD, b" " * 5_001, {**GOOD, "question": "b"})
        with pytest.raises(ProblemFileError, match="line 2: the row is longer than 1,000 bytes"):
            ProblemFile(path)
        kept = ProblemFile(path, skip_bad_rows=True)
        assert [kept.line_of(problem.id) for problem in kept] == [1, 3]

    @pytest.mark.slow
    def test_a_gigabyte_line_takes_little_memory(self, tmp_path: Path) -> None:
        path = lines(tmp_path / "d.jsonl", GOOD)
        with path.open("r+b") as stream:
            stream.truncate(2**30)  # a hole: 1 GB of zero bytes without a line's end
        tracemalloc.start()
        source = ProblemFile(path, skip_bad_rows=True)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (len(source), source.num_skipped) == (1, 1)
        assert peak < 4 * _readers.MAX_ROW


def test_a_file_without_a_usable_problem_is_an_error(tmp_path: Path) -> None:
    for content in (b"", b"\n \n", b"{\n"):
        for name in ("d.jsonl", "d.csv"):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(ProblemFileError, match="no usable problem"):
                ProblemFile(tmp_path / name, skip_bad_rows=True)
    with pytest.raises(ProblemFileError, match="cannot be read: No such file"):
        ProblemFile(tmp_path / "missing.jsonl")
    with pytest.raises(ProblemFileError, match="cannot be read"):
        ProblemFile(tmp_path / "a\0b.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(ProblemFileError, match="cannot be read: Is a directory"):
        ProblemFile(tmp_path / "folder.jsonl")
    with pytest.raises(InvalidValueError, match="ending of a problem file"):
        ProblemFile(tmp_path / "d.txt")


class TestGzip:
    def test_a_truncated_archive_says_how_far_it_went(self, tmp_path: Path) -> None:
        raw = b"".join(
            json.dumps({**GOOD, "question": str(i), "pad": f"{i * 7919:x}" * 9}).encode() + b"\n" for i in range(2_000)
        )
        path = tmp_path / "d.jsonl.gz"
        path.write_bytes(gzip.compress(raw))
        assert len(ProblemFile(path)) == 2_000
        path.write_bytes(gzip.compress(raw)[:-2_000])
        with pytest.raises(ProblemFileError, match=r"gzip archive is broken or cut off after row \d{3,}"):
            ProblemFile(path)
        path.write_bytes(b"no archive")
        with pytest.raises(ProblemFileError, match="gzip archive is broken"):
            ProblemFile(path)

    @pytest.mark.parametrize(
        ("name", "begin", "unit"),
        [
            pytest.param("d.json.gz", b"[", b"{}," * 1000, marks=pytest.mark.slow),
            ("d.json.gz", b'[{"question": "1", "answer": "', b"9" * 3000),
            ("d.json.gz", b'{"data": [', b"[]," * 1000),
            ("d.jsonl.gz", b"", b"0" * 3000),
            ("d.jsonl.gz", b"", b'{"question": "1", "answer": 2}\n' * 100),
            ("d.csv.gz", b"question,answer\n", b"1,2\n" * 300),
            pytest.param("d.csv.gz", b"question,answer\n", b"1,2\n" * 1000, marks=pytest.mark.slow),
        ],
    )
    def test_a_bomb_takes_little_memory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, begin: bytes, unit: bytes
    ) -> None:
        """300 kB in a few; only the rows that are different problems may stay."""
        monkeypatch.setattr(_readers, "MAX_ROW", 5_000)
        ProblemFile(lines(tmp_path / "first.jsonl", GOOD))  # what is imported on the way is not what is measured
        path = tmp_path / name
        with gzip.open(path, "wb", compresslevel=6) as stream:
            stream.write(begin)
            for _ in range(100):
                stream.write(unit)
        assert path.stat().st_size < 5_000
        tracemalloc.start()
        try:
            loaded = ProblemFile(path, skip_bad_rows=True).size
        except ProblemFileError:
            loaded = 0
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert loaded in (0, 1)
        assert peak < 1_500_000  # parsed as a whole it would be 7,500,000


class TestJson:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b'{"a": 1}', r"must be a list of objects, or an object with one list in it; lists: \[\]"),
            (b'{"a": [], "b": []}', r"lists: \['a', 'b'\]"),
            (b'"text"', "must be a list of objects, got 'text'"),
            (b"[1]", "line 1: the row is a int, not an object"),
            (b'[{"problem": NaN}]', "NaN is not a JSON value"),
            (b"\xff", "is not UTF-8 at byte 0"),
            (b'[{"problem": "\xff"}]', "is not UTF-8 at byte 14"),
            (b'[{"problem": "q", "answer": 2}', "expected one of , ], got 'the end'"),
            (b'[{"problem": "q", "answer": 2}] x', "goes on after its end"),
            (b'[{"problem": "q" "answer": 2}]', r"Expecting ',' delimiter \(character 18\)"),
            (b"[" * 100_000, "nested too deeply|is a list, not an object"),
            (b'[{"problem": "q", "answer": 1' + b"0" * 5000 + b"}]", "Exceeds the limit"),
            (b'{"a": [{"problem": "q", "answer": 2}], "b"', "expected one of :, got 'the end'"),
            (b"{1: []}", "a key must be a text"),
        ],
    )
    def test_what_is_broken_is_named(self, tmp_path: Path, content: bytes, message: str) -> None:
        (tmp_path / "d.json").write_bytes(content)
        with pytest.raises(ProblemFileError, match=message):
            ProblemFile(tmp_path / "d.json")

    @pytest.mark.parametrize("chunk", [1, 7, 64])
    def test_the_size_of_the_pieces_does_not_matter(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
    ) -> None:
        rows = [
            {"problem": f"é😀 {i} \\ud83d", "answer": i * 1.5, "note": {"a": [1, -2.5e3, True, None, "x]}"]}}
            for i in range(9)
        ]
        (tmp_path / "d.json").write_text(json.dumps({"n": 12, "rows": rows, "end": -3.25}), encoding="utf-8")
        whole = list(ProblemFile(tmp_path / "d.json"))
        (tmp_path / "d.json").write_text(
            json.dumps({"n": 12, "rows": rows}, ensure_ascii=False, indent=1), encoding="utf-8"
        )
        monkeypatch.setattr(_readers, "_CHUNK", chunk)
        assert list(ProblemFile(tmp_path / "d.json")) == whole
        assert [problem.gold for problem in whole][:3] == [("0",), ("1.5",), ("3",)]

    def test_a_value_without_end_is_not_read_into_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_readers, "MAX_ROW", 1_000)
        (tmp_path / "d.json").write_text('[{"problem": "' + "x" * 200_000 + '", "answer": 1}]')
        with pytest.raises(ProblemFileError, match=r"a value is longer than 1,000 characters \(character 2\)"):
            ProblemFile(tmp_path / "d.json")


class TestCsv:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"problem,answer\n1+1=?,2,3\n", "line 2: the row has 3 fields, the header has 2"),
            (b"problem,answer\n1+1=?\n", "line 2: the row has 1 fields, the header has 2"),
            (b"problem,answer\n1+1=?,\n", r"line 2: field 'answer' is missing or empty"),
            (b'problem,answer\n"1+1=?,2\n', "is not CSV"),
            (b"problem,answer\n1+1=?,\xff\n", "line 2: the row is not UTF-8 in column 'answer'"),
            (b"problem,answer,answer\n1+1=?,2,3\n", "line 1: two columns have the name 'answer'"),
            (b"problem,answer\n1+1=?," + b"7" * 200_000 + b"\n", "is not CSV: field larger than field limit"),
        ],
    )
    def test_what_is_broken_is_named(self, tmp_path: Path, content: bytes, message: str) -> None:
        (tmp_path / "d.csv").write_bytes(content)
        with pytest.raises(ProblemFileError, match=message):
            ProblemFile(tmp_path / "d.csv")

    def test_a_line_that_is_too_long_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_readers, "MAX_ROW", 1_000)
        (tmp_path / "d.csv").write_text("problem,answer\n1+1=?," + "2" * 2_000 + "\n")
        with pytest.raises(ProblemFileError, match="line 2: is longer than 1,000 bytes"):
            ProblemFile(tmp_path / "d.csv")

    def test_rows_that_are_not_utf_8_can_be_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "d.csv").write_bytes(b"problem,answer\n1+1=?,2\n1+\xff=?,2\n1+2=?,3\n")
        assert [problem.prompt for problem in ProblemFile(tmp_path / "d.csv", skip_bad_rows=True)] == ["1+1=?", "1+2=?"]


class TestParquet:
    def test_what_is_broken_is_named(self, tmp_path: Path) -> None:
        pytest.importorskip("pyarrow")
        (tmp_path / "d.parquet").write_bytes(b"PAR1 no")
        with pytest.raises(ProblemFileError, match="is not a Parquet file"):
            ProblemFile(tmp_path / "d.parquet")
        with pytest.raises(ProblemFileError, match="cannot be read"):
            ProblemFile(tmp_path / "e.parquet")

    def test_types_of_other_worlds_are_read(self, tmp_path: Path) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        rows = [
            {"prompt": [{"role": "user", "content": f"{i}+1=?"}], "reward_model": {"ground_truth": str(i)}}
            for i in range(600)
        ]
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "verl.parquet")
        source = ProblemFile(tmp_path / "verl.parquet")
        assert [(p.prompt, p.gold) for p in source] == [(f"{i}+1=?", (str(i),)) for i in range(600)]

    @pytest.mark.parametrize("nested", [False, True])
    def test_one_long_text_that_many_rows_refer_to_is_refused_unpacked(self, tmp_path: Path, nested: bool) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        long = "x" * 2**18
        rows: list[dict[str, Any]] = [
            {"question": f"{i}", "answer": "1", "pad": [long] * 300 if nested else long} for i in range(3)
        ]
        table = pyarrow.Table.from_pylist(rows if nested else rows * 100)
        path = tmp_path / "d.parquet"
        parquet.write_table(table, path, compression="zstd", use_dictionary=True, dictionary_pagesize_limit=2**24)
        assert path.stat().st_size < 2**20
        tracemalloc.start()
        if nested:
            with pytest.raises(ProblemFileError, match=r"line 1: the row may have more than 67,108,864 bytes"):
                ProblemFile(path)
        else:
            assert ProblemFile(path).size == 3
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100 * 2**20

    def test_the_library_is_asked_for_where_it_is_missing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
        with pytest.raises(MissingDependencyError, match=r"pip install '\.\[data\]'"):
            ProblemFile(tmp_path / "d.parquet")
