"""One kind of table for pages, Markdown files and the terminal; every text in it is shown as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from mathturn_gym.base.text import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

_SUPERSCRIPT: Final = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(slots=True)
class Table:
    """Texts in rows and columns; the first column is the row's name."""

    title: str  # above the table
    columns: Sequence[str]  # headings
    lead: str = ""  # a sentence about what is shown
    # One text per column. `0.5 [0.4, 0.6]` is shown on a page as a value with its interval below.
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # footnotes, numbered from 1 in this order
    best: set[tuple[int, int]] = field(default_factory=set)  # row and column of the cells in bold
    words: Sequence[int] = ()  # columns of prose, aligned to the left

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
        """Returns the footnotes with their marks."""
        return [f"{str(i).translate(_SUPERSCRIPT)} {note}" for i, note in enumerate(self.notes, 1)]

    def without_repeats(self, first: int) -> Table:
        """Returns the table without the columns, from `first` on, that repeat an earlier one in every row."""
        columns = list(zip(*self.rows, strict=True))
        repeats = [c for c in range(first, len(columns)) if columns[c] in columns[first:c]]
        return self.without(*(self.columns[c] for c in repeats))

    def without(self, *columns: str) -> Table:
        """Returns the table without the columns of these headings."""
        kept = [c for c, name in enumerate(self.columns) if name not in columns]
        return replace(
            self,
            columns=[self.columns[c] for c in kept],
            rows=[[row[c] for c in kept] for row in self.rows],
            best={(r, kept.index(c)) for r, c in self.best if c in kept},
            words=[kept.index(c) for c in self.words if c in kept],
        )


def split_interval(text: str) -> tuple[str, str]:
    """Returns a cell's value and its interval, which is empty where there is none.

    >>> split_interval("0.5 [0.4, 0.6]")
    ('0.5', '[0.4, 0.6]')
    """
    value, bracket, interval = text.partition(" [")
    return (value, f"[{interval}") if bracket and text.endswith("]") else (text, "")


def as_rich(table: Table, width: int = 120) -> RenderableType:
    """Returns the table for rich; one that is wider than the terminal comes in pieces, each with the rows' names."""
    from rich import box
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

    parts: list[RenderableType] = [Text(visible(table.title), style="bold cyan")] if table.title else []
    if table.lead:
        parts.append(Text(visible(table.lead), style="dim"))
    for piece in _pieces(table, width):
        shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        for c in piece:
            left = not c or c in table.words
            shown.add_column(Text(visible(table.columns[c])), justify="left" if left else "right", overflow="fold")
        for r, row in enumerate(table.rows):
            shown.add_row(*(Text(visible(row[c]), style="bold" if (r, c) in table.best else "") for c in piece))
        parts.append(shown)
    parts.extend(Padding(Text(visible(note), style="yellow"), (0, 0, 0, 2)) for note in table.numbered_notes())
    return Group(*parts, *([Text("")] if table.title else []))


def _pieces(table: Table, width: int) -> list[list[int]]:
    """The columns in groups that fit the width, each group beginning with column 0."""
    space = [max(len(visible(text)) for text in texts) + 2 for texts in zip(table.columns, *table.rows, strict=True)]
    pieces = [[0]]
    for c in range(1, len(space)):
        # Every piece has the rows' names and one more column at least, however narrow the terminal is.
        if len(pieces[-1]) > 1 and sum(space[i] for i in pieces[-1]) + space[c] > width:
            pieces.append([0])
        pieces[-1].append(c)
    return pieces


def as_markdown(table: Table) -> str:
    """Returns the table in Markdown, with a heading of the third level."""
    lines = [f"### {_plain(table.title)}", ""]
    if table.lead:
        lines += [_plain(table.lead), ""]
    lines.append("| " + " | ".join(_plain(column) for column in table.columns) + " |")
    left = {0, *table.words}
    lines.append("|" + "|".join("---" if i in left else "---:" for i in range(len(table.columns))) + "|")
    for r, row in enumerate(table.rows):
        texts = [f"**{_plain(text)}**" if (r, c) in table.best else _plain(text) for c, text in enumerate(row)]
        lines.append("| " + " | ".join(texts) + " |")
    for note in table.numbered_notes():
        lines += ["", _plain(note)]
    return "\n".join(lines) + "\n"


def as_latex(table: Table) -> str:
    r"""Returns the table as LaTeX for the booktabs package, with its footnotes below.

    >>> print(as_latex(Table("t", ["a", "b_1"], rows=[["x", "5 %"]], best={(0, 1)})))
    \begin{tabular}{lr}
    \toprule
    a & b\_1 \\
    \midrule
    x & \textbf{5 \%} \\
    \bottomrule
    \end{tabular}
    """
    kinds = "".join("l" if not c or c in table.words else "r" for c in range(len(table.columns)))
    lines = [rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", " & ".join(map(_tex, table.columns)) + r" \\", r"\midrule"]
    for r, row in enumerate(table.rows):
        cells = [rf"\textbf{{{_tex(text)}}}" if (r, c) in table.best else _tex(text) for c, text in enumerate(row)]
        lines.append(" & ".join(cells) + r" \\")
    notes = [rf"\par {_tex(note)}" for note in table.numbered_notes()]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes])


_TEX: Final = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "˒": ",",
    **{power: rf"\textsuperscript{{{digit}}}" for digit, power in zip("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹", strict=True)},
}


def _tex(text: str) -> str:
    """Text that LaTeX shows as it is, on one line."""
    return "".join(_TEX.get(sign, sign) for sign in " ".join(visible(text).split()))


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    text = visible(text)
    for sign in "\\|*`<>":
        text = text.replace(sign, f"\\{sign}")
    text = text.replace("](", "]\\(")  # no links
    return " ".join(text.split())
