"""The grammar of answers, as a model meets it."""

from __future__ import annotations

import pytest
import torch
from tiny import make_tiny_model, train_tokenizer

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.policies.sampling import answer_grammar, answer_ids, mask_logits
from mathturn_gym.testing import make_tokenizer

TOKENIZER = train_tokenizer()
GRAMMAR = answer_grammar(TOKENIZER)


def ids_of(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def test_every_boxed_number_can_be_written_and_nothing_else() -> None:
    for text in ("\\boxed{7}<|im_end|>", "\\boxed{120}<|im_end|>"):
        ids = ids_of(text)
        assert all(ids[i] in GRAMMAR(ids[:i]) for i in range(len(ids)))
    for text in ("7", "\\boxed{}", "\\boxed{7<|im_end|>", "\\boxed{7}}", "}"):
        ids = ids_of(text)
        assert not all(ids[i] in GRAMMAR(ids[:i]) for i in range(len(ids)))


def test_a_masked_model_gives_the_rest_no_chance_however_it_is_called() -> None:
    model = make_tiny_model(TOKENIZER)
    ids = torch.tensor([ids_of("<|im_start|>user\nWhat is 2+3?<|im_end|>\n<|im_start|>assistant\n\\boxed{5}")])
    free = model(input_ids=ids).logits
    handle = mask_logits(model, GRAMMAR)
    masked = model(input_ids=ids).logits
    for place in range(ids.shape[1]):
        allowed = set(GRAMMAR(ids[0, : place + 1].tolist()))
        assert set(torch.isfinite(masked[0, place]).nonzero()[:, 0].tolist()) == allowed
        chosen = sorted(allowed)
        torch.testing.assert_close(masked[0, place, chosen], free[0, place, chosen])
    torch.testing.assert_close(model(input_ids=ids, logits_to_keep=2).logits, masked[:, -2:])
    some = torch.tensor([3, ids.shape[1] - 2])
    torch.testing.assert_close(model(input_ids=ids, logits_to_keep=some).logits, masked[:, some])
    cache = model(input_ids=ids[:, :-1], use_cache=True).past_key_values
    torch.testing.assert_close(model(input_ids=ids[:, -1:], past_key_values=cache).logits, masked[:, -1:])
    handle.remove()
    torch.testing.assert_close(model(input_ids=ids).logits, free)


def test_a_tokenizer_that_cuts_the_box_is_refused() -> None:
    assert len(answer_ids(TOKENIZER)) == 13
    with pytest.raises(InvalidValueError, match="must be one"):
        answer_ids(make_tokenizer())
