"""Rows of experiments that are made of many runs: each is kept beside its run, so that an interrupted experiment goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def read_row(run_dir: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row that an earlier call has made with the same settings; None where there is none."""
    file = run_dir / "row.json"
    if file.exists() and (before := json.loads(file.read_text(encoding="utf-8")))["config"] == settings:
        found: dict[str, Any] = before["row"]
        return found
    return None


def kept_row(run_dir: Path, settings: Mapping[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The row of a run: read, where an earlier call has made it with the same settings, or made now, printed and kept.

    Args:
        run_dir: The run's folder; the row is written to its `row.json`.
        settings: What decides the row, in JSON's types.
        make: Runs and measures, and has made the folder when it returns.
    """
    if (found := read_row(run_dir, settings)) is not None:
        return found
    row = make()
    (run_dir / "row.json").write_text(json.dumps({"row": row, "config": settings}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(row), flush=True)
    return row
