"""Where objects of the package ask for their own display, as text and as HTML.

The code that draws imports the objects that it draws, so objects cannot import it. `Episode`, `PackedBatch` and others
call `displayed`; the package sets what answers, `show.notebook`, which is loaded at the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Displays: TypeAlias = Mapping[str, Callable[[Any], str]]
"""By kind of object ("episode", "episode as text", "batch", …) a function that draws it."""

_load: Callable[[], Displays] | None = None


def set_displays(load: Callable[[], Displays]) -> None:
    """Sets the function that returns the displays; it is called each time something is shown."""
    global _load
    _load = load


def displayed(kind: str, value: Any) -> str:
    """Returns the object as the display of its kind draws it."""
    assert _load is not None, "importing mathturn_gym sets the displays"
    return _load()[kind](value)
