"""Answers of the families, worked out again by an independent route."""

from __future__ import annotations

import pytest
from oracle import UnreadableError, disagreement, disagreements

from mathturn_gym.problems import Mixture, load_problems
from mathturn_gym.problems.families import FAMILIES, NAMES, Family
from mathturn_gym.problems.families.registry import LEVELS, SOLVERS
from mathturn_gym.types import Problem


@pytest.mark.parametrize("items", [500, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_agree_with_an_independent_route(family: str, items: int) -> None:
    wrong = [
        found
        for level in LEVELS
        for seed, form in ((11, "plain"), (12, "latex"))
        for found in disagreements(Family(family, level, "all", form), items // len(LEVELS) // 2, seed)
    ]
    assert wrong == []


def test_the_independent_route_notices_a_wrong_answer() -> None:
    for family in FAMILIES:
        good = Family(family, 2).get(0, 0)
        wrong = {"(": "(77, 78)", "\\": r"77\sqrt{78}"}.get(str(good.gold[0])[0], "7777777")
        bad = Problem(good.id, good.prompt, wrong, metadata=good.metadata)
        assert disagreement(bad) is not None, family


def test_the_forms_of_a_question_have_to_agree() -> None:
    plain, latex = (Family("linear", 2, form=form).get(0, 0) for form in ("plain", "latex"))
    assert disagreement(latex, plain) is None
    other = Family("linear", 2).get(0, 1)
    assert "in the plain form" in str(disagreement(latex, Problem("x", plain.prompt, "99", metadata=plain.metadata)))
    moved = Problem("x", other.prompt, latex.gold, metadata=other.metadata)
    assert "the forms have different numbers" in str(disagreement(latex, moved))


def test_the_independent_route_refuses_texts_it_cannot_read() -> None:
    good = Family("linear", 1).get(0, 0)
    with pytest.raises(UnreadableError, match="does not match"):
        disagreement(Problem(good.id, "What is x?", good.gold, metadata=good.metadata))
    with pytest.raises(UnreadableError, match="no independent route for 'p'"):
        disagreement(Problem("p", "What is x?", "1"))


def test_mixtures_are_checked_item_by_item(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Mixture([Family("linear", 2, form="latex"), load_problems("guess8")])
    assert list(disagreements(source, 30)) == []
    monkeypatch.setitem(SOLVERS, "linear", lambda text: 10**9)
    assert 5 < len(list(disagreements(source, 30))) < 25


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("guess")])
def test_generators_are_solved_again_too(name: str) -> None:
    assert list(disagreements(load_problems(f"{name}:all"), 500, seed=3)) == []
    assert name.rstrip("0123456789") in SOLVERS or name in SOLVERS
