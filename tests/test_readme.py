"""The README is true: its code runs, its paths exist, its commands are commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mathturn_gym.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_code_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
    for path in re.findall(r"`((?:benchmarks|experiments|docs|notebooks|tests)/[\w./-]+)", README):
        assert (ROOT / path).exists(), path


def test_commands_exist() -> None:
    known = {(c.name or c.callback.__name__).replace("_", "-") for c in app.registered_commands if c.callback}
    known |= {str(group.name) for group in app.registered_groups}
    assert set(re.findall(r"`mathturn ([a-z-]+)", README)) <= known
