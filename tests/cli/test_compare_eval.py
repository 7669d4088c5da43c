import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mathturn_gym.cli.app import app
from mathturn_gym.errors import InvalidValueError

RUNNER = CliRunner()


def run(*args: str) -> Any:
    return RUNNER.invoke(app, list(args), catch_exceptions=False)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    made = []
    for name in ("builtin", "random"):
        folder = str(tmp_path_factory.mktemp(name) / "eval")
        assert run("eval", "--policy", name, "--episodes", "24", "--num-envs", "8", "--out", folder).exit_code == 0
        made.append(folder)
    return made[0], made[1]


def test_two_evaluations_are_compared(folders: tuple[str, str], tmp_path: Path) -> None:
    done = run("compare-eval", *folders, "--out", str(tmp_path / "c.json"))
    assert done.exit_code == 0
    assert "24 problems in common" in done.output.replace("\n", " ")
    figure = json.loads((tmp_path / "c.json").read_text())["figures"]["acc@4"]
    assert figure["a"] > figure["b"] == 0  # the random policy writes no answer
    assert figure["difference"]["high"] < 0
    assert figure["p_value"] < 0.05


def test_chosen_figures_alone_are_shown(folders: tuple[str, str]) -> None:
    done = run("compare-eval", *folders, "--figure", "acc@1", "--json")
    assert list(json.loads(done.output)["figures"]) == ["acc@1"]
    with pytest.raises(InvalidValueError, match="did you mean 'acc@1'"):
        run("compare-eval", *folders, "--figure", "ac@1")


def test_problems_of_one_alone_are_left_out_and_said(folders: tuple[str, str], tmp_path: Path) -> None:
    lines = Path(folders[1], "episodes.jsonl").read_text().splitlines(keepends=True)
    part = tmp_path / "part.jsonl"
    part.write_text("".join(lines[:10]))
    assert "14 problems of a, 0 of b" in run("compare-eval", folders[0], str(part)).output


def test_what_is_no_evaluation_is_named(folders: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="b must be an evaluation's folder or a file of episodes"):
        run("compare-eval", folders[0], str(tmp_path))
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InvalidValueError, match="holds no episode"):
        run("compare-eval", folders[0], str(tmp_path / "empty.jsonl"))
