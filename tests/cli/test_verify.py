"""`mathturn verify`, through its command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from mathturn_gym.cli.verify import verify
from mathturn_gym.errors import InvalidValueError, ProblemFileError, StorageError

app = typer.Typer()
app.command()(verify)
runner = CliRunner()


def run(*arguments: str) -> str:
    result = runner.invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_one_answer() -> None:
    assert run("So it is \\boxed{0.5}.", "--gold", "1/2").startswith("Right: '0.5'")
    assert "unevaluated" in run("12+34", "--gold", "46", "--kind", "answer")
    verdict = json.loads(run("\\boxed{x+1}", "--gold", "7", "--gold", "1+x", "--json"))
    assert verdict["correct"] is True
    assert (verdict["status"], verdict["gold"], verdict["span"]) == ("right", "1+x", [7, 10])


def test_options_reach_the_verifier() -> None:
    assert run("12+34", "--gold", "46", "--kind", "answer", "--form", "equivalent").startswith("Right")
    assert run("0.33", "--gold", "1/3", "--kind", "answer", "--decimals", "2").startswith("Right")
    assert run("we have 12 of them", "--gold", "12", "--extract", "lenient").startswith("Right")


def test_a_file_of_answers(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "response": "\\boxed{1}", "gold": "1"},
        {"id": "b", "response": "2", "gold": ["1", "3"], "kind": "answer"},
        {"id": "c", "response": "hm", "gold": "1"},
    ]
    file, out = tmp_path / "answers.jsonl", tmp_path / "verdicts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("--file", str(file), "--out", str(out))
    verdicts = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(v["id"], v["status"]) for v in verdicts] == [("a", "right"), ("b", "wrong"), ("c", "no_answer")]
    assert json.loads(run("--file", str(file)).splitlines()[0])["answer"] == "1"


def episode_file(folder: Path, name: str) -> tuple[Path, int]:
    """A file of episodes that were played with the answers kept, and how many answers it holds."""
    import gymnasium

    from mathturn_gym import collect
    from mathturn_gym.env.dialogue import Dialogue
    from mathturn_gym.episodes.trajectories import write_episodes
    from mathturn_gym.testing import ScriptedPolicy

    env = gymnasium.make_vec(
        "mathturn_gym:MathMultiTurn-v0", 2, "sync", problems="guess8", num_turns=2, gold_in_info=True
    )
    policy = ScriptedPolicy(["The answer is 3.", "So \\boxed{3}."], Dialogue("builtin"))
    episodes = collect(env, policy, 4, seed=0)
    write_episodes(folder / name, episodes)
    return folder / name, sum(len(episode.turns) for episode in episodes)


@pytest.mark.parametrize("name", ["episodes.jsonl", "episodes.parquet"])
def test_episodes_are_judged_again_and_what_changes_is_told(tmp_path: Path, name: str) -> None:
    file, answers = episode_file(tmp_path, name)
    out = tmp_path / "again.jsonl"
    assert f"0 of {answers} verdicts changed" in run("--file", str(file))
    printed = run("--file", str(file), "--extract", "boxed", "--against", "lenient", "--out", str(out))
    assert f"{answers // 2} of {answers} verdicts changed" in printed
    assert "-> no_answer" in printed
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == answers
    assert [row["changed"] for row in rows] == [row["before"]["status"] != row["after"]["status"] for row in rows]
    assert {row["after"]["rule"] for row in rows} == {None, "box"}


def test_rows_are_compared_with_what_they_say_and_with_other_verifiers(tmp_path: Path) -> None:
    rows = [
        {"response": "\\boxed{12+34}", "gold": "46", "label": False},
        {"response": "\\boxed{46}", "gold": ["45", "46"], "label": True},
        {"response": "\\boxed{44}", "gold": ["45", "46"], "status": "undecided"},
        {"response": "\\boxed{44}", "gold": "45"},
    ]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    printed = run("--file", str(file), "--against", "recorded")
    assert "2 of 4 verdicts changed" in printed
    assert "line 3: undecided -> wrong ('44')" in printed
    assert "line 4: unknown -> wrong" in printed
    assert "1 of 4 verdicts changed" in run("--file", str(file), "--against", "equivalent")
    printed = run("--file", str(file), "--against", "math-verify")
    assert "1 of 4 verdicts changed" in printed
    assert "line 1: right -> wrong ('12+34')" in printed


def test_episodes_without_answers_say_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(json.dumps({"prompt": "1+1?", "completion": "2", "step": 1, "reward": 1.0}) + "\n")
    with pytest.raises(ProblemFileError, match="gold_in_info=True"):
        runner.invoke(app, ["--file", str(file)], catch_exceptions=False)


def test_an_audit(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    printed = run("--audit", "--verifier", "mathturn", "--limit", "120", "--out", str(out))
    assert "false positives" in printed
    (figures,) = json.loads(out.read_text())
    assert figures["cases"] == 120
    assert figures["accuracy"]["share"] == 1.0


def test_an_audit_of_the_suite_and_a_user_s_file(tmp_path: Path) -> None:
    mine, out = tmp_path / "mine.jsonl", tmp_path / "audit.md"
    mine.write_text(300 * (json.dumps({"gold": "7", "response": "\\boxed{7}", "label": True}) + "\n"))
    run("--audit", "--verifier", "mathturn", "--cases", str(mine), "--limit", "120", "--out", str(out))
    assert "| mine (1" in out.read_text()
    assert "| suite (" in out.read_text()
    run("--audit", "--suite", "classes", "--verifier", "mathturn-boxed", "--limit", "60", "--out", str(out))
    assert "| words (" in out.read_text()
    run("--audit", "--verifier", "mathturn", "--file", str(mine), "--out", str(tmp_path / "a.html"))
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    with pytest.raises(InvalidValueError, match=r"must end in .json, .html, .md"):
        runner.invoke(app, ["--audit", "--file", str(mine), "--out", "x.txt"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "RESPONSE and --gold are needed"),
        (["x"], "RESPONSE and --gold are needed"),
        (["x", "--gold", "1", "--form", "exact"], "unknown form"),
        (["x", "--gold", "1", "--kind", "word"], "unknown kind"),
        (["x", "--gold", "1", "--file", "f"], "either RESPONSE"),
        (["x", "--gold", "1", "--against", "boxed"], "--against needs --file"),
        (["--file", "f.jsonl", "--against", "nobody"], "unknown verifier"),
        (["x", "--audit"], "--audit takes its cases"),
        (["--audit", "--verifier", "nobody"], "unknown verifier"),
        (["--audit", "--form", "exact"], "unknown form"),
    ],
)
def test_mistakes_are_named(arguments: list[str], part: str) -> None:
    with pytest.raises(InvalidValueError, match=part):
        runner.invoke(app, arguments, catch_exceptions=False)


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("{", "line 1: not JSON"),
        ('{"gold": "1"}', "line 1: response must be a text"),
        ('{"response": "1"}', "line 1: gold must be"),
        ('{"response": "1", "gold": []}', "line 1: gold must be"),
        ('{"response": "1", "gold": "1", "kind": "word"}', "line 1: kind must be"),
    ],
)
def test_broken_rows_are_named(tmp_path: Path, line: str, part: str) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(ProblemFileError, match=part):
        runner.invoke(app, ["--file", str(file)], catch_exceptions=False)


LONG = "\\boxed{1" + " + 1" * 998 + "}"
"""An answer that the verifier leaves undecided, because it is too long."""


def mark_of(messages: list[dict[str, str]]) -> str:
    found = re.search(r"VERDICT ([0-9a-f]+): RIGHT", messages[0]["content"])
    assert found is not None
    return found[1]


def told(*arguments: str) -> tuple[str, str]:
    result = runner.invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_a_judge_on_a_server_is_asked_and_its_share_told(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    server.says = lambda messages: f"VERDICT {mark_of(messages)}: RIGHT"
    judge = ("--judge", server.url, "--judge-model", "fake", "--judge-cache", str(tmp_path / "judge.jsonl"))
    out, err = told(LONG, "--gold", "999", "--json", *judge)
    assert json.loads(out)["tier"] == "judge"
    assert (
        f"judge fake at {server.url} decided 1 of 1 verdicts (100.00 %): 1 right, 0 wrong; asked 1, 0 remembered" in err
    )
    rows = [{"response": text, "gold": "999", "prompt": "How many?"} for text in (LONG, "\\boxed{7}", LONG + " ")]
    file, verdicts = tmp_path / "answers.jsonl", tmp_path / "verdicts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, err = told("--file", str(file), "--out", str(verdicts), "--judge-budget", "1", *judge)
    assert [json.loads(line)["tier"] for line in verdicts.read_text().splitlines()] == ["judge", "rational", "judge"]
    assert "decided 2 of 3 verdicts (66.67 %)" in err
    assert "How many?" in server.asked[-1][1]["messages"][1]["content"]
    # A run that compares: 7 is wrong in the file, so the judge is asked of it, and its answers are in the table.
    out, err = told("--file", str(file), "--against", "boxed", *judge, "--judge-against", "lenient")
    assert "undecided" in out
    assert "decided 2 of 3 verdicts" in err
    assert len(server.asked) == 2


def test_without_a_judge_nothing_is_told(tmp_path: Path) -> None:
    out, err = told(LONG, "--gold", "999")
    assert out.startswith("Undecided")
    assert err == ""


def test_the_judge_of_disagreements_may_be_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_judge.py").write_text("def strict(question):\n    return question.answer == '7'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    options = ("--judge", "my_judge:strict", "--judge-against", "equivalent", "--gold", "7")
    out, err = told("\\boxed{3+4}", *options)
    assert out.startswith("Wrong")
    assert "two verifiers disagreed" in out
    assert "1 disagreements" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--judge-model", "m"), "--judge-model needs --judge"),
        (("--judge", "http://127.0.0.1:9"), "needs --judge-model"),
        (("--judge", "os:getcwd", "--judge-model", "m"), "server's URL"),
        (("--judge", "os:getcwd"), "judge is called as"),
        (("--judge", "http://127.0.0.1:9", "--judge-model", "m", "--judge-against", "somebody"), "somebody"),
    ],
)
def test_options_of_a_judge_are_checked(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        run("\\boxed{7}", "--gold", "7", *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--file", "rows.jsonl", "--out", "rows.jsonl/v.jsonl"),
        ("--file", "rows.jsonl", "--out", "."),
        ("--file", "rows.jsonl", "--against", "boxed", "--out", "rows.jsonl/v.jsonl"),
        ("--audit", "--file", "rows.jsonl", "--verifier", "mathturn", "--out", "rows.jsonl/v.json"),
    ],
)
def test_a_place_that_cannot_be_written_is_named(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"id": "a", "response": "\\boxed{2}", "gold": "2", "label": True, "kind": "response"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(StorageError, match=r"cannot be written: (Not a directory|Is a directory|File exists)"):
        run(*arguments)
    assert json.loads((tmp_path / "rows.jsonl").read_text()) == row
