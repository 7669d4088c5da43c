from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mathturn_gym.cli.app import app
from mathturn_gym.episodes.trajectories import write_episodes
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.show.view import ViewServer
from mathturn_gym.testing import synthetic_episode

RUNNER = CliRunner()


def make_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    write_episodes(folder / "episodes.jsonl", [synthetic_episode(0, i, [2]) for i in range(3)])
    return folder


def test_a_run_becomes_a_page_in_its_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    done = RUNNER.invoke(app, ["view", str(run)], catch_exceptions=False)
    assert done.exit_code == 0
    assert str(run / "view.html") in done.output.replace("\n", "")
    page = (run / "view.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.count('data-set="0"') == 1
    RUNNER.invoke(app, ["view", str(run / "episodes.jsonl")], catch_exceptions=False)
    assert (run / "episodes.view.html").is_file()


def test_two_runs_in_one_page_where_it_was_asked_for_and_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    runs = [str(make_run(tmp_path / name)) for name in ("a", "b")]
    out = tmp_path / "both.html"
    arguments = ["view", *runs, "--out", str(out), "--open", "--tokenizer", "builtin"]
    assert RUNNER.invoke(app, arguments, catch_exceptions=False).exit_code == 0
    assert 'data-set="1"' in out.read_text()
    assert opened == [out.resolve().as_uri()]


def test_following_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: ViewServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ViewServer, "run", interrupted)
    run = make_run(tmp_path / "run")
    done = RUNNER.invoke(app, ["view", str(run), "--serve"], catch_exceptions=False)
    assert "http://127.0.0.1:" in done.output
    assert "stopped" in done.output
    with pytest.raises(InvalidValueError, match="--serve writes no file"):
        RUNNER.invoke(app, ["view", str(run), "--serve", "--out", "x.html"], catch_exceptions=False)


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="is not there: name a run's folder"):
        RUNNER.invoke(app, ["view", str(tmp_path / "none")], catch_exceptions=False)
