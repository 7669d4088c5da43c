"""Reports as pages: one HTML file each, for light and dark, that holds everything and asks the network for nothing.

A content security policy names the hashes of the only style and script, so that nothing else in a page can run.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from mathturn_gym.base.text import html_text

_SORTABLE: Final = 'class="sortable'


def render_report(title: str, body: str) -> str:
    """The page as a text.

    Args:
        title: Of the page.
        body: HTML with every text in it escaped. Tables of the class `sortable` are sorted by a click on a heading.
    """
    style, script = _asset("report.css"), _asset("sort.js") if _SORTABLE in body else ""
    rules = {
        "default-src": "'none'",
        "script-src": _digest(script) if script else "'none'",
        "style-src": _digest(style),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    policy = "; ".join(f"{name} {value}" for name, value in rules.items())
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{html_text(title)}</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{html_text(title)}</h1>\n{body}\n</main>\n"
        f"{f'<script>{script}</script>' if script else ''}\n</body>\n</html>\n"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


@cache
def _asset(name: str) -> str:
    return (files("mathturn_gym") / "assets" / "report" / name).read_text(encoding="utf-8")
