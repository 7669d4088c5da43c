"""What the project's own files say agrees: names, versions, addresses, citations, and the targets that workflows call."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import mathturn_gym

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
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


def exists(target: str) -> bool:
    """True where make would know what to do."""
    command = ["make", "--dry-run", "--no-print-directory", target]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def targets_in(text: str) -> set[str]:
    """The targets that a text tells its reader to make."""
    return {target.rstrip(".-") for target in re.findall(r"(?:`|^\$ |^)make ([a-z][a-z0-9.-]*)", text, re.MULTILINE)}


def test_what_is_no_target_is_noticed() -> None:
    assert exists("test")
    assert exists("test-inspect")
    assert not exists("test-nothing")
    assert not exists("tset")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_that_exist(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    matrices = [job.get("strategy", {}).get("matrix", {}) for job in jobs.values()]
    given = [one for matrix in matrices for one in matrix.get("target", [])]
    given += [one["target"] for matrix in matrices for one in matrix.get("include", [])]
    assert commands
    for command in commands:
        targets = given if "${{ matrix.target }}" in command else targets_in(command)
        assert targets, command
        assert all(map(exists, targets)), (command, targets)


def test_what_make_test_leaves_out_runs_by_the_clock() -> None:
    scheduled = (ROOT / ".github/workflows/scheduled.yml").read_text(encoding="utf-8")
    left_out = set(re.findall(r"^(?:TESTS_(\w+) :=|(test-[a-z]+):)", read("Makefile"), re.MULTILINE))
    names = {f"test-{one}" if one else target for one, target in left_out} - {"test-llm", "test-view", "test-typing"}
    assert {name for name in names if not re.search(rf"\b{name}\b", scheduled)} == set()


def test_there_are_workflows_for_tests_documentation_and_releases() -> None:
    assert [path.stem for path in WORKFLOWS] == ["docs", "release", "scheduled", "test"]


def test_the_makefile_names_files_that_exist() -> None:
    text = read("Makefile")
    named = re.findall(r"(?<!/)\b(?:tests|benchmarks|\.ci)/[\w./-]*\w", text.replace("$(one)", "verl"))
    assert [path for path in named if not (ROOT / path).exists()] == []
    (not_here,) = re.findall(r"^NOT_HERE := (.*)$", text, re.MULTILINE)
    assert all((ROOT / "mathturn_gym" / name).exists() for name in not_here.split())


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


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "AGENTS.md", *PAGES])
def test_pages_name_targets_that_exist(name: str) -> None:
    assert [target for target in targets_in(read(name)) if not exists(target)] == []


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "AGENTS.md"])
def test_what_contributors_read_names_paths_that_exist(name: str) -> None:
    text = read(name)
    for path in re.findall(r"`((?:mathturn_gym|docs|tests|benchmarks|experiments|notebooks)/[\w./-]*)`", text):
        assert (ROOT / path).exists() or "NAME" in path, path
    for path in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / path).exists(), path


def test_every_extra_is_tried_in_an_environment_of_its_own() -> None:
    fresh = tomllib.loads(read(".ci/fresh.toml"))
    extras = set(PROJECT["optional-dependencies"]) - {"dev", "docs"}  # for contributors: the other targets need them
    assert {
        one for given in fresh.values() for words in given["pip"] for one in re.findall(r"\[(\w+)\]", words)
    } == extras
    for given in fresh.values():
        assert all((ROOT / "tests" / "fresh" / script).exists() for script in given.get("scripts", []))
        assert given.get("beside", "serve") in fresh
        for page, says, run in given.get("commands", []):
            assert says in read(page), (page, says)
            assert says in run, (says, run)
