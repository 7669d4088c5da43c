"""What all trainers promise, and what each of them adds."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mathturn_gym.baselines import trainer as trainer_module
from mathturn_gym.baselines.algorithms import ALGORITHMS, run
from mathturn_gym.baselines.config import ALGORITHM_NAMES, TrainConfig, preset
from mathturn_gym.baselines.ppo import token_gae
from mathturn_gym.baselines.training import make_trainer, train
from mathturn_gym.errors import CheckpointError, InvalidValueError, MissingDependencyError
from mathturn_gym.returns import advantages
from mathturn_gym.rollout import collect
from mathturn_gym.synthetic import synthetic_episode
from mathturn_gym.types import Status, Verdict

SMALL: dict[str, Any] = {
    "episodes": 24,
    "batch_episodes": 8,
    "minibatches": 2,
    "epochs": 1,
    "eval_every": 2,
    "eval_episodes": 4,
    "save_every": 2,
    "num_turns": 2,
}


def small(run_dir: Path, algorithm: str, task: str = "lins", /, **changes: Any) -> TrainConfig:
    return preset(task, str(run_dir), algorithm=algorithm, **{**SMALL, **changes})


def timeless(history: Any) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "cpu_s"))} for row in history]


@pytest.mark.parametrize("algorithm", ALGORITHM_NAMES)
def test_every_algorithm_repeats_and_resumes_its_curve_to_the_bit(tmp_path: Path, algorithm: str) -> None:
    whole = train(small(tmp_path / "whole", algorithm))
    assert whole.status == "finished"
    assert all(np.isfinite(value) for row in whole.history for value in row.values())

    def interrupt(metrics: dict[str, float]) -> None:
        if metrics["iteration"] == 2:
            signal.raise_signal(signal.SIGINT)

    part = train(small(tmp_path / "part", algorithm), on_progress=interrupt)
    assert part.status == "interrupted"
    resumed = train(small(tmp_path / "part", algorithm), resume=True)
    assert timeless(resumed.history) == timeless(whole.history)
    pairs = zip(resumed.policy.model.parameters(), whole.policy.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_the_curriculum_is_part_of_what_resumes(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"problems": "curriculum:integers,linear@1-2", "max_completion_tokens": 4}
    whole = train(small(tmp_path / "whole", "reinforce", **changes))
    train(small(tmp_path / "part", "reinforce", **changes), on_progress=lambda m: _interrupt_at(m, 2))
    resumed = train(small(tmp_path / "part", "reinforce", **changes), resume=True)
    assert timeless(resumed.history) == timeless(whole.history)
    facts = json.loads((tmp_path / "part" / "checkpoint" / "trainer.json").read_text())
    assert sum(map(len, facts["numbers"]["curriculum"].values())) == 24


def _interrupt_at(metrics: dict[str, float], iteration: int) -> None:
    if metrics["iteration"] == iteration:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("algorithm", ["reinforce", "grpo", "dr_grpo", "gspo", "ppo", "rft"])
def test_accumulated_gradients_are_those_of_the_whole_minibatch(tmp_path: Path, algorithm: str) -> None:
    first, parts = (train(small(tmp_path / str(n), algorithm, accumulate=n, episodes=8, eval_every=0)) for n in (1, 3))
    a, b = first.history[1], parts.history[1]
    for name in ("loss", "entropy", "grad_norm", "ratio_mean"):
        assert a[f"train/{name}"] == pytest.approx(b[f"train/{name}"], rel=2e-4, abs=2e-6), name


def test_a_diverged_run_is_a_status_and_keeps_its_curve(tmp_path: Path) -> None:
    settings = {**SMALL, "learning_rate": 1e30, "final_learning_rate": None, "warmup_iterations": 0}
    result = run("reinforce", "lins", tmp_path / "run", settings=settings)
    assert result is not None
    assert result["status"] == "diverged"
    assert "nan" in result["message"]
    assert result["test"] is None
    assert result == json.loads((tmp_path / "run" / "result.json").read_text())
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") >= 1


def test_a_run_stops_early_where_nothing_improves(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "learning_rate": 0.0,
        "final_learning_rate": None,
        "patience": 2,
        "eval_every": 1,
        "episodes": 80,
    }
    done = train(small(tmp_path / "run", "reinforce", **changes))
    assert (done.status, done.episodes) == ("stopped_early", 16)
    assert "2 evaluations" in done.message


def test_budgets_end_a_run(tmp_path: Path) -> None:
    by_tokens = run("reinforce", "lins", tmp_path / "a", tokens=100, settings={**SMALL, "episodes": None})
    assert by_tokens is not None
    assert 100 <= by_tokens["tokens"] < 100 + 8 * 2 * 8
    assert by_tokens["budget_tokens"] == 100
    assert by_tokens["test"]["episodes"] == 1024
    assert 0.2 < by_tokens["test"]["acc@1"] < 0.6
    done = train(small(tmp_path / "b", "reinforce", episodes=None, budget_cpu_s=1e-6))
    assert (done.status, done.episodes) == ("finished", 8)
    assert done.cpu_s > 1e-6


def test_run_names_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="did you mean 'grpo'"):
        run("grop", "lins", tmp_path / "run")
    with pytest.raises(InvalidValueError, match="settings must not hold seed"):
        run("grpo", "lins", tmp_path / "run", settings={"seed": 3})
    with pytest.raises(InvalidValueError, match="group_size must be 2 at least"):
        run("grpo", "lins", tmp_path / "run", settings={"group_size": 1})
    assert not (tmp_path / "run").exists()


def test_every_trainer_can_be_compared() -> None:
    assert {name for name, one in ALGORITHMS.items() if one.kind == "language model"} == set(ALGORITHM_NAMES)


def test_a_run_from_random_weights_samples_the_allowed_ids_alone(tmp_path: Path) -> None:
    config = small(tmp_path / "run", "reinforce", "add1")
    trainer = make_trainer(config)
    try:
        episodes = trainer._play()
        ids = {trainer.policy.tokenizer.decode([i]) for e in episodes for i in e.ids[e.loss_mask].tolist()}  # type: ignore[union-attr]
        assert ids <= {*"0123456789", "\\boxed{", "}", "<|im_end|>"}
        assert len(ids) > 8  # and none of them is the only one
        # Training sees the distribution that was sampled from: ratios of an unchanged policy are 1.
        batch = trainer.credit(episodes)
        logprobs, _ = trainer._logprobs(trainer.model, batch)
        gap = (logprobs - batch.behavior_logprobs)[batch.loss_mask].detach().abs().max()
        assert float(gap) < 1e-5
        other = make_trainer(small(tmp_path / "other", "reinforce", "add1", seed=1))
        assert not torch.equal(next(other.model.parameters()), next(trainer.model.parameters()))
        other.close()
    finally:
        trainer.close()


def test_a_reference_keeps_the_policy_near_the_start(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "episodes": 64,
        "eval_every": 0,
        "eval_episodes": 0,
        "learning_rate": 3e-3,
        "warmup_iterations": 0,
    }
    free, held = (train(small(tmp_path / str(w), "reinforce_pp", kl_weight=w, **changes)) for w in (1e-9, 10.0))
    assert 0 < held.history[-1]["train/kl"] < free.history[-1]["train/kl"]


def test_bfloat16_trains(tmp_path: Path) -> None:
    done = train(small(tmp_path / "run", "ppo", precision="bfloat16", episodes=8))
    assert done.status == "finished"
    assert done.history[1]["train/grad_norm"] > 0
    assert {p.dtype for p in done.policy.model.parameters()} == {torch.float32}


@given(st.data())
def test_token_gae_is_turn_gae_where_a_turn_is_one_id(data: st.DataObject) -> None:
    turns = data.draw(st.integers(1, 5))
    reals = st.floats(-2, 2)
    values = np.array([data.draw(reals) for _ in range(turns)])
    rewards = np.array([data.draw(reals) for _ in range(turns)])
    discount, lam = data.draw(st.floats(0, 1)), data.draw(st.floats(0, 1))
    episode = synthetic_episode(0, 0, [1] * turns, rewards=rewards)
    with pytest.warns() if lam < 1 else pytest.MonkeyPatch.context():
        expected = advantages([episode], "gae", values=[values], discount=discount, gae_lambda=lam)[0]
    # Per turn, lambda multiplies discount; per id the discount falls on the same place.
    found = token_gae(values, np.ones(turns, np.int64), rewards, discount, lam)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_token_gae_without_bootstrapping_is_the_return_less_the_value() -> None:
    values, lengths = np.array([0.1, 0.2, 0.3, 0.4]), np.array([2, 0, 2])
    found = token_gae(values, lengths, [1.0, 10.0, 100.0], discount=0.5, gae_lambda=1.0, last_value=8.0)
    last = 100 + 0.5 * 8
    first = 1 + 0.5 * (10 + 0.5 * last)  # the turn without ids passes its reward on
    np.testing.assert_allclose(found + values, [first, first, last, last])
    alone = token_gae(values, lengths, [1.0, 10.0, 100.0], discount=0.0, gae_lambda=0.0)
    np.testing.assert_allclose(alone, [0.1, 0.8, 0.1, 99.6])


def test_a_critic_learns_what_turns_are_worth(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"episodes": 192, "batch_episodes": 32, "epochs": 4, "eval_every": 0, "eval_episodes": 0}
    for algorithm in ("ppo", "turn_ppo"):
        done = train(small(tmp_path / algorithm, algorithm, critic_learning_rate=3e-3, warmup_iterations=0, **changes))
        losses = [row["train/critic_loss"] for row in done.history[1:]]
        assert losses[-1] < 0.8 * losses[0], algorithm


def test_rejection_sampling_learns_from_right_turns_alone(tmp_path: Path) -> None:
    trainer = make_trainer(small(tmp_path / "run", "rft"))
    right, wrong = Verdict(Status.RIGHT), Verdict(Status.WRONG)
    try:
        mixed = synthetic_episode(0, 0, [2, 3], verdicts=(wrong, right))
        batch = trainer.credit([mixed, synthetic_episode(0, 1, [2], verdicts=(wrong,))])
        assert float(batch.advantages.sum()) == 3.0
        logprobs = torch.full(batch.input_ids.shape, -2.0, requires_grad=True)
        out = trainer.loss(logprobs, batch, batch)
        out.loss.backward()  # type: ignore[no-untyped-call]
        assert float(out.loss.detach()) == pytest.approx(2.0)
        assert logprobs.grad is not None
        assert sorted(set(logprobs.grad[batch.loss_mask].tolist())) == pytest.approx([-1 / 3, 0.0])
    finally:
        trainer.close()


def test_a_checkpoint_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    train(small(tmp_path / "run", "reinforce", episodes=8))
    other = make_trainer(small(tmp_path / "other", "ppo"))
    try:
        with pytest.raises(CheckpointError, match="no checkpoint of this run"):
            other.load(tmp_path / "run" / "checkpoint")
    finally:
        other.close()


def test_figures_go_to_weights_and_biases_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(tmp_path / "run", "reinforce", episodes=8, wandb_project="mine")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingDependencyError, match=r"mathturn-gym\[wandb\]"):
        train(config)
    seen: list[Any] = []
    logged = SimpleNamespace(log=lambda row, step: seen.append((step, row)), finish=lambda: seen.append("finished"))

    def init(**settings: Any) -> Any:
        assert settings["project"] == "mine"
        return logged

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    done = train(config, overwrite=True)
    assert [one[0] if isinstance(one, tuple) else one for one in seen] == [0, 1, "finished"]
    assert seen[1][1] == done.history[1]


def test_problems_of_one_group_are_one_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[list[str]] = []

    def watched(*args: Any, **kwargs: Any) -> Any:
        episodes = collect(*args, **kwargs)
        if kwargs.get("group_size", 1) > 1:
            groups.extend([e.problem_id for e in episodes[i : i + 4]] for i in range(0, len(episodes), 4))
        return episodes

    monkeypatch.setattr(trainer_module, "collect", watched)
    train(small(tmp_path / "run", "rloo", group_size=4, episodes=16, eval_every=0, eval_episodes=0))
    assert len(groups) == 4
    assert all(len(set(group)) == 1 for group in groups)
    assert len({group[0] for group in groups}) > 1
