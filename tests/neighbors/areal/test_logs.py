"""Log files: names that cannot leave the folder, whole blocks, several writers."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathturn_gym.base.files import append_block
from mathturn_gym.neighbors.areal.logs import LoggedTurn, TrajectoryLog, file_stem, write_original_logs

TURN = LoggedTurn(
    prompt="1+1?",
    answer="\\boxed{2}",
    prompt_len=9,
    answer_len=4,
    no_eos=False,
    success=True,
    score=1.0,
    reward=1.0,
    discounted_return=1.5,
    version_start=3,
    version_end=4,
)


@given(st.text(max_size=300))
def test_a_file_name_is_never_a_path(qid: str) -> None:
    name = file_stem(qid)
    assert name
    assert len(name) <= 200
    assert not set(name) & set('/\\\0\n<>|*?"')
    assert not name.startswith(".")


@given(st.lists(st.text(alphabet="./%2EFa\x00~", max_size=5), min_size=2, max_size=40, unique=True))
def test_different_ids_have_different_files(qids: list[str]) -> None:
    assert len({file_stem(qid) for qid in qids}) == len(qids)


def test_long_ids_stay_apart() -> None:
    first, second = file_stem("a" * 500 + "1"), file_stem("a" * 500 + "2")
    assert first != second
    assert len(first) == len(second)


def test_ordinary_ids_stay_readable() -> None:
    assert file_stem("q8@idx:8-0") == "q8@idx:8-0"
    assert file_stem("../up") == "%2E.%2Fup"
    assert file_stem("") == "%"


def test_a_trajectory_is_a_block_per_version(tmp_path: Path) -> None:
    log = TrajectoryLog(tmp_path, run="r1")
    log.write(
        "a/b", [TURN, replace(TURN, version_start=5, version_end=5, success=False, score=0.5, error="ValueError: x")]
    )
    log.write("a/b", [TURN])
    records = [json.loads(line) for line in (tmp_path / "3" / "a%2Fb.jsonl").read_text().splitlines()]
    assert records == [
        {
            "run": "r1",
            "attempt": attempt,
            "qid": "a/b",
            "turn": 1,
            "num_turns": turns,
            "version_start": 3,
            "version_end": 4,
            "success": True,
            "score": 1.0,
            "reward": 1.0,
            "return": 1.5,
            "prompt_len": 9,
            "answer_len": 4,
            "no_eos": False,
            "error": "",
        }
        for attempt, turns in ((1, 2), (2, 1))
    ]
    (other,) = (tmp_path / "5" / "a%2Fb.jsonl").read_text().splitlines()
    assert json.loads(other)["turn"] == 2
    assert json.loads(other)["error"] == "ValueError: x"
    assert "turn 2 of 2, versions 5 to 5: not right (score 0.5)" in (tmp_path / "5" / "a%2Fb.txt").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "5"]


def test_runs_have_names_of_their_own(tmp_path: Path) -> None:
    assert TrajectoryLog(tmp_path).run != TrajectoryLog(tmp_path).run


def test_text_is_utf_8_and_shows_control_characters(tmp_path: Path) -> None:
    answer = "é 龍 \x1b[31m \r \x9b \u202e \ud800 \n\t"
    TrajectoryLog(tmp_path).write("q", [replace(TURN, answer=answer)])
    text = (tmp_path / "3" / "q.txt").read_bytes().decode("utf-8")
    assert "é 龍 \\x1b[31m \\r \\x9b \\u202e \\ud800 \n\t" in text


def _append_many(path: str, mark: str) -> None:
    for _ in range(50):
        append_block(Path(path), mark * 20_000 + "\n")


def test_writers_in_several_processes_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "shared.txt"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_many, args=(str(path), mark)) for mark in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    lines = path.read_text().splitlines()
    assert sorted(lines) == ["a" * 20_000] * 50 + ["b" * 20_000] * 50


def test_a_writer_waits_for_the_lock(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    path = tmp_path / "q.txt"
    path.touch()
    writer = threading.Thread(target=append_block, args=(path, "after\n"))
    with path.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        writer.start()
        writer.join(0.2)
        assert writer.is_alive()
        assert path.read_text() == ""
    writer.join(30)
    assert path.read_text() == "after\n"


def test_a_failed_write_leaves_no_half_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "q.txt"
    append_block(path, "before\n")
    write, calls = os.write, []

    def full(descriptor: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "no space left")
        return write(descriptor, data[:3])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="no space left"):
        append_block(path, "after\n")
    assert len(calls) == 2
    assert path.read_text() == "before\n"


def test_the_originals_logs_stop_where_its_lists_end(tmp_path: Path) -> None:
    """Two answers and one reward, as with n=2: the first turn's files are written, then it fails."""
    with pytest.raises(IndexError):
        write_original_logs(
            tmp_path,
            qid="q",
            prompt="p",
            prompt_len=1,
            answers=["a", "b"],
            seqlens=[2],
            rewards=[1.0],
            success=[True, True],
            version_starts=[0, 0],
            version_ends=[0, 0],
        )
    assert (tmp_path / "0" / "q.txt").read_text().count("idx: 1 / 2") == 1
    assert (tmp_path / "0" / "q.jsonl").read_text().count("\n") == 1
