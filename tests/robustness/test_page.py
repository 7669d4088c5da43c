"""docs/reliability.md: each row names a test, and each test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_every_test_that_the_page_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 60
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"


def test_every_row_of_faults_and_determinism_has_its_test_or_no_promise() -> None:
    for title in ("Faults", "Determinism"):
        part = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
        rows = [line.split(" | ") for line in part.splitlines() if line.startswith("| ")][1:]
        assert len(rows) > 10
        for row in rows:
            heading = row[0].startswith("| **")
            assert heading or "::test_" in row[-1] or "not promised" in row[2] or "never" in row[2], row
