"""A verifier that can be trusted: right, fast, and impossible to hang or fool.

Usable alone: importing it loads neither Gymnasium, torch, sympy nor math-verify; symbolic work happens in processes
of its own.
"""

from __future__ import annotations

from mathturn_gym.types import Status, Verdict
from mathturn_gym.verifier.core import Verifier
from mathturn_gym.verifier.explain import explain
from mathturn_gym.verifier.extract import Extraction, extract

__all__ = ["Extraction", "Status", "Verdict", "Verifier", "explain", "extract"]
