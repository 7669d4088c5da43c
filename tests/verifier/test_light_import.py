"""The verifier can be used alone: importing and using it loads nothing heavy into the caller's process."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "transformers", "stable_baselines3", "sympy", "math_verify", "mpmath")
SCRIPT = """
import sys
from mathturn_gym.verifier import Verifier
with Verifier(form="equivalent", timeout=30.0) as verifier:
    assert verifier.verify("\\\\boxed{x+1}", "1+x").correct
    assert verifier.verify("\\\\boxed{\\\\sum_{k=1}^{3} k}", "6").tier == "symbolic"
from mathturn_gym.verifier.audit._child import peak_memory_mb
print(*sorted(name for name in %r if name in sys.modules), int(peak_memory_mb()))
"""


def loaded_by(script: str) -> tuple[set[str], int]:
    done = subprocess.run([sys.executable, "-c", script % (HEAVY,)], capture_output=True, text=True, check=True)
    *names, memory = done.stdout.split()
    return set(names), int(memory)


def test_nothing_heavy_is_loaded_and_memory_stays_small() -> None:
    names, memory_mb = loaded_by(SCRIPT)
    assert not names
    assert memory_mb < 300


def test_the_test_above_would_notice() -> None:
    names, _ = loaded_by("import sympy\n" + SCRIPT)
    assert "sympy" in names
