import re
import subprocess
import sys

import pytest

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems import load_problems
from mathturn_gym.problems.base import SPLITS
from mathturn_gym.problems.families import FAMILIES, FORMS, Family
from mathturn_gym.problems.families.registry import GENERATORS, LEVELS, REGISTRY
from mathturn_gym.types import Problem
from mathturn_gym.verifier import Verifier

ITEMS = 60  # per family


def items(family: str, per_level: int = ITEMS // len(LEVELS), seed: int = 11) -> list[Problem]:
    return [Family(family, level, "all", FORMS[i % 2]).get(seed, i) for level in LEVELS for i in range(per_level)]


def test_every_gold_answer_is_right_in_a_box_when_judged_against_itself() -> None:
    problems = [problem for family in FAMILIES for problem in items(family, per_level=2)]
    with Verifier() as verifier:
        verdicts = verifier.verify_batch([rf"\boxed{{{p.gold[0]}}}" for p in problems], [p.gold for p in problems])
    assert [p.id for p, verdict in zip(problems, verdicts, strict=True) if not verdict.correct] == []


def test_no_question_is_answered_by_its_own_text() -> None:
    problems = [
        Family(family, level, "all", "latex").get(3, i) for family in FAMILIES for level in LEVELS for i in (0, 1)
    ]
    echoes = [(p, part) for p in problems for part in re.findall(r"\$([^$]+)\$", p.prompt) if part not in p.gold]
    literal = [(p, part) for p, part in echoes if not part.lstrip("-").isdecimal()]
    with Verifier(timeout=0.3) as verifier:
        verdicts = verifier.verify_batch([part for _, part in literal], [p.gold for p, _ in literal], kind="answer")
    assert len(literal) > 150
    assert [(p.id, part) for (p, part), v in zip(literal, verdicts, strict=True) if v.correct] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_items_depend_on_seed_index_and_level_alone(family: str) -> None:
    source = Family(family, 3)
    forwards = [source.get(1, i) for i in range(4)]
    assert [Family(family, 3).get(1, i) for i in reversed(range(4))][::-1] == forwards
    assert [Family(family, 3).get(2, i).prompt for i in range(4)] != [p.prompt for p in forwards]


@pytest.mark.parametrize("family", FAMILIES)
def test_splits_never_share_a_question_in_any_form(family: str) -> None:
    seen = {
        split: {
            Family(family, level, split, form).get(0, i).prompt for level in LEVELS for form in FORMS for i in range(8)
        }
        for split in SPLITS
    }
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["validation"]
    assert not seen["validation"] & seen["test"]
    for level in LEVELS:
        plain, latex = (Family(family, level, "test", form).get(4, 0) for form in FORMS)
        assert plain.gold == latex.gold


def test_wordings_of_one_story_share_a_split() -> None:
    train = {tuple(re.findall(r"\d+", Family("words", 1, "train").get(0, i).prompt)) for i in range(400)}
    test = {tuple(re.findall(r"\d+", Family("words", 1, "test").get(0, i).prompt)) for i in range(400)}
    # All wordings of the story with three numbers give them in the same order.
    three = {numbers for numbers in train if len(numbers) == 3}
    assert len(three) > 100
    assert not three & {numbers for numbers in test if len(numbers) == 3}


def test_an_item_without_a_level_is_the_item_of_the_level_it_was_given() -> None:
    source = Family("quadratic")
    found = [source.get(0, i) for i in range(60)]
    assert {problem.metadata["level"] for problem in found} == set(LEVELS)
    for index, problem in enumerate(found):
        assert Family("quadratic", problem.metadata["level"]).get(0, index) == problem


def test_problems_say_what_they_are() -> None:
    problem = load_problems("limits@2:validation:latex").get(5, 7)
    assert problem.metadata == {"family": "limits", "level": 2, "split": "validation", "form": "latex"}


def test_selecting_a_level_gives_that_level() -> None:
    assert Family("primes").select(level=4).get(0, 0).metadata["level"] == 4
    assert Family("primes").select().name == "primes:train"
    with pytest.raises(InvalidValueError, match="has level 2 only"):
        Family("primes", 2).select(level=3)
    with pytest.raises(InvalidValueError, match="unknown family 'linear'"):
        Family("primes").select(family="linear")


def test_hints_are_true_rise_and_do_not_say_the_answer_and_false_hints_lie() -> None:
    for family in ("integers", "division", "words", "derivatives"):
        for problem in items(family):
            if not problem.hints:
                continue
            value = int(problem.gold[0])
            parity, size, last = problem.hints
            assert parity == f"it is {'odd' if value % 2 else 'even'}."
            assert f"has {len(str(abs(value)))} digit" in size
            assert ("not negative" in size) == (value >= 0)
            if abs(value) > 9:
                assert last == f"its last digit is {abs(value) % 10}."
            assert all(true != false for true, false in zip(problem.hints, problem.false_hints, strict=True))


def test_every_family_is_described() -> None:
    assert len(FAMILIES) >= 20
    assert all(
        len(about) > 10
        for about in [spec.about for spec in REGISTRY.values()] + [spec.about for spec in GENERATORS.values()]
    )


def test_a_split_without_a_question_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Family("primes", 1, "test")
    monkeypatch.setattr("mathturn_gym.problems.families.split_of", lambda text: "train")
    with pytest.raises(InvalidValueError, match="'primes@1:test' has no question of level 1 in split 'test'"):
        source.get(0, 0)


def test_drawing_problems_loads_no_symbolic_algebra() -> None:
    code = (
        "import sys; from mathturn_gym.problems import load_problems;"
        "[load_problems('families').get(0, i) for i in range(200)]; assert 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
