"""Contexts that are written anew between turns, with a real model: the same log-probs, caches that help and are freed."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import mathturn_gym  # noqa: F401 - registers the ids
from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.episodes.losses import policy_loss, token_logprobs
from mathturn_gym.episodes.packing import micro_batches, model_inputs, pack
from mathturn_gym.episodes.packing.batch import LAYOUTS
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.testing import make_tokenizer
from mathturn_gym.wrappers.policy import CausalLMPolicy

OPENS_A_THOUGHT = (
    "{% for m in messages %}{% set said = m['content'] %}{% if m['role'] == 'assistant' and '</think>' in said %}"
    "{% set said = said.split('</think>')[-1] %}{% endif %}{{ '<|im_start|>' + m['role'] + '\n' + said + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def policy() -> CausalLMPolicy:
    tokenizer = make_tokenizer(OPENS_A_THOUGHT, marks=["<think>", "</think>"])
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
    )
    return CausalLMPolicy(LlamaForCausalLM(config), tokenizer)


def play(policy: CausalLMPolicy, history: str, *, scheduler: str | None = None) -> list[Any]:
    env = gym.make_vec(
        "MathMultiTurn-v0",
        num_envs=4,
        problems="lins",
        dialogue=Dialogue(policy.tokenizer, history=history),  # type: ignore[arg-type]  # by name
        num_turns=3,
        max_completion_tokens=12,
    )
    options: dict[str, Any] = {} if scheduler is None else {"scheduler": scheduler}
    return list(collect(env, policy, 6, seed=1, group_size=2, **options))


@pytest.mark.parametrize("history", ["strip-thinking", "template"])
def test_every_layout_scores_segments_as_they_were_sampled(policy: CausalLMPolicy, history: str) -> None:
    episodes = play(policy, history)
    assert all(episode.num_segments == 3 for episode in episodes)
    for layout in LAYOUTS:
        batch = pack(episodes, layout)
        gap = (policy.logprobs(batch) - batch.behavior_logprobs)[batch.loss_mask]
        assert float(gap.abs().max()) < 1e-4, layout


def test_a_loss_counts_episodes_and_not_their_segments(policy: CausalLMPolicy) -> None:
    episodes = play(policy, "strip-thinking")
    losses = []
    for layout in LAYOUTS:
        batch = pack(episodes, layout)
        total = 0.0
        for part in micro_batches(batch, max_tokens=2000, keep_episodes=True):
            with torch.no_grad():
                logits = policy.model(**model_inputs(part), use_cache=False).logits
            logprobs, _ = token_logprobs(logits, part)
            total += float(
                policy_loss(
                    logprobs, part, ratio="sequence", normalization="sequence", denominator=batch.count("sequence")
                ).loss
            )
        losses.append(total)
    assert batch.count("sequence") == len(episodes)
    assert np.allclose(losses, losses[0], atol=1e-5)


def test_caches_are_used_across_segments_and_freed(policy: CausalLMPolicy) -> None:
    for scheduler in ("streaming", "batched"):
        policy.drop_caches()
        policy.stats.reset()
        episodes = play(policy, "strip-thinking", scheduler=scheduler)
        assert policy.stats.reused > 0, "the prompt that segments share is not computed again"
        assert policy.cached_bytes == 0, "every segment's keys and values are freed"
        assert len(episodes) == 6
