"""The pages of the documentation: their code runs as it stands, their links lead somewhere, and each is in a table of contents."""

import ast
import os
import re
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

import mathturn_gym
import mathturn_gym.baselines as baselines
from mathturn_gym.baselines.algorithms import _registry as algorithms
from mathturn_gym.baselines.algorithms import registered
from mathturn_gym.cli.app import app
from mathturn_gym.env.feedback import _registry as feedback

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = {
    path.relative_to(DOCS).with_suffix("").as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(DOCS.rglob("*.md"))
    if path.relative_to(DOCS).parts[0] != "notebooks"  # made by the site's build
}
ELSEWHERE = {"areal", "compare", "policies", "trajectories", "view"}
"""Pages whose code needs something beside it; the tests of their rooms run it."""
ALONE = {"baselines", "classic", "environment", "feedback", "metrics", "problems"}
"""Pages each of whose blocks stands for itself; on all others a block can use what came before it."""

RETURNS = """
from mathturn_gym.wrappers import load_policy
from mathturn_gym.testing import synthetic_episode
episodes = [synthetic_episode(0, i, [3, 4], vocab_size=400) for i in range(2)]
model = load_policy("builtin").model
"""
"""What docs/returns.md takes as given."""


@pytest.mark.filterwarnings("ignore::mathturn_gym.episodes.returns.BiasedEstimatorWarning")
@pytest.mark.parametrize("name", [name for name in PAGES if BLOCK.search(PAGES[name]) and name not in ELSEWHERE])
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = [code for code in BLOCK.findall(PAGES[name]) if "+SKIP" not in code]
    assert blocks
    page = ModuleType("page")  # dataclasses look their module up
    monkeypatch.setitem(sys.modules, "page", page)
    # What a page registers is gone with it: other tests count what there is.
    monkeypatch.setattr(algorithms, "_registered", dict(registered()))
    monkeypatch.setattr(feedback._REGISTRY, "_modes", dict(feedback._REGISTRY._modes))
    exec(RETURNS if name == "returns" else "", page.__dict__)
    for number, code in enumerate(blocks):
        exec(
            compile(code, f"docs/{name}.md[{number}]", "exec"), dict(page.__dict__) if name in ALONE else page.__dict__
        )


def test_code_that_needs_a_server_or_a_gpu_can_be_compiled_and_its_imports_exist() -> None:
    absent = {"areal", "datasets", "tinker", "trl", "verl", "verifiers"}
    blocks = {
        name: re.findall(r"^```python no-run\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        for name, text in PAGES.items()
    }
    assert sum(map(len, blocks.values())) > 5
    for name, codes in blocks.items():
        for code in codes:
            for node in ast.walk(ast.parse(code, f"docs/{name}.md")):
                if not isinstance(node, ast.ImportFrom) or node.module is None:
                    continue
                parts = set(node.module.split("."))
                if "mathturn_gym" in parts and not parts & absent:
                    home = import_module(node.module)
                    assert all(hasattr(home, alias.name) for alias in node.names), (name, node.module)


def test_the_parts_of_a_large_run_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(baselines, "train", lambda **parts: given.update(parts))
    (code,) = re.findall(
        r"^```python no-run\n(.*?)^```", PAGES["how-to/train_a_larger_model"], re.DOTALL | re.MULTILINE
    )
    exec(compile(code, "docs/how-to/train_a_larger_model.md", "exec"), {})
    del given["run_dir"]
    assert baselines.RunConfig(**given).algorithm.name == "grpo"


@pytest.mark.parametrize("name", ["README", "CONTRIBUTING", *(f"docs/{name}" for name in PAGES)])
def test_links_lead_somewhere(name: str) -> None:
    path = ROOT / f"{name}.md"
    text = re.sub(r"^(```+).*?^\1", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"", text):
        address, _, _ = (target[0] or target[1]).partition("#")
        if address and ":" not in address:
            assert (path.parent / address).exists(), (name, address)


def test_commands_and_their_options_exist() -> None:
    command: Any = get_command(app)
    shown = 0
    for name, text in PAGES.items():
        for block in re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            for line in re.sub(r"\\\n\s*", "", block).splitlines():
                words = re.sub(r"\s#.*", "", line).split()
                if words[:2] != ["$", "mathturn"]:
                    continue
                found = command
                for word in words[2:]:
                    if not hasattr(found, "commands"):
                        break
                    assert word in found.commands, (name, line)
                    found = found.commands[word]
                known = {option for parameter in found.params for option in parameter.opts}
                assert {word for word in words if word.startswith("--")} <= known, (name, line)
                shown += 1
    assert shown > 15


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = {"index"}
    for name, text in PAGES.items():
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            entries = [line.strip() for line in block.splitlines() if line.strip() and not line.startswith(":")]
            listed |= {os.path.normpath(Path(name).parent / entry) for entry in entries}
    assert [name for name in PAGES if name not in listed] == []
    assert [name for name in listed if name not in PAGES and "*" not in name] == []


def test_the_reference_has_a_place_for_every_public_module() -> None:
    reference = "".join(text for name, text in PAGES.items() if name.startswith("api/"))
    modules = {
        module.name
        for module in iter_modules(mathturn_gym.__path__)
        if not module.name.startswith("_") and hasattr(import_module(f"mathturn_gym.{module.name}"), "__all__")
    }
    assert set(re.findall(r"automodule:: mathturn_gym\.(\w+)\n", reference)) >= modules


def test_every_environment_and_argument_has_its_place() -> None:
    import inspect

    from mathturn_gym.env import ENV_DEFAULTS, MathMultiTurnEnv

    page = PAGES["environments/index"]
    for name in (*ENV_DEFAULTS, *list(inspect.signature(MathMultiTurnEnv.__init__).parameters)[1:]):
        assert f"`{name}`" in page, name


def test_every_mode_term_and_figure_is_documented() -> None:
    from mathturn_gym.env.feedback import FEEDBACK
    from mathturn_gym.env.rewards import TERMS
    from mathturn_gym.episodes.metrics.figures import MEANING
    from mathturn_gym.problems.families import FAMILIES

    for name, words in (
        ("problems", FAMILIES),
        ("metrics", MEANING),
        ("feedback", [*(mode for mode in FEEDBACK if ":" not in mode), *TERMS]),
    ):
        assert [word for word in words if f"`{word}`" not in PAGES[name]] == []


def test_every_row_of_a_table_has_the_cells_of_its_heading() -> None:
    """A separator with one cell less makes a paragraph of pipes out of the whole table."""

    def cells(line: str) -> int:
        return len(re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|")))

    tables = 0
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("paper/*.md")]:
        text = re.sub(r"^ *(`{3,}).*?^ *\1", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for table in re.findall(r"(?:^ *\|.*\n?)+", text, re.MULTILINE):
            rows = table.strip().splitlines()
            assert {cells(row) for row in rows} == {cells(rows[0])}, f"{path.name}: {rows[0]}"
            assert re.fullmatch(r"[ |:-]+", rows[1]), f"{path.name}: no separator below {rows[0]}"
            tables += 1
    assert tables > 50
