from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import mathturn_gym  # noqa: F401
from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.render import TurnRecord, render_dialogue
from mathturn_gym.types import Problem, Status, StopReason, Verdict

PROBLEM = Problem("p/1", "What is 40+2?", "42")
TURN = TurnRecord("it is [red]41[/red]\x1b[2J", Verdict(Status.WRONG, "different", answer="41"), "No.", -1.0, 0, 3)


def test_a_dialogue_with_verdicts() -> None:
    text = render_dialogue(PROBLEM, [TURN], StopReason.TURNS, system_prompt="Be brief.", color=False)
    assert text.splitlines() == [
        "system: Be brief.",
        "problem p/1: What is 40+2?",
        "turn 1: it is [red]41[/red]�[2J",
        "  verdict: wrong (different) · answer 41 · -1",
        "feedback: No.",
        "end: all turns used · 1 turns · total reward -1",
    ]


def test_colour_where_asked_and_a_models_markup_is_never_followed() -> None:
    text = render_dialogue(PROBLEM, [TURN], None, color=True)
    assert "\x1b[1;31mwrong" in text or "\x1b[1;31m  verdict" in text
    assert "[red]41[/red]" in text
    assert "\x1b[2J" not in text


def test_ansi_mode_returns_and_human_mode_prints(capsys: pytest.CaptureFixture[str]) -> None:
    ansi = MathMultiTurnEnv([PROBLEM], render_mode="ansi", num_turns=1)
    ansi.reset(seed=0)
    ansi.step(np.zeros(0, np.int64))
    shown = ansi.render()
    assert shown is not None
    assert "(nothing)" in shown
    assert capsys.readouterr().out == ""
    human = gym.make("MathMultiTurn-v0", problems=[PROBLEM], render_mode="human", num_turns=1)
    human.reset(seed=0)
    assert "problem p/1: What is 40+2?" in capsys.readouterr().out
    human.step(np.zeros(0, np.int64))
    assert "verdict: no_answer" in capsys.readouterr().out
    assert human.render() is None


def test_rendering_without_a_mode_warns() -> None:
    env = MathMultiTurnEnv([PROBLEM])
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="render_mode='ansi'"):
        assert env.render() is None
