"""The algorithms under `examples/algorithms/`: each trains, and computes what its paper says."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import numpy as np
import pytest

from mathturn_gym.baselines import RunConfig, train
from mathturn_gym.baselines.algorithms import Part, State
from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.episodes.packing import pack
from mathturn_gym.testing import synthetic_episode

FOLDER = Path(__file__).parents[3] / "examples" / "algorithms"
ALGORITHMS = {
    "branching": "Branching",
    "cispo": "CISPO",
    "echo": "ECHO",
    "expert_iteration": "ExpertIteration",
    "mt_grpo": "MTGRPO",
    "pass_at_k": "PassAtK",
    "self_distillation": "SelfDistillation",
}


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def test_every_file_is_run() -> None:
    assert {file.stem for file in FOLDER.glob("*.py")} == set(ALGORITHMS)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_example_trains_from_its_import_path(small: Callable[..., RunConfig], tmp_path: Path, name: str) -> None:
    kind = getattr(importlib.import_module(name), ALGORITHMS[name])
    settings = {option: value for option, value in (("group_size", 4), ("k", 2)) if option in kind.option_names()}
    quick = {"evaluation.episodes": 0, "evaluation.every": 0}
    config = small(f"{name}:{kind.__name__}", {**settings, **quick}, task="guess8", episodes=16)
    done = train(config, run_dir=tmp_path / "run")
    assert done.status == "finished"
    assert sum(row.get("train/grad_norm", 0.0) for row in done.history) > 0, "it learned something"


def test_cispo_keeps_the_gradient_of_a_token_that_ppo_drops() -> None:
    episodes = [synthetic_episode(0, 0, [2], rewards=np.array([1.0]))]
    batch = pack(episodes, advantages=[np.array([2.0], np.float32)])
    logprobs: Any = (batch.behavior_logprobs + 1.0).requires_grad_()  # a ratio of e, far above 1.2
    importlib.import_module("cispo").CISPO().loss(logprobs, Part(batch, batch, {}), State()).loss.backward()
    assert logprobs.grad[batch.loss_mask].tolist() == pytest.approx([-2.0 * 1.2 / 2] * 2)


@pytest.mark.parametrize(("group", "wrong", "k"), [(4, 3, 2), (5, 2, 3), (6, 5, 4), (4, 0, 2)])
def test_pass_at_k_gains_are_means_over_all_sets(group: int, wrong: int, k: int) -> None:
    sets = list(itertools.combinations(range(group), k))  # samples below `wrong` are wrong
    rewards = [float(any(one >= wrong for one in those)) for those in sets]
    spread = pstdev(rewards)
    found = importlib.import_module("pass_at_k").gains(group, wrong, k)
    for sample, gain in ((group - 1, found[0]), (0, found[1])):
        own = mean(reward for reward, those in zip(rewards, sets, strict=True) if sample in those)
        assert gain == pytest.approx((own - mean(rewards)) / spread if spread else 0.0)


def test_mt_grpo_adds_the_outcome_to_the_turn() -> None:
    group = [
        synthetic_episode(0, 0, [1, 1], rewards=np.array([1.0, 0.0]), group="g"),
        synthetic_episode(1, 0, [1, 1], rewards=np.array([0.0, 1.0]), group="g"),
    ]
    half = 1 / 2**0.5  # two values differ from their mean by half their difference, and deviate by 1 / sqrt 2
    first, second = importlib.import_module("mt_grpo").MTGRPO(outcome_weight=0.5).credit(group, State())
    assert first.tolist() == pytest.approx([half - 0.5 * half, -half], abs=1e-3)
    assert second.tolist() == pytest.approx([-half + 0.5 * half, half], abs=1e-3)


def test_branches_begin_in_the_states_of_the_episode(small: Callable[..., RunConfig]) -> None:
    module = importlib.import_module("branching")
    quick = {"evaluation.episodes": 0, "evaluation.every": 0, "env.num_turns": 3}
    trainer = Trainer(small(module.Branching(branches=2), quick, task="guess8"))
    episodes = trainer.play()
    longest = max(episodes, key=lambda episode: episode.num_turns)
    states = trainer.state.states(longest, {"index": longest.index})
    assert [len(state.ids) for state in states] == longest.turn_spans[:, 0].tolist()
    assert all((state.ids == longest.ids[: len(state.ids)]).all() for state in states)
    values = trainer.state.values(states, 2, 1.0)
    assert values.shape == (longest.num_turns,)
    assert trainer.state.tokens > 0
    trainer.close()


def test_the_teacher_scores_the_same_answer_after_its_feedback() -> None:
    module = importlib.import_module("self_distillation")
    episode = synthetic_episode(0, 0, [2, 3], rewards=np.array([0.0, 1.0]))
    (start, end), (following, _) = episode.turn_spans.tolist()
    again = module._answered_again(episode, start, end, following)
    assert again.ids[again.loss_mask].tolist() == episode.ids[start:end].tolist()
    assert again.ids[:following].tolist() == episode.ids[:following].tolist()
