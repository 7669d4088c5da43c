"""The documentation site: `make docs` builds it into build/docs, and every warning is an error."""

from __future__ import annotations

import sys
import tomllib
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
numpy.typing.NDArray = NDArray  # type: ignore[misc]  # before autodoc evaluates an annotation

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
    (
        "py:.*",
        r"mathturn_gym\.baselines\.(session|trainer|run_folder)\.\w+",
    ),  # what a run is made of: no user makes one
    ("py:.*", r"mathturn_gym(\.\w+)*\._\w+.*"),  # types that are internal, or that live in internal modules
]
nitpick_ignore = [  # bases and annotations that their package does not export
    ("py:class", "mathturn_gym.neighbors.areal.logs.LoggedTurn"),
    ("py:class", "mathturn_gym.neighbors.areal.protocol.Agent"),
    ("py:class", "mathturn_gym.neighbors.areal.protocol.Queue"),
    ("py:class", "mathturn_gym.neighbors.areal.worker.AsyncBatchPolicy"),
    ("py:class", "mathturn_gym.episodes.packing.batch.Facts"),
    ("py:class", "mathturn_gym.problems.rows.LeftOut"),
    ("py:class", "mathturn_gym.baselines.algorithms.grpo.EpisodeBudget"),
    ("py:class", "mathturn_gym.baselines.algorithms.reinforce.WithReference"),
    ("py:class", "mathturn_gym.baselines.classic.algorithms.ActorCritic"),
    ("py:class", "mathturn_gym.baselines.classic.algorithms.ValueBased"),
    ("py:class", "mathturn_gym.compare.results.Limit"),
    ("py:class", "mathturn_gym.show.tables.Table"),
    ("py:class", "mathturn_gym.problems.base.Endless"),
    ("py:class", "mathturn_gym.problems.schemas.Found"),
    ("py:class", "mathturn_gym.env.environment.Beginning"),
    ("py:class", "mathturn_gym.env.environment.Transition"),
    ("py:class", "mathturn_gym.wrappers.token_level.TokenView"),
    ("py:class", "mathturn_gym.baselines.algorithms.critic.CriticAlgorithm"),
    ("py:class", "mathturn_gym.neighbors.episodes.KnownProblems"),
    ("py:class", "mathturn_gym.neighbors.episodes.TextEpisode"),
    ("py:class", "mathturn_gym.neighbors.serve.client.RemoteState"),
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


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", keep_drawings)
