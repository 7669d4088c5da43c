"""Recordings: the original's in ../shared where there is one, and a few of our own making beside the tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

OWN = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def golden_path(shared: Path) -> Callable[[str], Path]:
    """Finds a recording of the original by its name."""

    def find(name: str) -> Path:
        folder = "real/dev" if name.startswith("real_") else "dev"
        return shared / "golden" / folder / f"{name}.json"

    return find


@pytest.fixture(scope="session")
def golden(golden_path: Callable[[str], Path]) -> Callable[[str], dict[str, Any]]:
    """Loads a recording of the original by its name."""

    def load(name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(golden_path(name).read_text(encoding="utf-8"))
        return content

    return load
