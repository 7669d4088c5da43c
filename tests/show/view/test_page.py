from __future__ import annotations

import base64
import hashlib
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from mathturn_gym.show.view import write_view
from mathturn_gym.show.view._write import policy_of
from mathturn_gym.types import Episode


class Parts(HTMLParser):
    """The scripts, styles and addresses of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.inside: tuple[str, dict[str, str | None]] = ("", {})
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.metas: list[dict[str, str | None]] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = (tag, dict(attrs))
        self.metas += [dict(attrs)] if tag == "meta" else []
        self.addresses += [str(value) for name, value in attrs if name in ("src", "href", "action", "srcset")]
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]

    def handle_data(self, data: str) -> None:
        tag, attrs = self.inside
        if tag == "script" and "type" not in attrs:
            self.scripts.append(data)
        elif tag == "style":
            self.styles.append(data)

    def handle_endtag(self, tag: str) -> None:
        self.inside = ("", {})


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, before: list[Episode]) -> str:
    path = write_view(tmp_path_factory.mktemp("page") / "v.html", {"x": before}, tokenizer="builtin")
    return path.read_text(encoding="utf-8")


def test_the_policy_names_the_scripts_and_styles_that_are_there(page: str) -> None:
    parts = Parts(page)
    assert len(parts.scripts) == 1
    policy = str(next(meta["content"] for meta in parts.metas if meta.get("http-equiv") == "Content-Security-Policy"))
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"].split() == [digest(script) for script in parts.scripts]
    assert rules["style-src"].split() == [digest(style) for style in parts.styles]
    assert rules["connect-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in policy
    assert policy.replace("connect-src 'none'", "connect-src 'self'") == policy_of(live=True)


def test_the_page_points_nowhere(page: str) -> None:
    parts = Parts(page)
    assert parts.addresses == []
    assert parts.handlers == []
    assert "url(" not in "".join(parts.styles)
    assert "@import" not in page
    assert page.count("<html") == page.count("</html>") == page.count("<body") == 1


def test_scripts_make_no_html_of_text() -> None:
    folder = files("mathturn_gym") / "assets" / "view"
    names = [entry.name for entry in folder.iterdir() if entry.name.endswith(".js")]
    assert len(names) == 6
    for text in ((folder / name).read_text() for name in names):
        for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert forbidden not in text
        assert "</script" not in text.lower()


def test_no_code_of_others_stands_in_the_package() -> None:
    """Issue 37: minified code and fonts come from packages at install time, or not at all."""
    for path in (Path(__file__).parents[3] / "mathturn_gym").rglob("*"):
        assert path.suffix not in (".woff", ".woff2", ".ttf"), path
        if path.suffix in (".js", ".css"):
            assert max(map(len, path.read_text(encoding="utf-8").splitlines())) < 1000, path


def test_equal_episodes_give_equal_pages(page: str, before: list[Episode], tmp_path: Path) -> None:
    again = write_view(tmp_path / "v.html", {"x": before}, tokenizer="builtin")
    assert again.read_text(encoding="utf-8") == page
    assert [path.name for path in tmp_path.iterdir()] == ["v.html"]
