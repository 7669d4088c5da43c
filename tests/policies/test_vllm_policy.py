"""A real vLLM on this machine: `make test-vllm` runs these in an environment of their own (they skip elsewhere)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from vllm_server import CPU, vllm_server

from mathturn_gym.errors import PolicyError
from mathturn_gym.policies.openai import OpenAIPolicy
from mathturn_gym.policies.vllm import VLLMPolicy
from mathturn_gym.types import Completion, Ids
from mathturn_gym.wrappers.policy import CausalLMPolicy

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")

VOCAB, STOP = 300, 2
SAMPLING: dict[str, Any] = {"temperature": 0.8, "top_k": 20, "top_p": 0.9}


def save(folder: Path, seed: int) -> Path:
    """A random Qwen2 with a tokenizer of as many ids."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from mathturn_gym.testing import make_tokenizer

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = Qwen2Config(
            vocab_size=VOCAB,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            tie_word_embeddings=False,
            initializer_range=0.3,
            eos_token_id=STOP,
            bos_token_id=None,
            pad_token_id=0,
        )
        Qwen2ForCausalLM(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return save(root / "first", 0), save(root / "second", 1)


@pytest.fixture(scope="module")
def url(folders: tuple[Path, Path]) -> Iterator[str]:
    """A server that this test starts and stops."""
    with vllm_server(folders[0], "--max-model-len 1024") as found:
        yield found


@pytest.fixture(scope="module")
def engine(folders: tuple[Path, Path]) -> Iterator[VLLMPolicy]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CPU.items():
            patch.setenv(name, value)
        policy = VLLMPolicy(folders[0], **SAMPLING, dtype="float32", enforce_eager=True, max_model_len=1024)
        yield policy
        policy.close()


def contexts(count: int) -> list[Ids]:
    rng = np.random.default_rng(0)
    return [rng.integers(3, VOCAB, size=n).astype(np.int64) for n in rng.integers(1, 40, size=count)]


def assert_ratios_are_one(folder: Path, asked: list[Ids], found: list[Completion], **sampling: Any) -> float:
    """Our own model's log-probs of what vLLM sampled: the importance ratio of an unchanged policy."""
    reference = CausalLMPolicy.from_pretrained(folder, tokenizer=None, dtype=torch.float32, **sampling)
    scores = reference.score(asked, [completion.ids for completion in found])
    ours, theirs = np.concatenate(scores), np.concatenate([completion.logprobs for completion in found])
    off = float(np.abs(np.exp(ours - theirs) - 1).max())
    assert off <= 1e-3, f"importance ratios are up to {off} away from 1"
    return off


def test_a_server_samples_what_our_model_would(url: str, folders: tuple[Path, Path]) -> None:
    asked = contexts(12)
    with OpenAIPolicy(url, **SAMPLING) as policy:
        found = policy.complete(asked, max_tokens=[40] * 12, seeds=range(12))
        again = policy.complete(asked[:1], max_tokens=[40], seeds=[0])
    assert again[0].ids.tolist() == found[0].ids.tolist()
    assert all(c.truncated == (c.ids[-1] != STOP) for c in found)
    assert_ratios_are_one(folders[0], asked, found, **SAMPLING)


def test_a_servers_greedy_ids_are_ours(url: str, folders: tuple[Path, Path]) -> None:
    asked = contexts(6)
    with OpenAIPolicy(url, temperature=0.0) as policy:
        found = policy.complete(asked, max_tokens=[100] * 6)
    ours = CausalLMPolicy.from_pretrained(folders[0], tokenizer=None, dtype=torch.float32, temperature=0.0)
    expected = ours.complete(asked, max_tokens=[100] * 6)
    assert [c.ids.tolist() for c in found] == [c.ids.tolist() for c in expected]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=1e-4)


def test_a_server_continues_over_turns(url: str, folders: tuple[Path, Path]) -> None:
    asked = contexts(8)
    with OpenAIPolicy(url, **SAMPLING) as policy:
        for turn in range(3):
            found = policy.complete(asked, max_tokens=[20] * 8, seeds=range(turn, turn + 8))
            assert_ratios_are_one(folders[0], asked, found, **SAMPLING)
            asked = [np.concatenate([c, d.ids, [9, 8, 7]]) for c, d in zip(asked, found, strict=True)]


def test_a_servers_refusal_is_told(url: str) -> None:
    with OpenAIPolicy(url, **SAMPLING) as policy, pytest.raises(PolicyError, match="refuses: HTTP 400"):
        policy.complete([np.full(1100, 5)], max_tokens=[5])


def test_a_server_takes_new_weights(url: str, folders: tuple[Path, Path]) -> None:
    asked = contexts(6)
    with OpenAIPolicy(url, **SAMPLING) as policy:
        before = policy.complete(asked, max_tokens=[20] * 6, seeds=range(6))
        assert policy.update_weights(folders[1]) == 1
        after = policy.complete(asked, max_tokens=[20] * 6, seeds=range(6))
        policy.update_weights(folders[0])
    assert_ratios_are_one(folders[0], asked, before, **SAMPLING)
    assert_ratios_are_one(folders[1], asked, after, **SAMPLING)
    assert {int(v) for c in after for v in c.versions} == {1}


def test_an_engine_samples_what_our_model_would(engine: VLLMPolicy, folders: tuple[Path, Path]) -> None:
    asked = contexts(12)
    budgets = [40] * 11 + [0]
    found = engine.complete(asked, max_tokens=budgets, seeds=range(12))
    assert [len(c) <= budget for c, budget in zip(found, budgets, strict=True)] == [True] * 12
    assert_ratios_are_one(folders[0], asked, found, **SAMPLING)


def test_an_engine_streams_and_cancels(engine: VLLMPolicy) -> None:
    asked = contexts(5)
    tickets = [engine.submit(context, max_tokens=4 + 9 * row, seed=row) for row, context in enumerate(asked)]
    assert engine.cancel(tickets[4])
    found: dict[int, Completion] = {}
    while done := engine.advance():
        found.update(done)
    assert sorted(found) == tickets[:4]
    expected = engine.complete(asked[:4], max_tokens=[4 + 9 * row for row in range(4)], seeds=range(4))
    assert [found[ticket].ids.tolist() for ticket in tickets[:4]] == [c.ids.tolist() for c in expected]


def test_an_engine_takes_new_weights(
    engine: VLLMPolicy, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a request under way only where each id carries its version (`tests/wrappers/test_vllm_rollout.py`)."""
    asked = contexts(4)
    ticket = engine.submit(asked[0], max_tokens=3, seed=0)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_engine", object())  # of a vLLM that cannot label ids
        with pytest.raises(PolicyError, match="under way"):
            engine.update_weights(folders[1])
    assert [done for done, _ in engine.advance()] == [ticket]
    assert engine.update_weights(folders[1]) == 1
    found = engine.complete(asked, max_tokens=[20] * 4, seeds=range(4))
    assert_ratios_are_one(folders[1], asked, found, **SAMPLING)


def test_packing_keeps_the_ratios(url: str, folders: tuple[Path, Path]) -> None:
    import gymnasium as gym

    from mathturn_gym.episodes.packing import pack
    from mathturn_gym.episodes.rollout import collect
    from mathturn_gym.testing import make_tokenizer

    env = gym.make_vec(
        "MathMultiTurn-v0", num_envs=4, tokenizer=make_tokenizer(), num_turns=2, max_completion_tokens=24
    )
    with OpenAIPolicy(url, **SAMPLING) as policy:
        episodes = collect(env, policy, 6, seed=1)
    reference = CausalLMPolicy.from_pretrained(folders[0], tokenizer=None, dtype=torch.float32, **SAMPLING)
    batch = pack(episodes)
    ratios = (reference.logprobs(batch) - batch.behavior_logprobs).exp()[batch.loss_mask]
    assert float((ratios - 1).abs().max()) <= 1e-3
    assert ratios.numel() > 50
