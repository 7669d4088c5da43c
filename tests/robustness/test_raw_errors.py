"""Mistakes that used to end in an exception of Python's, or in silence: each is an error that says what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import gymnasium as gym
import pytest

import mathturn_gym  # noqa: F401 - registers the environments
from mathturn_gym.cli.evaluate import missing_ranges
from mathturn_gym.env.config import EnvConfig
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.policies import OpenAIPolicy
from mathturn_gym.verifier.judge import ServerJudge

URLS = [
    "http://127.0.0.1:99999",
    "http://[::1",
    "http://[::1]:x",
    "http://a b",
    "http://127.0.0.1:-1",
    "http://\x00",
    "ftp://x",
    "http://",
    7,
]


@pytest.mark.parametrize("url", URLS)
def test_a_url_that_is_none_is_named(url: Any) -> None:
    pytest.importorskip("httpx2", reason="the clients of servers are not installed")
    for make in (
        lambda: gym.make("MathMultiTurn-v0", server=url),
        lambda: OpenAIPolicy(url if isinstance(url, str) else [url], tokenizer="builtin"),
        lambda: ServerJudge(url, "m"),
    ):
        with pytest.raises(InvalidValueError, match="must be"):
            make()


def test_a_url_with_a_password_is_not_shown() -> None:
    with pytest.raises(InvalidValueError) as caught:
        OpenAIPolicy("http://user:pass@host:99999", tokenizer="builtin")
    assert "pass@" not in str(caught.value)
    assert "99999" not in str(caught.value)


@pytest.mark.parametrize("terms", [["a:b"], "x", 3, {3: "math:sqrt"}])
def test_reward_terms_of_another_shape_are_named(terms: Any) -> None:
    with pytest.raises(InvalidValueError, match="reward_terms must be weights or functions by name"):
        EnvConfig.from_json({"id": "MathMultiTurn-v0", "reward_terms": terms}).make()


def command(words: str, out: str = "/dev/null", **environment: str) -> subprocess.CompletedProcess[str]:
    code = "from mathturn_gym.cli.app import main; main()"
    with open(out, "w") as stream:  # noqa: PTH123
        return subprocess.run(
            [sys.executable, "-c", code, *words.split()],
            stdout=stream,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )


def test_a_full_disk_under_the_output_is_one_line() -> None:
    done = command("problems show lins", "/dev/full")
    assert done.returncode == 2
    assert done.stderr == "error: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_terminal_without_the_characters_shows_question_marks(encoding: str) -> None:
    for words in ("problems show quadratic", "demo --help"):
        done = command(words, PYTHONIOENCODING=encoding)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_billion_episodes_begin_at_once() -> None:
    assert list(missing_ranges([3, 10**9 - 1, 5, 5, -1, 10**9], 10**9)) == [(0, 3), (4, 1), (6, 10**9 - 7)]
