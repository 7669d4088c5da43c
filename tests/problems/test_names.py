"""One place reads names; each documented form does what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mathturn_gym.errors import InvalidValueError, ProblemFileError
from mathturn_gym.problems import Mixture, files, load_problems
from mathturn_gym.problems.families import Family
from mathturn_gym.problems.files import ProblemFile, StreamedFile
from mathturn_gym.problems.lists import FiniteSource
from mathturn_gym.types import Problem


def rows(path: Path, count: int = 60) -> Path:
    path.write_text("\n".join(json.dumps({"question": f"{i}+1=?", "answer": i + 1}) for i in range(count)) + "\n")
    return path


@pytest.mark.parametrize(
    "name", ["lins", "add4", "mul1", "guess20", "quadratic", "words@4:test:latex", "words:latex", "families@3"]
)
def test_names_give_sources(name: str) -> None:
    assert load_problems(name).get(0, 0) == load_problems(name).get(0, 0)


def test_a_family_takes_a_form_with_or_without_a_split() -> None:
    assert load_problems("linear@2:latex").get(0, 0) == Family("linear", 2, "train", "latex").get(0, 0)
    assert load_problems("linear@2:latex", split="test").get(0, 0) == Family("linear", 2, "test", "latex").get(0, 0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quadratik", "unknown problems 'quadratik': did you mean 'quadratic'"),
        ("quadratik@2:test", "did you mean 'quadratic'"),
        ("linz:test", "did you mean 'lins'"),
        ("quadratic@6", "level must be an integer in"),
        ("quadratic@2:dev", "unknown split 'dev'"),
        ("lins:tst", "unknown split 'tst': did you mean 'test'"),
        ("quadratic@2:test:tex", "unknown form 'tex': did you mean 'latex'"),
        ("quadratic@2:test:latex:x", "must be FAMILY@LEVEL:SPLIT:FORM"),
        ("lins:test:latex", "a generator takes a split and no more"),
        ("lins5", "'lins' takes no number"),
        ("add0", "'add' takes a number of 1 to 9 in steps of 1, as add1, add2, add3"),
        ("add" + "9" * 5000, "'add' takes a number"),
        ("guess1", "a number of 2 to 1000 in steps of 1"),
        ("add", "'add' takes a number of 1 to 9"),
        ("openai/gsm8k", "a Hugging Face data set is 'hf:openai/gsm8k'"),
        ("lins++add1", "a mixture is 'NAME"),
        ("lins+addd", "unknown problems 'addd'"),
        ("", "unknown problems ''"),
        ("a\0b", "unknown problems"),
        ("hf:", "a data set is 'hf:NAME'"),
        ("hf::x", "a data set is 'hf:NAME'"),
    ],
)
def test_wrong_names_say_what_is_allowed(name: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        load_problems(name)


@pytest.mark.parametrize("given", [3, None, b"lins", {"lins"}, ["lins"], [Problem("a", "b", "c"), {"question": "q"}]])
def test_other_types_are_refused(given: object) -> None:
    with pytest.raises(InvalidValueError, match="problems must"):
        load_problems(given)


class TestFiles:
    def test_a_file_is_a_path_or_its_name(self, tmp_path: Path) -> None:
        path = rows(tmp_path / "d.jsonl")
        by_path, by_name = load_problems(path), load_problems(str(path))
        assert isinstance(by_path, ProblemFile)
        assert list(by_path) == list(by_name)  # type: ignore[call-overload]

    @pytest.mark.parametrize("split", ["train", "validation", "test"])
    def test_a_split_is_a_suffix_or_an_argument(self, tmp_path: Path, split: str) -> None:
        path = rows(tmp_path / "d.jsonl")
        one, other = load_problems(f"{path}:{split}"), load_problems(path, split)
        assert isinstance(one, FiniteSource)
        assert isinstance(other, FiniteSource)
        assert list(one) == list(other)
        assert (one.split, one.name) == (split, f"d:{split}")

    def test_all_splits_together_are_the_file(self, tmp_path: Path) -> None:
        path = rows(tmp_path / "d.jsonl")
        sizes = [load_problems(path, split).size for split in ("train", "validation", "test", "all")]
        assert sum(size or 0 for size in sizes[:3]) == sizes[3] == 60

    def test_a_missing_file_suggests_its_neighbor(self, tmp_path: Path) -> None:
        rows(tmp_path / "gsm8k_test.jsonl")
        with pytest.raises(
            ProblemFileError, match=r"cannot be read: No such file.*\(did you mean '.*gsm8k_test.jsonl'\?\)"
        ):
            load_problems(str(tmp_path / "gsm8k-test.jsonl"))

    def test_an_unknown_ending_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "d.txt").write_text("x")
        with pytest.raises(InvalidValueError, match=r"unknown ending of a problem file 'd\.txt'"):
            load_problems(str(tmp_path / "d.txt"))
        with pytest.raises(ProblemFileError, match="is a folder, and not one that save_to_disk"):
            load_problems(tmp_path)

    def test_a_family_is_not_hidden_by_a_file_of_its_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "lins").mkdir()
        monkeypatch.chdir(tmp_path)
        assert load_problems("lins").get(0, 0).prompt.startswith("Solve")

    def test_files_are_mixed_with_families(self, tmp_path: Path) -> None:
        path = rows(tmp_path / "d+e.jsonl")
        assert isinstance(load_problems(str(path)), ProblemFile)
        mixture = load_problems(f"2*{rows(tmp_path / 'd.jsonl')}:train+lins")
        assert isinstance(mixture, Mixture)
        assert [source.name for source in mixture.sources] == ["d:train", "lins:train"]

    def test_columns_are_for_files(self, tmp_path: Path) -> None:
        path = tmp_path / "d.csv"
        path.write_text("q,a\n1+1=?,2\n")
        fields = {"prompt": "q", "gold": "a"}
        assert load_problems(path, fields=fields).get(0, 0).gold == ("2",)
        assert load_problems(f"{path}+lins", fields=fields).get(0, 3).prompt
        for name in ("lins", "lins+add1", [Problem("a", "b", "c")], load_problems("lins")):
            with pytest.raises(InvalidValueError, match="fields and skip_bad_rows are for files"):
                load_problems(name, fields=fields)

    def test_large_files_of_lines_are_streamed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = rows(tmp_path / "d.jsonl")
        whole = load_problems(path)
        monkeypatch.setattr("mathturn_gym.problems._names.LARGE", 100)
        streamed = load_problems(path, "test")
        assert isinstance(streamed, StreamedFile)
        assert list(streamed) == list(whole.part("test"))  # type: ignore[call-overload]
        assert files.LARGE == 2**28
