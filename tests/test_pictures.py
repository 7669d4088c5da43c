"""The pictures of the documentation are those that `experiments/pictures.py` draws, and small."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"


def test_the_pictures_are_what_the_script_draws(benchmark: Callable[[str], Any]) -> None:
    pictures = benchmark("pictures").PICTURES
    assert len(pictures) > 10
    for name, draw in pictures.items():
        drawn = draw()
        assert drawn == (IMAGES / f"{name}.svg").read_text(encoding="utf-8"), f"python experiments/pictures.py {name}"
        assert len(drawn) < 60_000
