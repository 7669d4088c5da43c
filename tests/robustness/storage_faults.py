"""Disks that are full and folders that cannot be written: what happens there, as JSON on standard output.

    python tests/robustness/storage_faults.py [tmpfs]

Run by `test_storage.py` in an interpreter of its own, since it forks, and lowers the limits and rights of the forked.
Each case says what was raised (class and message), and what "going on" gave when there was space again: "" where it
came to the result of an undisturbed run.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

KILLS = runpy.run_path(str(Path(__file__).resolve().parents[2] / "benchmarks" / "kill_points.py"))
Work = Callable[[Path], None]


FILES = {
    "train": ("config.json", "metrics.jsonl", "trainer.safetensors"),
    "eval": ("episodes.jsonl", "report.html"),
    "collect": ("episodes.jsonl", "batch.safetensors"),
}
"""For which there is no space: each kind of writing once."""


def raised_by(work: Callable[[], None]) -> list[str]:
    """Class and message of what was raised."""
    try:
        work()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["", ""]


def limited(work: Work, folder: Path, size: int) -> list[str]:
    """With no file above so many bytes; what writes more fails as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        return raised_by(lambda: work(folder))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@contextmanager
def mounted(folder: Path, size: int) -> Iterator[None]:
    """A disk of so many bytes there."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def remount(folder: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", folder], check=True)


def gone_on(name: str, folder: Path, expected: Any) -> str:
    """What is wrong with the result when there is space again."""
    scenario = KILLS["SCENARIOS"][name]
    for step in (lambda: scenario.act(folder), lambda: scenario.look(folder)):
        ended = KILLS["in_process"](step)
        if ended.code:
            return str(ended.text)
    return "" if KILLS["same"](ended.value, expected) else f"{ended.value} instead of {expected}"


def cases(place: Path, tmpfs: bool) -> dict[str, Any]:
    """What was raised in each case, and what going on gave."""
    found: dict[str, Any] = {}
    for name, files in FILES.items():
        scenario = KILLS["SCENARIOS"][name]
        whole = place / name
        whole.mkdir(mode=0o755)
        assert KILLS["in_process"](lambda: scenario.act(whole)).code == 0  # noqa: B023
        looked = KILLS["in_process"](lambda: scenario.look(whole))  # noqa: B023
        assert looked.code == 0, looked.text
        expected = looked.value
        for file in files:
            size = max(one.stat().st_size for one in whole.rglob(file)) - 1
            folder = place / f"{name}-{file}"
            folder.mkdir()
            raised = KILLS["in_process"](lambda: limited(scenario.act, folder, size)).value  # noqa: B023
            found[f"{name}: no space for {file}"] = [*raised, gone_on(name, folder, expected)]
        folder = place / f"{name}-full"
        folder.mkdir()
        if tmpfs:
            size = sum(one.stat().st_size for one in whole.rglob("*") if one.is_file()) // 2
            with mounted(folder, size):
                raised = KILLS["in_process"](lambda: raised_by(lambda: scenario.act(folder))).value  # noqa: B023
                remount(folder, "size=64m")
                found[f"{name}: a full disk"] = [*raised, gone_on(name, folder, expected)]
                remount(folder, "ro")
                raised = KILLS["in_process"](lambda: raised_by(lambda: scenario.act(folder))).value  # noqa: B023
                found[f"{name}: a disk that cannot be written"] = [*raised, ""]
        elif os.geteuid():
            folder.chmod(0o555)
            raised = KILLS["in_process"](lambda: raised_by(lambda: scenario.act(folder))).value  # noqa: B023
            folder.chmod(0o755)
            found[f"{name}: a folder that cannot be written"] = [*raised, gone_on(name, folder, expected)]
    return found


def main() -> None:
    """Prints the cases."""
    KILLS["warm_up"]()
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(cases(Path(place), sys.argv[1:] == ["tmpfs"]), indent=1))


if __name__ == "__main__":
    main()
