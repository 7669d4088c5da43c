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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface

from mathturn_gym.episodes.losses import trained_logprobs
from mathturn_gym.episodes.packing import PackedBatch, model_inputs
from mathturn_gym.errors import check_int
from mathturn_gym.policies.runner import ModelRunner
from mathturn_gym.policies.sampling import Sampling, entropy
from mathturn_gym.types import Ids

if TYPE_CHECKING:
    from mathturn_gym.episodes.packing import PackedBatch

_ATTENTION: Final = "mathturn_rows"
_ATTENTIONS: Final[Any] = AttentionInterface
_MASKS: Final[Any] = AttentionMaskInterface
# Bytes of float32 logits that one step of an update makes at most, where the model lets its head be called by itself.
_LOGITS_BYTES: Final = 1 << 28
# Model types whose attention is plain and causal, if no layer slides: those whose ids can be put in one row.
_PLAIN_CAUSAL: Final = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The place of each id of padded rows after the padding is removed."""

    shape: tuple[int, int]  # (B, T) of the padded rows
    # int64 (B * T,), for each place in the padded rows the id that goes there; for padding any id of its row.
    source: torch.Tensor
    place: torch.Tensor  # int64 (N,), for each id its place in the padded rows

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
    inputs, kept = _in_one_row(batch)
    return model(**inputs, logits_to_keep=kept).logits[0]  # type: ignore[no-any-return]


def trained_scores(
    model: Any, batch: PackedBatch, vocab_size: int, *, temperature: float = 1.0, entropy_graph: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """`trained_logprobs` of `trained_logits`, in bounded memory where the vocabulary is large.

    Logits, their softmax, and the gradients of both are float32 (M, V) each: 8,192 ids of a vocabulary of 152,000 take 5 GB four to
    six times over. Above a quarter of a gigabyte the head works on chunks of ids, and the backward pass computes each
    chunk's logits once more; that is a third of the head's work, and the sums over chunks may differ in the last bits.

    Args:
        model: As for `trained_logits`. Chunks need a model that `use_row_attention` has prepared, unsharded and
            without a forward hook (an answer grammar is one: it changes logits on their way out).
        batch: Layout "episode", padded.
        vocab_size: Ids of the tokenizer; a head may have more.
        temperature: As in `token_logprobs`.
        entropy_graph: As in `trained_logprobs`.

    Returns:
        As `trained_logprobs`.
    """
    places = batch.loss_mask.nonzero()
    chunk = max(1, _LOGITS_BYTES // (4 * vocab_size))
    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    # A hook sees the model's whole output; FSDP gathers weights when the model is called, not its parts.
    plain = model.config._attn_implementation == _ATTENTION and not (inner._forward_hooks or hasattr(inner, "reshard"))
    if len(places) <= chunk or not plain:
        logits = trained_logits(model, batch)[:, :vocab_size]
        return trained_logprobs(logits.float(), batch, temperature=temperature, entropy_graph=entropy_graph)
    inputs, kept = _in_one_row(batch)
    states = inner.get_decoder()(**inputs).last_hidden_state[0, kept]
    head = inner.get_output_embeddings()

    def scores(states: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.zeros_like(batch.loss_mask)
        mask[places[:, 0], places[:, 1]] = True
        part = batch.replace_tensors({"loss_mask": mask})
        logits = head(states)[:, :vocab_size].float()
        return trained_logprobs(logits, part, temperature=temperature, entropy_graph=entropy_graph)

    parts = [
        checkpoint(scores, *one, use_reentrant=False, preserve_rng_state=False)
        for one in zip(torch.split(states, chunk), torch.split(places, chunk), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return sum(logprobs[1:], logprobs[0]), sum(entropies[1:], entropies[0])  # each is 0 off its chunk


def _in_one_row(batch: PackedBatch) -> tuple[dict[str, Any], torch.Tensor]:
    """What a model prepared by `use_row_attention` is called with, and the (M,) places that predict a trained id."""
    row, column = batch.loss_mask.nonzero(as_tuple=True)
    rows = Rows.of(batch)
    inputs = {
        "input_ids": batch.input_ids.flatten()[rows.place][None],
        # a mask of four dimensions is handed on as it is: transformers builds none, and attention looks at `rows`.
        "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=batch.device),
        "position_ids": batch.position_ids.flatten()[rows.place][None],
        "use_cache": False,
        "rows": rows,
    }
    return inputs, rows.source[row * batch.input_ids.shape[1] + column - 1]


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


# ---- log-probs of given token ids


# Positions whose logits are turned into distributions at once: float32 over a large vocabulary is what needs memory.
_LOGIT_ROWS = 1024


def score_completions(
    runner: ModelRunner, sampling: Sampling, contexts: Sequence[Ids], completions: Sequence[Ids], max_rows: int | None
) -> list[npt.NDArray[np.float32]]:
    """Log-probs of each completion after its context.

    Args:
        runner: The model.
        sampling: The distribution that is meant.
        contexts: B arrays, int64 (L_b,), none empty.
        completions: B arrays, int64 (A_b,).
        max_rows: Most rows of one pass.

    Returns:
        B arrays, float32 (A_b,).
    """
    sequences = [np.concatenate([a, b]) for a, b in zip(contexts, completions, strict=True)]
    logprobs: list[npt.NDArray[np.float32]] = []
    size = max_rows or max(1, len(sequences))
    with torch.no_grad():
        for start in range(0, len(sequences), size):
            ids_BT, mask_BT = runner.left_pad(sequences[start : start + size])
            position_BT = (mask_BT.cumsum(dim=-1) - 1).clamp_min(0)
            longest = max(len(ids) for ids in completions[start : start + size])
            logits_BTV = runner.forward(ids_BT, mask_BT, position_BT, keep=longest + 1)[:, :-1]
            dist_BTV = sampling.log_distribution(logits_BTV.flatten(0, 1)).view(logits_BTV.shape)
            picked_BT = dist_BTV.gather(-1, ids_BT[:, ids_BT.shape[1] - longest :, None])[..., 0].cpu().numpy()
            for offset, row in enumerate(picked_BT, start):
                logprobs.append(row[len(row) - len(completions[offset]) :].astype(np.float32))
    return logprobs


def score_batch(
    runner: ModelRunner, sampling: Sampling, batch: PackedBatch, *, max_tokens: int, entropies: bool
) -> torch.Tensor:
    """Log-probs (or entropies) of a packed batch's trained ids.

    Args:
        runner: The model.
        sampling: The distribution that is meant.
        batch: In any layout and form.
        max_tokens: Most tokens of one pass.
        entropies: Entropies instead of log-probs.

    Returns:
        float32, shaped as `batch.input_ids`; 0 off the loss mask.
    """
    found = torch.zeros(batch.input_ids.shape, dtype=torch.float32, device=batch.device)
    with torch.no_grad():
        for part, place in _parts(batch, check_int("max_tokens", max_tokens, low=1)):
            found[place] = _score_part(runner, sampling, part.to(runner.device), entropies).to(found.device)
    return found


def _parts(batch: PackedBatch, max_tokens: int) -> Iterator[tuple[PackedBatch, tuple[slice, slice]]]:
    """Consecutive rows that fit into a pass, as a batch of their own, and their place in the whole."""
    from mathturn_gym.episodes.packing.selection import select_rows

    lengths, starts = batch.lengths.tolist(), batch.cu_seqlens.tolist()
    first = 0
    while first < batch.num_rows:
        last, longest = first + 1, lengths[first]
        while last < batch.num_rows:
            longest = max(longest, lengths[last])
            width = (last + 1 - first) * longest if batch.form == "padded" else starts[last + 1] - starts[first]
            if width > max_tokens:
                break
            last += 1
        if batch.form == "padded":
            place = slice(first, last), slice(0, max(lengths[first:last]))
        else:
            place = slice(0, 1), slice(starts[first], starts[last])
        yield select_rows(batch, range(first, last)), place
        first = last


def _score_part(runner: ModelRunner, sampling: Sampling, part: PackedBatch, entropies: bool) -> torch.Tensor:
    """Scores of one pass, float32, shaped as `part.input_ids`."""
    found = torch.zeros(part.input_ids.shape, dtype=torch.float32, device=part.device)
    row, column = part.loss_mask.nonzero(as_tuple=True)
    if not row.numel():
        return found
    source = column - 1 if part.predictor_index is None else part.predictor_index[row, column]
    # The model computes logits for the same columns in every row: those that any row needs.
    kept, index = torch.unique(source, return_inverse=True)
    logits_BKV = runner.forward(part.input_ids, _mask(part, runner), part.position_ids, keep=kept)
    for start in range(0, len(row), _LOGIT_ROWS):
        chunk = slice(start, start + _LOGIT_ROWS)
        dist_MV = sampling.log_distribution(logits_BKV[row[chunk], index[chunk]])
        if entropies:
            scores_M = entropy(dist_MV)
        else:
            scores_M = dist_MV.gather(-1, part.input_ids[row[chunk], column[chunk], None])[:, 0]
        found[row[chunk], column[chunk]] = scores_M
    return found


def _mask(part: PackedBatch, runner: ModelRunner) -> torch.Tensor | None:
    """The attention mask for a part of a batch, or None.

    Rows laid end to end get none: transformers keeps them apart by their position ids, which start again with each,
    and adds sliding windows to that, which a dense mask of ours would replace. A tree's branches need the dense one.
    """
    if part.layout == "tree":
        from mathturn_gym.episodes.packing import dense_mask

        return dense_mask(part, next(runner.model.parameters()).dtype)
    return part.attention_mask if part.form == "padded" else None
