"""What no line of the package does: open pickles, evaluate texts, run others' code, or print past the terminal's filter."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = [*ROOT.glob("mathturn_gym/**/*.py"), *ROOT.glob("wrappers/*.py")]
FORBIDDEN = ("S102", "S301", "S302", "S307", "S403", "S506", "S614", "TID251")
"""exec, pickle, marshal, eval, imports of pickle and its like, unsafe yaml, torch.load, and what pyproject.toml bans."""


@pytest.mark.parametrize(
    "line",
    [
        "import pickle\npickle.loads(b'')", "exec('1')", "eval('1')", "import marshal\nmarshal.loads(b'')", "import shelve",
        "import torch\ntorch.load('x')", "import yaml\nyaml.load('x')", "import numpy\nnumpy.load('x')", "import joblib\njoblib.load('x')",
    ],
)  # fmt: skip
def test_the_lint_rules_see_it(line: str, tmp_path: Path) -> None:
    file = ROOT / "mathturn_gym" / "_x.py"  # the settings of the package's files
    command = [sys.executable, "-m", "ruff", "check", "--output-format=json", "--stdin-filename", str(file), "-"]
    done = subprocess.run(command, input=line, capture_output=True, text=True, check=False, cwd=ROOT)
    assert {found["code"] for found in json.loads(done.stdout)} & set(FORBIDDEN)


def test_nobody_switches_the_rules_off() -> None:
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert {"S", "TID251"} <= set(lint["select"])
    assert not {rule for rule in lint["ignore"] if rule in FORBIDDEN}
    for file in FILES:
        for line in file.read_text(encoding="utf-8").splitlines():
            assert not any(f"noqa: {rule}" in line or f", {rule}" in line for rule in FORBIDDEN), f"{file}: {line}"


def test_everything_that_is_printed_goes_through_the_terminals_filter() -> None:
    for file in FILES:
        if file.name == "terminal.py":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                assert getattr(node.func, "id", getattr(node.func, "attr", "")) != "Console", f"{file}:{node.lineno}"
