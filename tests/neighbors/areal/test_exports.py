"""What `mathturn_gym.neighbors.areal` exports, that importing it is light, and that its page's example runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import mathturn_gym.neighbors.areal as areal

ROOT = Path(__file__).resolve().parents[3]


def test_every_exported_name_is_there() -> None:
    assert areal.__all__ == sorted(areal.__all__)
    for name in areal.__all__:
        assert getattr(getattr(areal, name), "__name__", name) == name
    assert dir(areal) == areal.__all__, "dir() has the lazy names, too"


def test_importing_it_loads_nothing_heavy() -> None:
    code = (
        "import sys, mathturn_gym.neighbors.areal; print(sorted({'torch', 'transformers', 'sympy'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    assert out == "[]\n"


def test_the_example_runs() -> None:
    text = (ROOT / "docs" / "areal.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "docs/areal.md", "exec"), names)
    samples = [outcome.samples[0] for outcome in names["outcomes"]]
    assert [sample.ids for sample in samples] == [["q1@idx:0-0"], ["q1@idx:1-0"]]
    assert samples[0].data["rewards"].tolist() == samples[1].data["rewards"].tolist()
    assert names["episode"].returns.tolist() == samples[0].data["rewards"].tolist()
