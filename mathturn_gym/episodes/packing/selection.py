"""Model inputs of a batch, and parts of it: micro-batches by tokens, single rows, and rows that are not stale."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mathturn_gym.episodes.packing.batch import PackedBatch, Pieces
from mathturn_gym.errors import InvalidValueError, check_int
from mathturn_gym.types import NO_VERSION, Episode

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
        # Siblings of one tree share the prompt (branch 0) and never see each other.
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
    # A 2-D mask is what every attention implementation takes; a dense one is quadratic in memory.
    plain = batch.form == "padded" and batch.layout != "tree"
    mask = batch.attention_mask if plain else dense_mask(batch, dtype)
    return {"input_ids": batch.input_ids, "position_ids": batch.position_ids, "attention_mask": mask}


# ---- parts of a batch


def micro_batches(batch: PackedBatch, *, max_tokens: int, keep_episodes: bool = False) -> list[PackedBatch]:
    """Splits a batch into as few parts as first-fit decreasing finds, each within `max_tokens`.

    Every row stays whole. Rows keep their order within a part, and parts are ordered by their first rows, so the
    same batch is always split in the same way. Divide every part's loss by the whole batch's
    `count(...)` (`policy_loss(..., denominator=)`) and their sum is the loss of the whole.

    Args:
        batch: In any layout and form.
        max_tokens: Most ids in a part: real ones in form `"varlen"`; with padding, rows x longest, in `"padded"`.
        keep_episodes: Keep all rows of an episode together: its turns in layout `"turns"`, its segments in the others (what
            sequence ratios and sequence-mean normalization need).

    Raises:
        InvalidValueError: a row (or episode, if kept together) is longer than `max_tokens`; it is named.
    """
    rows = micro_batch_rows(batch, max_tokens=max_tokens, keep_episodes=keep_episodes)
    return [select_rows(batch, part) for part in rows]


def micro_batch_rows(
    batch: PackedBatch, *, max_tokens: int, keep_episodes: bool = False, long_alone: bool = False
) -> list[list[int]]:
    """The rows of each part of `micro_batches`; with `long_alone`, what is longer than `max_tokens` is a part by itself."""
    limit = check_int("max_tokens", max_tokens, low=1)
    padded = batch.form == "padded"
    lengths = batch.lengths
    units = _units(batch, keep_episodes)
    rows = np.bincount(units, minlength=int(units.max(initial=-1)) + 1)
    longest = np.zeros(len(rows), np.int64)
    np.maximum.at(longest, units, lengths)
    total = np.bincount(units, lengths, minlength=len(rows)).astype(np.int64)
    size = rows * longest if padded else total
    too_long = np.flatnonzero(size > limit)
    if too_long.size and not long_alone:
        unit = int(too_long[0])
        first = int(np.searchsorted(batch.pieces.row, np.flatnonzero(units == unit)[0]))
        name = batch.facts[int(batch.pieces.episode[first])].name
        raise InvalidValueError(
            f"{name} needs {int(size[unit])} tokens in one micro-batch, but max_tokens is {limit}: raise max_tokens, "
            f"or drop the episode"
        )
    bin_of_row = _first_fit_decreasing(size, rows, longest, limit, padded)[units]
    by_bin = np.argsort(bin_of_row, kind="stable")
    parts = np.split(by_bin, np.flatnonzero(np.diff(bin_of_row[by_bin])) + 1)
    return sorted(part.tolist() for part in parts)


def _units(batch: PackedBatch, keep_episodes: bool) -> npt.NDArray[np.int64]:
    """The number of what must stay together, for every row."""
    rows, pieces = np.arange(batch.num_rows), batch.pieces
    if not keep_episodes or (batch.layout != "turns" and len(pieces.row) and int(batch.facts.segments.max()) == 1):
        return rows
    # Rows that share an episode get one number, the least of theirs; in a tree, a row can link many.
    unit = rows.copy()
    # To a fixed point: in a tree, rows are linked through episodes and episodes through rows.
    while True:
        least = np.full(len(batch.facts), batch.num_rows, np.int64)
        np.minimum.at(least, pieces.episode, unit[pieces.row])
        linked = unit.copy()
        np.minimum.at(linked, pieces.row, least[pieces.episode])
        if np.array_equal(linked, unit):
            return np.unique(unit, return_inverse=True)[1].astype(np.int64)
        unit = linked


def _first_fit_decreasing(
    size: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    longest: npt.NDArray[np.int64],
    limit: int,
    padded: bool,
) -> npt.NDArray[np.int64]:
    """The bin of each unit: by decreasing size, into the first that still holds it (padding counted in)."""
    # First-fit decreasing: without padding it needs at most 11/9 of the fewest bins, plus 6/9 (Dosa 2007). Ties are
    # broken by number, so that the same batch is always split in the same way.
    bins = np.zeros(len(size), np.int64)
    loads: list[tuple[int, int]] = []  # (rows, longest) where padded, (ids, 1) otherwise
    order = np.lexsort((np.arange(len(size)), -size, -longest if padded else -size))
    for unit in order.tolist():
        count, width = (int(rows[unit]), int(longest[unit])) if padded else (int(size[unit]), 1)
        for b, (held, held_width) in enumerate(loads):
            if (held + count) * max(held_width, width) <= limit:
                bins[unit] = b
                loads[b] = (held + count, max(held_width, width))
                break
        else:
            bins[unit] = len(loads)
            loads.append((count, width))
    return bins


def select_rows(batch: PackedBatch, rows: Sequence[int]) -> PackedBatch:
    """Some rows of a batch as a batch of their own, with the facts of their episodes only.

    Args:
        batch: In any layout and form.
        rows: Increasing row numbers, at least one.

    Raises:
        InvalidValueError: rows that are not increasing or not there.
    """
    chosen = np.asarray(rows, dtype=np.int64)
    if chosen.size == 0 or chosen.min() < 0 or chosen.max() >= batch.num_rows or np.any(np.diff(chosen) <= 0):
        raise InvalidValueError(f"rows must be increasing numbers in [0, {batch.num_rows}), got {list(rows)}")
    new_row = np.full(batch.num_rows, -1, np.int64)
    new_row[chosen] = np.arange(len(chosen))
    pieces = batch.pieces.take(new_row[batch.pieces.row] >= 0)
    episodes = np.unique(pieces.episode)
    new_episode = np.full(len(batch.facts) + 1, -1, np.int64)  # its last entry stands for -1, no episode
    new_episode[episodes] = np.arange(len(episodes))
    columns = {field.name: getattr(pieces, field.name) for field in fields(Pieces)}
    pieces = Pieces(**{**columns, "row": new_row[pieces.row], "episode": new_episode[pieces.episode]})
    lengths = batch.lengths[chosen]
    tensors = _take(batch, chosen, lengths)
    lookup = torch.from_numpy(new_episode.astype(np.int32)).to(batch.device)
    tensors["episode_index"] = lookup[tensors["episode_index"].long()]
    facts = batch.facts.take(episodes.tolist())
    changes: dict[str, Any] = dict(tensors)
    return replace(batch, **changes, max_seqlen=int(lengths.max()), facts=facts, pieces=pieces)


def _take(batch: PackedBatch, chosen: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> dict[str, torch.Tensor]:
    tensors = batch.tensors()
    old_starts = tensors.pop("cu_seqlens").long()
    starts = np.concatenate([[0], np.cumsum(lengths)])
    new_starts = torch.from_numpy(starts.astype(np.int32)).to(batch.device)
    index = torch.from_numpy(chosen).to(batch.device)
    if batch.form == "padded":
        width = int(lengths.max())
        taken = {name: tensor[index, :width] for name, tensor in tensors.items()}
    else:
        # Rows are moved together to the left, each by what is left out before it.
        shift = torch.repeat_interleave(
            old_starts[index] - new_starts[:-1].long(), torch.from_numpy(lengths).to(batch.device)
        )
        column = torch.arange(int(starts[-1]), device=batch.device) + shift
        taken = {name: tensor[:, column] for name, tensor in tensors.items()}
        if "predictor_index" in taken:
            taken["predictor_index"] = taken["predictor_index"] - shift
    return {**taken, "cu_seqlens": new_starts}


def drop_stale(
    episodes: Iterable[Episode], *, current_version: int, max_staleness: int
) -> tuple[list[Episode], list[Episode]]:
    """Parts episodes by the age of their oldest token: (fresh enough, too old).

    An id's staleness is `current_version` minus the version that sampled it; an episode during which the policy was
    updated has several. An episode without a completion id has none and is kept.

    Args:
        episodes: Any number of episodes.
        current_version: The version of the policy about to be updated, >= 0.
        max_staleness: The largest staleness that is kept, >= 0.

    Raises:
        InvalidValueError: a number out of range, or an episode from a version after `current_version`.
    """
    now, most = _check_versions(current_version, max_staleness)
    fresh: list[Episode] = []
    stale: list[Episode] = []
    for episode in episodes:
        own = episode.versions[episode.loss_mask]
        if own.size and int(own[-1]) > now:
            raise InvalidValueError(
                f"episode {episode.index} on {episode.problem_id!r} has version {int(own[-1])}, after "
                f"current_version {now}"
            )
        # Versions only rise within an episode, so its first trained id is its oldest.
        (stale if own.size and now - int(own[0]) > most else fresh).append(episode)
    return fresh, stale


def mask_stale(batch: PackedBatch, *, current_version: int, max_staleness: int) -> PackedBatch:
    """Takes ids that are too old out of the loss mask; the newer ids of the same episode stay in.

    Args and errors as in `drop_stale`. `unpack` still gives the whole episodes.
    """
    now, most = _check_versions(current_version, max_staleness)
    newest = int(batch.versions.max()) if batch.versions.numel() else NO_VERSION
    if newest > now:
        raise InvalidValueError(f"the batch has version {newest}, after current_version {now}")
    return batch.replace_tensors({"loss_mask": batch.loss_mask & (now - batch.versions <= most)})


def _check_versions(current_version: int, max_staleness: int) -> tuple[int, int]:
    return check_int("current_version", current_version, low=0), check_int("max_staleness", max_staleness, low=0)
