"""`mathturn serve`, as a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import gymnasium as gym
import pytest
from typer.testing import CliRunner

from mathturn_gym.cli.app import app
from mathturn_gym.errors import InvalidValueError, ServerError

pytest.importorskip("prometheus_client", reason="the server is not installed: pip install '.[serve]'")

from mathturn_gym.neighbors.serve._middleware import OPEN_PATHS
from mathturn_gym.neighbors.serve.limits import Limits


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\n\n two \n", encoding="utf-8")
    port = free_port()
    options = ["--port", str(port), "--api-key-file", str(keys), "--num-turns", "2", "--problems", "add1"]
    environment = {**os.environ, "MATHTURN_API_KEY": "three"}
    command = [sys.executable, "-c", "from mathturn_gym.cli.app import main; main()", "serve", *options]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 600
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except urllib.error.URLError:
                assert process.poll() is None, process.stderr.read() if process.stderr else ""
                assert time.monotonic() < deadline
                time.sleep(0.1)
        for key in ("one", "two", "three"):
            env = gym.make(
                "MathMultiTurn-v0", server=f"http://127.0.0.1:{port}", api_key=key, num_turns=2, problems="add1"
            )
            assert env.reset(seed=0)[1]["turns_left"] == 2
            env.close()
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=600)
    assert "Traceback" not in said


def test_the_dockerfile_starts_what_there_is() -> None:
    root = Path(__file__).parents[2]
    lines = (root / "examples" / "serve" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    commands = {line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in lines if line and line[0] not in "# "}
    entry = json.loads(commands["ENTRYPOINT"])
    started = CliRunner().invoke(app, [*entry[1:], "--max-sessions", "0"])
    assert entry[0] in tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert "max_sessions must be" in f"{started.output} {started.exception}"
    assert any(f":8000{path}'" in commands["HEALTHCHECK"] for path in OPEN_PATHS)


def test_a_mistake_is_named_before_anything_is_served(tmp_path: Path) -> None:
    runner = CliRunner()
    empty = tmp_path / "keys"
    empty.write_text("\n", encoding="utf-8")
    for options, message in (
        (["--api-key-file", str(empty)], "holds no key"),
        (["--api-key-file", str(tmp_path / "none")], "api_key_file cannot be read"),
        (["--problems", "linz"], "did you mean 'lins'"),
        (["--env", "MathMultiTurn-v1"], "unknown environment"),
        (["--max-sessions", "0"], "max_sessions must be"),
        (["--no-key", "--api-key-file", str(empty)], "give one of them"),
        (["--max-message-bytes", "2000"], "max_message_bytes must hold an action"),
    ):
        result = runner.invoke(app, ["serve", *options])
        assert isinstance(result.exception, InvalidValueError)
        assert message in str(result.exception)


def test_the_environment_has_the_options_of_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mathturn_gym.env.config import EnvConfig
    from mathturn_gym.neighbors import serve
    from mathturn_gym.neighbors.serve.environment import Service

    data = tmp_path / "mine.csv"
    data.write_text("frage,antwort\nWhat is 1+1?,2\n", encoding="utf-8")
    started: list[EnvConfig] = []
    monkeypatch.setattr(serve, "serve", lambda env, **_: started.append(env))
    options = [
        "--problems",
        str(data),
        "--question-column",
        "frage",
        "--answer-column",
        "antwort",
        "--verifier",
        "boxed",
    ]
    options += ["--reward-term", "turn_cost=0.1", "--prompt-template", "Q: {problem}", "--history", "template"]
    done = CliRunner().invoke(app, ["serve", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    env = Service(started[0], Limits()).environment(None)
    assert env.reset(seed=0)[1]["prompt"] == "Q: What is 1+1?"
    assert env.verifier.verifier.extract == "boxed"
    assert env.step(env.action_space.sample())[4]["reward_terms"]["turn_cost"] == -0.1


@pytest.mark.parametrize(
    ("port", "allowed"), [("-1", "greater than or equal to 0"), ("99999", "less than or equal to 65535")]
)
def test_a_port_that_is_none_is_refused(port: str, allowed: str) -> None:
    done = CliRunner().invoke(app, ["serve", "--port", port], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "'--port'" in done.output
    assert allowed in done.output


def test_without_a_key_one_is_made_and_shown() -> None:
    port = free_port()
    command = [sys.executable, "-c", "from mathturn_gym.cli.app import main; main()", "serve", "--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if name != "MATHTURN_API_KEY"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        found = re.search(rf"MATHTURN_API_KEY=([\w-]{{32}}); page: http://127.0.0.1:{port}/play#\1\)", said)
        assert found is not None, said
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except urllib.error.URLError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        with pytest.raises(ServerError, match="needs an API key"):
            gym.make("MathMultiTurn-v0", server=f"http://127.0.0.1:{port}")
        gym.make("MathMultiTurn-v0", server=f"http://127.0.0.1:{port}", api_key=found[1]).close()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
