from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from mathturn_gym.episodes.losses import policy_loss, token_logprobs, trained_logprobs
from mathturn_gym.episodes.packing import PackedBatch, model_inputs, pack
from mathturn_gym.policies import scoring
from mathturn_gym.policies.scoring import trained_logits, trained_scores, use_row_attention
from mathturn_gym.testing import synthetic_episode

SHAPE: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SLIDING = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
MODELS: dict[str, Any] = {  # and whether the padding is spared
    "llama": (LlamaForCausalLM, LlamaConfig, {}, True),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}, True),
    "qwen2 with a sliding window": (Qwen2ForCausalLM, Qwen2Config, SLIDING, False),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": 4}, False),
}


def batch() -> PackedBatch:
    sizes = ([3, 4, 2], [5], [1, 7], [2])
    return pack([synthetic_episode(0, i, row, prompt=4 + i, feedback=3, vocab_size=50) for i, row in enumerate(sizes)])


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_those_of_padded_rows(name: str) -> None:
    kind, config, changes, spared = MODELS[name]
    torch.manual_seed(0)
    model = kind(config(**SHAPE, **changes)).double()
    assert use_row_attention(model) == spared
    part, columns, gradients = batch(), [], []
    model.get_input_embeddings().register_forward_hook(lambda module, args, out: columns.append(out.shape[:2].numel()))
    for logprobs, entropy in (
        token_logprobs(model(**model_inputs(part, torch.float64), use_cache=False).logits, part),
        trained_logprobs(trained_logits(model, part), part),
    ):
        policy_loss(logprobs, part, entropy=entropy, entropy_weight=0.1).loss.backward()  # type: ignore[no-untyped-call]
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        model.zero_grad(set_to_none=True)
    assert gradients[0].abs().max() > 1e-3
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-9, atol=1e-12)
    ids, places = part.num_tokens, part.input_ids.numel()
    assert columns == [places, ids if spared else places]
    assert ids < places


@pytest.mark.parametrize("entropy_weight", [0.0, 0.1])
@pytest.mark.parametrize("name", MODELS)
def test_in_chunks_the_head_makes_few_logits_at_once_and_the_gradient_is_the_same(
    name: str, entropy_weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, config, changes, spared = MODELS[name]
    torch.manual_seed(0)
    model = kind(config(**SHAPE, **changes))
    use_row_attention(model)
    part, made, results = batch(), [], []
    trained = int(part.loss_mask.sum())
    model.get_output_embeddings().register_forward_hook(lambda module, args, out: made.append(out.shape[:-1].numel()))
    for limit in (1 << 28, 4 * 50 * 3):
        monkeypatch.setattr(scoring, "_LOGITS_BYTES", limit)
        logprobs, entropy = trained_scores(model, part, 50, temperature=0.7, entropy_graph=entropy_weight > 0)
        policy_loss(logprobs, part, entropy=entropy, entropy_weight=entropy_weight).loss.backward()  # type: ignore[no-untyped-call]
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        results.append((logprobs.detach(), entropy.detach(), gradient))
        model.zero_grad(set_to_none=True)
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-5, atol=1e-6)
    if spared:
        chunks = -(-trained // 3)
        assert made == [trained] + [3] * (chunks - 1) + [trained - 3 * (chunks - 1)] + made[chunks + 1 :]
        assert max(made[1:]) == 3
        assert len(made) == 1 + 2 * chunks, "once forward, once more for the backward pass"
    else:
        assert min(made) >= trained


def test_logits_that_a_grammar_changes_are_not_made_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    use_row_attention(model)
    part = batch()

    def forbid(module: Any, args: Any, output: Any) -> Any:
        output.logits = output.logits.masked_fill(torch.arange(50) == 7, -torch.inf)
        return output

    model.register_forward_hook(forbid)
    whole = trained_scores(model, part, 50)
    monkeypatch.setattr(scoring, "_LOGITS_BYTES", 4 * 50 * 3)
    assert all(torch.equal(one, other) for one, other in zip(whole, trained_scores(model, part, 50), strict=True))


def test_a_part_without_trained_ids_has_no_logits() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    part = batch()
    part = part.replace_tensors({"loss_mask": torch.zeros_like(part.loss_mask)})
    logits = trained_logits(model, part)
    assert logits.shape == (0, 50)
    logprobs, _ = trained_logprobs(logits, part)
    policy_loss(logprobs, part).loss.backward()  # type: ignore[no-untyped-call]
