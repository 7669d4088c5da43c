"""The documentation site: `make docs` builds it into build/docs, and every warning is an error."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy.typing

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

_Scalar = TypeVar("_Scalar")


class NDArray(Generic[_Scalar]):
    """Stands for `numpy.typing.NDArray`, which signatures would spell out as `ndarray[tuple[Any, ...], dtype[int64]]`."""


NDArray.__module__ = "numpy.typing"
numpy.typing.NDArray = NDArray  # type: ignore[assignment]  # before autodoc evaluates an annotation

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_REPOSITORY = _PROJECT["urls"]["Repository"]

project = _PROJECT["name"]
author = "the mathturn_gym authors"
project_copyright = "the mathturn_gym authors"
version = release = _PROJECT["version"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "stored_notebooks",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_ext", "_static"]
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!mathturn_gym\.).*"),  # names of other packages, and type variables: the build reaches no network
    ("py:.*", r"mathturn_gym(\.\w+)*\._\w+.*"),  # types that are internal, or that live in internal modules
]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # `console` blocks with mathematics in them

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_preserve_defaults = True
default_role = "code"  # docstrings write `name` for code
napoleon_google_docstring = True
napoleon_numpy_docstring = False
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"mathturn_gym {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "source_repository": _REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
}
copybutton_exclude = ".linenos, .gp, .go"


def keep_drawings(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Shows what a docstring sets off by a blank line and four spaces as it stands: drawings, examples, small tables."""
    kept: list[str] = []
    said = ""  # the last line with text; fields (":param x:") indent what belongs to them
    for before, line in pairwise(["", *lines]):
        if line.startswith("    ") and not before.strip() and not said.startswith((" ", ":")):
            kept += ["::", ""]
        kept.append(line)
        said = line if line.strip() else said
    lines[:] = kept


def name_alone(app: Sphinx, env: Any, node: Any, text: Any) -> Any:
    """Shows the class that an annotation or a base names and no page documents by its name; one that does not exist warns."""
    module, _, name = node.get("reftarget", "").rpartition(".")
    if node.get("reftype") != "class" or not module.startswith("mathturn_gym."):
        return None
    found = find_spec(module) is not None and hasattr(import_module(module), name)
    return text if found else None


def write_llms(app: Sphinx, error: Exception | None) -> None:
    """Writes `llms.txt`: every page with its title, its first sentence and its source, for assistants (llmstxt.org)."""
    if error is not None or app.builder.format != "html":
        return
    about = f"# {project}\n\n> {_PROJECT['description']}\n\n## Pages\n\n"
    rows = []
    for page in sorted(app.env.found_docs):
        text = re.sub(r"```.*?```", "", Path(app.env.doc2path(page)).read_text(encoding="utf-8"), flags=re.DOTALL)
        words = next((line for line in text.splitlines() if line[:1].isalpha()), "").split(". ")[0].rstrip(".:")
        rows.append(f"- [{app.env.titles[page].astext()}](_sources/{page}.md.txt)" + f": {words}." * bool(words) + "\n")
    (Path(app.outdir) / "llms.txt").write_text(about + "".join(rows), encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("build-finished", write_llms)
    app.connect("missing-reference", name_alone)
    app.connect("autodoc-process-docstring", keep_drawings)
