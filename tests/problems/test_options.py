"""Choosing problems at `reset`, and feedback that needs the turns before."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems import load_problems
from mathturn_gym.types import Problem


def reset(env: MathMultiTurnEnv, **options: Any) -> dict[str, Any]:
    return env.reset(seed=3, options=options)[1]


def test_family_and_level_choose_a_part_of_the_problems() -> None:
    env = MathMultiTurnEnv("families")
    info = reset(env, family="primes", level=4)
    assert info["problem_id"] == load_problems("primes@4").get(3, 0).id
    assert env.reset(options={"problem_id": info["problem_id"]})[1]["metadata"] == info["metadata"]
    assert reset(env, level=2)["metadata"]["level"] == 2
    assert reset(env, family="words")["metadata"]["family"] == "words"
    assert reset(env, family="words", level=1, index=9)["problem_id"] == load_problems("words@1").get(3, 9).id


def test_the_stream_goes_on_after_a_choice() -> None:
    env, other = MathMultiTurnEnv("linear"), MathMultiTurnEnv("linear")
    reset(env, level=5)
    env.reset(options={"level": 5})
    other.reset(seed=3)
    other.reset()
    assert env.reset()[1]["problem_id"] == other.reset()[1]["problem_id"]


@pytest.mark.parametrize(
    ("problems", "options", "message"),
    [
        ("primes", {"family": "words"}, "unknown family 'words'"),
        ("primes", {"level": 6}, "level must be an integer in"),
        ("primes", {"level": "2"}, r"options\['level'\] must be an integer"),
        ("lins", {"level": 1}, "without levels"),
        ("primes@2", {"level": 1}, "has level 2 only"),
        ("primes", {"levle": 1}, "did you mean 'level'"),
    ],
)
def test_choices_that_are_not_there_are_named(problems: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        reset(MathMultiTurnEnv(problems), **options)


def test_a_vector_environment_takes_the_same_options() -> None:
    env = gym.make_vec("MathMultiTurn-v0", num_envs=2, problems="families")
    _, infos = env.reset(seed=0, options={"family": "bases", "level": 3})
    assert list(infos["problem_id"]) == [load_problems("bases@3").get(seed, 0).id for seed in (0, 1)]
    env.close()


def test_delayed_feedback_is_about_the_turn_before() -> None:
    env = MathMultiTurnEnv([Problem("p", "6*7=?", "42")], feedback="delayed")
    env.reset(seed=0)
    said = []
    for text in (r"\boxed{42}", r"\boxed{41}", r"\boxed{41}"):
        ids = np.array(env.dialogue.tokenizer(text, add_special_tokens=False)["input_ids"], np.int64)
        said.append(env.step(ids)[-1]["feedback"].split(".")[0].split("!")[0])
    assert said == ["Please check your answer", "Congratulations", "Unfortunately your answer is wrong"]
