"""The verifier alone needs gymnasium, numpy, sympy and math-verify; nothing else that is installed is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

NEEDED = {"gymnasium", "numpy", "sympy", "math_verify"}
THEIRS = {"antlr4", "cloudpickle", "farama_notifications", "latex2sympy2_extended", "mpmath", "typing_extensions"}
"""What these four need themselves."""

BLOCKER = """
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    names = frozenset({names!r})

    def find_spec(self, fullname, path, target=None):
        if fullname.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {{fullname!r}} (blocked by a test)", name=fullname)

sys.meta_path.insert(0, Blocked())
"""


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment variables of processes, and of their children, that lack every other package."""
    others = set(packages_distributions()) - NEEDED - THEIRS - {"mathturn_gym"}
    assert {"torch", "transformers", "stable_baselines3", "rich", "typer"} <= others
    (tmp_path / "sitecustomize.py").write_text(BLOCKER.format(names=sorted(others)), encoding="utf-8")
    path = [str(tmp_path), str(Path(__file__).resolve().parents[1])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def run(code: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env, timeout=300
    )


def test_the_verifier_works_where_nothing_else_is_installed(bare: dict[str, str]) -> None:
    code = r"""
from mathturn_gym.verifier import Verifier
with Verifier(form="equivalent", timeout=60.0) as verifier:
    assert verifier.verify(r"\boxed{\frac{1}{2}}", "0.5").correct
    symbolic = verifier.verify(r"\boxed{\sum_{k=1}^{3} k}", "6")
    assert symbolic.correct and symbolic.tier == "symbolic", symbolic
import gymnasium
assert "MathMultiTurn-v0" in gymnasium.registry
"""
    done = run(code, bare)
    assert done.returncode == 0, done.stderr


def test_the_test_above_would_notice(bare: dict[str, str]) -> None:
    done = run("import torch", bare)
    assert done.returncode != 0
    assert "No module named 'torch' (blocked by a test)" in done.stderr
    # What needs more says so when it is used, not when the package is imported.
    done = run("import mathturn_gym, gymnasium; gymnasium.make('MathSingleTurn-v0')", bare)
    assert "No module named 'transformers'" in done.stderr
