"""LoRA adapters through peft."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import make_tiny_model, train_tokenizer

from mathturn_gym.errors import CheckpointError, MissingDependencyError
from mathturn_gym.types import Completion, Ids
from mathturn_gym.wrappers.policy import CausalLMPolicy

# What this release of peft asks of this release of transformers.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
TOKENIZER = train_tokenizer()


def adapted(seed: int = 0) -> Any:
    peft = pytest.importorskip("peft")
    model = make_tiny_model(TOKENIZER, seed=3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        return peft.get_peft_model(model, config)


def contexts() -> list[Ids]:
    rng = np.random.default_rng(0)
    return [rng.integers(3, 400, size=n) for n in (3, 19, 8)]


def sample(policy: CausalLMPolicy) -> list[Completion]:
    return policy.complete(contexts(), max_tokens=[8] * 3, seeds=range(3))


def same(found: list[Completion], expected: list[Completion]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=2e-5)


def test_an_adapted_model_samples_as_its_merged_self() -> None:
    found = sample(CausalLMPolicy(adapted(), TOKENIZER))
    same(found, sample(CausalLMPolicy(adapted().merge_and_unload(), TOKENIZER)))
    plain = sample(CausalLMPolicy(make_tiny_model(TOKENIZER, seed=3), TOKENIZER))
    assert [c.logprobs.tolist() for c in found] != [c.logprobs.tolist() for c in plain]


def test_an_adapters_weights_can_be_replaced_alone(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    expected = sample(CausalLMPolicy(adapted(seed=1), TOKENIZER))
    policy = CausalLMPolicy(adapted(seed=0), TOKENIZER)
    first = sample(policy)
    assert policy.update_weights(peft.get_peft_model_state_dict(adapted(seed=1))) == 1
    same(sample(policy), expected)
    assert [c.ids.tolist() for c in first] != [c.ids.tolist() for c in expected]
    adapted(seed=0).save_pretrained(tmp_path)
    assert policy.update_weights(tmp_path) == 2
    same(sample(policy), first)


def test_an_adapter_is_loaded_beside_its_model(tmp_path: Path) -> None:
    adapted(seed=1).save_pretrained(tmp_path / "adapter")
    make_tiny_model(TOKENIZER, seed=3).save_pretrained(tmp_path / "base")
    loaded = CausalLMPolicy.from_pretrained(tmp_path / "base", adapter=tmp_path / "adapter", tokenizer=TOKENIZER)
    same(sample(loaded), sample(CausalLMPolicy(adapted(seed=1), TOKENIZER)))


def test_an_adapter_that_does_not_fit_changes_nothing() -> None:
    peft = pytest.importorskip("peft")
    weights = peft.get_peft_model_state_dict(adapted(seed=1))
    policy = CausalLMPolicy(adapted(), TOKENIZER)
    before = sample(policy)
    with pytest.raises(CheckpointError, match=r"lack .*lora_A"):
        policy.update_weights(dict(list(weights.items())[1:]))
    same(sample(policy), before)
    assert policy.version == 0


def test_without_peft_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny_model(TOKENIZER, seed=3).save_pretrained(tmp_path)
    load = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "peft":
            raise ImportError(name)
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[peft\]'"):
        CausalLMPolicy.from_pretrained(tmp_path, adapter=tmp_path, tokenizer=TOKENIZER)
