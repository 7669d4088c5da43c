"""A table once, to be shown in a terminal, in Markdown and on a page; with footnotes for whatever is not plain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mathturn_gym._text import html_text, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Table", "as_html", "as_markdown", "as_rich"]

_MANY: Final = 10
"""More columns than these are set closer on a page."""
_SUPERSCRIPT: Final = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(slots=True)
class Table:
    """Texts in rows and columns; the first column is the row's name.

    Args:
        title: Above the table.
        columns: Headings.
        lead: A sentence about what is shown.
        rows: One text per column.
        notes: Footnotes, numbered from 1 in this order.
        best: Row and column of cells to stress.
    """

    title: str
    columns: Sequence[str]
    lead: str = ""
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    best: set[tuple[int, int]] = field(default_factory=set)

    def marks(self, notes: Sequence[str]) -> str:
        """Adds footnotes (an equal one is used again), and returns their marks.

        >>> table = Table("t", ["a"])
        >>> table.marks(["late", "lost"]), table.marks(["lost"])
        (' ¹˒²', ' ²')
        """
        for note in notes:
            if note not in self.notes:
                self.notes.append(note)
        numbers = [str(self.notes.index(note) + 1).translate(_SUPERSCRIPT) for note in notes]
        return f" {'˒'.join(numbers)}" if numbers else ""

    def numbered_notes(self) -> list[str]:
        """The footnotes with their marks."""
        return [f"{str(i).translate(_SUPERSCRIPT)} {note}" for i, note in enumerate(self.notes, 1)]


def as_rich(table: Table, width: int = 120) -> RenderableType:
    """For `rich.console.Console.print`.

    Args:
        table: What to show.
        width: Of the terminal; a wider table is shown in several pieces, each with the rows' names.
    """
    from rich import box
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

    parts: list[RenderableType] = [Text(visible(table.title), style="bold cyan")]
    if table.lead:
        parts.append(Text(visible(table.lead), style="dim"))
    for piece in _pieces(table, width):
        shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        for c in piece:
            shown.add_column(Text(visible(table.columns[c])), justify="right" if c else "left", overflow="fold")
        for r, row in enumerate(table.rows):
            shown.add_row(*(Text(visible(row[c]), style="bold" if (r, c) in table.best else "") for c in piece))
        parts.append(shown)
    parts.extend(Padding(Text(visible(note), style="yellow"), (0, 0, 0, 2)) for note in table.numbered_notes())
    return Group(*parts, Text(""))


def _pieces(table: Table, width: int) -> list[list[int]]:
    """The columns in groups that fit the width, each group beginning with column 0."""
    space = [max(len(visible(text)) for text in texts) + 2 for texts in zip(table.columns, *table.rows, strict=True)]
    pieces = [[0]]
    for c in range(1, len(space)):
        if len(pieces[-1]) > 1 and sum(space[i] for i in pieces[-1]) + space[c] > width:
            pieces.append([0])
        pieces[-1].append(c)
    return pieces


def as_markdown(table: Table) -> str:
    """With a heading of the third level."""
    lines = [f"### {_plain(table.title)}", ""]
    if table.lead:
        lines += [_plain(table.lead), ""]
    lines.append("| " + " | ".join(_plain(column) for column in table.columns) + " |")
    lines.append("|" + "|".join("---" if i == 0 else "---:" for i in range(len(table.columns))) + "|")
    for r, row in enumerate(table.rows):
        texts = [f"**{_plain(text)}**" if (r, c) in table.best else _plain(text) for c, text in enumerate(row)]
        lines.append("| " + " | ".join(texts) + " |")
    for note in table.numbered_notes():
        lines += ["", _plain(note)]
    return "\n".join(lines) + "\n"


def as_html(table: Table) -> str:
    """A heading of the third level, a table whose headings sort it, and its footnotes; intervals stand below values."""
    head = "".join(f"<th>{html_text(column)}</th>" for column in table.columns)
    body = []
    for r, row in enumerate(table.rows):
        cells = (
            f'<td class="{"best" if (r, c) in table.best else ""}">{_cell(text) if c else html_text(text)}</td>'
            for c, text in enumerate(row)
        )
        body.append(f"<tr>{''.join(cells)}</tr>")
    lead = f"<p>{html_text(table.lead)}</p>" if table.lead else ""
    kind = "sortable dense" if len(table.columns) > _MANY else "sortable"
    notes = "".join(f'<p class="note">{html_text(note)}</p>' for note in table.numbered_notes())
    return (
        f'<h3>{html_text(table.title)}</h3>{lead}<div class="wide"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>{notes}"
    )


def _cell(text: str) -> str:
    """`0.5 [0.4, 0.6]` in two lines, so that many columns fit."""
    value, bracket, interval = text.partition(" [")
    return html_text(value) + (f"<small>[{html_text(interval)}</small>" if bracket and text.endswith("]") else "")


def _plain(text: str) -> str:
    """Markdown shows it as it is, on one line."""
    text = visible(text)
    for sign in "\\|*`<>":
        text = text.replace(sign, f"\\{sign}")
    text = text.replace("](", "]\\(")  # no links
    return " ".join(text.split())
