"""Rollout engines: they sample what the trainer's model would, and take its weights; vLLM itself is in `make test-vllm`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mathturn_gym.errors import InvalidValueError, PolicyError
from mathturn_gym.policies import PolicyConfig
from mathturn_gym.policies.models import exported_weights, load_model
from mathturn_gym.types import Completion, Ids
from mathturn_gym.wrappers import load_policy
from mathturn_gym.wrappers.policy import CausalLMPolicy
from mathturn_gym.wrappers.rollout import load_rollout, save_whole

SMALL = {"num_blocks": 64, "page_size": 16, "max_batch_tokens": 128}


def contexts(count: int) -> list[Ids]:
    rng = np.random.default_rng(0)
    return [rng.integers(3, 400, size=n).astype(np.int64) for n in rng.integers(1, 40, size=count)]


def gap(policy: CausalLMPolicy, asked: list[Ids], found: list[Completion]) -> float:
    """Largest difference of log-probs between what sampled and the trainer's model."""
    ours = policy.score(asked, [one.ids for one in found])
    return max(float(np.abs(a - b.logprobs).max(initial=0.0)) for a, b in zip(ours, found, strict=True))


def continuous(source: CausalLMPolicy, *, in_flight: bool = False, **options: Any) -> Any:
    config = PolicyConfig("builtin", rollout="continuous", rollout_options={**SMALL, **options})
    return load_rollout(config, source, in_flight=in_flight)


@pytest.fixture
def source() -> CausalLMPolicy:
    policy: CausalLMPolicy = load_policy("builtin", device="cpu", dtype="float32", temperature=0.8, seed=1)
    return policy


@pytest.mark.parametrize("frees", [True, False])
def test_continuous_batching_samples_from_the_trained_model(source: CausalLMPolicy, frees: bool) -> None:
    engine, asked = continuous(source, free_cache=frees), contexts(6)
    found = engine.complete([*asked, asked[0]], max_tokens=[12] * 6 + [0])
    assert gap(source, asked, found[:6]) < 1e-4
    assert all(one.truncated == (one.ids[-1] not in source.stop_ids) for one in found[:6])
    assert (len(found[6]), found[6].truncated) == (0, True)
    with engine.held():
        assert (engine._manager is None) == frees  # its memory is the update's
        with torch.no_grad():
            for parameter in source.model.parameters():
                parameter.mul_(0.5)
        source.version = 1
        engine.sync(1)
    found = engine.complete(asked, max_tokens=[12] * 6)
    assert gap(source, asked, found) < 1e-4
    assert {one.version_start for one in found} == {1}
    engine.close()
    with pytest.raises(PolicyError, match="closed"):
        engine.submit(asked[0], max_tokens=3)


def test_what_is_under_way_goes_on_with_the_new_weights(source: CausalLMPolicy) -> None:
    """The ids before an update are those of the old weights, and each id says which sampled it."""
    source = CausalLMPolicy(source.model, source.tokenizer, stop_ids=[])
    engine = continuous(source, in_flight=True)
    trained_with = source.model.config._attn_implementation
    asked = contexts(1)[0]
    ticket = engine.submit(asked, max_tokens=300)
    dropped = engine.submit(asked, max_tokens=300)

    def begun() -> bool:
        processor = engine._manager.batch_processor
        state = processor.scheduler.active_requests.get(str(ticket)) if processor else None
        return state is not None and len(state.generated_tokens) > 0

    while not begun():  # however long that takes on a busy machine
        time.sleep(0.001)
    assert engine.advance(steps=1) == []
    assert engine.cancel(dropped)
    assert not engine.cancel(dropped)
    with engine.held():
        assert source.model.config._attn_implementation == trained_with
        before = source.model.model.norm.weight.detach().clone()
        with torch.no_grad():
            source.model.model.norm.weight.mul_(-1.0)
        engine.sync(1)
    (found,) = engine.advance()
    assert found[0] == ticket
    completion = found[1]
    switch = int((completion.versions == 0).sum())
    assert 0 < switch < 300 == len(completion)
    assert completion.versions.tolist() == [0] * switch + [1] * (300 - switch)
    new = source.score([asked], [completion.ids])[0]
    with torch.no_grad():
        source.model.model.norm.weight.copy_(before)
    old = source.score([asked], [completion.ids])[0]
    assert np.abs(old - completion.logprobs)[:switch].max() < 1e-3
    # The last norm alone has changed, so that the keys and values that stay are those of the new weights too.
    assert np.abs(new - completion.logprobs)[switch:].max() < 1e-3
    assert np.abs(old - completion.logprobs)[switch:].max() > 1.0
    engine.close()
    assert source.model.config._attn_implementation == trained_with


def test_a_closed_engine_tells_who_waits(source: CausalLMPolicy) -> None:
    engine = continuous(source)
    engine.submit(contexts(1)[0], max_tokens=5000)
    engine.close()
    with pytest.raises(PolicyError, match="1 requests under way"):
        engine.advance()


def test_ids_beyond_the_tokenizer_are_never_sampled(source: CausalLMPolicy) -> None:
    source.model.resize_token_embeddings(600)
    with torch.no_grad():
        source.model.get_output_embeddings().weight[405:] = 50.0 * source.model.get_output_embeddings().weight[2]
    wide = CausalLMPolicy(source.model, source.tokenizer)
    engine = continuous(wide)
    found = engine.complete(contexts(4), max_tokens=[8] * 4)
    engine.close()
    assert max(int(one.ids.max()) for one in found) < 405


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollout": "continous"}, "did you mean 'continuous'"),
        ({"rollout": "continuous:x"}, "leave ':x' out"),
        ({"rollout": "continuous", "rollout_options": {"page_sise": 3}}, "page_sise"),
        ({"rollout": "http://127.0.0.1:1", "rollout_options": {"speed": 3}}, "speed"),
        ({"rollout": "http://127.0.0.1:1", "rollout_options": {"adapter": True}}, r"set policy\.lora"),
    ],
)
def test_names_and_options_are_checked(source: CausalLMPolicy, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        load_rollout(PolicyConfig("builtin", **settings), source)


def test_what_an_engine_cannot_report_is_refused() -> None:
    cut = load_policy("builtin", device="cpu", top_p=0.9)
    with pytest.raises(InvalidValueError, match="which ids truncated sampling kept"):
        load_rollout(PolicyConfig("builtin", rollout="continuous"), cut)
    masked = load_policy("builtin", device="cpu", grammar="boxed-integer")
    with pytest.raises(InvalidValueError, match="does not reach"):
        load_rollout(PolicyConfig("builtin", rollout="http://127.0.0.1:1"), masked)
    with pytest.raises(InvalidValueError, match="without user and password"):
        PolicyConfig("builtin", rollout="sglang:http://me:secret@x")
    with pytest.raises(InvalidValueError, match="give rollout as well"):
        PolicyConfig("builtin", rollout_options={"a": 1})


def test_weights_reach_servers_as_files(server: Any, tmp_path: Path, source: CausalLMPolicy) -> None:
    options = {"weights_dir": str(tmp_path), "backoff": 0.0}
    engine: Any = load_rollout(PolicyConfig("builtin", rollout=server.url, rollout_options=options), source)
    assert server.weights == str(tmp_path / "version-0")  # whatever it was started with
    with torch.no_grad():
        source.model.model.norm.weight.fill_(3.0)
    with engine.held():
        engine.sync(4)
    assert [one.name for one in tmp_path.iterdir()] == ["version-4"]
    written: Any = load_model(tmp_path / "version-4")
    assert written.model.norm.weight.unique().tolist() == [3.0]
    assert engine.complete([contexts(1)[0] % 50], max_tokens=[2])[0].version_start == 4
    engine.close()
    assert (tmp_path / "version-4").exists()


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_an_adapter_is_merged_into_copies(source: CausalLMPolicy, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    adapted = load_policy("builtin", device="cpu", dtype="float32", lora={"r": 2, "init_lora_weights": False})
    before = {name: tensor.clone() for name, tensor in adapted.model.state_dict().items()}
    save_whole(adapted, tmp_path)
    whole = load_policy(tmp_path, device="cpu")
    asked, ids = contexts(3), contexts(3)
    for ours, theirs, plain in zip(
        adapted.score(asked, ids), whole.score(asked, ids), source.score(asked, ids), strict=True
    ):
        assert np.abs(ours - theirs).max() < 1e-4
        assert np.abs(ours - plain).max() > 1e-3
    after = adapted.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert set(exported_weights(adapted.model)) == set(exported_weights(source.model))


def test_tied_weights_have_both_of_their_names(source: CausalLMPolicy, tmp_path: Path) -> None:
    assert source.model.config.tie_word_embeddings
    weights = exported_weights(source.model)
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    save_whole(source, tmp_path, tied=False)
    untied: Any = load_model(tmp_path)
    assert not untied.config.tie_word_embeddings
    assert torch.equal(untied.lm_head.weight, weights["lm_head.weight"])
