"""Rooms stand in an order: each imports only from those above it, and none reaches into another's private modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mathturn_gym"

ROOMS: Mapping[str, tuple[str, ...]] = {
    "base": ("base", "errors", "seeding", "spaces", "types"),
    "verifier": ("verifier",),
    "problems": ("problems",),
    "env": ("env", "testing"),
    "episodes": ("episodes",),
    "policies": ("policies",),
    "wrappers": ("wrappers",),
    "baselines": ("baselines",),
    "neighbors": ("neighbors",),
    "show": ("show",),
    "compare": ("compare",),
    "cli": ("cli",),
    "the package": ("registration", "__main__", "__init__"),
}
"""Every room with the folders and modules that are in it, the lowest first: docs/architecture.md draws this list."""

ORDER = list(ROOMS)
ROOM_OF = {part: room for room, parts in ROOMS.items() for part in parts}
MODULES = {
    ".".join(("mathturn_gym", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def room_of(module: str) -> str:
    parts = module.split(".")
    return ROOM_OF[parts[1] if len(parts) > 1 else "__init__"]


def imports_in(tree: ast.AST) -> Iterator[str]:
    """The modules of the package that are imported, wherever it is written: above, in a function, for types alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            found = [
                f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in MODULES else str(node.module)
                for alias in node.names
            ]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "import_module":
            found = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        else:
            continue
        yield from (name for name in found if name in MODULES)


@pytest.fixture(scope="module")
def imports() -> Mapping[str, set[str]]:
    """What each module imports; not made while tests are collected, which every process does."""
    return {
        module: {name for name in imports_in(ast.parse(path.read_text(encoding="utf-8"))) if name != module}
        for module, path in MODULES.items()
    }


def test_a_room_imports_only_from_those_above_it(imports: Mapping[str, set[str]]) -> None:
    assert [
        f"{module} imports {name}: {room_of(name)} stands below"
        for module, names in imports.items()
        for name in names
        if ORDER.index(room_of(name)) > ORDER.index(room_of(module))
    ] == []


def test_no_room_reaches_into_the_private_modules_of_another(imports: Mapping[str, set[str]]) -> None:
    assert [
        f"{module} imports {name}, which is private to {room_of(name)}"
        for module, names in imports.items()
        for name in names
        if room_of(name) != room_of(module)
        and any(part.startswith("_") for part in name.split(".")[1:] if part != "__init__")
    ] == []


def test_no_modules_import_each_other(imports: Mapping[str, set[str]]) -> None:
    """A package's `__init__` offers names of its submodules, and is left out where a submodule is imported by its name."""
    graph = {
        module: {name for name in names if not module.startswith(f"{name}.")}
        for module, names in imports.items()
        if module != "mathturn_gym"
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' → '.join(error.args[1])}")


def test_every_module_has_a_room() -> None:
    assert {module.split(".")[1] for module in MODULES if "." in module} <= set(ROOM_OF)


def test_the_page_draws_this_list() -> None:
    page = ROOT / "docs" / "architecture.md"
    rows = [
        line.split("|")[1].strip() for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")
    ]
    assert rows[1 : len(ORDER) + 1] == ORDER


def test_the_files_that_the_page_names_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.[a-z]+)?)`", page)
    assert len(named) > 20
    for name in named:
        assert (PACKAGE / name).exists() or (ROOT / name).exists(), name


def test_nothing_depends_on_the_link_to_the_wrappers() -> None:
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "wrappers" for name in names), module


def test_no_test_folder_is_a_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []
