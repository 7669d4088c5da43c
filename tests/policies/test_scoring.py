"""Scoring a packed batch gives the log-probs that sampling gave, in every layout and form."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tiny import make_tiny_model, tiny_config, train_tokenizer

import mathturn_gym  # noqa: F401 - registers the ids
from mathturn_gym.episodes.packing import pack, unpack
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.types import Episode
from mathturn_gym.wrappers.policy import CausalLMPolicy

TOKENIZER = train_tokenizer()
SAMPLING: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "min_p": 0.001}


def gemma3() -> Any:
    """Half of its layers see sixteen ids alone."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    shape = tiny_config(TOKENIZER).to_dict()
    keys = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "eos_token_id", "pad_token_id")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Gemma3ForCausalLM(
            Gemma3TextConfig(
                **{key: shape[key] for key in keys},
                num_hidden_layers=2,
                num_key_value_heads=2,
                head_dim=16,
                sliding_window=16,
                layer_types=["sliding_attention", "full_attention"],
                initializer_range=0.2,
            )
        )


def play(policy: CausalLMPolicy) -> list[Episode]:
    env = gym.make_vec(
        "MathMultiTurn-v0", num_envs=6, tokenizer=TOKENIZER, num_turns=3, max_completion_tokens=12, feedback="hint"
    )
    episodes = collect(env, policy, 8, seed=1, group_size=2)
    env.close()
    return episodes


@pytest.mark.parametrize("layout", ["episode", "turns", "tree"])
@pytest.mark.parametrize("form", ["padded", "varlen"])
@pytest.mark.parametrize("max_tokens", [100, 100_000])
def test_scores_are_the_behavior_logprobs(layout: Any, form: Any, max_tokens: int) -> None:
    policy = CausalLMPolicy(make_tiny_model(TOKENIZER, seed=3), TOKENIZER, **SAMPLING)
    batch = pack(play(policy), layout=layout, form=form)
    scores = policy.logprobs(batch, max_tokens=max_tokens)
    assert scores.shape == batch.input_ids.shape
    assert not scores[~batch.loss_mask].any()
    ratio = (scores - batch.behavior_logprobs).exp()[batch.loss_mask]
    assert ratio.numel() > 50
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=2e-5)


@pytest.mark.parametrize("form", ["padded", "varlen"])
def test_sliding_windows_stay_within_their_rows(form: Any) -> None:
    policy = CausalLMPolicy(gemma3(), TOKENIZER, **SAMPLING)
    batch = pack(play(policy), form=form)
    assert int(batch.lengths.min()) > 16
    torch.testing.assert_close(policy.logprobs(batch), batch.behavior_logprobs, rtol=0, atol=2e-5)


def test_scores_survive_pack_and_unpack() -> None:
    policy = CausalLMPolicy(make_tiny_model(TOKENIZER, seed=3), TOKENIZER, **SAMPLING)
    batch = pack(unpack(pack(play(policy))))
    torch.testing.assert_close(policy.logprobs(batch), batch.behavior_logprobs, rtol=0, atol=1e-5)


def test_raw_scores_and_entropies_are_those_of_the_logits() -> None:
    policy = CausalLMPolicy(make_tiny_model(TOKENIZER, seed=3), TOKENIZER, temperature=0.7, top_k=11)
    batch = pack(play(policy))
    with torch.no_grad():
        logits = policy.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits[:, :-1].double()
    raw = torch.log_softmax(logits, dim=-1).gather(-1, batch.input_ids[:, 1:, None])[..., 0]
    kept = torch.log_softmax(logits.topk(11).values / 0.7, dim=-1)
    entropies = -(kept.exp() * kept).sum(-1)
    mask = batch.loss_mask[:, 1:]
    for found, expected in (
        (policy.logprobs(batch, raw=True), raw),
        (policy.logprobs(batch, entropies=True), entropies),
    ):
        np.testing.assert_allclose(found[:, 1:][mask], expected[mask], rtol=0, atol=2e-5)


def test_a_row_that_is_too_long_has_a_pass_of_its_own() -> None:
    policy = CausalLMPolicy(make_tiny_model(TOKENIZER, seed=3), TOKENIZER)
    batch = pack(play(policy))
    torch.testing.assert_close(policy.logprobs(batch, max_tokens=1), policy.logprobs(batch), rtol=0, atol=2e-5)
    with pytest.raises(InvalidValueError, match="max_tokens"):
        policy.logprobs(batch, max_tokens=0)
