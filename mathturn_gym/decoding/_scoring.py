"""Log-probs of given token ids: one teacher-forced pass, with logits only where an id is scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from mathturn_gym.decoding._runner import ModelRunner
from mathturn_gym.decoding.sampling import Sampling, entropy
from mathturn_gym.errors import check_int
from mathturn_gym.types import Ids

if TYPE_CHECKING:
    from mathturn_gym.packing import PackedBatch

__all__ = ["score_batch", "score_completions"]

_LOGIT_ROWS = 1024
"""Positions whose logits are turned into distributions at once: float32 over a large vocabulary is what needs memory."""


def score_completions(
    runner: ModelRunner,
    sampling: Sampling,
    contexts: Sequence[Ids],
    completions: Sequence[Ids],
    max_rows: int | None,
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
    from mathturn_gym.packing import select_rows

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
    """Who may look at whom.

    Rows laid end to end get none: transformers keeps them apart by their position ids, which start again with each,
    and adds sliding windows to that, which a dense mask of ours would replace. A tree's branches need the dense one.
    """
    if part.layout == "tree":
        from mathturn_gym.packing import dense_mask

        return dense_mask(part, next(runner.model.parameters()).dtype)
    return part.attention_mask if part.form == "padded" else None
