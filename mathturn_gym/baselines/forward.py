"""The logits that an update needs, and no others.

    rows, padded (B, T)  ─►  ids in one row, padding left out (1, N)  ─►  body  ─►  head where an id is trained (M, V)
                                                                           │ attention alone sees rows again

Half of a padded batch of dialogues is padding, and of the ids the policy wrote a quarter: everything but attention
works on single ids, so it need not know of rows. Rows are right-padded, so a causal attention needs no mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from mathturn_gym.packing import PackedBatch, model_inputs

__all__ = ["trained_logits"]

_ATTENTION: Final = "mathturn_rows"
_PLAIN_CAUSAL: Final = ("llama", "qwen2", "qwen3")
"""Model types whose attention is plain and causal, if no layer slides: those whose ids can be put in one row."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Where the ids of padded rows are when their padding is left out.

    Args:
        shape: (B, T) of the padded rows.
        source: int64 (B * T,), for each place in the padded rows the id that goes there; for padding any id of its row.
        place: int64 (N,), for each id its place in the padded rows.
    """

    shape: tuple[int, int]
    source: torch.Tensor
    place: torch.Tensor

    @classmethod
    def of(cls, batch: PackedBatch) -> Rows:
        """Of a batch in form "padded"."""
        there = batch.attention_mask.flatten()
        size, columns = batch.input_ids.shape
        return cls((size, columns), there.cumsum(0) - 1, there.nonzero()[:, 0])

    def padded(self, states: torch.Tensor) -> torch.Tensor:
        """(1, H, N, D) as (B, H, T, D)."""
        heads, _, width = states.shape[1:]
        return states[0].transpose(0, 1)[self.source].view(*self.shape, heads, width).transpose(1, 2)

    def flat(self, states: torch.Tensor) -> torch.Tensor:
        """(B, H, T, D) as (1, N, H, D)."""
        return states.transpose(1, 2).flatten(0, 1)[self.place][None]


def trained_logits(model: Any, batch: PackedBatch) -> torch.Tensor:
    """Logits that predict the trained ids.

    Args:
        model: A causal language model of transformers. Llama, Qwen2 and Qwen3 without sliding windows are spared the
            padding; any other is called on the padded rows, with the same result.
        batch: Layout "episode", padded.

    Returns:
        (M, V) in the model's dtype, in the order of `batch.loss_mask.nonzero()`.
    """
    row, column = batch.loss_mask.nonzero(as_tuple=True)
    if not _plain(model.config):
        logits: torch.Tensor = model(**model_inputs(batch), use_cache=False).logits
        return logits[row, column - 1]
    rows = Rows.of(batch)
    with _attention(model.config):
        out = model(
            input_ids=batch.input_ids.flatten()[rows.place][None],
            position_ids=batch.position_ids.flatten()[rows.place][None],
            use_cache=False,
            logits_to_keep=rows.source[row * batch.input_ids.shape[1] + column - 1],
            rows=rows,
        )
    return out.logits[0]  # type: ignore[no-any-return]


def _plain(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None) or ()
    return config.model_type in _PLAIN_CAUSAL and all(kind == "full_attention" for kind in kinds)


@contextmanager
def _attention(config: Any) -> Iterator[None]:
    """Attention within rows for one call; sampling has its own."""
    own = config._attn_implementation
    config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = own


def _within_rows(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    rows: Rows,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention of each row to itself, as transformers calls it: (1, H, N, D) to (1, N, H, D)."""
    states = scaled_dot_product_attention(
        rows.padded(query),
        rows.padded(key),
        rows.padded(value),
        dropout_p=dropout,
        is_causal=True,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return rows.flat(states), None


AttentionInterface.register(_ATTENTION, _within_rows)
