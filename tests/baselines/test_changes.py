"""Settings by name, over all parts of a run."""

from __future__ import annotations

from typing import Any

import pytest

from mathturn_gym.baselines.algorithms import algorithm_named
from mathturn_gym.baselines.overrides import changed, dotted, parse_settings, setting_names
from mathturn_gym.errors import InvalidValueError

PARTS: dict[str, Any] = {"env": {"problems": "lins"}, "algorithm": {"name": "grpo"}, "budget": {"tokens": 9}, "seed": 1}


def test_a_field_of_one_part_needs_no_part() -> None:
    found = changed(PARTS, {"clip": 0.1, "num_turns": 2, "temperature": 0.5, "patience": 3, "learning_rate": 1.0})
    assert found["algorithm"] == {"name": "grpo", "clip": 0.1}
    assert found["env"] == {"problems": "lins", "num_turns": 2}
    assert (found["policy"], found["evaluation"]) == ({"temperature": 0.5}, {"patience": 3})
    assert found["optimization"] == {"learning_rate": 1.0}
    assert changed(PARTS, {"seed": 4, "threads": 2})["seed"] == 4
    assert PARTS["env"] == {"problems": "lins"}, "what was given stays as it was"


def test_a_later_setting_wins() -> None:
    assert changed(PARTS, {"clip": 0.1, "algorithm.clip": 0.3})["algorithm"]["clip"] == 0.3


def test_tables_and_dots_are_the_same() -> None:
    nested = {"env": {"reward_terms": {"overlong": 1.0}}, "evaluation": {"every": 5}}
    assert dotted(nested) == {"env.reward_terms": {"overlong": 1.0}, "evaluation.every": 5}
    assert changed(PARTS, nested) == changed(PARTS, dotted(nested))


def test_another_environment_decides_first_what_it_takes() -> None:
    found = changed(PARTS, {"env.num_turns": 1, "env.id": "MathSingleTurn-v0"})
    assert found["env"] == {"problems": "lins", "num_turns": 1, "id": "MathSingleTurn-v0"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rat": 1}, "unknown setting 'learning_rat': did you mean 'learning_rate'"),
        (
            {"gae_lambda": 1},
            "unknown setting 'gae_lambda'.*; options of grpo: entropy_weight, kl_weight, reward_kl, group_size",
        ),
        ({"estimator": "grpo"}, "unknown setting 'estimator'"),
        (
            {"episodes": 1},
            "episodes is a field of budget and of evaluation: say budget.episodes or evaluation.episodes",
        ),
        ({"optimisation.epochs": 1}, "unknown part of a run 'optimisation': did you mean 'optimization'"),
        ({"evaluation.evry": 1}, "unknown evaluation field 'evry': did you mean 'every'"),
        ({"algorithm.clp": 1}, "unknown grpo option 'clp': did you mean 'clip'"),
        ({"policy.seed": 1}, "unknown policy field 'seed'"),
        ({"run_dir": "x"}, "unknown setting 'run_dir'"),
        ({"task": "x"}, "unknown setting 'task'"),
        ({"env": 3}, "env is a part of a run: set its fields"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        changed(PARTS, settings)


def test_what_an_algorithm_does_not_read_is_no_setting_of_its_run() -> None:
    classic = {**PARTS, "algorithm": {"name": "sb3_a2c"}}
    assert changed(classic, {"learning_rate": 1e-4})["algorithm"]["learning_rate"] == 1e-4
    with pytest.raises(InvalidValueError, match=r"sb3_a2c does not read optimization\.epochs; its options: n_envs"):
        changed(classic, {"optimization.epochs": 2})
    assert setting_names(classic, algorithm_named("sb3_a2c"))["optimization"] == ()


def test_settings_are_parsed_as_json_where_they_are() -> None:
    found = parse_settings(["a=1", "b=0.5", "c=true", "d=null", 'e={"x": 1}', "f=text", "g=a=b"])
    assert found == {"a": 1, "b": 0.5, "c": True, "d": None, "e": {"x": 1}, "f": "text", "g": "a=b"}
    for wrong in ("x", "=3"):
        with pytest.raises(InvalidValueError, match="--set must be FIELD=VALUE"):
            parse_settings([wrong])
