"""Training on episodes of several segments: what is learned is what one sequence per episode would teach."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from mathturn_gym.baselines import RunConfig
from mathturn_gym.baselines._evaluation import with_advantages
from mathturn_gym.baselines.algorithms import registered
from mathturn_gym.baselines.batches import episode_of_rows, select_episodes, without_cut_off
from mathturn_gym.baselines.trainer import Drawn, Trainer
from mathturn_gym.episodes.packing import pack
from mathturn_gym.episodes.returns import returns_to_go
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode

Small = Callable[..., RunConfig]
BY_TOKEN = {"ppo", "turn_ppo"}
BY_TURN = sorted(n for n, kind in registered().items() if kind.kind == "language model" and n not in BY_TOKEN)


def episodes_in_segments(group: int, vocab_size: int) -> list[Episode]:
    """Eight episodes of three turns, every other one written anew before its second and third turn."""
    found = []
    for i in range(8):
        rewards = np.array([0.0, 0.0, float(i % 3 == 0)])
        episode = synthetic_episode(
            0, i, [3, 2, 4], vocab_size=vocab_size, group=f"g{i // group}", anew=(1, 2) if i % 2 else ()
        )
        returns = np.asarray(returns_to_go(rewards, 1.0), np.float32)
        found.append(dataclasses.replace(episode, rewards=rewards, returns=returns, discount=1.0))
    return found


def make(small: Small, algorithm: str, **settings: Any) -> Trainer:
    steps = {} if registered()[algorithm].on_policy else {"minibatches": 2}  # type: ignore[attr-defined]
    quiet = {"evaluation.every": 0, "evaluation.episodes": 0, "env.num_turns": 3}
    return Trainer(small(algorithm, {**quiet, **steps, **settings}, task="lins", episodes=8))


@pytest.mark.parametrize("algorithm", BY_TURN)
def test_every_algorithm_that_credits_turns_learns_from_them(small: Small, algorithm: str) -> None:
    trainer = make(small, algorithm)
    try:
        episodes = episodes_in_segments(trainer.algorithm.episodes_per_problem, trainer.policy.vocab_size)
        trainer.draw = lambda: Drawn(episodes, episodes)  # type: ignore[method-assign]
        figures = trainer.step()
        assert np.isfinite(list(figures.values())).all()
        noted = [episode.token_values["advantage"] for episode in trainer._learned_from]
        for episode, values in zip(episodes, noted, strict=True):
            assert (np.isfinite(values) == episode.loss_mask).all(), (
                "every sampled token, in whichever segment, has one"
            )
    finally:
        trainer.close()


@pytest.mark.parametrize("algorithm", sorted(BY_TOKEN))
def test_one_that_credits_tokens_says_that_it_cannot(small: Small, algorithm: str) -> None:
    trainer = make(small, algorithm)
    try:
        episodes = episodes_in_segments(1, trainer.policy.vocab_size)
        trainer.draw = lambda: Drawn(episodes, episodes)  # type: ignore[method-assign]
        with pytest.raises(
            InvalidValueError, match=f"{algorithm} gives tokens their advantages, and reads an episode as"
        ):
            trainer.step()
    finally:
        trainer.close()


def test_minibatches_and_parts_keep_an_episodes_segments_together(small: Small) -> None:
    trainer = make(small, "grpo", group_size=2, minibatches=2, accumulate=2)
    try:
        batch = trainer.credit(episodes_in_segments(2, trainer.policy.vocab_size))
        assert batch.num_rows == 4 + 4 * 3
        for minibatch in trainer.minibatches(batch, "x"):
            assert (len(minibatch.facts), minibatch.split_episodes) == (4, ())
            assert [(len(part.facts), part.split_episodes) for part in trainer.parts(minibatch)] == [(2, ()), (2, ())]
    finally:
        trainer.close()


def test_rows_by_episode() -> None:
    batch = pack(episodes_in_segments(2, 50))
    assert episode_of_rows(batch).tolist() == [0, 1, 1, 1, 2, 3, 3, 3, 4, 5, 5, 5, 6, 7, 7, 7]
    assert [fact["index"] for fact in select_episodes(batch, [1, 6]).facts] == [1, 6]
    assert select_episodes(batch, [1, 6]).num_rows == 4


def test_turns_that_were_cut_off_are_left_out_in_every_segment() -> None:
    cut = dataclasses.replace(episodes_in_segments(2, 50)[1], turn_truncated=(False, True, False))
    found = without_cut_off(pack([cut]))
    assert found.loss_mask.sum(-1).tolist() == [3, 0, 4]


def test_advantages_go_back_to_the_tokens_that_they_were_for() -> None:
    episode = episodes_in_segments(2, 50)[1]
    (found,) = with_advantages([episode], pack([episode], advantages=[[1.0, 2.0, 3.0]]))
    values = found.token_values["advantage"][episode.loss_mask]
    assert torch.from_numpy(values).tolist() == [1.0] * 3 + [2.0] * 2 + [3.0] * 4


def test_what_is_left_is_enough_for_every_rank(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make(small, "grpo", group_size=2, minibatches=1, entropy_weight=0.0)
    try:
        batch = pack(episodes_in_segments(2, 50), advantages=[[0.0] * 3] * 6 + [[1.0] * 3, [-1.0] * 3])
        kept, dropped = trainer._drop_rows_without_advantage(batch)
        assert dropped is not None
        assert ([fact["index"] for fact in kept.facts], len(dropped.facts)) == ([6, 7], 6)
        monkeypatch.setattr(Trainer, "fewest_episodes", 3)
        assert trainer._drop_rows_without_advantage(batch) == (batch, None)
    finally:
        trainer.close()
