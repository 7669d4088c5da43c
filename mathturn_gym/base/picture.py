"""An episode as a picture of one size, for videos and trackers (`render_mode="rgb_array"`)."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mathturn_gym.base.text import visible
from mathturn_gym.errors import MissingDependencyError, install_extra

WIDTH: Final = 960
HEIGHT: Final = 540
_SIZE, _LEADING, _MARGIN, _LABEL = 16, 23, 18, 11
_COLUMNS: Final = 80
_ROWS: Final = (HEIGHT - 2 * _MARGIN) // _LEADING
_MOST_OF_A_PROBLEM: Final = 6


def draw_lines(lines: Iterable[tuple[str, str, str]], colors: Mapping[str, str]) -> npt.NDArray[np.uint8]:
    """Draws a dialogue: its first lines (the problem) at the top, and as much of its end as there is room for.

    Every picture has the same size, as a video needs it.

    Args:
        lines: Speaker, kind and text of each, as `base.render.Line`; the problem is among the first.
        colors: By kind.

    Returns:
        uint8 (HEIGHT, WIDTH, 3).

    Raises:
        MissingDependencyError: Pillow or matplotlib (for its font) is not installed.
    """
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise MissingDependencyError(f"render_mode='rgb_array' needs {install_extra('train')}") from error
    lines = list(lines)
    heads = [k for k, line in enumerate(lines) if line[1] == "problem"]
    first = heads[0] + 1 if heads else 0
    head = list(_rows(lines[:first], from_the_end=False))
    if len(head) > _MOST_OF_A_PROBLEM:
        head = [*head[: _MOST_OF_A_PROBLEM - 1], ("", "", "…")]
    rest = list(_rows(lines[first:], from_the_end=True))
    room = _ROWS - len(head)
    if len(rest) > room:
        rest = [("", "", "…"), *rest[len(rest) - room + 1 :]]
    picture = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw, font = ImageDraw.Draw(picture), _font()
    for row, (who, kind, text) in enumerate([*head, *rest]):
        top = _MARGIN + row * _LEADING
        draw.text((_MARGIN, top), who, "#6b7280", font)
        draw.text((_MARGIN + 115, top), text, colors.get(kind, "#111827"), font)
    return np.asarray(picture, np.uint8).copy()


def _rows(lines: Iterable[tuple[str, str, str]], *, from_the_end: bool) -> Iterator[tuple[str, str, str]]:
    """Yields rows of the picture: who speaks (on the first row), kind and text."""
    most = _COLUMNS * _ROWS  # of a longer text nothing else could be seen
    for who, kind, text in lines:
        shown = visible(text[-most:] if from_the_end else text[:most]).expandtabs(4)
        wrapped = [part for line in shown.split("\n") for part in textwrap.wrap(line, _COLUMNS) or [""]]
        for k, part in enumerate(wrapped):
            label = visible(who).strip()
            yield ("" if k else label if len(label) <= _LABEL else label.split()[0][:_LABEL], kind, part)


@functools.cache
def _font() -> Any:
    """DejaVu Sans Mono, which has mathematics' signs; it comes with matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingDependencyError(f"render_mode='rgb_array' needs {install_extra('train')}") from error
    from PIL import ImageFont

    return ImageFont.truetype(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSansMono.ttf", _SIZE)
