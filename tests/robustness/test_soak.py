"""What an environment leaves when it is given up: a few cycles of `benchmarks/soak.py`, whose hour is run by hand."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"))
pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="what a process holds is read from /proc")


@pytest.mark.parametrize(
    "name", ["forgotten", *(pytest.param(one, marks=pytest.mark.slow) for one in ("closed", "raised"))]
)
def test_nothing_is_left_of_an_environment(name: str) -> None:
    assert SCRIPT["left_by"](SCRIPT["ENDINGS"][name], cycles=1) == {}


def test_what_is_left_is_counted() -> None:
    before = SCRIPT["Held"].now()
    first, second = os.pipe()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert SCRIPT["Held"].now().since(before) == {"processes": 1, "handles": 3}
        child.communicate(b"\n")
    os.close(first)
    os.close(second)
    assert SCRIPT["Held"].now().since(before) == {}


def test_shared_memory_is_counted() -> None:
    before = SCRIPT["Held"].now()
    segment = SharedMemory(create=True, size=16)
    try:
        assert SCRIPT["Held"].now().since(before)["semaphores"] == 1
    finally:
        segment.close()
        segment.unlink()
    assert SCRIPT["Held"].now().since(before).get("semaphores", 0) == 0


def test_the_slope_is_of_what_comes_after_the_warm_up() -> None:
    # 50 MB while it warms up, then 2 MB per 100,000 episodes.
    samples = [
        {"episodes": 1000 * second, "mb": 50 * min(second / 10, 1) + 0.02 * second, "workers_mb": 3}
        for second in range(101)
    ]
    found = SCRIPT["slope"](samples)
    assert found["value"] == pytest.approx(2.0)
    assert found["standard_error"] == pytest.approx(0.0, abs=1e-9)
    assert SCRIPT["slope"](samples, "workers_mb")["value"] == pytest.approx(0.0, abs=1e-9)
