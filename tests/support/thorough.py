"""How long the property tests look: `make test` plays a quarter of their examples, `make test-slow` all."""

from __future__ import annotations

import os


def examples(number: int) -> int:
    """The number of examples of a property test; both numbers draw the same ones first."""
    return number if os.environ.get("MATHTURN_THOROUGH") else max(1, number // 4)
