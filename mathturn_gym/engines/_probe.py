"""What a node of a cluster says of itself: imported there, by name, before any worker starts."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Final

import mathturn_gym

__all__ = ["FACTS"]

FACTS: Final[dict[str, str]] = {
    "mathturn_gym": mathturn_gym.__version__,
    "python": platform.python_version(),
    "torch": version("torch"),
    "numpy": version("numpy"),
    "transformers": version("transformers"),
    "host": platform.node(),
    "path": str(mathturn_gym.__file__),
}
"""Versions, the machine's name, and where the package lies there."""
