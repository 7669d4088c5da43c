"""`mathturn play` at the keyboard."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from rich.console import Console

import mathturn_gym  # noqa: F401
from mathturn_gym.base.text import TokenTexts
from mathturn_gym.cli.play import Person, ids_lines, play_episodes
from mathturn_gym.testing import ScriptedPolicy
from mathturn_gym.types import Problem

HOSTILE = "[red]p\x1b[2J\u202e"


def say(*lines: str) -> Iterator[str]:
    yield from lines
    raise EOFError


def play(monkeypatch: pytest.MonkeyPatch, *lines: str, episodes: int = 2) -> str:
    """What one sees who types these lines and then leaves."""
    spoken = say(*lines)
    monkeypatch.setattr("builtins.input", lambda _: next(spoken))
    problems = [Problem(HOSTILE, "1+1?", ["2", "two"]), Problem("p/2", "2+2?", "4")]
    env = gym.make("MathMultiTurnUntilCorrect-v0", problems=problems, num_turns=2, render_mode="human")
    console = Console(file=io.StringIO(), width=200)
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    dialogue = env.unwrapped.dialogue  # type: ignore[attr-defined]
    person = Person(console, env.unwrapped, TokenTexts(dialogue.tokenizer))  # type: ignore[arg-type]
    play_episodes(env, ScriptedPolicy(person, dialogue), episodes, seed=0, console=console)
    env.close()
    assert isinstance(console.file, io.StringIO)
    return shown.getvalue() + console.file.getvalue()


def test_the_answer_is_told_at_the_end_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = play(monkeypatch, "3", "2", "4")
    assert shown.count("answer: 2 or two") == 1
    assert shown.count("answer: 4") == 1
    assert "last answer right in 2 of 2 episodes" in shown
    assert "answer: 2" not in play(monkeypatch, "3")


def test_only_what_was_played_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = play(monkeypatch, "2", "7", episodes=9)
    assert "bye" in shown
    assert "last answer right in 1 of 1 episode (8 not played to the end)" in shown
    assert "last answer right in 0 of 0 episodes (9 not played to the end)" in play(monkeypatch, episodes=9)


def test_ids_are_shown_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = play(monkeypatch, ":ids", "3", ":ids", ":quit")
    prompts = [line for line in shown.splitlines() if line.startswith("prompt, ")]
    assert len(prompts) == 2
    assert "1‹<|im_start|>›" in prompts[0]
    assert "‹⏎›" in prompts[0]
    (turn,) = [line for line in shown.splitlines() if line.startswith("turn 1, ")]
    assert turn.endswith("‹<|im_end|>›")
    assert any(line.startswith("feedback 1, ") for line in shown.splitlines())
    assert "bye" in shown


def test_commands_are_explained_and_answers_can_begin_with_a_colon(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = play(monkeypatch, ":nonsense\x1b[2J", "::x", "2")
    assert "there is no command :nonsense␛[2J" in shown
    assert ":ids" in shown
    assert "turn 1: :x" in shown


def test_hostile_problem_ids_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = play(monkeypatch, "2")
    assert "problem [red]p␛[2J⟨U+202E⟩: 1+1?" in shown
    assert "\x1b[2J" not in shown
    assert "\u202e" not in shown


def test_the_parts_are_all_of_the_ids() -> None:
    env = gym.make("MathMultiTurn-v0", num_turns=2)
    env.reset(seed=0)
    env.step(np.array([5, 6]))
    env.step(np.zeros(0, np.int64))
    state = env.unwrapped.get_state()  # type: ignore[attr-defined]
    lines = list(ids_lines(state, TokenTexts(None)))
    assert [line.partition(",")[0] for line in lines] == ["prompt", "turn 1", "feedback 1"]  # turn 2 said nothing
    ids = [int(token) for line in lines for token in line.partition(": ")[2].split()]
    assert ids == state.ids.tolist()


def test_arrows_bring_back_what_was_typed(tmp_path: Path) -> None:
    """In a real terminal: the arrow up, then return, gives the answer of before again."""
    pytest.importorskip("readline")
    outside, inside = pty.openpty()
    script = "from mathturn_gym.cli.app import main; main()"
    command = [sys.executable, "-c", script, "play", "--episodes", "1", "--num-turns", "2"]
    environment = {**os.environ, "TERM": "xterm", "INPUTRC": "/dev/null"}
    process = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, env=environment, cwd=tmp_path)
    os.close(inside)
    seen = b""

    def read_until(text: bytes, times: int) -> None:
        nonlocal seen
        end = time.monotonic() + 600
        while seen.count(text) < times:
            assert time.monotonic() < end, seen.decode(errors="replace")
            if select.select([outside], [], [], 0.2)[0]:
                seen += os.read(outside, 65536)

    try:
        read_until(b"your answer: ", 1)
        os.write(outside, b"987654\r")
        read_until(b"your answer: ", 2)
        os.write(outside, b"\x1b[A\r")
        read_until(b"last answer right in 0 of 1 episode", 1)
        process.wait(30)
    finally:
        process.kill()
        process.wait()
        os.close(outside)
    assert seen.decode(errors="replace").count(r"\boxed{987654}") == 2
