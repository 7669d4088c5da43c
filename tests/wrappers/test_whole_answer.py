"""The view with one answer per step."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

import mathturn_gym  # registers the ids
from mathturn_gym.env.dialogue import load_tokenizer
from mathturn_gym.errors import EpisodeStateError, InvalidActionError
from mathturn_gym.policies.sampling import answer_ids
from mathturn_gym.wrappers import WholeAnswerEnv

assert mathturn_gym
TOKENIZER = load_tokenizer("builtin")
IDS = answer_ids(TOKENIZER)
END = TOKENIZER.eos_token_id
VOCAB = len(TOKENIZER)
TASK: dict[str, Any] = {"problems": "add1", "num_turns": 3, "max_completion_tokens": 6}


def ids_of(text: str) -> list[int]:
    return list(TOKENIZER.encode(text))


def test_a_step_is_a_turn_and_the_first_end_counts() -> None:
    env = WholeAnswerEnv(gym.make("MathMultiTurnUntilCorrect-v0", **TASK))
    env.reset(seed=0)
    base: Any = env.env.unwrapped
    wrong = [*ids_of("\\boxed{99}"), END, END]
    _, reward, terminated, _, info = env.step(np.array(wrong[:6]))
    assert (reward, terminated, info["response"]) == (-1.0, False, "\\boxed{99}")
    right = [*ids_of(f"\\boxed{{{base.problem.gold[0]}}}"), END, 7, 7, 7][:6]
    _, reward, terminated, _, info = env.step(np.array(right))
    assert (reward, terminated, info["is_success"]) == (1.0, True, True)
    with pytest.raises(EpisodeStateError):
        env.step(np.array(wrong[:6]))
    env.reset()
    with pytest.raises(InvalidActionError, match="MultiDiscrete"):
        env.step(np.array([0, 1]))


def test_masks_are_repeated_for_every_entry() -> None:
    env = WholeAnswerEnv(gym.make("MathSingleTurn-v0", **{**TASK, "num_turns": 1}), allowed_ids=IDS)
    masks = env.action_masks().reshape(6, VOCAB)
    assert [np.flatnonzero(row).tolist() for row in masks] == [sorted(IDS)] * 6


@pytest.mark.parametrize("view", [{"action_ids": IDS}, {"observation": "dict"}], ids=["ids", "dict"])
def test_checkers(view: dict[str, Any]) -> None:
    from stable_baselines3.common.env_checker import check_env

    def make() -> gym.Env[Any, Any]:
        return WholeAnswerEnv(gym.make("MathMultiTurnUntilCorrect-v0", **TASK), **view)

    check_env(make(), warn=True)  # every warning is an error here
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gymnasium_check_env(make(), skip_render_check=True)
