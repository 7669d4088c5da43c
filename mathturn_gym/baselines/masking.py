"""Which ids may be sampled: one set for every algorithm that is compared.

A policy from random weights would spend its budget on finding out which ids an answer is made of. The set is given to
a language model as a mask on its logits, so that sampling, scoring and training all see the same distribution; to
`MaskablePPO` as action masks; and to algorithms that know no masks as their action space.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mathturn_gym.errors import InvalidValueError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["ANSWER_TEXTS", "answer_ids", "restrict_ids"]

ANSWER_TEXTS = (*"0123456789", "\\boxed{", "}")
"""What a boxed whole number is written with, besides the end of the turn."""


def answer_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    r"""The ids that a boxed whole number is written with, the end of the turn included, ascending.

    Args:
        tokenizer: One in which each of `ANSWER_TEXTS` is a single id.

    Raises:
        InvalidValueError: a text is more than one id in this tokenizer, or it has no end-of-turn id.

    >>> from mathturn_gym.baselines.tiny import train_tokenizer
    >>> len(answer_ids(train_tokenizer()))
    13
    """
    found = set()
    for text in ANSWER_TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if len(ids) != 1:
            raise InvalidValueError(f"allowed ids: {text!r} is {len(ids)} ids in this tokenizer, and must be one")
        found.add(int(ids[0]))
    end = tokenizer.eos_token_id
    if not isinstance(end, int):
        raise InvalidValueError(f"allowed ids: the tokenizer must have an end-of-turn id, got eos_token_id {end!r}")
    return tuple(sorted({*found, end}))


def restrict_ids(model: PreTrainedModel, ids: Sequence[int]) -> torch.utils.hooks.RemovableHandle:
    """Gives every other id the probability 0, wherever the model is called from.

    Args:
        model: With an output embedding (`get_output_embeddings`), changed in place by a forward hook; nothing of it
            is saved with the weights.
        ids: What may be sampled.

    Returns:
        A handle; its `remove()` takes the mask away.

    Raises:
        InvalidValueError: no ids, or one outside the model's vocabulary.
    """
    import torch

    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    size = int(head.weight.shape[0])
    if not ids or min(ids) < 0 or max(ids) >= size:
        raise InvalidValueError(f"allowed ids must be in [0, {size}), and at least one, got {list(ids)!r}")
    forbidden = torch.ones(size, dtype=torch.bool, device=head.weight.device)
    forbidden[list(ids)] = False

    def mask(module: torch.nn.Module, inputs: Any, logits: torch.Tensor) -> torch.Tensor:
        return logits.masked_fill(forbidden, -torch.inf)

    return head.register_forward_hook(mask)  # type: ignore[no-any-return]
