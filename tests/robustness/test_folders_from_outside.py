"""Run folders that somebody else made: they import nothing, write nothing outside themselves, and nothing in them hangs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mathturn_gym.base.import_paths import is_import_path, names_code
from mathturn_gym.baselines.run_folder import read_config
from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.cli.app import app
from mathturn_gym.errors import CheckpointError, InvalidValueError
from mathturn_gym.policies.config import MODEL_SCHEMES
from mathturn_gym.wrappers import load_policy

RUNNER = CliRunner()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with a module and a package that leave a file when they are imported."""
    code = f"from pathlib import Path\nPath({str(tmp_path / 'witness')!r}).touch()\nx = print\n"
    (tmp_path / "evilmod.py").write_text(code)
    (tmp_path / "evilpkg").mkdir()
    (tmp_path / "evilpkg" / "__init__.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("evilmod", "evilpkg"):
        sys.modules.pop(name, None)


def near_misses() -> list[str]:
    """Texts that are nearly import paths: a lax reader would import the module before it sees that they are none."""
    found = ["this.:x", "evilmod..a:x", "evilpkg.1:x", "evilmod:x.", "evilmod:x.1", "evilmod.é:x", "evilmod:x", "evilmod::x"]
    whole = "evilmod.a:x.y"
    for extra in (".", ":", "1", "é", " ", "\n", "-", "/", "\u200b", "ｘ"):
        found += [whole[:at] + extra + whole[at:] for at in range(len(whole) + 1)]
    return found


def run_of(folder: Path, part: str, field: str, value: Any) -> Path:
    run = folder / "run"
    run.mkdir(exist_ok=True)
    config = load_task("lins").config("reinforce").to_json()
    config[part][field] = value
    (run / "config.json").write_text(json.dumps(config))
    return run


@pytest.mark.parametrize(
    ("part", "field"), [("policy", "model"), ("algorithm", "name"), ("env", "verifier"), ("env", "id")]
)
def test_near_misses_of_import_paths_are_code_before_anything_is_resolved(here: Path, part: str, field: str) -> None:
    for text in near_misses():
        run = run_of(here, part, field, text)
        with pytest.raises(CheckpointError, match="names code, which is not run"):
            RUNNER.invoke(app, ["train", "--run-dir", str(run), "--resume"], catch_exceptions=False)
        with pytest.raises(CheckpointError, match="names code, which is not run"):
            read_config(run)
        assert not (here / "witness").exists(), text


def test_what_is_no_import_path_is_never_imported(here: Path) -> None:
    """The readers behind the gate take nothing that the strict parser refuses."""
    for text in near_misses():
        if not is_import_path(text):
            with pytest.raises((InvalidValueError, CheckpointError)):
                load_policy(text)
            assert not (here / "witness").exists(), text


@pytest.mark.parametrize("text", ["https://host:8000/v1", "hf:org/name", "vllm:folder", "builtin", "org/name", "runs/a"])
def test_urls_and_known_schemes_name_no_code(text: str, here: Path) -> None:
    assert not names_code(text, MODEL_SCHEMES)
    assert read_config(run_of(here, "policy", "model", text)).policy.model == text


def test_what_is_asked_for_may_run(here: Path) -> None:
    run = run_of(here, "env", "verifier", "evilmod:x")
    with pytest.raises(CheckpointError, match="names code"):
        read_config(run, allowed=["evilmod:y"])
    assert read_config(run, allowed=["evilmod:x"]) == read_config(run, own_code=True)
