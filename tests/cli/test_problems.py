import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mathturn_gym.cli.problems import problems_app
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems import load_problems
from mathturn_gym.problems.families import FAMILIES

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
    assert load_problems("matrices@1").get(0, 1).id in done.output
    assert "different problems: more than" in done.output
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
    assert found["skipped"] == ["line 2: field 'answer' is missing or empty, and so is 'solution'"]
    assert [row["where"] for row in found["not_self_verified"]] == ["line 3"]
    text = run("check", str(path)).output
    assert "left out: line 2: field 'answer' is missing" in text
    assert "not right: line 3" in text


def test_prompts_with_different_answers_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("question,answer\n1+1=?,2\n1+1=?,3\n1+2=?,3\n")
    done = run("check", str(path), "--json")
    assert done.exit_code == 1
    assert json.loads(done.output)["contradictory"] == ["'1+1=?' has 2 different answers"]
    assert run("check", "guess8", "--items", "50").exit_code == 0  # it hides its answers


def test_problems_are_counted_split_by_split(tmp_path: Path) -> None:
    counts = json.loads(run("count", "lins", "--json").output)
    assert {split: found["found"] for split, found in counts.items()} == {"train": 639, "validation": 74, "test": 87}
    assert all(found["complete"] for found in counts.values())
    assert "more than" in run("count", "add3:test", "--draws", "100").output
    path = tmp_path / "d.csv"
    path.write_text("q,a\n" + "".join(f"{i}+1=?,{i + 1}\n" for i in range(100)))
    shown = run("count", str(path), "--question-column", "q", "--answer-column", "a").output
    assert "train" in shown


def test_control_characters_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"question": "a\x1b[2J\u202eb", "answer": "[bold]2"}) + "\n")
    output = run("show", str(path)).output
    assert "\x1b" not in output.replace("\x1b[", "", 0).replace("\\x1b", "")
    assert "\u202e" not in output
    assert "[bold]2" in output


def test_fields_are_mapped(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"q": "1+1=?", "a": "2"}\n')
    assert run("check", str(path), "--question-column", "q", "--answer-column", "a").exit_code == 0
    with pytest.raises(InvalidValueError, match="--question-column needs --answer-column"):
        run("check", str(path), "--question-column", "q")
    with pytest.raises(InvalidValueError, match="--answer-column needs --question-column"):
        run("show", str(path), "--answer-column", "q")
    with pytest.raises(InvalidValueError, match="are for files"):
        run("check", "linear", "--question-column", "q", "--answer-column", "a")


def test_families_are_checked_too() -> None:
    done = run("check", "linear@2:test:latex", "--items", "20", "--json")
    assert done.exit_code == 0
    assert json.loads(done.output)["checked"] == 20
