"""Imports point one way."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mathturn_gym"

LAYERS = (
    {
        "errors",
        "types",
        "spaces",
        "seeding",
        "registration",
        "info",
        "render",
        "_notebook",
        "_terminal",
        "_text",
        "_token_texts",
        "_transformers",
        "_calls",
        "_event_loop",
        "_files",
        "_http",
        "_import_paths",
        "_json",
        "_lazy",
        "_named_models",
        "_pages",
        "_steps",
    },
    {"problems", "verifier", "dialogue", "feedback", "rewards", "verification", "returns"},
    {"env"},
    {"vector", "config"},
    {"rollout"},
    {
        "decoding",
        "wrappers",
        "baselines",
        "tasks",
        "areal",
        "view",
        "cli",
        "engines",
        "integrations",
        "serve",
        "testing",
        "__main__",
    },
)
ASIDE = {"packing", "metrics", "losses", "trajectories", "export", "synthetic"}
"""Made of types alone (and of one another, `returns` and the library they are for)."""


def imports_of(path: Path) -> set[str]:
    """The parts of the package that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names = [node.module]
            if node.module == "mathturn_gym":
                names = [f"mathturn_gym.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("mathturn_gym.")}
    return found


def layer_of(part: str) -> int:
    return next(i for i, layer in enumerate(LAYERS) if part in layer)


def parts() -> list[tuple[str, Path]]:
    files = [(p.relative_to(PACKAGE).parts[0].removesuffix(".py"), p) for p in PACKAGE.rglob("*.py")]
    wrappers = [("wrappers", p) for p in (ROOT / "wrappers").glob("*.py")]
    return [(part, p) for part, p in files if part not in ("__init__", "wrappers")] + wrappers


@pytest.mark.parametrize(("part", "path"), parts(), ids=lambda value: value.stem if isinstance(value, Path) else value)
def test_imports_point_one_way(part: str, path: Path) -> None:
    imported = imports_of(path) - {part}
    if part in ASIDE:
        # Whoever counts answers counts them by the verifier's `answer_key`.
        allowed = ASIDE | LAYERS[0] | {"returns"} | ({"verifier"} if part == "metrics" else set())
        assert imported <= allowed, f"{path} needs more than types"
        return
    for other in imported - ASIDE:
        assert layer_of(other) <= layer_of(part), f"{path}: {part} imports {other}, which lies above it"
    assert not imported & {"testing"} or part in LAYERS[-1]


def test_every_part_has_a_place() -> None:
    assert {part for part, _ in parts()} <= set.union(*LAYERS) | ASIDE


def test_no_test_folder_is_a_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []
