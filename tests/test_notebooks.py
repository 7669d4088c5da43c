"""Every notebook runs whole, in a folder of its own, with its sizes made small; what it has stored is what it prints."""

from __future__ import annotations

import ast
import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))
SMALLER = {
    'ALGORITHMS = ["clipped_reinforce", "turn_ppo", "blind"]': 'ALGORITHMS = ["blind"]',
    "BATCH = 32": "BATCH = 4",
    "CASES = 400": "CASES = 25",
    "TEST_EPISODES = 512": "TEST_EPISODES = 64",
    "TEST_EPISODES = 256": "TEST_EPISODES = 32",
    "EPISODES = 512": "EPISODES = 32",
    "EPISODES = 3_000": "EPISODES = 64",
    "EPISODES = 6_000": "EPISODES = 128",
    "EPISODES = 256": "EPISODES = 32",
    "ITERATIONS = 300": "ITERATIONS = 2",
    "SEEDS = 3": "SEEDS = 1",
    "STEPS = 24": "STEPS = 1",
    "STEPS = 2_048": "STEPS = 128",
    "TOKENS = 24_000": "TOKENS = 600",
}
"""What is written in a notebook, and what stands in its place here; the first that matches counts."""

VARIES = "varies"
"""The tag of cells whose output depends on the sizes, or on the last bits of a model's numbers."""


def cells_of(path: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def source_of(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def stored_output(cell: dict[str, Any]) -> str:
    return "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
@pytest.mark.filterwarnings("ignore:`(is_)?gradient_checkpointing` is deprecated:FutureWarning")  # TRL's names
def test_notebook_runs_and_has_stored_what_it_prints(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # a notebook may set it
    module = ModuleType("notebook")
    namespace: dict[str, Any] = module.__dict__
    monkeypatch.setitem(sys.modules, "notebook", module)
    for number, cell in enumerate(cells_of(path)):
        source = source_of(cell)
        for large, small in SMALLER.items():
            source = source.replace(large, small)
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(source, f"{path.name}[{number}]", "exec"), namespace)
        if VARIES not in cell["metadata"].get("tags", []):
            assert printed.getvalue() == stored_output(cell), f"{path.name}, code cell {number}: run the notebook again"
    if "matplotlib" in sys.modules:
        import matplotlib.pyplot as plt

        plt.close("all")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stored_and_none_is_an_error(path: Path) -> None:
    cells = cells_of(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), "run it whole, from the top"
    assert all(output["output_type"] != "error" for cell in cells for output in cell["outputs"])
    assert any(cell["outputs"] for cell in cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_results_are_printed_so_that_they_can_be_compared(path: Path) -> None:
    """A last expression is shown by Jupyter alone; a program that runs the cells would not see it."""
    for cell in cells_of(path):
        last = ast.parse(source_of(cell)).body[-1]
        if isinstance(last, ast.Expr):
            assert isinstance(last.value, ast.Call), ast.unparse(last)


def test_there_are_notebooks_and_their_sizes_are_replaced() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{n:02d}" for n in range(1, len(NOTEBOOKS) + 1)]
    assert len(NOTEBOOKS) == 9
    text = "".join(source_of(cell) for path in NOTEBOOKS for cell in cells_of(path))
    assert [large for large in SMALLER if large not in text] == []
