"""Settings by name, over all parts of a run."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from mathturn_gym.baselines import GRPO
from mathturn_gym.baselines.algorithms._registry import algorithm_named
from mathturn_gym.baselines.overrides import dotted, merged, nested, parse_settings
from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.errors import InvalidValueError


def test_a_field_of_one_part_needs_no_part() -> None:
    given = {
        "clip": 0.1,
        "num_turns": 2,
        "temperature": 0.5,
        "patience": 3,
        "learning_rate": 1.0,
        "seed": 4,
        "threads": 2,
    }
    assert nested(given, GRPO) == {
        "algorithm": {"clip": 0.1},
        "env": {"num_turns": 2},
        "policy": {"temperature": 0.5},
        "evaluation": {"patience": 3},
        "optimization": {"learning_rate": 1.0},
        "seed": 4,
        "threads": 2,
    }


def test_a_later_setting_wins() -> None:
    assert nested({"clip": 0.1, "algorithm.clip": 0.3}, GRPO) == {"algorithm": {"clip": 0.3}}
    assert nested({"algorithm.clip": 0.3, "algorithm": {"clip": 0.2}, "clip": 0.1}, GRPO) == {
        "algorithm": {"clip": 0.1}
    }


def test_tables_and_dots_are_the_same() -> None:
    tables = {"env": {"reward_terms": {"overlong": 1.0}}, "evaluation": {"every": 5}}
    assert dotted(tables) == {"env.reward_terms": {"overlong": 1.0}, "evaluation.every": 5}
    assert nested(tables, GRPO) == nested(dotted(tables), GRPO) == tables


def test_changes_replace_fields_and_leave_the_others() -> None:
    below: dict[str, Any] = {"env": {"problems": "lins", "reward_terms": {"overlong": 1.0}}, "seed": 1}
    found = merged(below, {"env": {"reward_terms": {"format": 1.0}}, "budget": {"tokens": 9}, "seed": 2})
    assert found == {"env": {"problems": "lins", "reward_terms": {"format": 1.0}}, "budget": {"tokens": 9}, "seed": 2}
    assert below["env"]["reward_terms"] == {"overlong": 1.0}, "what was given stays as it was"


@pytest.mark.parametrize("env_id", ["env.id", "id"])
def test_the_environment_that_is_named_decides_what_it_takes(env_id: str) -> None:
    found = nested({"num_turns": 1, env_id: "MathSingleTurn-v0"}, GRPO)
    assert found == {"env": {"num_turns": 1, "id": "MathSingleTurn-v0"}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rat": 1}, "unknown setting 'learning_rat': did you mean 'learning_rate'"),
        (
            {"gae_lambda": 1},
            "unknown setting 'gae_lambda'.*; options of grpo: entropy_weight, kl_weight, kl, reward_kl, group_size",
        ),
        ({"estimator": "grpo"}, "unknown setting 'estimator'"),
        (
            {"episodes": 1},
            "episodes is a field of budget and of evaluation: say budget.episodes or evaluation.episodes",
        ),
        ({"optimisation.epochs": 1}, "unknown part of a run 'optimisation': did you mean 'optimization'"),
        ({"evaluation.evry": 1}, "unknown evaluation field 'evry': did you mean 'every'"),
        ({"optimization.learning_rat": 1}, "unknown optimization field 'learning_rat': did you mean 'learning_rate'"),
        ({"env.num_turn": 1}, "unknown keyword of .* 'num_turn': did you mean 'num_turns'"),
        ({"algorithm.clp": 1}, "grpo does not read 'clp': unknown option 'clp': did you mean 'clip'"),
        ({"policy.seed": 1}, "policy.seed is not read in a run"),
        ({"seed": "x"}, "seed must be an integer in"),
        ({"run_dir": "x"}, "unknown setting 'run_dir'"),
        ({"task": "x"}, "unknown setting 'task'"),
        ({"env": 3}, "env is a part of a run: set its fields, as in env.FIELD, got 3"),
        ({"env.id": 3, "num_turns": 2}, "unknown environment 3"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        load_task("lins").config("grpo", settings)


def test_a_misspelt_setting_is_answered_with_the_nearest_names_alone() -> None:
    """A run has about ninety settings; all of them were printed."""
    with pytest.raises(InvalidValueError) as caught:
        nested({"learning_rat": 1}, GRPO)
    message = str(caught.value)
    assert "(nearest: optimization.learning_rate, optimization.final_learning_rate" in message
    assert len(message) < 400
    assert "momentum" not in message


def test_what_an_algorithm_does_not_read_is_no_setting_of_its_run() -> None:
    classic = algorithm_named("sb3_a2c")
    assert nested({"learning_rate": 1e-4}, classic) == {"algorithm": {"learning_rate": 1e-4}}
    with pytest.raises(InvalidValueError, match=r"sb3_a2c does not read optimization\.epochs; its options: n_envs"):
        nested({"optimization.epochs": 2}, classic)


def test_a_run_is_built_once() -> None:
    """One override built the run twice and its policy five times: 194 calls, with 76 changes of file."""
    load_task("lins").config()  # whatever is only done once
    made: list[str] = []

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == "__post_init__":
            made.append(type(frame.f_locals["self"]).__name__)

    sys.setprofile(count)
    try:
        config = load_task("lins").config(None, parse_settings(["optimization.learning_rate=1e-3"]))
    finally:
        sys.setprofile(None)
    assert config.optimization.learning_rate == 1e-3
    for kind in ("RunConfig", "PolicyConfig", "Optimization", "Budget", "Evaluation"):
        assert made.count(kind) == 1, kind


def test_settings_are_parsed_as_json_where_they_are() -> None:
    found = parse_settings(["a=1", "b=0.5", "c=true", "d=null", 'e={"x": 1}', "f=text", "g=a=b"])
    assert found == {"a": 1, "b": 0.5, "c": True, "d": None, "e": {"x": 1}, "f": "text", "g": "a=b"}
    for wrong in ("x", "=3"):
        with pytest.raises(InvalidValueError, match="--set must be FIELD=VALUE"):
            parse_settings([wrong])
