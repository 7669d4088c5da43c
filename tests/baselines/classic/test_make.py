"""`make_token_env`: the view from an id, made again from its spec, and in RLlib."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from mathturn_gym.baselines.classic import make_token_env
from mathturn_gym.env.dialogue import load_tokenizer
from mathturn_gym.policies.sampling import answer_ids

IDS = answer_ids(load_tokenizer("builtin"))
TASK: dict[str, Any] = {"problems": "add1", "num_turns": 3, "max_completion_tokens": 6}


def test_its_spec_makes_it_again() -> None:
    env = make_token_env(**TASK, window=20, action_ids=IDS)
    assert env.spec is not None
    again = env.spec.make(render_mode="ansi")
    assert again.unwrapped.observation_space == env.observation_space
    again.reset(seed=0)
    assert isinstance(again.render(), str)


def test_rllib() -> None:
    ppo: Any = pytest.importorskip("ray.rllib.algorithms.ppo", reason="ray is not installed: no RLlib to try")
    tune: Any = pytest.importorskip("ray.tune")

    def make(_: object) -> gym.Env[Any, Any]:  # RLlib's encoders take floats only
        return gym.wrappers.DtypeObservation(make_token_env(**TASK, action_ids=IDS), np.float32)

    tune.register_env("mathturn-tokens", make)
    config = (
        ppo.PPOConfig()
        .environment("mathturn-tokens")
        .env_runners(num_env_runners=0)
        .training(train_batch_size=256, minibatch_size=64, num_epochs=1)
    )
    algorithm = config.build_algo()
    try:
        sampled = algorithm.train()["env_runners"]
    finally:
        algorithm.stop()
    assert sampled["num_env_steps_sampled"] >= 256
    assert sampled["num_episodes"] > 0
