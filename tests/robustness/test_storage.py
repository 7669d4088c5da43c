"""Disks that are full and folders that cannot be written: named errors, nothing lost, and going on when there is space."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def mounts(tmp_path_factory: pytest.TempPathFactory) -> bool:
    """Whether this process may mount a disk of its own."""
    place = tmp_path_factory.mktemp("mount")
    done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, check=False)
    if done.returncode == 0:
        subprocess.run(["umount", place], check=True)
    return done.returncode == 0


@pytest.mark.parametrize("disks", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_without_space_errors_name_the_file_and_going_on_gives_the_same(mounts: bool, disks: bool) -> None:
    """Limits of file sizes, and with `disks` real full ones too."""
    mounts = mounts and disks
    command = [sys.executable, str(ROOT / "tests" / "robustness" / "storage_faults.py"), *["tmpfs"] * mounts]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout)
    assert len(cases) == 7 + (6 if mounts else 3 * (os.geteuid() != 0))
    for name, (error, message, wrong) in cases.items():
        assert error == "StorageError", (name, message)
        assert " cannot be written: " in message, name
        assert message.startswith("/"), name
        assert wrong == "", name
