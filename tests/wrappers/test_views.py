"""What both views for classic algorithms share."""

from __future__ import annotations

import numpy as np

from mathturn_gym.wrappers.token_level import Window


def test_pinned_ids_stay() -> None:
    window = Window(100, 6, pinned=2)
    assert window.of(np.arange(50)).tolist() == [0, 1, 46, 47, 48, 49]
    assert window.of(np.arange(6)).tolist() == [0, 1, 2, 3, 4, 5]
    assert window.of(np.arange(3)).tolist() == [0, 1, 2, 100, 100, 100]
