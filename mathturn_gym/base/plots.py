"""Matplotlib figures that touch none of its global state."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from mathturn_gym.base.files import replacing
from mathturn_gym.base.text import visible


def new_figure(width: float, height: float) -> Any:
    """Returns a figure, in inches, that pyplot does not know; raises `ImportError` without matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path) -> None:
    """Writes a figure as a PNG."""
    # Written beside the file and renamed: a link in its place is replaced, not followed.
    with replacing(path) as scratch, warnings.catch_warnings():
        # A name may have characters that the font has not: a box stands for them, and that is all there is to say.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure.savefig(str(scratch), dpi=110, format="png")


def plain_label(text: str) -> str:
    """Returns a name that matplotlib draws as it is, where it would read formulas between dollar signs or skip a leading `_`."""
    shown = visible(text).replace("$", r"\$")
    return f"\u200b{shown}" if shown.startswith("_") else shown
