"""Options that all algorithms share between credit and loss: dynamic sampling, masks, corrections, KL in the reward."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mathturn_gym.baselines import Optimization, RunConfig, train
from mathturn_gym.baselines.algorithms import registered
from mathturn_gym.baselines.algorithms._credit import differ
from mathturn_gym.baselines.batches import groups_of, without_cut_off
from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.episodes.packing import pack
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.wrappers import load_policy

Small = Callable[..., RunConfig]
Make = Callable[..., Trainer]
TRAINERS = sorted(name for name, kind in registered().items() if kind.kind == "language model")
QUIET = {"evaluation.every": 0, "evaluation.episodes": 0}


@pytest.fixture
def made(small: Small) -> Iterator[Make]:
    """A trainer of `small(algorithm, settings)`."""
    trainers: list[Trainer] = []

    def make(algorithm: str = "clipped_reinforce", settings: Any = None, policy: Any = None) -> Trainer:
        trainers.append(Trainer(small(algorithm, {**QUIET, **(settings or {})}), policy))
        return trainers[-1]

    yield make
    for trainer in trainers:
        trainer.close()


# ---- dropout


def test_dropout_is_off_where_gradients_are_made(made: Make) -> None:
    policy = load_policy("builtin", device="cpu")
    for layer in policy.model.model.layers:
        layer.self_attn.attention_dropout = 0.5
        layer.mlp.down_proj = torch.nn.Sequential(layer.mlp.down_proj, torch.nn.Dropout(0.5))
    trainer = made(policy=policy)
    batch = trainer.credit(trainer.play())
    trainer.model.train()
    logprobs, _ = trainer._logprobs(trainer.model, batch)
    gap = (logprobs - batch.behavior_logprobs)[batch.loss_mask].detach().abs().max()
    assert float(gap) < 1e-5, "the ratio to the policy that has sampled is 1"


# ---- dynamic sampling


def test_groups_that_teach_nothing_are_sampled_anew(made: Make) -> None:
    plain = made("turn_rloo", {"group_size": 2, "batch_episodes": 32})
    dynamic = made("turn_rloo", {"group_size": 2, "batch_episodes": 32, "dynamic_sampling": 4})
    before, drawn = plain.draw(), dynamic.draw()
    assert before.sampled == list(before.episodes)
    assert not all(map(differ, groups_of(before.episodes))), "some groups agree"
    assert len(drawn.episodes) == 32
    assert len(drawn.sampled) in range(64, 32 * 5 + 1, 32)
    assert all(map(differ, groups_of(drawn.episodes)))
    assert [e.index for e in drawn.sampled] == list(range(len(drawn.sampled)))
    row = dynamic.step()
    assert dynamic.drawn == len(drawn.sampled)
    assert row["tokens"] == sum(int(e.loss_mask.sum()) for e in drawn.sampled), "what is set aside has cost tokens"
    assert 0 < row["train/uniform_groups"] < 1
    assert dynamic.draw().sampled[0].index == len(drawn.sampled), "no episode is sampled twice"


def test_dynamic_sampling_gives_up_after_its_rounds(made: Make) -> None:
    trainer = made("turn_rloo", {"group_size": 2, "dynamic_sampling": 2, "env.problems": "mul2"})
    drawn = trainer.draw()
    assert len(drawn.sampled) == 24
    assert len(drawn.episodes) == 8
    assert trainer.step()["train/skipped"] == 1.0


def test_dynamic_sampling_resumes_where_it_was(tmp_path: Path, small: Small, timeless: Any) -> None:
    config = small("shrunk_rloo", {"group_size": 2, "dynamic_sampling": 3})

    def interrupt(metrics: dict[str, float]) -> None:
        if metrics["iteration"] == 2:
            signal.raise_signal(signal.SIGINT)

    whole = train(config, run_dir=tmp_path / "whole")
    train(config, run_dir=tmp_path / "part", on_progress=interrupt)
    resumed = train(config, run_dir=tmp_path / "part", resume=True)
    assert timeless(resumed.history) == timeless(whole.history)


def test_dynamic_sampling_needs_groups(small: Small) -> None:
    with pytest.raises(InvalidValueError, match="dynamic_sampling looks for differences within groups"):
        small("clipped_reinforce", {"dynamic_sampling": 2})


# ---- answers that were cut off


def test_answers_that_were_cut_off_are_not_learned_from() -> None:
    flags = [(True, False), (False,), (False, True, True)]
    episodes = [synthetic_episode(0, i, [2] * len(f), turn_truncated=f) for i, f in enumerate(flags)]
    batch = pack(episodes, advantages=[np.ones(len(f), np.float32) for f in flags])
    kept = without_cut_off(batch)
    assert (batch.count("token"), kept.count("token")) == (12, 6)
    for row, own in enumerate(flags):
        for turn, off in enumerate(own):
            tokens = kept.loss_mask[row] & (kept.turn_index[row] == turn)
            assert int(tokens.sum()) == (0 if off else 2)


def test_a_batch_of_cut_off_answers_alone_changes_nothing(made: Make) -> None:
    trainer = made(settings={"mask_cut_off": True, "max_completion_tokens": 1, "batch_episodes": 8})
    before = [p.detach().clone() for p in trainer.model.parameters()]
    row = trainer.step()
    assert row["train/loss"] == 0.0
    assert row["tokens"] > 0
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))


# ---- what the sampler did otherwise


@pytest.mark.parametrize("algorithm", ["clipped_reinforce", "reinforce", "gspo"])
def test_importance_weights_correct_for_the_sampler_and_stop_at_their_cap(made: Make, algorithm: str) -> None:
    trainer = made(algorithm, {"importance_cap": 1.5})
    batch = trainer.credit(trainer.play())
    # As if the sampler had found every second token half as likely, and the others twice as likely.
    factor = torch.where(torch.arange(batch.input_ids.shape[1]) % 2 == 0, 0.5, 2.0).log()
    noted = torch.where(batch.loss_mask, batch.behavior_logprobs + factor, 0.0).clamp(max=0.0)
    seen = batch.replace_tensors({"behavior_logprobs": noted})
    found, figures = trainer.corrected(seen)
    mask = batch.loss_mask
    now = trainer.policy_logprobs(batch)
    torch.testing.assert_close(found.behavior_logprobs, now, atol=1e-6, rtol=0)
    weight = (now - noted).exp().clamp(max=1.5)
    torch.testing.assert_close(found.advantages[mask], (batch.advantages * weight)[mask])
    gap = (now - noted)[mask]
    assert figures["mismatch_max"] == pytest.approx(float(gap.abs().max()), rel=1e-4)
    assert figures["mismatch_kl"] == pytest.approx(float((gap.exp() - 1 - gap).mean()), rel=1e-3)
    assert 0 < figures["importance_capped"] < 1


def test_a_sampler_that_was_far_off_leaves_figures_and_advantages_finite(made: Make) -> None:
    trainer = made(settings={"recompute_logprobs": True, "importance_cap": 2.0, "importance_level": "sequence"})
    batch = trainer.credit(trainer.play())
    far = batch.replace_tensors({"behavior_logprobs": batch.behavior_logprobs.masked_fill(batch.loss_mask, -200.0)})
    found, figures = trainer.corrected(far)
    assert all(np.isfinite(value) for value in figures.values()), figures
    assert bool(torch.isfinite(found.advantages).all())


@pytest.mark.parametrize("mode", ["clip", "mask"])
@pytest.mark.parametrize("level", ["token", "turn", "sequence"])
def test_a_weight_is_of_a_token_a_turn_or_a_sequence_and_clipped_or_masked(made: Make, level: str, mode: str) -> None:
    trainer = made(settings={"importance_cap": 1.2, "importance_level": level, "importance_mode": mode})
    batch = trainer.credit(trainer.play())
    rows, columns = torch.arange(batch.num_rows)[:, None], torch.arange(batch.input_ids.shape[1])
    factor = 0.2 * (rows % 2) - 0.1 - 0.3 * (columns % 3 == 0) * (1 - rows % 2)
    seen = batch.replace_tensors(
        {"behavior_logprobs": torch.where(batch.loss_mask, batch.behavior_logprobs + factor, 0)}
    )
    found, figures = trainer.corrected(seen)
    gaps = torch.where(batch.loss_mask, trainer.policy_logprobs(batch) - seen.behavior_logprobs, 0.0)
    over = 0
    for row in range(batch.num_rows):
        for at in batch.loss_mask[row].nonzero()[:, 0].tolist():
            own = batch.loss_mask[row]
            if level == "turn":
                own = own & (batch.turn_index[row] == batch.turn_index[row, at])
            weight = float((gaps[row, at] if level == "token" else gaps[row, own].sum()).exp())
            over += weight > 1.2
            held = weight if weight <= 1.2 else {"clip": 1.2, "mask": 0.0}[mode]
            assert float(found.advantages[row, at]) == pytest.approx(held * float(batch.advantages[row, at]), rel=1e-3)
    assert 0 < over < batch.count("token"), "some weights are held, others are not"
    assert figures["importance_capped"] == pytest.approx(over / batch.count("token"))


def test_the_kl_from_the_start_is_logged_where_it_is_asked_for(made: Make) -> None:
    asked, weighed, plain = made(settings={"log_kl": True}), made(settings={"kl_weight": 1e-9}), made()
    rows = [[trainer.step() for _ in range(3)] for trainer in (asked, weighed, plain)]
    assert [row["train/kl"] for row in rows[2]] == [0.0, 0.0, 0.0]
    assert rows[0][0]["train/kl"] == pytest.approx(0.0, abs=1e-5), "before the first step it is the policy at the start"
    assert rows[0][2]["train/kl"] > 1e-4
    for row, measured in zip(rows[0], rows[2], strict=True):
        assert row["train/loss"] == measured["train/loss"], "it is looked at, and nothing else"


@pytest.mark.parametrize("cut", [{"top_k": 4}, {"top_k": 12, "top_p": 0.8}, {"top_k": 12, "min_p": 0.1}], ids=str)
def test_what_sampling_cut_off_is_cut_off_in_the_loss(made: Make, cut: dict[str, Any]) -> None:
    trainer = made(settings=cut)
    batch = trainer.credit(trainer.play())
    mask = batch.loss_mask
    gap = (trainer.policy_logprobs(batch) - batch.behavior_logprobs)[mask]
    assert float(gap.abs().max()) < 1e-5
    assert batch.support is not None
    sizes = (batch.support[mask] >= 0).sum(dim=-1)
    assert 1 <= int(sizes.min()) <= int(sizes.max()) <= cut["top_k"]
    over_all = batch.replace_tensors({"support": None})  # type: ignore[dict-item]
    assert float((trainer.policy_logprobs(over_all) - batch.behavior_logprobs)[mask].abs().max()) > 1e-3
    row = trainer.step()
    assert row["train/ratio_mean"] == pytest.approx(1.0, abs=0.05)
    assert row["train/skipped"] == 0.0


def test_recomputed_logprobs_make_the_first_ratio_one(made: Make) -> None:
    trainer = made(settings={"recompute_logprobs": True})
    batch = trainer.credit(trainer.play())
    off = torch.where(batch.loss_mask, batch.behavior_logprobs - 0.3, 0.0)
    found, figures = trainer.corrected(batch.replace_tensors({"behavior_logprobs": off}))
    assert figures["mismatch_mean"] == pytest.approx(0.3, abs=1e-4)
    assert "importance_capped" not in figures
    assert float(trainer.loss_of(found, found).ratio_mean) == pytest.approx(1.0, abs=1e-5)
    torch.testing.assert_close(found.advantages, batch.advantages)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("settings", "recomputes"),
    [
        ({}, False),
        ({"precision": "bfloat16"}, True),
        ({"precision": "bfloat16", "recompute_logprobs": False}, False),
        ({"policy.dtype": "bfloat16", "policy.lora": {"r": 2}}, True),
        ({"importance_cap": 2.0}, True),
        ({"recompute_logprobs": True}, True),
    ],
)
def test_logprobs_are_recomputed_where_half_precision_has_sampled(
    made: Make, settings: dict[str, Any], recomputes: bool
) -> None:
    trainer = made(settings=settings)
    assert trainer.recomputes == recomputes
    assert ("train/mismatch_mean" in trainer.step()) == recomputes


def test_a_cap_without_recomputed_logprobs_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="importance_cap needs recomputed log-probs"):
        Optimization(importance_cap=2.0, recompute_logprobs=False)
    for wrong in ({"importance_cap": 0.0}, {"mask_cut_off": 1}, {"dynamic_sampling": -1}, {"recompute_logprobs": "no"}):
        with pytest.raises(InvalidValueError, match=f"optimization.{next(iter(wrong))}"):
            Optimization(**wrong)


# ---- KL in the reward, and by turn


@pytest.mark.parametrize("algorithm", [name for name in TRAINERS if name != "online_rft"])
def test_every_trainer_takes_kl_off_the_reward_and_reward_terms(made: Make, algorithm: str) -> None:
    terms = {"repeated_answer": 0.5, "improvement": 0.25}
    trainer = made(algorithm, {"reward_kl": 0.1, "env.reward_terms": terms, "kl_weight": [1.0, 0.0]})
    row = trainer.step()
    row = trainer.step()
    assert row["train/kl"] > 0
    assert np.isfinite(row["train/loss"])


def test_a_turn_pays_for_its_own_drift(made: Make) -> None:
    trainer = made("turn_rloo", {"reward_kl": 2.0, "group_size": 2})
    episodes = trainer.play()
    moved = [
        dataclasses.replace(e, logprobs=np.where(e.loss_mask, e.logprobs * 0.5, 0.0).astype(np.float32))
        for e in episodes
    ]
    spent = trainer._spent(moved)
    for episode, nats in zip(moved, spent, strict=True):
        by_hand = [-episode.logprobs[start:end].sum() for start, end in episode.turn_spans.tolist()]
        np.testing.assert_allclose(nats, by_hand, rtol=1e-3, atol=1e-4)
    paid = trainer.credit(moved).rewards
    plain = trainer.pack(moved).rewards
    gap = (plain - paid)[trainer.pack(moved).loss_mask]
    assert float(gap.min()) >= -1e-5
    assert float(gap.max()) > 0.01
