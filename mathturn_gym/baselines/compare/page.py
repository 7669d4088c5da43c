"""One HTML page that holds everything: tables, pictures, the command, the versions."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from mathturn_gym.baselines.compare.tables import Table, as_html

__all__ = ["Section", "write_page"]

Section = tuple[str, str, Sequence[Table], Sequence[tuple[str, str]]]
"""Heading, introduction, tables, and pictures as (file name, caption)."""

_STYLE: Final = """
:root { --ink: #1d2430; --soft: #5b6675; --line: #dfe4ea; --accent: #1f5fa8; --warn: #8a5a00; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: var(--ink); background: #f6f7f9;
  margin: 0; }
main { max-width: 1180px; margin: 0 auto; padding: 2.2rem 1.2rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.25rem; margin: 0 0 .4rem; color: var(--accent); }
h3 { font-size: 1rem; margin: 1.3rem 0 .2rem; } p { margin: .25rem 0 .6rem; color: var(--soft); }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 1.2rem 1.4rem; margin-top: 1.2rem; }
nav a { margin-right: 1rem; color: var(--accent); text-decoration: none; white-space: nowrap; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .88rem; min-width: 50%; }
th { text-align: right; font-weight: 600; border-bottom: 2px solid var(--ink); padding: .3rem .7rem; }
td { text-align: right; border-bottom: 1px solid var(--line); padding: .28rem .7rem; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; font-weight: 600; }
td.best { font-weight: 700; color: var(--accent); }
.note { font-size: .84rem; color: var(--warn); margin: .15rem 0; }
figure { margin: 1rem 0 0; } figure img { max-width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: .88rem; }
pre { background: #eef1f5; border-radius: 6px; padding: .6rem .8rem; overflow-x: auto; white-space: pre-wrap; }
.counts span { display: inline-block; margin: .3rem .5rem .3rem 0; padding: .15rem .6rem; border-radius: 999px;
  background: #e8eef6; }
.counts .bad { background: #fbe9d0; color: var(--warn); }
"""


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
        f'<span class="{"" if status in plain else "bad"}">{number} {html.escape(status.replace("_", " "))}</span>'
        for status, number in counts.items()
    )
    links = "".join(f'<a href="#s{i}">{html.escape(section[0])}</a>' for i, section in enumerate(sections))
    parts = [_section(i, section, path.parent) for i, section in enumerate(sections)]
    shown = f"<pre>{html.escape(command)}</pre>" if command else ""
    rows = "".join(f"<tr><td>{html.escape(k)}</td><td>{html.escape(v)}</td></tr>" for k, v in facts.items())
    text = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f'<body><main><h1>{html.escape(title)}</h1><div class="counts">{pills}</div>{shown}<nav>{links}</nav>'
        f"{''.join(parts)}<section><h2>Made with</h2><table>{rows}</table></section></main></body></html>\n"
    )
    path.write_text(text, encoding="utf-8")


def _section(number: int, section: Section, folder: Path) -> str:
    heading, lead, tables, pictures = section
    drawn = []
    for name, caption in pictures:
        data = base64.b64encode((folder / name).read_bytes()).decode("ascii")
        words = html.escape(caption)
        drawn.append(
            f'<figure><img alt="{words}" src="data:image/png;base64,{data}"><figcaption>{words}</figcaption></figure>'
        )
    intro = f"<p>{html.escape(lead)}</p>" if lead else ""
    body = "".join(as_html(table) for table in tables)
    return f'<section id="s{number}"><h2>{html.escape(heading)}</h2>{intro}{body}{"".join(drawn)}</section>'
