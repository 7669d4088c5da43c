from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples
from transformers import LlamaConfig, LlamaForCausalLM

from mathturn_gym.episodes.losses import policy_loss, token_logprobs
from mathturn_gym.episodes.packing import dense_mask, mask_mod, micro_batches, model_inputs, pack
from mathturn_gym.episodes.packing.batch import FORMS, LAYOUTS, Layout, PackedBatch
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode


@cache
def model(dtype: torch.dtype, attention: str) -> Any:
    torch.manual_seed(0)
    config: Any = LlamaConfig(  # type: ignore[call-arg]
        vocab_size=23,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        attn_implementation=attention,
        initializer_range=0.2,
    )
    made: Any = LlamaForCausalLM(config)
    made = made.to(dtype)
    # The library's norm computes in float32 whatever the weights are; float64 all through is needed here.
    for name, module in list(made.named_modules()):
        if type(module).__name__ == "LlamaRMSNorm":
            norm = torch.nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps, dtype=dtype)
            made.set_submodule(name, norm)
    return made


def loss_and_gradient(made: Any, batch: PackedBatch, dtype: torch.dtype, **options: Any) -> torch.Tensor:
    made.zero_grad(set_to_none=True)
    logits = made(**model_inputs(batch, dtype), use_cache=False).logits
    logprobs, entropy = token_logprobs(logits, batch)
    loss = policy_loss(logprobs, batch, entropy=entropy, entropy_weight=0.1, **options).loss
    torch.autograd.backward(loss)
    return torch.cat([loss.detach().reshape(1), *(p.grad.flatten() for p in made.parameters())])


def difference(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left - right).norm() / right.norm().clamp(min=1e-30))


@st.composite
def groups(draw: st.DrawFn) -> list[Episode]:
    """One or two groups of ragged members, some in segments, in mixed order; a completion id somewhere in each group."""
    episodes = []
    for index in range(draw(st.integers(1, 5))):
        lengths = draw(st.lists(st.integers(0, 3), max_size=3))
        name = draw(st.sampled_from(["a", "b"]))
        episodes.append(
            synthetic_episode(
                5,
                index,
                lengths,
                prompt=3 + (name == "b"),
                feedback=2,
                anew=[turn for turn in range(1, len(lengths)) if draw(st.booleans())],
                group=name,
                vocab_size=23,
            )
        )
    episodes.append(synthetic_episode(5, 9, [2, 1], prompt=3, feedback=1, group="a", vocab_size=23))
    return episodes


COMPACT: tuple[Layout, ...] = ("episode", "tree")

OPTIONS = st.sampled_from(
    [
        {"objective": "clip", "ratio": "token", "normalization": "token"},
        {"objective": "clip", "ratio": "turn", "normalization": "turn", "clip": 0.5, "dual_clip": 3.0},
        {"objective": "clip", "ratio": "sequence", "normalization": "sequence", "clip": 1.0},
        {"objective": "policy_gradient", "ratio": None, "normalization": "sequence"},
        {"objective": "policy_gradient", "ratio": "token", "normalization": "turn"},
    ]
)


@settings(max_examples=examples(100), deadline=None)
@given(groups(), OPTIONS, st.sampled_from(FORMS), st.sampled_from(["sdpa", "eager"]))
def test_all_layouts_give_the_same_loss_and_gradient_in_float64(
    episodes: list[Episode], options: dict[str, Any], form: Any, attention: str
) -> None:
    # Eager attention has a float32 softmax inside, whose rounding depends on the row's length.
    tolerance = 1e-9 if attention == "sdpa" else 1e-6
    made = model(torch.float64, attention)
    reference = loss_and_gradient(made, pack(episodes, "turns"), torch.float64, **options)
    assert reference.isfinite().all()
    for layout in COMPACT:
        found = loss_and_gradient(made, pack(episodes, layout, form=form), torch.float64, **options)
        assert difference(found, reference) <= tolerance, layout


@settings(max_examples=40, deadline=None)
@given(groups(), OPTIONS)
def test_all_layouts_give_the_same_loss_and_gradient_in_float32(
    episodes: list[Episode], options: dict[str, Any]
) -> None:
    made = model(torch.float32, "sdpa")
    reference = loss_and_gradient(made, pack(episodes, "turns"), torch.float32, **options)
    for layout in COMPACT:
        found = loss_and_gradient(made, pack(episodes, layout), torch.float32, **options)
        assert difference(found, reference) <= 1e-5, layout


def test_the_gradient_test_can_fail() -> None:
    """A tree whose members see each other has another gradient: the mask matters."""
    episodes = [synthetic_episode(1, i, [3, 2], prompt=4, group="g", vocab_size=23) for i in range(3)]
    made = model(torch.float64, "sdpa")
    reference = loss_and_gradient(made, pack(episodes, "turns"), torch.float64)
    tree = pack(episodes, "tree")
    merged = tree.replace_tensors({"branch_index": tree.branch_index.clamp(max=0)})
    assert difference(loss_and_gradient(made, tree, torch.float64), reference) <= 1e-9
    assert difference(loss_and_gradient(made, merged, torch.float64), reference) > 1e-3


@settings(max_examples=20, deadline=None)
@given(groups(), OPTIONS, st.sampled_from(LAYOUTS), st.sampled_from(FORMS), st.integers(30, 90))
def test_micro_batches_sum_to_the_whole(
    episodes: list[Episode], options: dict[str, Any], layout: Any, form: Any, max_tokens: int
) -> None:
    made = model(torch.float64, "sdpa")
    batch = pack(episodes, layout, form=form)
    whole = loss_and_gradient(made, batch, torch.float64, **options)
    keep = "sequence" in (options["ratio"], options["normalization"])
    limit = max(max_tokens, 200 if keep or layout == "tree" else 0)
    total = torch.zeros_like(whole)
    counts = {"denominator": batch.count(options["normalization"]) or 1, "tokens": batch.count("token") or 1}
    for part in micro_batches(batch, max_tokens=limit, keep_episodes=keep):
        total += loss_and_gradient(made, part, torch.float64, **counts, **options)
    assert difference(total, whole) <= 1e-9


def test_mask_mod_is_the_dense_mask_and_drives_flex_attention() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

    episodes = [synthetic_episode(2, i, [i, 2], prompt=3, group="ab"[i % 2], vocab_size=23) for i in range(4)]
    for layout in LAYOUTS:
        for form in FORMS:
            batch = pack(episodes, layout, form=form)
            rows, columns = batch.input_ids.shape
            made = create_mask(mask_mod(batch), rows, None, columns, columns, device="cpu")
            assert torch.equal(made, dense_mask(batch))
    batch = pack(episodes, "tree")
    rows, columns = batch.input_ids.shape
    q, k, v = torch.randn(3, rows, 2, columns, 16, generator=torch.Generator().manual_seed(0))
    block = create_block_mask(mask_mod(batch), rows, None, columns, columns, device="cpu")
    with pytest.warns(UserWarning, match="compile"):  # uncompiled is slow, and needs no compiler
        flexed = flex_attention(q, k, v, block_mask=block)
    dense = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=dense_mask(batch))
    assert torch.allclose(flexed, dense, atol=1e-5)


def test_the_dense_mask_by_hand() -> None:
    episodes = [synthetic_episode(0, i, [2], prompt=[1, 2], group="g") for i in range(2)]
    assert dense_mask(pack(episodes, "tree"))[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 1],
    ]
    bias = dense_mask(pack(episodes, "tree"), torch.float32)
    assert bias[0, 0, 0, 0] == 0
    assert bias[0, 0, 0, 1] == torch.finfo(torch.float32).min
