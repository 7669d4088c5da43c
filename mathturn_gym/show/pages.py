"""Pages: HTML files for light and dark that hold everything they show and ask the network for nothing.

Templates of `assets/` are filled by Jinja. Every value is escaped, and shown with its invisible characters made `visible`,
unless the package itself made it as markup (charts). A content security policy names the hashes of the page's own styles
and scripts, so that nothing else in it can run.

    write_report_page   a verdict, cards, and sections of charts and tables (`mathturn eval`, `mathturn compare`)
    render_page         any template of ours (the viewer)
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from mathturn_gym.base.files import write_atomically
from mathturn_gym.base.text import html_text
from mathturn_gym.show.tables import Table, split_interval

_MANY: Final = 10  # tables with more columns are set more tightly


class Chart(NamedTuple):
    """A drawing with its title."""

    title: str
    drawing: Markup  # from `show.charts`
    words: str = ""  # how to read it


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a report."""

    title: str  # its heading
    lead: str = ""  # what it shows
    charts: Sequence[Chart] = ()  # shown first
    tables: Sequence[Table] = ()  # shown below; a click on a heading sorts
    text: str = ""  # shown last, as it is
    folded: bool = False  # only the heading is shown until it is clicked


def write_report_page(
    path: Path,
    *,
    title: str,
    verdict: Sequence[str],
    sections: Sequence[Section],
    cards: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
) -> None:
    """Writes a report as one HTML file: sentences, of which the first stands out, numbers to see first, notes, sections."""
    sortable = any(section.tables for section in sections)
    page = render_page(
        "report/report.html",
        styles=asset("report/report.css"),
        scripts=[asset("report/sort.js")] if sortable else [],
        rules={"img-src": "data:"},
        title=title,
        verdict=verdict,
        cards=cards,
        notes=notes,
        sections=sections,
        many=_MANY,
    )
    write_atomically(path, page)


def render_page(
    template: str, *, styles: str, scripts: Sequence[str], rules: Mapping[str, str], title: str, **values: Any
) -> str:
    """Returns a page from a template below `assets/`; `rules` are added to the content security policy of every page."""
    return (
        _environment()
        .get_template(template)
        .render(
            title=title,
            policy=content_policy(styles, scripts, rules),
            styles=own_markup(styles),
            scripts=[own_markup(script) for script in scripts],
            **values,
        )
    )


def content_policy(styles: str, scripts: Sequence[str], rules: Mapping[str, str]) -> str:
    """Returns a content security policy under which only these styles and scripts work."""
    every = {
        # Nothing is fetched: a page that was sent to someone tells no server that it was opened.
        "default-src": "'none'",
        "script-src": " ".join(map(_digest, scripts)) or "'none'",
        "style-src": _digest(styles),
        **rules,
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in every.items())


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


@cache
def asset(name: str) -> str:
    """Returns the text of a file below `assets/`."""
    return (files("mathturn_gym") / "assets" / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(asset),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,  # a misspelt name in a template is an error, not an empty text
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["split_interval"] = split_interval
    return environment


def _shown(value: object) -> Markup:
    """Returns what a template shows of a value: markup of ours as it is, everything else as `html_text`."""
    return value if isinstance(value, Markup) else own_markup(html_text(str(value)))


def own_markup(text: str) -> Markup:
    """Returns text as markup that templates show unescaped: the package's own, in which all texts of others are escaped."""
    return Markup(text)  # noqa: S704 - the only place
