from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mathturn_gym.episodes.packing import micro_batches, pack, unpack
from mathturn_gym.episodes.packing.batch import FORMS, LAYOUTS
from mathturn_gym.episodes.trajectories import load_batch, save_batch
from mathturn_gym.episodes.trajectories.records import episode_to_record
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.neighbors.engines._wire import PackedEpisodes
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode


def sample() -> list[Episode]:
    lengths = [[2, 0, 3], [], [1], [0]]
    return [
        synthetic_episode(0, i, row, prompt=2, group="ab"[i % 2], max_version=3, metadata={"level": i})
        for i, row in enumerate(lengths)
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
def test_a_saved_batch_is_the_batch(tmp_path: Path, layout: Any, form: Any) -> None:
    batch = pack(sample(), layout, form=form)
    path = tmp_path / "batch.safetensors"
    save_batch(path, batch)
    found = load_batch(path)
    assert found.tensors().keys() == batch.tensors().keys()
    for name, tensor in batch.tensors().items():
        assert found.tensors()[name].dtype == tensor.dtype
        assert torch.equal(found.tensors()[name], tensor), name
    assert (found.layout, found.form, found.max_seqlen) == (layout, form, batch.max_seqlen)
    for before, after in zip(sample(), unpack(found), strict=True):
        assert json.dumps(episode_to_record(before)) == json.dumps(episode_to_record(after))
    assert list(tmp_path.iterdir()) == [path]


def test_what_could_be_drawn_is_saved_and_sent(tmp_path: Path) -> None:
    episodes = [
        dataclasses.replace(e, support=e.ids[e.loss_mask].astype(np.int32)[:, None] if e.loss_mask.any() else None)
        for e in sample()
    ]
    save_batch(tmp_path / "batch.safetensors", pack(episodes))
    for found in (unpack(load_batch(tmp_path / "batch.safetensors")), PackedEpisodes.of(episodes).episodes()):
        for before, after in zip(episodes, found, strict=True):
            assert json.dumps(episode_to_record(before)) == json.dumps(episode_to_record(after))


def test_parts_and_missing_logprobs_survive(tmp_path: Path) -> None:
    episodes = [synthetic_episode(0, i, [3, 2], prompt=2, logprobs=False) for i in range(3)]
    batch = pack(episodes, "turns", allow_missing_logprobs=True)
    part = micro_batches(batch, max_tokens=15)[0]
    save_batch(tmp_path / "part.safetensors", part)
    found = load_batch(tmp_path / "part.safetensors")
    assert found.split_episodes == part.split_episodes
    assert not found.has_logprobs
    assert np.array_equal(found.pieces.turn, part.pieces.turn)


def spoiled(path: Path, change: Any) -> Path:
    with safe_open(str(path), framework="pt") as file:
        header = dict(file.metadata())
    tensors = load_file(path)
    change(tensors, header)
    target = path.with_name("spoiled.safetensors")
    save_file(tensors, target, metadata=header)
    return target


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, h: h.update(schema="x"), "schema must be"),
        (lambda t, h: h.update(schema_version="2"), "schema must be"),
        (lambda t, h: h.update(layout="rows"), "unknown layout 'rows'"),
        (lambda t, h: h.update(max_seqlen="many"), "not a whole packed batch"),
        (lambda t, h: t.pop("versions"), "not a whole packed batch"),
        (lambda t, h: t.pop("facts.json"), "not a whole packed batch"),
        (lambda t, h: t.update(advantages=t["advantages"].double()), "PackedBatch.advantages must be torch.float32"),
        (lambda t, h: t.update({"facts.json": t["facts.json"][1:].clone()}), "not a whole packed batch"),
        (lambda t, h: t["pieces.offset"].add_(1), "its pieces do not fit"),
        (lambda t, h: t["pieces.episode"].add_(9), "its pieces do not fit"),
        (lambda t, h: t["pieces.row"].sub_(1), "its pieces do not fit"),
        (lambda t, h: t["pieces.start"].add_(1000), "its pieces do not fit"),
        (lambda t, h: t["cu_seqlens"].mul_(0), "its pieces do not fit"),
        (lambda t, h: t.update(stranger=torch.zeros(1)), "not a whole packed batch"),
    ],
)
def test_a_damaged_file_is_refused_and_named(tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "batch.safetensors"
    save_batch(path, pack(sample()))
    with pytest.raises(InvalidValueError, match=message) as caught:
        load_batch(spoiled(path, change))
    assert "spoiled.safetensors" in str(caught.value)


def test_what_is_no_safetensors_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(InvalidValueError, match="is not a safetensors file"):
        load_batch(path)
    with pytest.raises(InvalidValueError, match="is not a safetensors file"):
        load_batch(tmp_path / "absent.safetensors")
    with pytest.raises(InvalidValueError, match=r"must end in .safetensors"):
        save_batch(tmp_path / "x.pt", pack(sample()))
