"""Hugging Face data sets, as folders, objects and names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mathturn_gym.errors import InvalidValueError, MissingDependencyError, ProblemFileError
from mathturn_gym.problems import load_problems
from mathturn_gym.problems.lists import ProblemList, SplitSource

datasets = pytest.importorskip("datasets")


def sums(first: int, count: int, **more: list[Any]) -> Any:
    numbers = range(first, first + count)
    return datasets.Dataset.from_dict(
        {"question": [f"{i}+1=?" for i in numbers], "answer": [f"It is.\n#### {i + 1}" for i in numbers], **more}
    )


def prompts(source: Any) -> list[str]:
    assert isinstance(source, ProblemList)
    return [problem.prompt for problem in source]


def test_a_data_set_is_given_as_it_is() -> None:
    source = load_problems(sums(0, 3))
    assert prompts(source) == ["0+1=?", "1+1=?", "2+1=?"]
    assert source.get(0, 1).gold == ("2",)
    assert source.split is None


def test_a_dictionary_of_data_sets_has_its_splits() -> None:
    both = datasets.DatasetDict({"train": sums(0, 30), "test": sums(30, 5)})
    source = load_problems(both)
    assert isinstance(source, SplitSource)
    assert prompts(source.part("test")) == [f"{i}+1=?" for i in range(30, 35)]
    assert source.part("train").size + source.part("validation").size == 30  # type: ignore[operator]
    assert source.get(0, 0).prompt in prompts(source.part("train"))
    assert prompts(load_problems(both, "test")) == prompts(source.part("test"))


def test_a_saved_folder_loads_by_path_and_by_name(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": sums(0, 30), "test": sums(30, 2)}).save_to_disk(str(tmp_path / "sums"))
    sums(7, 2).save_to_disk(str(tmp_path / "flat"))
    for given in (tmp_path / "sums", str(tmp_path / "sums"), f"hf:{tmp_path / 'sums'}"):
        assert prompts(load_problems(given, "test")) == ["30+1=?", "31+1=?"]
    assert prompts(load_problems(f"{tmp_path / 'sums'}:test")) == ["30+1=?", "31+1=?"]
    assert prompts(load_problems(f"hf:{tmp_path / 'sums'}:test")) == ["30+1=?", "31+1=?"]
    assert prompts(load_problems(tmp_path / "flat")) == ["7+1=?", "8+1=?"]
    assert load_problems(tmp_path / "sums", "test").get(0, 0).id.startswith("sums/")
    with pytest.raises(ProblemFileError, match="has no split 'dev2'; it has train, test"):
        load_problems(f"hf:{tmp_path / 'sums'}::dev2")


def test_a_folder_that_is_broken_is_named(tmp_path: Path) -> None:
    sums(7, 2).save_to_disk(str(tmp_path / "flat"))
    (tmp_path / "flat" / "state.json").write_text("{")
    with pytest.raises(ProblemFileError, match=r"flat' cannot be loaded"):
        load_problems(tmp_path / "flat")


def test_names_of_the_hub_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def load(path: str, config: str | None, split: str | None) -> Any:
        asked.append((path, config, split))
        both = {"train": sums(0, 30), "test": sums(30, 2)}
        return datasets.DatasetDict(both) if split is None else both[split.partition("[")[0]]

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert isinstance(load_problems("hf:openai/gsm8k:main"), SplitSource)
    assert prompts(load_problems("hf:openai/gsm8k:main", "test")) == ["30+1=?", "31+1=?"]
    assert load_problems("hf:openai/gsm8k:main:test").split == "test"
    assert load_problems("hf:openai/gsm8k:train").split == "train"
    assert load_problems("hf:openai/gsm8k:main:train[:10%]").size == 30
    assert load_problems("hf:openai/gsm8k:main:all").size == 32
    assert asked == [
        ("openai/gsm8k", "main", None),
        ("openai/gsm8k", "main", None),
        ("openai/gsm8k", "main", "test"),
        ("openai/gsm8k", None, "train"),
        ("openai/gsm8k", "main", "train[:10%]"),
        ("openai/gsm8k", "main", None),
    ]


def test_what_the_library_raises_is_our_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("no hub")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(ProblemFileError, match=r"'a/b' \(config None, split None\) cannot be loaded: no hub"):
        load_problems("hf:a/b")


def test_the_library_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[data\]'"):
        load_problems("hf:a/b")


def test_a_stream_has_no_length() -> None:
    with pytest.raises(InvalidValueError, match="has no length; load the data set without streaming=True"):
        load_problems(sums(0, 3).to_iterable_dataset())


def test_columns_are_named() -> None:
    data = datasets.Dataset.from_dict({"q": ["1+1=?"], "a": [2], "more": [None]})
    source = load_problems(data, fields={"prompt": "q", "gold": "a"})
    assert (source.get(0, 0).gold, source.get(0, 0).metadata) == (("2",), {})
    with pytest.raises(ProblemFileError, match="data set problems, line 1: the row has no known schema"):
        load_problems(data)
