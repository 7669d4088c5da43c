from __future__ import annotations

import json
from typing import Any

import pytest

from mathturn_gym.baselines.config import ALGORITHM_NAMES, PRESETS, TrainConfig, preset
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems import Curriculum, Mixture


def test_a_config_survives_json() -> None:
    config = preset("guess8", "runs/x", seed=4, final_learning_rate=1e-4)
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_config(name: str) -> None:
    assert preset(name, "runs/x").run_dir == "runs/x"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run_dir", ""),
        ("problems", 3),
        ("num_turns", 0),
        ("episodes", 0),
        ("batch_episodes", 2.5),
        ("minibatches", 129),
        ("learning_rate", -1e-3),
        ("final_learning_rate", float("nan")),
        ("discount", 1.5),
        ("clip", -0.1),
        ("baseline_decay", 2),
        ("temperature", 0.0),
        ("adam_beta2", 1.5),
        ("warmup_iterations", -1),
        ("save_every", 0),
        ("threads", 0),
        ("algorithm", "grop"),
        ("precision", "float16"),
        ("estimator", "gea"),
        ("random_weights", 1),
        ("group_size", 3),
        ("accumulate", 33),
        ("budget_cpu_s", 0.0),
        ("budget_tokens", 0),
        ("gae_lambda", 1.1),
        ("kl_weight", -1.0),
        ("patience", -1),
    ],
)
def test_values_outside_their_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidValueError, match=field):
        TrainConfig(**{"run_dir": "x", "batch_episodes": 128, field: value})


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(InvalidValueError, match="did you mean 'guess8'"):
        preset("gues8", "x")
    with pytest.raises(InvalidValueError, match="did you mean 'learning_rate'"):
        TrainConfig.from_json({"run_dir": "x", "learning_rat": 1.0})


def test_the_learning_rate_rises_and_falls() -> None:
    config = preset(
        "lins", "x", episodes=1000, batch_episodes=10, learning_rate=2.0, final_learning_rate=0.0, warmup_iterations=4
    )
    rates = [config.schedule(i, 0) for i in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == rates[4] == pytest.approx(1 - 4 / 99)
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[-1] == 0.0
    constant = preset("lins", "x", learning_rate=1.0, final_learning_rate=None, warmup_iterations=0)
    assert {constant.schedule(i, 0) for i in range(100)} == {1.0}
    by_tokens = preset("lins", "x", episodes=None, budget_tokens=1000, final_learning_rate=0.0, warmup_iterations=0)
    assert [by_tokens.schedule(9, tokens) for tokens in (0, 250, 1000, 1300)] == [1.0, 0.75, 0.0, 0.0]


def test_no_more_episodes_are_played_than_asked_for() -> None:
    assert preset("lins", "x", episodes=191, batch_episodes=64).iterations == 2
    assert preset("lins", "x", episodes=1, batch_episodes=64).iterations == 1
    assert (preset("lins", "x").iterations or 0) * preset("lins", "x").batch_episodes <= 15_000


def test_validation_problems_are_of_their_own_split() -> None:
    config = preset("lins", "x")
    assert (config.problems_of("train").name, config.problems_of("validation").name) == (
        "lins:train",
        "lins:validation",
    )
    own = preset("lins", "x", problems="add2", validation_problems="add3:test")
    assert (own.problems_of("train").name, own.problems_of("validation").name) == ("add2:train", "add3:test")


def test_fields_that_do_not_go_together_are_named() -> None:
    for changes, message in (
        ({"episodes": None}, "never end"),
        ({"algorithm": "gspo"}, "group_size must be 2 at least"),
        ({"random_weights": True, "model": "somewhere"}, "no use for model 'somewhere'"),
        ({"patience": 2, "eval_every": 0}, "patience counts evaluations"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            TrainConfig.from_json({"run_dir": "x", **changes})


@pytest.mark.parametrize("algorithm", ALGORITHM_NAMES)
@pytest.mark.parametrize("task", PRESETS)
def test_every_algorithm_has_settings_for_every_task(algorithm: str, task: str) -> None:
    assert preset(task, "x", algorithm=algorithm).algorithm == algorithm


def test_a_curriculum_is_named_by_its_families_and_levels() -> None:
    config = preset("mixed", "x", problems="curriculum:integers,linear@1-2")
    train, again = config.problems_of("train"), config.problems_of("train")
    assert isinstance(train, Curriculum)
    assert train is not again
    assert set(train.weights()) == {"integers@1", "integers@2", "linear@1", "linear@2"}
    validation = config.problems_of("validation")
    assert isinstance(validation, Mixture)
    assert [source.name for source in validation.sources] == [
        f"{family}@{level}:validation" for family in ("integers", "linear") for level in (1, 2)
    ]
    for wrong in ("curriculum:integers", "curriculum:", "curriculum:integers@2-1"):
        with pytest.raises(InvalidValueError, match="FAMILY,FAMILY@LOW-HIGH"):
            preset("mixed", "x", problems=wrong).problems_of("train")
    with pytest.raises(InvalidValueError, match="unknown problems 'intgers@1-2': did you mean 'integers'"):
        preset("mixed", "x", problems="curriculum:intgers@1-2").problems_of("test")


def test_a_mixture_is_split_part_by_part() -> None:
    found = preset("lins", "x", problems="lins+2*add2").problems_of("test")
    assert isinstance(found, Mixture)
    assert [source.name for source in found.sources] == ["lins:test", "add2:test"]
    assert found.weights == (1, 2)
