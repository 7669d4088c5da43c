"""What a power loss makes of a run's files: cut off, or ending in zeros or garbage; and clocks that jump."""

from __future__ import annotations

import ast
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mathturn_gym.baselines import RunConfig, train
from mathturn_gym.baselines.run_folder import RunFolder, read_config, read_metrics
from mathturn_gym.episodes.trajectories import read_episodes
from mathturn_gym.errors import CheckpointError
from mathturn_gym.verifier import Verifier

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def finished(short_run: Callable[..., Path]) -> Path:
    """A run of two iterations with a checkpoint of each; tests work on copies of it."""
    return short_run(episodes=4, batch_episodes=2, save_every=1, **{"evaluation.every": 1})


def cut(data: bytes) -> bytes:
    return data[: len(data) - min(20, len(data) // 2)]


def zeros(data: bytes) -> bytes:
    return cut(data) + bytes(4096)


def garbage(data: bytes) -> bytes:
    return cut(data) + random.Random(0).randbytes(500).replace(b"\n", b"?")


LOSSES = (cut, zeros, garbage)
LOSS = pytest.mark.parametrize("loss", LOSSES, ids=lambda one: one.__name__)


def damage(file: Path, loss: Callable[[bytes], bytes]) -> None:
    file.write_bytes(loss(file.read_bytes()))


def begin_again(run: Path) -> tuple[RunConfig, Path | None, list[float], int]:
    """What resuming does before the first iteration; the config, the checkpoint, the iterations, and kept episodes."""
    config = read_config(run)
    folder = RunFolder(run, config, resume=True)
    try:
        whole = folder.whole_checkpoint()
        folder.start_metrics(1)
        kept = sum(len(list(read_episodes(file, strict=True))) for file in run.glob("episodes_*.jsonl"))
        return config, whole, [row["iteration"] for row in read_metrics(run)], kept
    finally:
        folder.close()


@LOSS
def test_the_last_line_of_the_metrics_is_written_again(run: Path, loss: Callable[[bytes], bytes]) -> None:
    damage(run / "metrics.jsonl", loss)
    assert begin_again(run)[2] == [0, 1]


@LOSS
@pytest.mark.parametrize("name", ["validation", "train"])
def test_episodes_before_the_last_are_kept(run: Path, name: str, loss: Callable[[bytes], bytes]) -> None:
    whole = begin_again(run)[3]
    damage(run / f"episodes_{name}.jsonl", loss)
    assert begin_again(run)[3] == whole - 1


@LOSS
def test_every_file_of_a_checkpoint_is_held_to_its_checksum(run: Path, loss: Callable[[bytes], bytes]) -> None:
    for file in sorted((run / "checkpoint").iterdir()):
        before = file.read_bytes()
        damage(file, loss)
        assert begin_again(run)[1] == run / "checkpoint-1", file.name
        file.write_bytes(before)
    assert begin_again(run)[1] == run / "checkpoint"


@LOSS
@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_files_that_are_written_whole_are_named_where_they_are_not(
    run: Path, name: str, loss: Callable[[bytes], bytes]
) -> None:
    config = read_config(run)
    damage(run / name, loss)
    before = {file: file.read_bytes() for file in run.glob("*.json*")}
    with pytest.raises(CheckpointError, match=f"{name} cannot be read"):
        train(config, run_dir=run, resume=True)
    assert {file: file.read_bytes() for file in run.glob("*.json*")} == before, "nothing was touched"


def test_no_time_is_measured_by_a_clock_that_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets are processor time and limits monotonic; a server's Retry-After may be a date, and logs have one."""
    allowed = {
        "mathturn_gym/base/http.py",
        "mathturn_gym/neighbors/areal/agent.py",
        "mathturn_gym/neighbors/export/inspect.py",
    }
    wall = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "today"), ("datetime", "utcnow")}
    names, found = {name for _, name in wall}, set()
    for file in (*ROOT.glob("mathturn_gym/**/*.py"), *ROOT.glob("wrappers/*.py")):
        text = file.read_text(encoding="utf-8")
        if not any(f".{name}" in text for name in names):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and node.attr in names and (ast.unparse(node.value), node.attr) in wall:
                found.add(file.relative_to(ROOT).as_posix())
    assert found == allowed
    jumps = iter([0.0, 4e9, -1e9, 2e9] * 10_000)
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    monkeypatch.setattr(os, "times", time.time)
    assert Verifier().verify("\\boxed{6}", "\\sum_{k=1}^{3} k").correct
