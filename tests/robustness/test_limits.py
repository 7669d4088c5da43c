"""What a small file can ask for: a stated amount of memory, and no more."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mathturn_gym.episodes.packing import pack
from mathturn_gym.episodes.trajectories import files, load_batch, read_episodes, save_batch, write_episodes
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.show.view.sources import read_sets
from mathturn_gym.testing import synthetic_episode


def test_a_bomb_of_one_line_is_a_bad_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is lowered: what is asked is that it holds for what comes out of an archive."""
    monkeypatch.setattr(files, "MAX_LINE", 1 << 20)
    monkeypatch.setattr("mathturn_gym.show.view.sources.MAX_LINE", 1 << 20)
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


def test_lines_of_50_megabytes(tmp_path: Path) -> None:
    """A line of a problem file, a completion, and lines of a file of episodes; each limit is the peak of all before it."""
    command = [sys.executable, str(Path(__file__).with_name("long_lines.py")), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    message, left, peak = found["problems"]
    assert message.endswith(
        "is the file JSON lines? (skip_bad_rows=True, on the command line --skip-bad-rows, leaves such rows out)"
    )
    assert "f.jsonl, line 2: the row is longer than 4,194,304 bytes" in message
    assert left == 1
    assert peak < 32
    for extract in ("boxed", "marked", "lenient"):
        for kind, status in (("response", "right"), ("answer", "undecided")):
            assert found[f"{extract} {kind}"][0] == status
            assert found[f"{extract} {kind}"][1] < 3 * 50
    size, peak = found["episodes"]
    assert size == 50 << 20
    assert peak < 8 * 50
    loaded, kept, peak = found["garbage"]
    assert (loaded, kept) == (0, 4 << 16)  # of each byte, `\xff`
    assert peak < 8 * 50
