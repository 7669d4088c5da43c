"""Training without reward leaves the policy as it is; learning rates follow the model's size."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from mathturn_gym.baselines import RunConfig
from mathturn_gym.baselines.algorithms import registered
from mathturn_gym.baselines.batches import DryWatch, groups_of, has_advantage, uniform_share
from mathturn_gym.baselines.settings import default_learning_rate
from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.episodes.packing import pack
from mathturn_gym.episodes.returns import returns_to_go
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Status, Verdict

Small = Callable[..., RunConfig]
TRAINERS = sorted(name for name, kind in registered().items() if kind.kind == "language model")
QUIET = {"evaluation.every": 0, "evaluation.episodes": 0}


def always_wrong(response: str, gold: str) -> Verdict:
    return Verdict(Status.WRONG)


class Sometimes:
    """Right at the calls that are given, wrong at all others."""

    def __init__(self, *right: int) -> None:
        self._right, self._calls = right, 0

    def __call__(self, response: str, gold: str) -> Verdict:
        self._calls += 1
        return Verdict(Status.RIGHT if self._calls in self._right else Status.WRONG)


def judged_by(config: RunConfig, verifier: Any) -> RunConfig:
    return dataclasses.replace(config, env=config.env.replace(verifier=verifier))


@pytest.fixture
def trainer_of() -> Iterator[Callable[[RunConfig], Trainer]]:
    made: list[Trainer] = []

    def make(config: RunConfig) -> Trainer:
        made.append(Trainer(config))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in trainer.model.parameters()])


@pytest.mark.parametrize("algorithm", TRAINERS)
def test_without_any_reward_no_algorithm_moves_the_policy(
    small: Small, trainer_of: Callable[[RunConfig], Trainer], algorithm: str
) -> None:
    settings = {**QUIET, "learning_rate": 1e-3, "warmup": 0, "entropy_weight": 0.05, "epochs": 1}
    trainer = trainer_of(judged_by(small(algorithm, settings), always_wrong))
    before = weights(trainer)
    rows = [trainer.step() for _ in range(4)]
    assert torch.equal(weights(trainer), before)
    assert [row["train/skipped"] for row in rows] == [1.0] * 4
    assert all(np.isfinite(value) for row in rows for value in row.values())
    assert rows[0]["train/entropy"] > 0.05, "what is logged is still what it is"


@pytest.mark.parametrize("algorithm", ["clipped_reinforce", "grpo", "online_rft"])
def test_one_success_and_then_none_does_not_dissolve_the_policy(
    small: Small, trainer_of: Callable[[RunConfig], Trainer], algorithm: str
) -> None:
    settings = {**QUIET, "learning_rate": 1e-3, "warmup": 0, "entropy_weight": 0.005, "epochs": 1}
    trainer = trainer_of(judged_by(small(algorithm, settings, episodes=8 * 30), Sometimes(20)))
    rows = [trainer.step() for _ in range(30)]
    assert max(row["train/acc@2"] for row in rows) > 0, "there was a success"
    first, last = rows[0]["train/entropy"], rows[-1]["train/entropy"]
    assert last < 2 * first + 0.5


def test_a_batch_with_a_signal_is_learned_from(small: Small, trainer_of: Callable[[RunConfig], Trainer]) -> None:
    trainer = trainer_of(small(settings={**QUIET, "batch_episodes": 32}))
    before = weights(trainer)
    row = trainer.step()
    assert row["train/skipped"] == 0.0
    assert row["train/grad_norm"] > 0
    assert not torch.equal(weights(trainer), before)


def test_a_signal_is_an_advantage_that_is_more_than_rounding() -> None:
    episodes = [synthetic_episode(0, i, [2, 2]) for i in range(3)]

    def of(*values: float) -> bool:
        return has_advantage(pack(episodes, advantages=[np.full(2, value, np.float32) for value in values]))

    assert of(0.0, 0.0, 1e-3)
    assert not of(0.0, 0.0, 0.0)
    assert not of(0.0, 1e-9, 0.0)
    assert not has_advantage(pack([synthetic_episode(0, 0, [0])]))


def test_groups_without_a_difference_are_counted() -> None:
    rewards = {"a": [[1.0], [1.0]], "b": [[-1.0, 1.0], [-1.0, -1.0]], "c": [[-1.0, 1.0], [0.0, 0.0]]}
    episodes = [
        synthetic_episode(0, i, [1] * len(row), group=name, rewards=np.array(row), returns=returns_to_go(row, 1.0))
        for name, rows in rewards.items()
        for i, row in enumerate(rows)
    ]
    assert [len(group) for group in groups_of(episodes)] == [2, 2, 2]
    assert uniform_share(episodes) == pytest.approx(1 / 3)
    assert len(groups_of([synthetic_episode(0, i, [1]) for i in range(3)])) == 3


def test_a_dry_run_and_a_dissolving_policy_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = DryWatch()
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            watch.see(False, 0.4, 128)
        assert caplog.text.count("no action was better than another in the last 3 iterations (384 episodes)") == 1
        watch.see(True, 1.2, 128)
        assert "entropy" not in caplog.text
        for _ in range(3):
            watch.see(True, 1.5, 128)
        assert caplog.text.count("entropy has risen from 0.40 to 1.50 nats") == 1


# ---- learning rates


def test_the_learning_rate_follows_the_models_size(small: Small, trainer_of: Callable[[RunConfig], Trainer]) -> None:
    assert default_learning_rate(1_060_000) == pytest.approx(2.5e-4, rel=0.01)
    assert default_learning_rate(1) == 1e-3
    config = small(settings=QUIET)
    config = dataclasses.replace(
        config, optimization=dataclasses.replace(config.optimization, learning_rate=None, final_learning_rate=None)
    )
    trainer = trainer_of(config)
    parameters = sum(p.numel() for p in trainer.model.parameters())
    assert trainer.config.optimization.learning_rate == default_learning_rate(parameters)
    assert trainer.step()["train/learning_rate"] > 0


@pytest.mark.parametrize(("rate", "said"), [(1e-3, False), (5e-3, True)])
def test_a_rate_that_was_made_for_another_model_is_warned_of(
    small: Small, trainer_of: Callable[[RunConfig], Trainer], caplog: pytest.LogCaptureFixture, rate: float, said: bool
) -> None:
    with caplog.at_level(logging.WARNING):
        trainer_of(small(settings={**QUIET, "learning_rate": rate}))
    assert ("times what suits a model of this size" in caplog.text) == said


def test_what_was_tuned_for_a_tasks_own_policy_is_not_taken_for_another() -> None:
    own = load_task("lins").config("ppo")
    assert (own.optimization.learning_rate, own.algorithm.entropy_weight) == (1e-3, 0.005)  # type: ignore[attr-defined]
    other = load_task("lins").config("ppo", {"policy.model": "smollm2"})
    assert other.optimization.learning_rate is None
    assert other.optimization.final_learning_rate is None
    assert other.algorithm.entropy_weight == 0.0  # type: ignore[attr-defined]
    assert other.algorithm.critic_learning_rate is None  # type: ignore[attr-defined]
    assert other.algorithm.discount == own.algorithm.discount  # type: ignore[attr-defined]
    told = load_task("lins").config("ppo", {"model": "smollm2", "learning_rate": 3e-6, "entropy_weight": 0.01})
    assert (told.optimization.learning_rate, told.algorithm.entropy_weight) == (3e-6, 0.01)  # type: ignore[attr-defined]
