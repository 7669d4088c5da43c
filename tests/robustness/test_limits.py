"""What a small file can ask for: a stated amount of memory, and no more."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.packing import pack
from mathturn_gym.synthetic import synthetic_episode
from mathturn_gym.trajectories import files, load_batch, read_episodes, save_batch, write_episodes
from mathturn_gym.view._sources import read_sets


def test_a_bomb_of_one_line_is_a_bad_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is lowered: what is asked is that it holds for what comes out of an archive."""
    monkeypatch.setattr(files, "MAX_LINE", 1 << 20)
    monkeypatch.setattr("mathturn_gym.view._lines.MAX_LINE", 1 << 20)
    good = tmp_path / "good.jsonl"
    write_episodes(good, [synthetic_episode(0, 0, [2])])
    bomb = tmp_path / "e.jsonl.gz"
    with gzip.open(bomb, "wb") as stream:
        stream.write(good.read_bytes())
        for _ in range(64):
            stream.write(b" " * (1 << 20))
        stream.write(b"\n" + good.read_bytes())
    tracemalloc.start()
    try:
        reader = read_episodes(bomb)
        assert len(list(reader)) == 2
        ((found,), [shown]) = reader.bad_rows, read_sets(bomb, "run")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(found).endswith("row 1: the line is longer than 1,048,576 bytes")
    assert (len(shown.episodes), shown.left_out) == (2, ["e.jsonl.gz, line 2: is longer than 1,048,576 bytes"])
    assert peak < 16 << 20


@pytest.mark.parametrize("size", [1 << 40, (1 << 24) + 1, -1])
def test_a_batch_cannot_ask_for_terabytes(size: int, tmp_path: Path) -> None:
    path = tmp_path / "b.safetensors"
    save_batch(path, pack([synthetic_episode(0, 0, [2])], "turns"))
    with safe_open(str(path), framework="pt") as file:
        header = dict(file.metadata())
    save_file({**load_file(path), "facts.sizes": torch.from_numpy(np.array([[size, 0]]))}, path, metadata=header)
    with pytest.raises(
        InvalidValueError, match=r"b\.safetensors: facts\.sizes must be pairs of lengths in \[0, 16777216\]"
    ):
        load_batch(path)
