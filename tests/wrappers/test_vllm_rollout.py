"""Rollout engines on a real vLLM: `make test-vllm` runs these in an environment of its own (they skip elsewhere)."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from vllm_server import CPU, vllm_server

from mathturn_gym.policies import PolicyConfig
from mathturn_gym.types import Completion, Ids
from mathturn_gym.wrappers.policy import CausalLMPolicy
from mathturn_gym.wrappers.rollout import load_rollout, save_whole

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")

OPTIONS = {"enforce_eager": True, "max_model_len": 512}


def small(*, tied: bool) -> CausalLMPolicy:
    """A random Qwen2 of head dimension 32: vLLM's CPU build has no kernel for the built-in policy's 16."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from mathturn_gym.testing import make_tokenizer

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        make: Any = Qwen2Config
        model = Qwen2ForCausalLM(
            make(
                vocab_size=300,
                hidden_size=128,
                intermediate_size=256,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=1024,
                tie_word_embeddings=tied,
                initializer_range=0.1,
                eos_token_id=2,
                pad_token_id=0,
            )
        )
    return CausalLMPolicy(model, make_tokenizer(), temperature=0.9)


def contexts(count: int) -> list[Ids]:
    rng = np.random.default_rng(0)
    return [rng.integers(3, 250, size=n).astype(np.int64) for n in rng.integers(1, 40, size=count)]


def gap(policy: CausalLMPolicy, asked: list[Ids], found: list[Completion]) -> float:
    ours = policy.score(asked, [one.ids for one in found])
    return max(float(np.abs(a - b.logprobs).max(initial=0.0)) for a, b in zip(ours, found, strict=True))


def change(policy: CausalLMPolicy) -> None:
    """An update that every weight takes part in, the tied output layer too."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for parameter in policy.model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)


@pytest.fixture(scope="module", autouse=True)
def on_a_cpu() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CPU.items():
            patch.setenv(name, value)
        yield


def test_vllm_in_the_process_takes_weights_between_and_during_requests() -> None:
    """Tied weights: the CPU build packs the output layer, and would go on sampling with the old one."""
    source = small(tied=True)
    engine: Any = load_rollout(PolicyConfig("x", rollout="vllm:", rollout_options=OPTIONS), source)
    asked = contexts(4)
    assert gap(source, asked, engine.complete(asked, max_tokens=[16] * 4, seeds=range(4))) < 1e-4
    with engine.held():
        change(source)
        engine.sync(1)
    found = engine.complete(asked, max_tokens=[16] * 4, seeds=range(4))
    assert gap(source, asked, found) < 1e-4
    assert {one.version_start for one in found} == {1}
    many = [asked[0]] * 200  # more than one pass reads: a split prefill with a seed ends a CPU build
    assert len(engine.complete(many, max_tokens=[2] * 200, seeds=range(200))) == 200

    source.stop_ids = ()
    ticket = engine.submit(asked[1], max_tokens=60, seed=3)
    assert engine.advance(steps=20) == []
    before = {name: tensor.clone() for name, tensor in source.model.state_dict().items()}
    change(source)
    engine.sync(2)
    ((got, completion),) = engine.advance()
    assert got == ticket
    switch = int((completion.versions == 1).sum())
    assert 0 < switch < len(completion)
    now = source.score([asked[1]], [completion.ids])[0]
    assert np.abs(now - completion.logprobs)[switch:].max() < 1e-4  # the ids before were read again
    source.model.load_state_dict(before)
    then = source.score([asked[1]], [completion.ids])[0]
    assert np.abs(then - completion.logprobs)[:switch].max() < 1e-4
    engine.close()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that this test starts and stops; its weights are untied (see `save_whole`)."""
    folder = tmp_path_factory.mktemp("model")
    save_whole(small(tied=True), folder, tied=False)
    with vllm_server(folder, "--max-model-len 512 --enable-scale-out --no-enable-chunked-prefill") as found:
        yield found


@pytest.mark.parametrize("mode", ["abort", "keep"])
def test_a_server_takes_weights_while_it_samples(url: str, mode: str) -> None:
    source = small(tied=True)
    source.stop_ids = ()
    options = {"mode": mode, "endpoint": "tokens"}
    engine: Any = load_rollout(PolicyConfig("x", rollout=url, rollout_options=options), source, in_flight=True)
    asked = contexts(3)
    assert gap(source, asked, engine.complete(asked, max_tokens=[8] * 3, seeds=range(3))) < 1e-4
    tickets = [engine.submit(one, max_tokens=400, seed=row) for row, one in enumerate(asked)]
    time.sleep(0.1)  # some ids are there
    change(source)
    thread = threading.Thread(target=engine.sync, args=(1,))
    thread.start()
    found: dict[int, Completion] = {}
    while len(found) < 3:
        found.update(engine.advance())
    thread.join()
    for ticket, context in zip(tickets, asked, strict=True):
        completion = found[ticket]
        assert set(completion.versions.tolist()) <= {0, 1}
        assert len(completion) == 400 or completion.ids[-1] == 2  # its own end of sequence
        own = int((completion.versions == 0).sum())
        if mode == "abort" and own < len(completion):
            # What follows is sampled after the earlier ids were read again, with the new weights alone.
            assert np.abs(source.score([context], [completion.ids])[0] - completion.logprobs)[own:].max() < 1e-4
    assert any(len(set(one.versions.tolist())) == 2 for one in found.values())
    engine.close()
