from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tiny import Shape, make_tiny_model, train_tokenizer
from warmup import RECIPES, TINY, WORLD, Part, recipe_named

from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.env.feedback._registry import WRONG_TEXT
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.policies.sampling import answer_ids
from mathturn_gym.problems import load_problems

TOKENIZER: Any = train_tokenizer(WORLD.phrases)


def test_recipes_are_found_by_name() -> None:
    assert recipe_named("world") is WORLD
    assert recipe_named("tiny") is TINY
    with pytest.raises(InvalidValueError, match="unknown recipe 'wurld': did you mean 'world'"):
        recipe_named("wurld")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"batch_size": 0}, "batch_size"),
        ({"groups": 33}, r"groups \(33\) exceed batch_size \(32\)"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"retry_share": 1.5}, "retry_share"),
        ({"calculations": -0.5}, "calculations"),
        ({"most_wrong": 0}, "most_wrong"),
        ({"feedback": "tols"}, "did you mean 'tool'"),
        ({"wrong_answers": "gold"}, "did you mean 'golds'"),
        ({"optimizer": "adam"}, "did you mean 'adamw'"),
        ({"parts": (Part("lins", 0.5), Part("add1", 0.4))}, "shares of parts must add up to 1"),
    ],
)
def test_values_outside_their_range_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        dataclasses.replace(TINY, **changes)


def test_a_part_names_one_source_without_a_split() -> None:
    for name in ("lins:test", "lins+add1"):
        with pytest.raises(InvalidValueError, match="without a split"):
            Part(name, 1.0)
    with pytest.raises(InvalidValueError, match="share of 'lins' must be above 0"):
        Part("lins", 0.0)


def test_a_width_that_heads_cannot_share_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"width \(60\) must be a multiple of 2 \* heads \(8\)"):
        Shape(width=60, layers=1, heads=4, feedforward=8)
    with pytest.raises(InvalidValueError, match="layers"):
        Shape(width=64, layers=0, heads=4, feedforward=8)


def test_the_world_is_of_the_size_that_was_asked_for() -> None:
    count = sum(p.numel() for p in make_tiny_model(TOKENIZER, WORLD.shape).parameters())
    assert 1_000_000 <= count <= 3_000_000
    assert len(WORLD.problems) >= 5


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_phrase_is_one_token(name: str) -> None:
    recipe = RECIPES[name]
    tokenizer: Any = train_tokenizer(recipe.phrases)
    assert {phrase for phrase in recipe.phrases if len(tokenizer.encode(phrase)) > 1} == set()
    # The ids that answers are written with: what `answers_only` restricts a policy to.
    assert len(answer_ids(tokenizer)) == 13


@pytest.mark.parametrize("name", WORLD.problems)
def test_every_problem_is_short_and_its_digits_are_tokens(name: str) -> None:
    for split in ("train", "test"):
        source = load_problems(f"{name}:{split}")
        for index in range(40):
            problem = source.get(0, index)
            ids = TOKENIZER.encode(problem.prompt)
            pieces = [TOKENIZER.decode([i]) for i in ids]
            assert len(pieces) <= 16
            assert "".join(pieces) == problem.prompt
            assert not [p for p in pieces if len(p) > 1 and any(c.isdigit() for c in p)]
            # Eight ids are enough for any answer, the end of the turn included.
            assert len(TOKENIZER.encode(f"\\boxed{{{problem.gold[0]}}}")) + 1 <= 8
            assert int(problem.gold[0]) == float(problem.gold[0])


def test_feedback_is_one_token() -> None:
    dialogue = Dialogue(TOKENIZER)
    assert len(TOKENIZER.encode(WRONG_TEXT)) == 1
    assert dialogue.tokenizer.chat_template
