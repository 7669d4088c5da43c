"""Every notebook runs whole, in a folder of its own, with its sizes made small."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))
SMALLER = {
    "EPISODES = 6_000": "EPISODES = 256",
    "TEST_EPISODES = 512": "TEST_EPISODES = 96",
    "TOKENS = 24_000": "TOKENS = 600",
    "SEEDS = 3": "SEEDS = 1",
}


def code_of(path: Path) -> str:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "code")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = code_of(path)
    for large, small in SMALLER.items():
        code = code.replace(large, small)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    module = ModuleType("notebook")
    namespace: dict[str, Any] = module.__dict__
    monkeypatch.setitem(sys.modules, "notebook", module)
    exec(compile(code, os.fspath(path), "exec"), namespace)
    if "matplotlib" in code:
        import matplotlib.pyplot as plt

        plt.close("all")


def test_there_are_notebooks_and_their_sizes_are_replaced() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{n:02d}" for n in range(1, len(NOTEBOOKS) + 1)]
    text = "".join(code_of(path) for path in NOTEBOOKS)
    assert all(large in text for large in SMALLER)
