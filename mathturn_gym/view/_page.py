"""The page: one HTML file with everything in it, that asks the network for nothing.

    page.html + view.css + *.js + KaTeX with its fonts + blocks of episodes ─► one file

Its content security policy names the hashes of the very scripts and styles in it: nothing else runs, whatever an
episode says, and nothing is loaded. Texts come in as packed data, never as HTML.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

from mathturn_gym.view._encoding import Block, pack_json

__all__ = ["policy_of", "render_page"]

_SCRIPTS: Final = ("data.js", "text.js", "scales.js", "tokens.js", "dialogue.js", "list.js", "figures.js", "app.js")
"""In the order in which they are read: each uses what those before it define."""

_FONT: Final = re.compile(r"url\((fonts/[\w-]+\.woff2)\)")


def render_page(about: Mapping[str, Any], blocks: Iterable[tuple[int, Block]]) -> str:
    """The page as a text.

    Args:
        about: What `data.js` calls so: the sets, the curves, and where to ask for more.
        blocks: Pairs of a set's number and a block of its episodes.
    """
    data = "".join(_block(number, block) for number, block in blocks)
    style, code = _styles(), _code()
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy_of(live=about.get("live") is not None)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        "<title>mathturn view</title>\n"
        f"<style>{style}</style>\n</head>\n<body>\n{_asset('page.html')}"
        f'<script id="about" type="application/x-mathturn">{pack_json(about)}</script>\n'
        f"{data}{''.join(f'<script>{script}</script>' for script in code)}\n</body>\n</html>\n"
    )


def policy_of(*, live: bool = False) -> str:
    """The content security policy of the page.

    Args:
        live: The page may ask the server that it came from.
    """
    scripts = " ".join(_digest(script) for script in _code())
    rules = {
        "default-src": "'none'",
        "script-src": scripts,
        "style-src": _digest(_styles()),
        "font-src": "data:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _block(number: int, block: Block) -> str:
    """A block's parts as data that no browser runs; base64 has no character that HTML knows."""
    parts = "".join(
        f'<script type="application/x-mathturn" data-part="{name}">{text}</script>'
        for name, text in block.to_json().items()
    )
    return f'<div class="block" data-set="{number}" hidden>{parts}</div>\n'


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


@cache
def _code() -> Sequence[str]:
    """The scripts: KaTeX, and ours as one."""
    own = "\n".join(_asset(name) for name in _SCRIPTS)
    notice = "/* KaTeX, MIT license, Copyright (c) 2013-2020 Khan Academy and other contributors */\n"
    return f"{notice}{_asset('katex/katex.min.js')}", f'"use strict";\n(() => {{\n{own}\n}})();'


@cache
def _styles() -> str:
    """KaTeX's styles with their fonts in them, and ours."""
    return _FONT.sub(lambda font: f"url({_font(font[1])})", _asset("katex/katex.min.css")) + _asset("view.css")


def _font(name: str) -> str:
    data = (files("mathturn_gym") / "assets" / "view" / "katex" / name).read_bytes()
    return f"data:font/woff2;base64,{base64.b64encode(data).decode('ascii')}"


@cache
def _asset(name: str) -> str:
    return (files("mathturn_gym") / "assets" / "view" / name).read_text(encoding="utf-8")
