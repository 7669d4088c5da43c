"""Makes a page of each notebook, with the outputs that are stored in it; nothing is executed.

`make test` runs the notebooks whole. Here they only have to be read, so no kernel is needed: a Markdown cell is Markdown
already, code becomes a `python` block, text output a `text` block, and a picture a file beside the page.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def _text(value: str | list[str]) -> str:
    return _ANSI.sub("", value if isinstance(value, str) else "".join(value))


def _output(output: dict[str, Any], picture: Path) -> str:
    """One output as Markdown; `picture` is where a picture goes, without its ending."""
    if output["output_type"] == "stream":
        return f"````text\n{_text(output['text']).rstrip()}\n````\n"
    data = output.get("data", {})
    for kind, ending in (("image/png", "png"), ("image/svg+xml", "svg")):
        if kind in data:
            path = picture.with_suffix(f".{ending}")
            content = _text(data[kind])
            path.write_bytes(base64.b64decode(content) if ending == "png" else content.encode())
            return f"![output]({path.name})\n"
    return f"````text\n{_text(data.get('text/plain', ''))}\n````\n"


def page_of(notebook: Path, folder: Path) -> str:
    """A notebook as a page of Markdown.

    Args:
        notebook: An .ipynb file.
        folder: Where its pictures go.

    Returns:
        The page's text.
    """
    parts: list[str] = []
    for number, cell in enumerate(json.loads(notebook.read_text(encoding="utf-8"))["cells"]):
        source = _text(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"\]\((\w+)\.ipynb\)", r"](\1.md)", source) + "\n")
            continue
        parts.append(f"````python\n{source}\n````\n")
        parts += [
            _output(output, folder / f"{notebook.stem}-{number}-{place}")
            for place, output in enumerate(cell["outputs"])
        ]
    return "\n".join(parts)


def write_pages(app: Sphinx) -> None:
    """Writes a page for every notebook of the repository into docs/notebooks, which git ignores."""
    folder = Path(app.srcdir) / "notebooks"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("[0-9]*"):
        old.unlink()
    for notebook in sorted((Path(app.srcdir).parent / "notebooks").glob("*.ipynb")):
        (folder / f"{notebook.stem}.md").write_text(page_of(notebook, folder), encoding="utf-8")


def link_to_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    """Lets links to notebooks, which lead to the files where a page is read in the repository, lead to their pages."""
    source[0] = re.sub(r"\]\((?:\.\./)+notebooks/(\w+)\.ipynb\)", r"](/notebooks/\1.md)", source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("config-inited", lambda app, config: write_pages(app))
    app.connect("source-read", link_to_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
