"""Files in memory and files that stay on the disk."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from mathturn_gym.errors import InvalidValueError, ProblemFileError
from mathturn_gym.problems import _readers, check_gold, load_problems
from mathturn_gym.problems.base import SPLITS
from mathturn_gym.problems.files import ProblemFile, StreamedFile
from mathturn_gym.problems.lists import FiniteSource, ProblemList
from mathturn_gym.verifier import Verifier


def lines(path: Path, *rows: Any) -> Path:
    path.write_bytes(b"\n".join(row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows) + b"\n")
    return path


def sums(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"problem": f"{i}+1=?", "answer": str(i + 1), **more} for i in range(count)]


def test_a_file_is_played_in_its_order_and_shuffled_by_name(tmp_path: Path) -> None:
    path = lines(tmp_path / "d.jsonl", *sums(20))
    for kind in (ProblemFile, StreamedFile):
        assert [kind(path).get(3, i).gold[0] for i in range(22)] == [str(i % 20 + 1) for i in range(22)]
        mixed = [kind(path).shuffled().get(3, i).gold[0] for i in range(20)]
        assert sorted(map(int, mixed)) == list(range(1, 21)) != list(map(int, mixed))
    assert [load_problems(path, shuffle=True).get(3, i) for i in range(40)] == [
        StreamedFile(path).shuffled().get(3, i) for i in range(40)
    ]


class TestStreaming:
    def test_gives_what_the_whole_file_gives(self, tmp_path: Path) -> None:
        rows = [*sums(40), b"", {"query_id": "q1", "prompt": "p", "solutions": ["2"]}, *sums(3)]
        path = lines(tmp_path / "d.jsonl", *rows)
        whole, streamed = ProblemFile(path), StreamedFile(path)
        assert list(streamed) == list(whole)
        assert (len(streamed), streamed.num_repeated) == (41, 3)
        for problem in whole:
            assert streamed.by_id(problem.id) == problem
        for split in SPLITS:
            part, expected = streamed.part(split), whole.part(split)
            assert isinstance(part, StreamedFile)
            assert isinstance(expected, ProblemList)
            assert list(part) == list(expected)
            assert (part.name, part.split) == (f"d:{split}", split)
            assert part.by_id(expected[0].id) == expected[0]
            with pytest.raises(InvalidValueError, match=f"'x' is not in source 'd:{split}'"):
                part.by_id("x")

    def test_believes_a_column_of_splits(self, tmp_path: Path) -> None:
        path = lines(tmp_path / "d.jsonl", *sums(9, split="train"), {"problem": "q", "answer": 1, "split": "dev"})
        assert [problem.prompt for problem in StreamedFile(path).part("validation")] == ["q"]  # type: ignore[attr-defined]

    def test_says_how_it_is_divided(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "mathturn_gym"):
            StreamedFile(lines(tmp_path / "d.jsonl", *sums(50))).part("test")
        assert "d: 50 problems are divided by a hash of the prompt" in caplog.text

    def test_takes_columns_and_rows_with_own_ids(self, tmp_path: Path) -> None:
        path = lines(tmp_path / "d.jsonl", {"q": "1+1=?", "a": 2, "key": "k"})
        streamed = StreamedFile(path, fields={"prompt": "q", "gold": "a", "id": "key"})
        assert streamed.by_id("k").gold == ("2",)
        twice = lines(tmp_path / "e.jsonl", *[{"query_id": "q", "prompt": "p", "solutions": ["2"]}] * 2)
        with pytest.raises(ProblemFileError, match="line 2: field 'id' comes twice"):
            StreamedFile(twice)
        assert len(StreamedFile(twice, skip_bad_rows=True)) == 1

    def test_names_broken_rows_at_once(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        path = lines(tmp_path / "d.jsonl", *sums(2), {"problem": "p"}, b"{")
        with pytest.raises(ProblemFileError, match="line 3: field 'answer' is missing"):
            StreamedFile(path)
        with caplog.at_level(logging.WARNING, "mathturn_gym"):
            kept = StreamedFile(path, skip_bad_rows=True)
        assert (len(kept), kept.num_skipped, [bad.line for bad in kept.skipped]) == (2, 2, [3, 4])
        assert kept.skipped_report() in caplog.text

    def test_notices_that_the_file_changed(self, tmp_path: Path) -> None:
        path = lines(tmp_path / "d.jsonl", *sums(20))
        streamed = StreamedFile(path)
        lines(path, *sums(21)[1:])
        with pytest.raises(ProblemFileError, match="the row at byte 0 has changed since the file was first read"):
            streamed.get(0, 0)
        path.unlink()
        with pytest.raises(ProblemFileError, match="cannot be read: No such file"):
            streamed.get(0, 0)

    def test_refuses_a_file_that_cannot_be(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "d.jsonl").write_bytes(b"\n")
        with pytest.raises(ProblemFileError, match="no usable problem"):
            StreamedFile(tmp_path / "d.jsonl")
        with pytest.raises(ProblemFileError, match="cannot be read"):
            StreamedFile(tmp_path / "e.jsonl")
        monkeypatch.setattr(_readers, "MAX_ROW", 100)
        with pytest.raises(ProblemFileError, match="line 2: the row is longer than"):
            StreamedFile(lines(tmp_path / "d.jsonl", *sums(1), b" " * 300 + b"x"))

    def test_a_byte_order_mark_stands_at_the_start_alone(self, tmp_path: Path) -> None:
        (tmp_path / "d.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\n".join(json.dumps(row).encode() for row in sums(3)))
        assert list(StreamedFile(tmp_path / "d.jsonl")) == list(ProblemFile(tmp_path / "d.jsonl"))


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
        failures = check_gold(source, verifier)
    assert len([f for f in failures if not f.as_text]) <= most
