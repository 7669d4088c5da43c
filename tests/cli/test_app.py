from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from mathturn_gym.baselines.tasks import task_names
from mathturn_gym.cli.app import app, main
from mathturn_gym.errors import InvalidValueError

RUNNER = CliRunner()


def invoke(*args: str, **kwargs: Any) -> Any:
    return RUNNER.invoke(app, list(args), catch_exceptions=False, **kwargs)


def test_every_command_explains_itself() -> None:
    commands = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    assert {"demo", "train", "eval", "play", "info", "verify", "compare-eval"} <= {
        name.replace("_", "-") for name in commands
    }
    for name in commands:
        shown = invoke(name.replace("_", "-"), "--help")
        assert shown.exit_code == 0
        assert len(shown.output) > 200


def commands_of(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below a group, with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands_of(typer.main.get_command(app)))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_shows_the_whole_name_of_every_option_at_80_columns(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 37: `--max-completion-t…`."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = invoke(*words, "--help").output
    for option in COMMANDS[words].params:
        if not getattr(option, "hidden", False):
            for name in (*option.opts, *option.secondary_opts):
                assert re.search(rf"(?<!\S|-)(?:[\w-]+,)?{re.escape(name)}(?=[\s,])", shown), name
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("command", ["train", "eval", "compare"])
def test_help_names_the_tasks_that_there_are(command: str) -> None:
    shown = re.sub(r"[│\s]+", " ", invoke(command, "--help").output)
    assert ", ".join(task_names()) in shown


def test_users_mistakes_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    script = "from mathturn_gym.cli.app import main; main()"
    args = ["train", "linz", "--run-dir", str(tmp_path / "x")]
    done = subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown task 'linz': did you mean 'lins'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_mistakes_message_cannot_move_the_cursor(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    def fail() -> None:
        raise InvalidValueError("[/x] \x1b[31m\u202eabc")

    monkeypatch.setattr("mathturn_gym.cli.app.app", fail)
    with pytest.raises(SystemExit):
        main()
    assert "InvalidValueError: [/x] ␛[31m⟨U+202E⟩abc" in capfd.readouterr().err


@pytest.mark.parametrize(("option", "most"), [("--version", 600), ("--help", 700), ("info", 800)])
def test_what_needs_no_model_loads_no_heavy_library(option: str, most: int) -> None:
    """Counts modules, not seconds: with torch there are 1,500."""
    script = (
        "import sys\nfrom mathturn_gym.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(len(sys.modules), *sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, option], capture_output=True, text=True, check=True)
    count, *modules = done.stdout.splitlines()[-1].split()
    assert not {"torch", "transformers", "scipy", "sympy", "matplotlib"} & set(modules)
    assert int(count) < most
    assert option != "--version" or done.stdout.splitlines()[0] == version("mathturn-gym")


def test_info() -> None:
    assert "MathMultiTurnUntilCorrect-v0" in invoke("info").output
    shown = invoke("info", "MathSingleTurn-v0").output
    assert "TokenIds(vocab_size=" in shown
    assert "<|im_start|>user" in shown
    with pytest.raises(InvalidValueError, match="did you mean 'MathSingleTurn-v0'"):
        invoke("info", "MathSingleTurn-v1")


def test_playing_by_keyboard() -> None:
    prompt = invoke("play", "--episodes", "1", input="1\n2\n3\n4\n")
    assert prompt.exit_code == 0
    assert "verdict: " in prompt.output
    assert r"\boxed{1}" in prompt.output
    left = invoke("play", "--episodes", "2", input="")
    assert left.exit_code == 0
    assert "bye" in left.output


def test_watching_a_policy() -> None:
    shown = invoke("play", "--watch", "builtin", "--episodes", "2", "--seed", "3").output
    assert shown.count("problem lins/") == 2
    assert shown == invoke("play", "--watch", "builtin", "--episodes", "2", "--seed", "3").output


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "mathturn_gym", "--help"], capture_output=True, text=True, check=True)
    assert "mathturn demo" in done.stdout
