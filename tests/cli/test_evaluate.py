from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mathturn_gym.cli.app import app
from mathturn_gym.cli.evaluate import missing_ranges
from mathturn_gym.errors import InvalidValueError, ProblemFileError
from mathturn_gym.problems import ProblemFile
from mathturn_gym.trajectories import read_episodes

RUNNER = CliRunner()


def evaluate(*args: str) -> Any:
    return RUNNER.invoke(app, ["eval", *args], catch_exceptions=False)


def test_report_and_episodes(tmp_path: Path) -> None:
    done = evaluate("--policy", "builtin", "--episodes", "40", "--num-envs", "16", "--out", str(tmp_path / "a"))
    assert done.exit_code == 0
    assert "acc@1" in done.output
    report = json.loads((tmp_path / "a" / "report.json").read_text())
    assert report["episodes"] == 40
    assert report["settings"]["policy"] == "builtin"
    for name in ("acc@1", "acc@4", "turns", "corrected", "tokens"):
        figure = report["figures"][name]
        assert figure["low"] <= figure["value"] <= figure["high"]
    assert sum(report["stop_reasons"].values()) == 40
    episodes = list(read_episodes(tmp_path / "a" / "episodes.jsonl"))
    assert sorted(e.index for e in episodes) == list(range(40))
    accuracy = sum(bool(e.verdicts[0].correct) for e in episodes) / 40
    assert report["figures"]["acc@1"]["value"] == pytest.approx(accuracy)


def test_an_interrupted_evaluation_resumes_to_the_same_report(tmp_path: Path) -> None:
    args = ["--policy", "random", "--episodes", "30", "--num-envs", "8"]
    evaluate(*args, "--out", str(tmp_path / "whole"))
    evaluate(*args, "--out", str(tmp_path / "cut"))
    file = tmp_path / "cut" / "episodes.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:5] + lines[9:20]) + lines[25][:40])  # holes, and half a line at the end
    assert evaluate(*args, "--out", str(tmp_path / "cut"), "--resume").exit_code == 0
    whole, cut = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("whole", "cut"))
    assert whole == cut


def test_ctrl_c_loses_no_finished_episode(tmp_path: Path) -> None:
    args = ["eval", "--policy", "builtin", "--episodes", "3000", "--num-envs", "2", "--out", str(tmp_path)]
    # Shells start background jobs with SIGINT ignored, and children inherit that: the tests may be such a job.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    code += "from mathturn_gym.cli.app import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code, *args])
    file = tmp_path / "episodes.jsonl"
    deadline = time.monotonic() + 120
    while not (file.exists() and file.stat().st_size > 2000):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == 130
    kept = list(read_episodes(file, strict=True))
    assert kept
    assert evaluate(*args[1:3], "--episodes", "12", *args[5:], "--resume").exit_code == 0
    assert json.loads((tmp_path / "report.json").read_text())["episodes"] == 12


def test_folders_are_never_mixed_up(tmp_path: Path) -> None:
    args = ["--policy", "random", "--episodes", "2", "--out", str(tmp_path)]
    evaluate(*args)
    with pytest.raises(InvalidValueError, match="holds an evaluation already: --resume goes on"):
        evaluate(*args)
    with pytest.raises(InvalidValueError, match="num_turns was 4 and is now 2"):
        evaluate(*args, "--num-turns", "2", "--resume")
    assert evaluate(*args, "--num-turns", "2", "--overwrite").exit_code == 0


def test_a_file_is_played_once_through_and_bad_rows_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"question": f"{i}+1?", "answer": f"so #### {i + 1}"} for i in range(5)]
    file = tmp_path / "p.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n{broken\n", encoding="utf-8")
    args = ["--policy", "random", "--problems", str(file), "--samples", "2", "--num-turns", "1"]
    with pytest.raises(ProblemFileError, match="line 6"):
        evaluate(*args, "--out", str(tmp_path / "a"))
    done = evaluate(*args, "--out", str(tmp_path / "a"), "--skip-bad-rows")
    assert done.exit_code == 0
    assert "1 rows left out (line 6" in caplog.text
    episodes = list(read_episodes(tmp_path / "a" / "episodes.jsonl"))
    assert sorted(e.problem_id for e in episodes) == sorted(
        [problem.id for problem in ProblemFile(file, skip_bad_rows=True)] * 2
    )


def test_missing_ranges() -> None:
    assert list(missing_ranges([], 3)) == [(0, 3)]
    assert list(missing_ranges([0, 1, 2], 3)) == []
    assert list(missing_ranges([1], 3)) == [(0, 1), (2, 1)]


def test_gsm8k_from_its_real_file(shared: Path, tmp_path: Path) -> None:
    file = shared / "data" / "gsm8k_test.jsonl"
    done = evaluate("--problems", str(file), "--episodes", "24", "--num-turns", "2", "--out", str(tmp_path / "g"))
    assert done.exit_code == 0
    report = json.loads((tmp_path / "g" / "report.json").read_text())
    assert report["problems"] == 24
    assert sum(report["stop_reasons"].values()) == 24
