"""A terminal on which no text moves the cursor, changes a color or reverses a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderHook
from rich.segment import Segment

from mathturn_gym.base.text import visible

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, ConsoleRenderable


def terminal(**options: Any) -> Console:
    """Returns a console that shows `visible` texts alone.

    Markup is not touched: `say` texts of others, or show them as `plain_text`.

    Args:
        **options: Of `rich.console.Console`.
    """
    console = Console(**options)
    console.push_render_hook(_VisibleTexts())
    return console


def say(console: Console, text: str, style: str = "") -> None:
    """Prints a text as it is: no markup is read in it, no number is colored, and no path is broken over two lines."""
    console.print(visible(text), style=style, markup=False, highlight=False, soft_wrap=True)


class _VisibleTexts(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Visible(one) for one in renderables]


class _Visible:
    """Makes text visible after it was laid out. Rich's own controls are segments of another kind, and stay."""

    def __init__(self, renderable: ConsoleRenderable) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
