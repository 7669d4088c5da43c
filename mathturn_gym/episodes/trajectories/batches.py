"""Packed batches as safetensors files: the tensors, and as JSON bytes what else the episodes are."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mathturn_gym.base.files import parse_json, replacing
from mathturn_gym.episodes.trajectories.records import build_episode, facts_to_record
from mathturn_gym.errors import InvalidValueError, MathTurnError, StorageError

if TYPE_CHECKING:
    from mathturn_gym.episodes.packing import PackedBatch
    from mathturn_gym.episodes.packing.batch import FactsTable

_SCHEMA: Final = "mathturn_gym.packed_batch"
_VERSION: Final = "1"

MAX_IDS: Final = 1 << 24
"""Ids that an episode in a file may have: a file of a kilobyte could ask for terabytes."""


def save_batch(path: str | os.PathLike[str], batch: PackedBatch) -> None:
    """Writes a packed batch; `load_batch` gives it back, and `unpack` of that gives the episodes.

    Tensors have the names of `PackedBatch`'s fields, so that any reader of safetensors can use them.

    Args:
        path: `*.safetensors`, replaced if it is there.
        batch: On any device.

    Raises:
        InvalidValueError: another suffix.
        InvalidEpisodeError: metadata that JSON would change.
        StorageError: the disk is full, or the folder read-only; an old file stands.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    from mathturn_gym.episodes.packing.batch import Pieces

    target = _checked(path)
    # Facts go through the same checks as episodes in files: one schema, one reader.
    records = [facts_to_record(facts.blank()) for facts in batch.facts]
    # As a tensor of bytes: safetensors refuses headers above 100 MB.
    text = json.dumps(records, allow_nan=False, separators=(",", ":")).encode()
    sizes = np.array([[facts.size, len(facts.tail)] for facts in batch.facts], np.int64).reshape(-1, 2)
    tails = np.concatenate([np.zeros(0, np.int64), *(facts.tail for facts in batch.facts)])
    tensors = {
        **{name: tensor.contiguous() for name, tensor in batch.tensors().items()},
        **{f"pieces.{f.name}": torch.from_numpy(getattr(batch.pieces, f.name).copy()) for f in fields(Pieces)},
        "facts.sizes": torch.from_numpy(sizes),
        "facts.tails": torch.from_numpy(tails),
        "facts.json": torch.from_numpy(np.frombuffer(text, np.uint8).copy()),
    }
    header = {
        "schema": _SCHEMA,
        "schema_version": _VERSION,
        "layout": batch.layout,
        "form": batch.form,
        "max_seqlen": str(batch.max_seqlen),
        "has_logprobs": str(int(batch.has_logprobs)),
    }
    try:
        with replacing(target) as scratch:
            save_file(tensors, scratch, metadata=header)
    except SafetensorError as error:  # what safetensors makes of a full disk
        raise StorageError(f"{target} cannot be written: {error}") from error


def load_batch(path: str | os.PathLike[str]) -> PackedBatch:
    """Reads a packed batch, on the CPU.

    Raises:
        InvalidValueError: not such a file, of another version, or with a tensor missing or of the wrong shape.
    """
    from safetensors import SafetensorError, safe_open

    from mathturn_gym.episodes.packing import PackedBatch
    from mathturn_gym.episodes.packing.batch import Pieces

    source = _checked(path)
    try:
        with safe_open(str(source), framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise InvalidValueError(f"{source} is not a safetensors file: {error}") from error
    if (header.get("schema"), header.get("schema_version")) != (_SCHEMA, _VERSION):
        raise InvalidValueError(f"{source}: schema must be {_SCHEMA!r} version {_VERSION}, got {header!r}")
    try:
        pieces = Pieces(**{f.name: tensors.pop(f"pieces.{f.name}").numpy() for f in fields(Pieces)})
        facts = _facts(tensors)
        rest: dict[str, Any] = {"predictor_index": None, **tensors}
        batch = PackedBatch(
            layout=header["layout"],
            form=header["form"],
            max_seqlen=int(header["max_seqlen"]),
            has_logprobs=header["has_logprobs"] == "1",
            facts=facts,
            pieces=pieces,
            **rest,
        )
        _check_pieces(batch)
    except MathTurnError as error:
        raise InvalidValueError(f"{source}: {error}") from error
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError, RuntimeError) as error:
        raise InvalidValueError(f"{source} is not a whole packed batch: {error!r}") from error
    return batch


def _check_pieces(batch: PackedBatch) -> None:
    """Raises `InvalidValueError` where a piece lies outside its row or its episode."""
    # `unpack` indexes by these numbers: what a stranger's file says must not reach outside its arrays.
    pieces = batch.pieces
    rows = np.diff(batch.cu_seqlens.numpy().astype(np.int64))
    sizes = np.array([facts.size for facts in batch.facts], np.int64)
    columns = [getattr(pieces, f.name) for f in fields(pieces)]
    good = all(column.dtype == np.int64 and column.shape == pieces.row.shape for column in columns)
    good = good and bool(
        np.all((pieces.row >= 0) & (pieces.row < len(rows)) & (pieces.episode >= 0) & (pieces.episode < len(sizes)))
    )
    if good:
        ends, size = pieces.offset + pieces.length, sizes[pieces.episode]
        good = bool(np.all(np.diff(pieces.row) >= 0) and np.all(rows >= 0) and np.all(pieces.length >= 0))
        good = good and bool(np.all((pieces.offset >= 0) & (ends <= rows[pieces.row])))
        good = good and bool(np.all((pieces.start >= 0) & (pieces.start + pieces.length <= size)))
        turns = batch.facts.turns[pieces.episode]
        good = good and bool(np.all((pieces.turn >= -1) & (pieces.turn < turns) & (pieces.branch >= 0)))
        good = good and bool(np.all((pieces.position >= 0) & (pieces.position <= pieces.start)))
        good = good and batch.num_tokens == int(rows.sum()) <= batch.input_ids.numel()
    if not good:
        raise InvalidValueError("it is not a whole packed batch: its pieces do not fit its rows and episodes")


def _facts(tensors: dict[str, Any]) -> FactsTable:
    from mathturn_gym.episodes.packing.batch import FACT_FIELDS, FactsTable

    records = parse_json(tensors.pop("facts.json").numpy().tobytes())
    sizes = tensors.pop("facts.sizes").numpy()
    # Checked before anything is allocated by these numbers (issue 31).
    if sizes.dtype != np.int64 or sizes.ndim != 2 or sizes.shape[1] != 2 or np.any((sizes < 0) | (sizes > MAX_IDS)):
        raise InvalidValueError(f"facts.sizes must be pairs of lengths in [0, {MAX_IDS}]")
    ids = tensors.pop("facts.tails").numpy()
    if np.any(sizes[:, 1] > sizes[:, 0]) or ids.dtype != np.int64 or ids.shape != (int(sizes[:, 1].sum()),):
        raise InvalidValueError("facts.tails must be the ids at the episodes' ends, as many as facts.sizes says")
    tails = np.split(ids, np.cumsum(sizes[:, 1])[:-1]) if len(sizes) else []
    episodes: list[Any] = []
    for record, (size, _) in zip(records, sizes.tolist(), strict=True):
        # An episode of blank ids with these facts: checks them as an episode's, and has every field.
        blank = np.zeros(size, np.int64)
        mask = np.zeros(size, np.bool_)
        for start, end in record["turn_spans"]:
            mask[start:end] = True
        versions = np.where(mask, 0, -1).astype(np.int32)
        episode = build_episode(
            record, ids=blank, loss_mask=mask, logprobs=np.zeros(size, np.float32), versions=versions
        )
        # Leave out the token arrays: they are as long as the file says, and are not needed.
        episodes.append(SimpleNamespace(**{name: getattr(episode, name) for name in (*FACT_FIELDS, "turn_spans")}))
    turns = np.array([len(episode.turn_spans) for episode in episodes], np.int64)
    return FactsTable(episodes, turns, sizes[:, 0].copy(), [tail.copy() for tail in tails])


def _checked(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    if target.suffix != ".safetensors":
        raise InvalidValueError(f"path must end in .safetensors, got {target.name!r}")
    return target
