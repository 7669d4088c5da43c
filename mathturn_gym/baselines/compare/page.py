"""One HTML page that holds everything: tables, pictures, the command, the versions."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

from mathturn_gym._files import write_atomically
from mathturn_gym._pages import render_report
from mathturn_gym._text import html_text
from mathturn_gym.baselines.compare.tables import Table, as_html

__all__ = ["Section", "write_page"]

Section = tuple[str, str, Sequence[Table], Sequence[tuple[str, str]]]
"""Heading, introduction, tables, and pictures as (file name, caption)."""


def write_page(
    path: Path,
    *,
    title: str,
    command: str,
    counts: Mapping[str, int],
    sections: Sequence[Section],
    facts: Mapping[str, str],
) -> None:
    """Writes the page; pictures are taken from its folder into it.

    Args:
        path: File to write.
        title: Its heading.
        command: What was typed; empty where nothing was.
        counts: Number of runs by status.
        sections: In order.
        facts: Versions and the like, at the end.
    """
    plain = ("finished", "stopped_early")
    pills = "".join(
        f'<span class="{"" if status in plain else "bad"}">{number} {html_text(status.replace("_", " "))}</span>'
        for status, number in counts.items()
    )
    links = "".join(f'<a href="#s{i}">{html_text(section[0])}</a>' for i, section in enumerate(sections))
    parts = [_section(i, section, path.parent) for i, section in enumerate(sections)]
    shown = f"<pre>{html_text(command)}</pre>" if command else ""
    rows = "".join(f"<tr><td>{html_text(k)}</td><td>{html_text(v)}</td></tr>" for k, v in facts.items())
    made = f"<section><h2>Made with</h2><table>{rows}</table></section>"
    words = "<p>A click on a heading sorts its table.</p>"
    body = f'<div class="pills">{pills}</div>{shown}<nav>{links}</nav>{words}{"".join(parts)}{made}'
    write_atomically(path, render_report(title, body))


def _section(number: int, section: Section, folder: Path) -> str:
    heading, lead, tables, pictures = section
    drawn = []
    for name, caption in pictures:
        data = base64.b64encode((folder / name).read_bytes()).decode("ascii")
        words = html_text(caption)
        drawn.append(
            f'<figure><img alt="{words}" src="data:image/png;base64,{data}"><figcaption>{words}</figcaption></figure>'
        )
    intro = f"<p>{html_text(lead)}</p>" if lead else ""
    body = "".join(as_html(table) for table in tables)
    return f'<section id="s{number}"><h2>{html_text(heading)}</h2>{intro}{body}{"".join(drawn)}</section>'
