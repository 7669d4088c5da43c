"""The examples of docs/policies.md run as they stand, one after the other."""

import re
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "policies.md"


def test_the_examples_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    names: dict[str, Any] = {}
    for code in blocks:
        exec(compile(code, "docs/policies.md", "exec"), names)
    assert [episode.index for episode in names["episodes"]] == list(range(16))
