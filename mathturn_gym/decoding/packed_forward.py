"""The logits that an update needs, and no others.

    rows, padded (B, T)  ─►  ids in one row, padding left out (1, N)  ─►  body  ─►  head where an id is trained (M, V)
                                                                           │ attention alone sees rows again

Of a padded batch of dialogues about half is padding, and the policy wrote about a quarter of the rest. Everything but
attention works on single ids, so it need not know of rows. Rows are right-padded, so causal attention needs no mask.

transformers lets attention be chosen by name. `use_row_attention` gives a model an implementation of our own, once:
called with rows it works within them, called without it is transformers' own ("sdpa"), so sampling stays as it was.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from mathturn_gym.packing import PackedBatch, model_inputs

__all__ = ["trained_logits", "use_row_attention"]

_ATTENTION: Final = "mathturn_rows"
_ATTENTIONS: Final[Any] = AttentionInterface
_MASKS: Final[Any] = AttentionMaskInterface
_PLAIN_CAUSAL: Final = ("llama", "qwen2", "qwen3")
"""Model types whose attention is plain and causal, if no layer slides: those whose ids can be put in one row."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Where each id of padded rows is once the padding is left out.

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
        # Counting the ids before each place: a place of padding gets the number of the id before it, which is harmless.
        size, columns = batch.input_ids.shape
        return cls((size, columns), there.cumsum(0) - 1, there.nonzero()[:, 0])

    def padded(self, states: torch.Tensor) -> torch.Tensor:
        """(1, H, N, D) as (B, H, T, D)."""
        heads, _, width = states.shape[1:]
        return states[0].transpose(0, 1)[self.source].view(*self.shape, heads, width).transpose(1, 2)

    def flat(self, states: torch.Tensor) -> torch.Tensor:
        """(B, H, T, D) as (1, N, H, D)."""
        return states.transpose(1, 2).flatten(0, 1)[self.place][None]


def use_row_attention(model: Any) -> bool:
    """Spares a model the padding in `trained_logits`, from now on.

    Args:
        model: A causal language model of transformers, or a peft model around one. Llama, Qwen2 and Qwen3 without
            sliding windows can be spared it, where their attention is transformers' default ("sdpa"); any other is
            left as it is.

    Returns:
        Whether it is spared.
    """
    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    kinds = getattr(inner.config, "layer_types", None) or ()
    plain = inner.config.model_type in _PLAIN_CAUSAL and all(kind == "full_attention" for kind in kinds)
    if plain and inner.config._attn_implementation == "sdpa":
        inner.set_attn_implementation(_ATTENTION)
    return bool(inner.config._attn_implementation == _ATTENTION)


def trained_logits(model: Any, batch: PackedBatch) -> torch.Tensor:
    """Logits that predict the trained ids.

    Args:
        model: A causal language model of transformers, or a peft model around one. One that `use_row_attention` has
            prepared is spared the padding; any other is called on the padded rows, with the same result.
        batch: Layout "episode", padded.

    Returns:
        (M, V) in the model's dtype, in the order of `batch.loss_mask.nonzero()`.
    """
    row, column = batch.loss_mask.nonzero(as_tuple=True)
    if model.config._attn_implementation != _ATTENTION:
        return _padded_logits(model, batch, row, column - 1)
    rows = Rows.of(batch)
    out = model(
        input_ids=batch.input_ids.flatten()[rows.place][None],
        # A mask of four dimensions is handed on as it is: transformers builds none, and attention looks at `rows`.
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=batch.device),
        position_ids=batch.position_ids.flatten()[rows.place][None],
        use_cache=False,
        logits_to_keep=rows.source[row * batch.input_ids.shape[1] + column - 1],
        rows=rows,
    )
    return out.logits[0]  # type: ignore[no-any-return]


def _padded_logits(model: Any, batch: PackedBatch, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Logits at (row, column) of the padded rows, (M, V)."""
    inputs = model_inputs(batch)
    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    if "logits_to_keep" not in inspect.signature(inner.forward).parameters:
        logits: torch.Tensor = model(**inputs, use_cache=False).logits
        return logits[row, column]
    kept, index = torch.unique(column, return_inverse=True)
    logits = model(**inputs, use_cache=False, logits_to_keep=kept).logits
    return logits[row, index]


def _within_rows(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    rows: Rows | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention of each row to itself, as transformers calls it: (1, H, N, D) to (1, N, H, D)."""
    if rows is None:
        found: tuple[torch.Tensor, None] = _ATTENTIONS()["sdpa"](
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
        return found
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


_ATTENTIONS.register(_ATTENTION, _within_rows)
_MASKS.register(_ATTENTION, _MASKS()["sdpa"])
