"""What the project's own files say agrees: names, versions, addresses, citations, and the targets that workflows call."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import mathturn_gym

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_one_version_everywhere() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["version"] == PROJECT["version"] == mathturn_gym.__version__
    assert citation["license"] == PROJECT["license"]
    assert re.search(rf"^## {re.escape(PROJECT['version'])}", read("docs/changelog.md"), re.MULTILINE)


def test_citation_has_what_the_format_asks_for() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert all("name" in author or "family-names" in author for author in citation["authors"])


def test_every_address_is_one_of_pyproject() -> None:
    base = PROJECT["urls"]["Repository"]
    files = [ROOT / "CITATION.cff", *TEMPLATES, *(ROOT / "mathturn_gym").rglob("*.py"), *(ROOT / "docs").glob("*.md")]
    owner = base.removeprefix("https://github.com/").split("/")[0]
    for path in files:
        for address in re.findall(rf"https://github\.com/{owner}[\w./-]*", path.read_text(encoding="utf-8")):
            assert f"{address}/".startswith(f"{base}/"), (path, address)
    assert all(address.startswith(base) for address in PROJECT["urls"].values())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_that_exist(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    assert commands
    assert {command.removeprefix("make ") for command in commands} <= targets


def test_there_are_workflows_for_tests_and_documentation() -> None:
    assert [path.stem for path in WORKFLOWS] == ["docs", "test"]


@pytest.mark.parametrize("path", [p for p in TEMPLATES if p.stem != "config"], ids=lambda path: path.stem)
def test_issue_templates_have_the_required_fields(path: Path) -> None:
    template = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(template)
    ids = [field["id"] for field in template["body"]]
    assert len(ids) == len(set(ids))
    assert all(field["attributes"]["label"] for field in template["body"])


def test_the_paper_cites_what_its_bibliography_has() -> None:
    cited = set(re.findall(r"@(\w+)", read("paper/paper.md").split("---", 2)[2]))
    known = set(re.findall(r"^@\w+\{(\w+),", read("paper/paper.bib"), re.MULTILINE))
    assert cited == known


def test_the_paper_is_of_the_length_that_is_asked_for() -> None:
    words = len(read("paper/paper.md").split("---", 2)[2].split())
    assert 250 <= words <= 1000, words


def test_contributing_names_targets_and_paths_that_exist() -> None:
    text = read("CONTRIBUTING.md")
    targets = set(re.findall(r"^([a-z-]+)%?:", read("Makefile"), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", text)) <= targets
    for path in re.findall(r"`((?:mathturn_gym|docs|tests|benchmarks|experiments|notebooks)/[\w./-]*)`", text):
        assert (ROOT / path).exists() or "NAME" in path, path
    for path in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / path).exists(), path
