"""Four or twenty points of `benchmarks/kill_points.py`; five hundred are run by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the kills are of forked processes")
@pytest.mark.parametrize(
    ("points", "scenarios"),
    [
        (4, {"train", "collect"}),
        pytest.param(20, {"train", "checkpoint", "eval", "collect", "compare", "worker"}, marks=pytest.mark.slow),
    ],
)
def test_a_process_killed_at_any_line_has_lost_nothing(tmp_path: Path, points: int, scenarios: set[str]) -> None:
    out = tmp_path / "kill_points.json"
    # An interpreter of its own: processes are forked, and this one may have threads.
    command = [sys.executable, str(ROOT / "benchmarks" / "kill_points.py"), "--points", str(points), "--out", str(out)]
    command += ["--only", *sorted(scenarios)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert set(found["scenarios"]) == scenarios
    assert found["points"] >= points
    # A line of a loop that waits may be reached less often than the first time.
    assert found["killed"] >= found["points"] - 2
    assert found["wrong"] == 0
