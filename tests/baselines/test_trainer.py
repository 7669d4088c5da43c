"""What the trainer does for every algorithm: accumulation, precision, groups, references, adapters."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mathturn_gym.baselines import Budget, RunConfig, train
from mathturn_gym.baselines import trainer as module
from mathturn_gym.baselines._evaluation import accuracy_by_turn
from mathturn_gym.baselines.algorithms import registered
from mathturn_gym.baselines.run_folder import TrainerState, load_checkpoint
from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.errors import CheckpointError, InvalidValueError
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Status, Verdict
from mathturn_gym.wrappers import load_policy

Small = Callable[..., RunConfig]
Timeless = Callable[[Any], list[dict[str, float]]]
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # in peft
TRAINERS = sorted(name for name, kind in registered().items() if kind.kind == "language model")
QUIET = {"evaluation.every": 0, "evaluation.episodes": 0}


def interrupt_at(iteration: int) -> Callable[[Any], None]:
    def interrupt(metrics: dict[str, float]) -> None:
        if metrics["iteration"] == iteration:
            signal.raise_signal(signal.SIGINT)

    return interrupt


# One of each file and kind of credit; the others are their variants.
OFTEN = {"clipped_reinforce", "grpo", "online_rft", "ppo", "rloo", "turn_reinforce_pp"}


@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=[] if name in OFTEN else pytest.mark.slow) for name in TRAINERS]
)
def test_every_algorithm_repeats_and_resumes_its_curve_to_the_bit(
    tmp_path: Path, small: Small, timeless: Timeless, algorithm: str
) -> None:
    config = small(algorithm, {"batch_episodes": 8})
    whole = train(config, run_dir=tmp_path / "whole")
    assert whole.status == "finished"
    assert all(np.isfinite(value) for row in whole.history for value in row.values())
    part = train(config, run_dir=tmp_path / "part", on_progress=interrupt_at(2))
    assert part.status == "interrupted"
    resumed = train(config, run_dir=tmp_path / "part", resume=True)
    assert timeless(resumed.history) == timeless(whole.history)
    pairs = zip(resumed.policy.model.parameters(), whole.policy.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_all_tokens_are_those_of_prompts_and_feedback_too(tmp_path: Path, small: Small) -> None:
    config = small("grpo", {**QUIET, "dynamic_sampling": 1, "group_size": 2})
    trainer, twin = Trainer(config), Trainer(config)
    try:
        counted, sampled = trainer.step(), twin.draw().sampled
    finally:
        trainer.close()
        twin.close()
    written = sum(int(episode.loss_mask.sum()) for episode in sampled)
    turns = [turn for episode in sampled for turn in episode.turns]
    read = sum(len(turn.feedback_ids) + len(turn.context) * (turn.index == 0) for turn in turns)
    assert counted["tokens"] == written
    assert counted["total_tokens"] == written + read > 2 * written
    budget = int(counted["total_tokens"]) + 1
    result = train(config, budget=Budget(total_tokens=budget), run_dir=tmp_path / "run")
    assert [row["total_tokens"] >= budget for row in result.history] == [False, False, True], "ended by it"
    assert (
        json.loads((tmp_path / "run" / "result.json").read_text())["total_tokens"] == result.history[-1]["total_tokens"]
    )


def test_a_checkpoint_that_did_not_count_them_goes_on(
    tmp_path: Path, small: Small, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(small(settings=QUIET, episodes=8), run_dir=tmp_path / "run")

    def older(path: Path) -> TrainerState:
        state = load_checkpoint(path)
        return dataclasses.replace(state, numbers={k: v for k, v in state.numbers.items() if k != "total_tokens"})

    monkeypatch.setattr(module, "load_checkpoint", older)
    trainer = Trainer(small(settings=QUIET, episodes=16))
    trainer.load(tmp_path / "run" / "checkpoint")
    trainer.close()
    assert (trainer.total_tokens, trainer.iteration) == (0, 1)
    assert "total_tokens counts from here on" in caplog.text


def test_the_curriculum_is_part_of_what_resumes(tmp_path: Path, small: Small, timeless: Timeless) -> None:
    config = small(settings={"env.problems": "curriculum:integers,linear@1-2", "max_completion_tokens": 4})
    whole = train(config, run_dir=tmp_path / "whole")
    train(config, run_dir=tmp_path / "part", on_progress=interrupt_at(2))
    resumed = train(config, run_dir=tmp_path / "part", resume=True)
    assert timeless(resumed.history) == timeless(whole.history)
    facts = json.loads((tmp_path / "part" / "checkpoint" / "trainer.json").read_text())
    assert sum(map(len, facts["numbers"]["curriculum"].values())) == 24


@pytest.mark.parametrize(
    "algorithm", ["reinforce", "clipped_reinforce", "rloo", "grpo", "dr_grpo", "gspo", "ppo", "online_rft"]
)
def test_accumulated_gradients_are_those_of_the_whole_minibatch(tmp_path: Path, small: Small, algorithm: str) -> None:
    ways: list[dict[str, Any]] = [{}, {"accumulate": 3}, {"micro_batch_tokens": 150}]
    whole, *others = (
        train(small(algorithm, {**QUIET, **way}, episodes=8), run_dir=tmp_path / str(n)) for n, way in enumerate(ways)
    )
    for parts in others:
        a, b = whole.history[1], parts.history[1]
        for name in ("loss", "entropy", "grad_norm", "ratio_mean"):
            assert a[f"train/{name}"] == pytest.approx(b[f"train/{name}"], rel=2e-4, abs=2e-6), name


def test_parts_are_bounded_by_tokens_and_a_long_episode_is_one(small: Small) -> None:
    trainer = Trainer(small(settings={**QUIET, "micro_batch_tokens": 150}))
    try:
        batch = trainer.credit(trainer.play())
        longest = int(batch.lengths.max())
        for most in (150, longest - 1):
            limited = dataclasses.replace(trainer.config.optimization, micro_batch_tokens=most)
            trainer.config = dataclasses.replace(trainer.config, optimization=limited)
            parts = trainer.parts(batch)
            assert len(parts) > 1
            assert sorted(fact.name for part in parts for fact in part.facts) == sorted(f.name for f in batch.facts)
            assert all(part.num_rows * int(part.lengths.max()) <= most or part.num_rows == 1 for part in parts)
            torch.testing.assert_close(trainer.policy_logprobs(batch), batch.behavior_logprobs, atol=1e-5, rtol=0)
    finally:
        trainer.close()


def test_fewer_rows_than_parts_are_as_many_parts(small: Small) -> None:
    trainer = Trainer(small("ppo", {**QUIET, "minibatches": 2, "accumulate": 2}, episodes=8))
    try:
        batch = trainer.credit(trainer.play()[:3])
        assert [rows.tolist() for rows, _ in trainer.forward_parts(batch)] == [[0], [1], [2]]
    finally:
        trainer.close()


@pytest.mark.parametrize("algorithm", ["clipped_reinforce", "ppo"])
def test_gradient_checkpointing_changes_memory_and_nothing_else(tmp_path: Path, small: Small, algorithm: str) -> None:
    plain, saving = (
        train(small(algorithm, {**QUIET, "gradient_checkpointing": on}, episodes=16), run_dir=tmp_path / str(on))
        for on in (False, True)
    )
    for a, b in zip(plain.history[1:], saving.history[1:], strict=True):
        for name in ("train/loss", "train/grad_norm", "train/reward"):
            assert a[name] == pytest.approx(b[name], rel=1e-4, abs=1e-6), name


def test_activations_are_computed_again_where_gradients_are_checkpointed(tmp_path: Path, small: Small) -> None:
    calls = []
    for on in (False, True):
        trainer = Trainer(small(settings={**QUIET, "gradient_checkpointing": on}))
        try:
            batch = trainer.credit(trainer.play())
            layer = trainer.model.model.layers[0].mlp
            seen: list[int] = []
            handle = layer.register_forward_pre_hook(lambda *_, seen=seen: seen.append(1))
            trainer.model.train()
            trainer.loss_of(batch, batch).loss.backward()  # type: ignore[no-untyped-call]
            handle.remove()
            calls.append(len(seen))
        finally:
            trainer.close()
    assert calls == [1, 2]


@pytest.mark.parametrize("optimizer", [{"optimizer": "adafactor"}, {"optimizer": "sgd", "momentum": 0.9}])
def test_other_optimizers_train_and_resume(
    tmp_path: Path, small: Small, timeless: Timeless, optimizer: dict[str, Any]
) -> None:
    config = small(settings={**optimizer, "learning_rate": 1e-2})
    whole = train(config, run_dir=tmp_path / "whole")
    train(config, run_dir=tmp_path / "part", on_progress=interrupt_at(1))
    resumed = train(config, run_dir=tmp_path / "part", resume=True)
    assert timeless(resumed.history) == timeless(whole.history)
    assert whole.history[1]["train/grad_norm"] > 0


def test_a_run_from_random_weights_samples_the_allowed_ids_alone(small: Small) -> None:
    trainer = Trainer(small(task="add1", settings={"batch_episodes": 32}))
    try:
        episodes = trainer.play()
        ids = {trainer.policy.tokenizer.decode([i]) for e in episodes for i in e.ids[e.loss_mask].tolist()}  # type: ignore[union-attr]
        assert ids <= {*"0123456789", "\\boxed{", "}", "<|im_end|>"}
        assert len(ids) > 8  # and none of them is the only one
        # Training sees the distribution that was sampled from: ratios of an unchanged policy are 1.
        batch = trainer.credit(episodes)
        logprobs, _ = trainer._logprobs(trainer.model, batch)
        gap = (logprobs - batch.behavior_logprobs)[batch.loss_mask].detach().abs().max()
        assert float(gap) < 1e-5
        other = Trainer(small(task="add1", settings={"seed": 1}))
        assert not torch.equal(next(other.model.parameters()), next(trainer.model.parameters()))
        other.close()
    finally:
        trainer.close()


def test_a_reference_keeps_the_policy_near_the_start(tmp_path: Path, small: Small) -> None:
    free, held = (
        train(
            small("turn_reinforce_pp", {**QUIET, "learning_rate": 3e-3, "warmup": 0, "kl_weight": weight}, episodes=64),
            run_dir=tmp_path / str(weight),
        )
        for weight in (1e-9, 10.0)
    )
    assert 0 < held.history[-1]["train/kl"] < free.history[-1]["train/kl"]


def test_bfloat16_trains(tmp_path: Path, small: Small) -> None:
    done = train(small("ppo", {"precision": "bfloat16"}, episodes=8), run_dir=tmp_path / "run")
    assert done.status == "finished"
    assert done.history[1]["train/grad_norm"] > 0
    assert {p.dtype for p in done.policy.model.parameters()} == {torch.float32}


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_trained_weights_are_float32(small: Small, tmp_path: Path) -> None:
    """Those of an adapter are so around a model in bfloat16 too; whole weights in bfloat16 are refused."""
    policy = load_policy("builtin", dtype="bfloat16", device="cpu")
    policy.save_pretrained(tmp_path / "half")
    for settings in ({}, {"policy.dtype": "bfloat16", "policy.lora": {"r": 2}}):
        trainer = Trainer(small(settings={"policy.model": str(tmp_path / "half"), **settings}))
        assert {one.dtype for one in trainer.model.parameters() if one.requires_grad} == {torch.float32}
        trainer.close()
    with pytest.raises(InvalidValueError, match=r"optimization\.precision=\"bfloat16\""):
        Trainer(small(settings={"policy.model": str(tmp_path / "half"), "policy.dtype": "bfloat16"}))


@pytest.mark.parametrize("algorithm", ["turn_ppo", pytest.param("ppo", marks=pytest.mark.slow)])
def test_a_critic_learns_what_turns_are_worth(tmp_path: Path, small: Small, algorithm: str) -> None:
    settings = {**QUIET, "batch_episodes": 32, "epochs": 4, "critic_learning_rate": 3e-3, "warmup": 0}
    done = train(small(algorithm, settings, episodes=192), run_dir=tmp_path / algorithm)
    losses = [row["train/critic_loss"] for row in done.history[1:]]
    assert losses[-1] < 0.8 * losses[0]


def test_a_checkpoint_of_another_algorithm_is_refused(tmp_path: Path, small: Small) -> None:
    train(small(episodes=8), run_dir=tmp_path / "run")
    other = Trainer(small("ppo"))
    try:
        with pytest.raises(CheckpointError, match="no checkpoint of this run"):
            other.load(tmp_path / "run" / "checkpoint")
    finally:
        other.close()


def test_episodes_of_one_group_are_on_one_problem(
    tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[list[str]] = []

    def watched(*args: Any, **kwargs: Any) -> Any:
        episodes = collect(*args, **kwargs)
        if kwargs.get("group_size", 1) > 1:
            groups.extend([e.problem_id for e in episodes[i : i + 4]] for i in range(0, len(episodes), 4))
        return episodes

    monkeypatch.setattr(module, "collect", watched)
    train(small("turn_rloo", {**QUIET, "group_size": 4}, episodes=16), run_dir=tmp_path / "run")
    assert len(groups) == 4
    assert all(len(set(group)) == 1 for group in groups)
    assert len({group[0] for group in groups}) > 1


def test_accuracy_by_turn_counts_episodes_solved_by_then() -> None:
    right, wrong = Verdict(Status.RIGHT), Verdict(Status.WRONG)
    verdicts = [(right,), (wrong, right), (wrong, wrong), (wrong, wrong)]
    episodes = [synthetic_episode(0, i, [2] * len(v), verdicts=v) for i, v in enumerate(verdicts)]
    assert accuracy_by_turn(episodes, 3) == {"acc@1": 0.25, "acc@2": 0.5, "acc@3": 0.5}


# ---- adapters


def adapted(small: Small, algorithm: str = "clipped_reinforce", **settings: Any) -> RunConfig:
    lora = {"policy.lora": {"r": 4, "lora_alpha": 8}, "learning_rate": 5e-3, "warmup": 0}
    return small(algorithm, {**lora, **settings})


@pytest.mark.parametrize("algorithm", ["clipped_reinforce", "ppo"])
def test_an_adapter_trains_resumes_and_loads(tmp_path: Path, small: Small, timeless: Timeless, algorithm: str) -> None:
    pytest.importorskip("peft")
    config = adapted(small, algorithm)
    whole = train(config, run_dir=tmp_path / "whole")
    base = load_policy("builtin", device="cpu").model.state_dict()
    trained = whole.policy.model.get_base_model().state_dict()
    plain = {name.replace("base_layer.", ""): weight for name, weight in trained.items() if "lora_" not in name}
    assert all(torch.equal(plain[name], weight) for name, weight in base.items()), "the model's own weights stay"
    assert any(weight.abs().sum() > 0 for name, weight in trained.items() if "lora_B" in name)
    assert (tmp_path / "whole" / "checkpoint" / "adapter_model.safetensors").is_file()
    train(config, run_dir=tmp_path / "part", on_progress=interrupt_at(1))
    resumed = train(config, run_dir=tmp_path / "part", resume=True)
    assert timeless(resumed.history) == timeless(whole.history)
    loaded = load_policy(tmp_path / "part")
    prompt = np.asarray(loaded.tokenizer.encode("Solve 3x+4=19 for x."), np.int64)
    answers = [p.complete([prompt] * 4, max_tokens=[6] * 4, seeds=[0, 1, 2, 3]) for p in (loaded, whole.policy)]
    assert [c.ids.tolist() for c in answers[0]] == [c.ids.tolist() for c in answers[1]]


def test_the_kl_of_a_new_adapter_is_from_the_model_without_it(small: Small) -> None:
    pytest.importorskip("peft")
    trainer = Trainer(adapted(small, kl_weight=0.1))
    try:
        assert trainer._reference is None, "no second copy of the weights"
        batch = trainer.credit(trainer.play())
        before = trainer.reference_logprobs(batch)
        trainer.step()
        trainer.step()
        torch.testing.assert_close(trainer.reference_logprobs(batch), before)
        now, _ = trainer._logprobs(trainer.model, batch)
        assert float((now.detach() - before)[batch.loss_mask].abs().max()) > 1e-3
    finally:
        trainer.close()


def test_the_kl_of_a_loaded_adapter_is_from_where_it_was(tmp_path: Path, small: Small) -> None:
    pytest.importorskip("peft")
    train(adapted(small), run_dir=tmp_path / "first")
    adapter = tmp_path / "first" / "checkpoint"
    trainer = Trainer(small(settings={"policy.adapter": str(adapter), "kl_weight": 0.1, **QUIET}))
    try:
        batch = trainer.credit(trainer.play())
        gap = trainer.reference_logprobs(batch) - trainer._logprobs(trainer.model, batch)[0].detach()
        assert float(gap[batch.loss_mask].abs().max()) < 1e-5, "the start is the model with its adapter"
        assert math.isfinite(trainer.step()["train/kl"])
    finally:
        trainer.close()


def test_rows_without_a_gradient_are_not_computed(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups in which all did equally well cost nothing, and change nothing."""
    config = small(
        "turn_rloo", {"entropy_weight": 0.0, "group_size": 2, "batch_episodes": 32, "minibatches": 1, **QUIET}
    )
    seen: list[list[int]] = []
    weights = []
    for spared in (True, False):
        if not spared:
            monkeypatch.setattr(Trainer, "_drop_rows_without_advantage", lambda self, minibatch: (minibatch, None))
        trainer = Trainer(config)
        seen.append(_counts_rows(trainer, monkeypatch))
        figures = trainer.step()
        assert not figures["train/skipped"]
        weights.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
        trainer.close()
    assert seen[1] == [32]
    assert 0 < sum(seen[0]) < 32, "some groups are uniform, some are not"
    assert torch.allclose(weights[0], weights[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("episodes", "tolerance"), [(12, 1e-4), (64, 0.15)])
def test_metrics_are_means_over_all_tokens_also_where_rows_are_dropped(
    small: Small, monkeypatch: pytest.MonkeyPatch, episodes: int, tolerance: float
) -> None:
    """Issue 34: the entropy of the rows that were kept was divided by the tokens of all rows, so it looked like collapse."""
    settings = {"entropy_weight": 0.0, "group_size": 2, "batch_episodes": episodes, "minibatches": 1, "epochs": 2}
    config = small("grpo", {**settings, "learning_rate": 1e-3, "warmup": 0, **QUIET})
    found = []
    for dropped in (True, False):
        if not dropped:
            monkeypatch.setattr(Trainer, "_drop_rows_without_advantage", lambda self, minibatch: (minibatch, None))
        trainer = Trainer(config)
        rows = _counts_rows(trainer, monkeypatch)
        found.append(trainer.step())
        trainer.close()
    assert rows == [episodes, episodes]
    assert 0.2 < found[0]["train/uniform_groups"] < 0.9, "some groups are uniform, some are not"
    for name in ("entropy", "ratio_mean", "clip_fraction", "approximate_kl"):
        assert found[0][f"train/{name}"] == pytest.approx(found[1][f"train/{name}"], rel=tolerance, abs=1e-4), name
    assert found[1]["train/approximate_kl"] > 1e-4, "the second step is off policy"


def _counts_rows(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each part whose loss is computed from now on."""
    rows: list[int] = []

    def loss_of(part: Any, minibatch: Any) -> Any:
        rows.append(part.num_rows)
        return Trainer.loss_of(trainer, part, minibatch)

    monkeypatch.setattr(trainer, "loss_of", loss_of)
    return rows
