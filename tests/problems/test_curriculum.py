"""Which cells a curriculum draws from, by what was solved."""

from __future__ import annotations

from typing import Any

import pytest

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems import Curriculum, Mixture, load_problems
from mathturn_gym.problems.lists import ProblemList
from mathturn_gym.types import Problem


def of_families(**kwargs: object) -> Curriculum:
    return Curriculum.of_families(["integers", "linear"], minimum=4, window=8, **kwargs)  # type: ignore[arg-type]


def feed(curriculum: Curriculum, cell: str, outcomes: str) -> None:
    for outcome in outcomes:
        curriculum.record(cell, solved=outcome == "+")


class TestWeights:
    def test_begin_with_the_foot_of_every_ladder(self) -> None:
        weights = of_families(explore=0.0).weights()
        assert {cell for cell, weight in weights.items() if weight} == {"integers@1", "linear@1"}

    def test_move_on_once_a_cell_is_mastered(self) -> None:
        curriculum = of_families(explore=0.0)
        feed(curriculum, "integers@1", "++++++++")
        weights = curriculum.weights()
        assert weights["integers@2"] > 10 * weights["integers@1"]
        assert weights["integers@3"] == 0

    def test_go_back_where_a_cell_is_too_hard(self) -> None:
        curriculum = of_families(explore=0.0)
        feed(curriculum, "integers@1", "+-+-+-+-")
        feed(curriculum, "integers@2", "--------")
        assert curriculum.rates()["integers@1"] == 0.5
        assert curriculum.weights()["integers@1"] > 10 * curriculum.weights()["integers@2"]

    def test_fall_outside_the_band_with_the_distance(self) -> None:
        curriculum = of_families(explore=0.0, band=(0.4, 0.6))
        feed(curriculum, "integers@1", "++++--")  # 4/6
        feed(curriculum, "linear@1", "+++++-")  # 5/6
        weights = curriculum.weights()
        assert weights["integers@1"] / weights["linear@1"] == pytest.approx(2.718281828 ** ((5 / 6 - 4 / 6) / 0.1))

    def test_forget_what_is_older_than_the_window(self) -> None:
        curriculum = of_families()
        feed(curriculum, "integers@1", "--------++++++++")
        assert curriculum.rates()["integers@1"] == 1.0

    def test_explore_every_cell(self) -> None:
        weights = of_families(explore=0.5).weights()
        assert min(weights.values()) == pytest.approx(0.05)
        assert sum(weights.values()) == pytest.approx(1.0)


class TestSources:
    def test_any_sources_stand_on_ladders(self) -> None:
        mine = ProblemList([Problem("a", "1+1=?", "2"), Problem("b", "1+2=?", "3")], "mine")
        curriculum = Curriculum([["add1", "add2"], mine, load_problems("words@2")], minimum=1, explore=0.0)
        assert list(curriculum.weights()) == ["add1", "add2", "mine", "words@2"]
        assert {cell for cell, weight in curriculum.weights().items() if weight} == {"add1", "mine", "words@2"}
        curriculum.record("add1", solved=True)
        assert curriculum.weights()["add2"] > 0
        found = [curriculum.get(0, i) for i in range(200)]
        assert {problem.metadata["cell"] for problem in found} == {"add1", "add2", "mine", "words@2"}
        assert all(problem.id in ("a", "b") for problem in found if problem.metadata["cell"] == "mine")

    def test_items_are_those_of_the_cells(self) -> None:
        curriculum = Curriculum(["lins", "add1"])
        for i in range(20):
            problem = curriculum.get(3, i)
            assert load_problems(problem.metadata["cell"]).get(3, i).prompt == problem.prompt

    def test_the_train_part_shares_the_history_and_other_parts_have_none(self) -> None:
        curriculum = of_families()
        train = curriculum.part("train")
        assert isinstance(train, Curriculum)
        feed(train, "integers@1", "++++++++")
        assert curriculum.rates()["integers@1"] == train.rates()["integers@1"] == 1.0
        assert curriculum.get(0, 0) == train.get(0, 0)
        validation = curriculum.part("validation")
        assert isinstance(validation, Mixture)
        assert {validation.get(0, i).metadata["level"] for i in range(200)} == {1, 2, 3, 4, 5}

    def test_a_list_in_a_curriculum_is_divided_like_everything_else(self) -> None:
        rows = [Problem(f"p{i}", f"q{i}", str(i)) for i in range(100)]
        train = Curriculum([load_problems(rows)]).part("train")
        assert {train.get(0, i).id for i in range(500)} == {p.id for p in load_problems(rows, "train")}  # type: ignore[attr-defined]

    def test_finds_its_problems_again(self) -> None:
        curriculum = of_families()
        problem = curriculum.get(0, 5)
        assert curriculum.by_id(problem.id) == problem
        assert curriculum.select(family="linear", level=3).get(0, 0) == load_problems("linear@3").get(0, 0)
        with pytest.raises(InvalidValueError, match="in none of the 10 cells"):
            curriculum.by_id("words/0")


class TestHistory:
    def test_alone_decides_what_comes(self) -> None:
        first, second = of_families(), of_families()
        for curriculum in (first, second):
            feed(curriculum, "integers@1", "++++")
        second.get(0, 99)
        assert [first.get(3, i) for i in range(30)] == [second.get(3, i) for i in range(30)]
        feed(second, "integers@2", "++++")
        assert [first.get(3, i) for i in range(30)] != [second.get(3, i) for i in range(30)]

    def test_is_kept_in_a_checkpoint(self) -> None:
        first, second = of_families(), of_families()
        feed(first, "linear@1", "+++-")
        second.load_state_dict(first.state_dict())
        assert second.weights() == first.weights()
        with pytest.raises(InvalidValueError, match="state has the cells"):
            second.load_state_dict({"linear@1": []})

    def test_refuses_outcomes_of_other_cells(self) -> None:
        with pytest.raises(InvalidValueError, match="no cell 'words@1'"):
            of_families().record("words@1", solved=True)


class TestNames:
    @pytest.mark.parametrize(
        ("name", "cells"),
        [
            ("integers,linear@1-2", ["integers@1", "integers@2", "linear@1", "linear@2"]),
            ("integers@2-3,linear@1", ["integers@2", "integers@3", "linear@1"]),
            ("add1<add2<add3,lins", ["add1", "add2", "add3", "lins"]),
            ("lins,integers,linear@1-1", ["lins", "integers@1", "linear@1"]),
        ],
    )
    def test_give_ladders(self, name: str, cells: list[str]) -> None:
        curriculum = load_problems(f"curriculum:{name}")
        assert isinstance(curriculum, Curriculum)
        assert list(curriculum.weights()) == cells

    def test_take_a_split(self) -> None:
        assert isinstance(load_problems("curriculum:lins,add1:test"), Mixture)
        assert load_problems("curriculum:lins:train").split == "train"

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("integers", "has no levels"),
            ("integers@2-1", "has no levels"),
            ("", "FAMILY,FAMILY@LOW-HIGH"),
            ("lins,", "FAMILY,FAMILY@LOW-HIGH"),
            ("intgers@1-2", "did you mean 'integers'"),
            ("integers@1-9", "level must be an integer in"),
            ("lins,lins", "'lins' comes twice"),
        ],
    )
    def test_that_are_wrong_say_why(self, name: str, message: str) -> None:
        with pytest.raises(InvalidValueError, match=message):
            load_problems(f"curriculum:{name}")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"families": []}, "at least one each"),
        ({"families": "linear"}, "at least one each"),
        ({"families": ["linaer"]}, "did you mean 'linear'"),
        ({"band": (0.7, 0.3)}, "low < high"),
        ({"explore": 2}, "explore"),
        ({"window": 4, "minimum": 5}, "minimum"),
    ],
)
def test_refuses_what_cannot_be(kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Curriculum.of_families(**kwargs)  # type: ignore[arg-type]


def test_refuses_to_be_empty() -> None:
    nothing: tuple[Any, ...] = ([], "lins", [[]])
    for empty in nothing:
        with pytest.raises(InvalidValueError, match="at least one source"):
            Curriculum(empty)
