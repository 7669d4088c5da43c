"""Attention for packed rows: who may look at whom, for SDPA (a dense mask) and FlexAttention (a mask_mod)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mathturn_gym.packing.batch import PackedBatch

__all__ = ["dense_mask", "mask_mod", "model_inputs"]

MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def row_index(batch: PackedBatch) -> torch.Tensor:
    """The row of every column in form `"varlen"`: int64 (N,); zeros in form `"padded"`, whose rows are apart."""
    columns = batch.input_ids.shape[1]
    if batch.form == "padded":
        return torch.zeros(columns, dtype=torch.int64, device=batch.device)
    return torch.bucketize(
        torch.arange(columns, device=batch.device), batch.cu_seqlens[1:].long(), right=True, out_int32=False
    )


def mask_mod(batch: PackedBatch) -> MaskMod:
    """A FlexAttention `mask_mod`: an id sees the ids before it in its own row that its own branch continues.

    Padding sees itself alone, so that no softmax is over nothing.

    Returns:
        A function of (batch, head, query, key) index tensors, for `create_block_mask(mask_mod(batch), B=rows of
        input_ids, H=None, Q_LEN=T, KV_LEN=T)`; all ids of a branch have a number, those of its prompt have 0.
    """
    rows_T, branches_BT = row_index(batch), batch.branch_index

    def allowed(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        key_branch = branches_BT[b, kv]
        related = (key_branch == 0) | (key_branch == branches_BT[b, q])
        return ((q >= kv) & (rows_T[q] == rows_T[kv]) & related & (key_branch >= 0)) | (q == kv)

    return allowed


def dense_mask(batch: PackedBatch, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The same mask as one tensor.

    Args:
        batch: In any layout and form.
        dtype: None for booleans (True: may look); a float type for what is added to attention scores.

    Returns:
        (B, 1, T, T), or (1, 1, N, N) in form `"varlen"`: quadratic in memory, so meant for small batches and tests.
    """
    size, columns = batch.input_ids.shape
    index = torch.arange(columns, device=batch.device)
    b = torch.arange(size, device=batch.device)[:, None, None, None]
    allowed = mask_mod(batch)(b, torch.zeros_like(b), index[None, None, :, None], index[None, None, None, :])
    if dtype is None:
        return allowed
    bias = torch.zeros(allowed.shape, dtype=dtype, device=batch.device)
    return bias.masked_fill_(~allowed, torch.finfo(dtype).min)


def model_inputs(batch: PackedBatch, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Keyword arguments for a transformers causal language model's forward.

    Padded rows of layouts `"episode"` and `"turns"` get the ordinary 2-D attention mask; all else the dense one.

    Args:
        batch: On the model's device.
        dtype: The model's dtype (dense masks are added to attention scores).

    Returns:
        `input_ids`, `position_ids`, `attention_mask`; `use_cache` is left to the caller.
    """
    plain = batch.form == "padded" and batch.layout != "tree"
    mask = batch.attention_mask if plain else dense_mask(batch, dtype)
    return {"input_ids": batch.input_ids, "position_ids": batch.position_ids, "attention_mask": mask}
