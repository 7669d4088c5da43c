"""Lists of problems: order, parts, and splits that are given one by one."""

from __future__ import annotations

import logging

import pytest

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems import load_problems
from mathturn_gym.problems.base import SPLITS, split_of
from mathturn_gym.problems.lists import ProblemList, SplitSource
from mathturn_gym.types import Problem


def problems_of(count: int, **metadata: object) -> list[Problem]:
    return [Problem(f"p{i}", f"q{i}", str(i), metadata={"level": i % 2, **metadata}) for i in range(count)]


def ids(source: ProblemList, seed: int, items: int) -> list[str]:
    return [source.get(seed, index).id for index in range(items)]


class TestOrder:
    def test_a_list_is_played_in_its_order_whatever_the_seed(self) -> None:
        source = load_problems(problems_of(5))
        assert isinstance(source, ProblemList)
        assert ids(source, 0, 7) == ids(source, 99, 7) == ["p0", "p1", "p2", "p3", "p4", "p0", "p1"]

    def test_shuffling_is_asked_for_by_name_and_shows_every_problem_once_before_any_twice(self) -> None:
        source = load_problems(problems_of(30), shuffle=True)
        assert isinstance(source, ProblemList)
        first, second = ids(source, 0, 60)[:30], ids(source, 0, 60)[30:]
        assert sorted(first) == sorted(second) == sorted(f"p{i}" for i in range(30))
        assert first != second
        assert first != ids(source, 1, 30)
        assert ids(source, 0, 60)[:30] == first
        assert ids(source.part("train").shuffled(), 0, 3) == ids(source.part("train"), 0, 3)  # type: ignore[arg-type]

    def test_a_generator_has_no_order_of_its_own(self) -> None:
        with pytest.raises(InvalidValueError, match="shuffle=False is for lists and files: the order of 'lins:train'"):
            load_problems("lins", shuffle=False)
        assert load_problems("lins", shuffle=True).get(0, 0) == load_problems("lins").get(0, 0)
        assert load_problems(problems_of(3), shuffle=False).get(7, 1).id == "p1"


class TestParts:
    def test_a_list_is_divided_by_a_stable_hash_of_the_prompt_and_says_so(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        source = load_problems(problems_of(200))
        with caplog.at_level(logging.WARNING, "mathturn_gym"):
            parts = {split: source.part(split) for split in SPLITS}
            load_problems(problems_of(200)).part("test")  # opened again, as a run does for its evaluations: said once
        assert sum(part.size or 0 for part in parts.values()) == 200
        for split, part in parts.items():
            assert isinstance(part, ProblemList)
            assert [problem.id for problem in part] == [p.id for p in problems_of(200) if split_of(p.prompt) == split]
            assert (part.name, part.split) == (f"problems:{split}", split)
        sizes = [parts[split].size for split in SPLITS]
        said = "problems: 200 problems are divided by a hash of the prompt (8 : 1 : 1), having no splits of their own: "
        assert [record.getMessage() for record in caplog.records] == [
            said + f"{sizes[0]} train, {sizes[1]} validation, {sizes[2]} test"
        ]

    def test_a_problem_stays_in_its_part_when_others_are_added(self) -> None:
        small, large = (load_problems(problems_of(count)).part("test") for count in (100, 200))
        assert {p.id for p in small} <= {p.id for p in large}  # type: ignore[attr-defined]

    def test_splits_that_problems_say_they_are_of_are_believed(self) -> None:
        rows = [*problems_of(3, split="train"), Problem("d", "q7", "1", metadata={"split": "Dev"})]
        source = load_problems([*rows, Problem("t", "q8", "1", metadata={"split": "test"})])
        assert [p.id for p in source.part("validation")] == ["d"]  # type: ignore[attr-defined]
        assert [p.id for p in source.part("test")] == ["t"]  # type: ignore[attr-defined]
        assert source.part("train").size == 3

    def test_a_split_that_none_of_them_speaks_of_comes_out_of_train(self) -> None:
        rows = [*problems_of(100, split="train"), Problem("t", "q", "1", metadata={"split": "test"})]
        source = load_problems(rows)
        expected = [p.id for p in rows if split_of(p.prompt) == "validation" and p.id != "t"]
        assert [p.id for p in source.part("validation")] == expected  # type: ignore[attr-defined]
        assert source.part("train").size == 100 - len(expected)
        assert [p.id for p in source.part("test")] == ["t"]  # type: ignore[attr-defined]

    def test_a_mark_that_is_no_split_divides_nothing(self) -> None:
        rows = problems_of(100, split="easy")
        assert load_problems(rows).part("train").size == load_problems(problems_of(100)).part("train").size

    def test_an_empty_part_is_an_error_that_says_how_the_others_are(self) -> None:
        one = next(problem for problem in problems_of(50) if split_of(problem.prompt) == "train")
        with pytest.raises(
            InvalidValueError, match=r"no problem in the split 'test' \(1 train, 0 validation, 0 test\)"
        ):
            load_problems([one]).part("test")
        assert load_problems([one], "all").part("test").get(0, 0) == one


class TestSelection:
    def test_a_list_is_selected_by_its_metadata(self) -> None:
        part = load_problems(problems_of(6)).select(level=1)
        assert isinstance(part, ProblemList)
        assert [problem.id for problem in part] == ["p1", "p3", "p5"]
        with pytest.raises(InvalidValueError, match="no problem of family None and level '7'; it has"):
            load_problems(problems_of(6)).select(level=7)

    def test_what_is_wrong_with_a_list_is_named(self) -> None:
        with pytest.raises(InvalidValueError, match="holds no problem"):
            load_problems([])
        with pytest.raises(InvalidValueError, match="id 'p0' comes twice"):
            load_problems(problems_of(1) * 2)
        with pytest.raises(
            InvalidValueError, match=r"problem_id 'x' is not in source 'problems', which holds 2 problems"
        ):
            load_problems(problems_of(2)).by_id("x")


class TestSplitsOneByOne:
    def test_every_split_is_what_was_given(self) -> None:
        rows = problems_of(30)
        source = load_problems({"train": rows[:10], "val": rows[10:20], "test": rows[20:]})
        assert [source.part(split).get(0, 0).id for split in SPLITS] == ["p0", "p10", "p20"]
        assert [source.part(split).size for split in SPLITS] == [10, 10, 10]
        assert source.get(5, 1).id == "p1"  # without a choice it plays train
        assert source.size == 10
        assert source.part("all").size == 30
        assert source.by_id("p25").id == "p25"

    def test_a_missing_split_gets_its_tenth_of_train_and_says_so(self, caplog: pytest.LogCaptureFixture) -> None:
        rows = problems_of(200)
        source = load_problems({"train": rows[:180], "test": rows[180:]})
        with caplog.at_level(logging.WARNING, "mathturn_gym"):
            train, validation, test = (source.part(split) for split in SPLITS)
        moved = [p.id for p in rows[:180] if split_of(p.prompt) == "validation"]
        assert [p.id for p in validation] == moved  # type: ignore[attr-defined]
        assert {p.id for p in train} == {p.id for p in rows[:180]} - set(moved)  # type: ignore[attr-defined]
        assert test.size == 20
        assert f"{180 - len(moved)} train, {len(moved)} validation, 0 test" in caplog.text
        assert len(caplog.records) == 1

    def test_without_train_problems_there_is_nothing_to_take_from(self) -> None:
        source = load_problems({"test": problems_of(5)})
        assert source.get(0, 0).id == "p0"
        with pytest.raises(
            InvalidValueError, match="has no split 'train', and no train problems to make it of; it has test"
        ):
            source.part("train")

    def test_generators_give_the_part_of_that_name(self) -> None:
        source = load_problems({"train": "add1", "test": "lins"})
        assert source.part("train").get(0, 0).prompt.startswith("What is")
        assert source.part("test").get(0, 0) == load_problems("lins:test").get(0, 0)
        assert source.part("validation").get(0, 0) == load_problems("add1:validation").get(0, 0)
        with pytest.raises(InvalidValueError, match="has endless splits"):
            source.part("all")

    def test_impossible_ones_are_named(self) -> None:
        with pytest.raises(InvalidValueError, match="has no split; at least one is needed"):
            SplitSource({})
        with pytest.raises(InvalidValueError, match="split 'validation' of source 'problems' is given twice"):
            load_problems({"dev": problems_of(1), "val": problems_of(1)})
        with pytest.raises(InvalidValueError, match="names of splits as keys, got 1"):
            load_problems({1: problems_of(1)})
