import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mathturn_gym.cli.problems import problems_app
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems import FAMILIES

RUNNER = CliRunner()


def run(*args: str) -> Any:
    return RUNNER.invoke(problems_app, list(args), catch_exceptions=False)


def test_every_family_is_listed() -> None:
    done = run("list")
    assert done.exit_code == 0
    assert all(name in done.output for name in (*FAMILIES, "lins", "guess8"))


def test_problems_are_shown_with_their_own_brackets() -> None:
    done = run("show", "matrices@1", "-n", "2")
    assert done.exit_code == 0
    assert "[[" in done.output
    assert "matrices@1:train/0/1" in done.output
    assert "gold" not in run("show", "matrices@1", "-n", "1", "--no-gold").output


def test_a_clean_file_passes(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"problem": "1+1=?", "answer": "2"}\n')
    done = run("check", str(path), "--out", str(tmp_path / "report.json"))
    assert done.exit_code == 0
    assert "1 problems checked, 0 rows left out" in done.output
    assert json.loads((tmp_path / "report.json").read_text())["checked"] == 1


def test_what_is_wrong_is_listed_and_fails(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"problem": "1+1=?", "answer": "2"}\n{"problem": "p"}\n{"problem": "p", "answer": "}{"}\n')
    done = run("check", str(path), "--json")
    found = json.loads(done.output)
    assert done.exit_code == 1
    assert found["skipped"] == ["line 2: solution is missing"]
    assert [row["id"] for row in found["not_self_verified"]] == ["d/3"]
    text = run("check", str(path)).output
    assert "left out: line 2: solution is missing" in text
    assert "d/3" in text


def test_fields_are_mapped(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"q": "1+1=?", "a": "2"}\n')
    assert run("check", str(path), "--field", "prompt=q", "--field", "gold=a").exit_code == 0
    with pytest.raises(InvalidValueError, match="must be KEY=FIELD"):
        run("check", str(path), "--field", "prompt")
    with pytest.raises(InvalidValueError, match="is for files"):
        run("check", "linear", "--field", "prompt=q")


def test_families_are_solved_again() -> None:
    done = run("check", "linear@2:test:latex", "--items", "20", "--json")
    assert done.exit_code == 0
    assert json.loads(done.output)["checked"] == 20
