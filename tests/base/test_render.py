from __future__ import annotations

import dataclasses
import io
import pickle
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import mathturn_gym  # noqa: F401
from mathturn_gym.base.render import render_dialogue, render_episode
from mathturn_gym.base.text import shorten, visible
from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode, Problem, Status, StopReason, TurnRecord, Verdict

PROBLEM = Problem("p/1", "What is 40+2?", "42")
TURN = TurnRecord("it is [red]41[/red]\x1b[2J", Verdict(Status.WRONG, "different", answer="41"), "No.", -1.0, 0, 3)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def episode(**fields: Any) -> Episode:
    known: dict[str, Any] = {
        "problem_id": "p/1",
        "prompt": "What is 40+2?",
        "responses": ("41\x1b[2J", "42"),
        "gold": ("42", "42.0"),
        "verdicts": (Verdict(Status.WRONG, "different", answer="41"), Verdict(Status.RIGHT)),
        "rewards": np.array([-1.0, 1.0]),
        "stop_reason": StopReason.SOLVED,
    }
    return dataclasses.replace(synthetic_episode(0, 3, [4, 2]), **{**known, **fields})


def test_a_dialogue_with_verdicts() -> None:
    text = render_dialogue(PROBLEM, [TURN], StopReason.TURNS, system_prompt="Be brief.", color=False)
    assert text.splitlines() == [
        "system: Be brief.",
        "problem p/1: What is 40+2?",
        "turn 1: it is [red]41[/red]␛[2J",
        "  verdict: wrong (different) · answer 41 · -1",
        "feedback: No.",
        "end: all turns used · 1 turn · total reward -1",
    ]


def test_an_episode_prints_as_its_dialogue() -> None:
    assert str(episode()).splitlines() == [
        "problem p/1: What is 40+2?",
        "turn 1: 41␛[2J",
        "  verdict: wrong (different) · answer 41 · -1",
        "feedback: again",
        "turn 2: 42",
        "  verdict: right · +1",
        "gold: 42 or 42.0",
        "end: solved · 2 turns · total reward +0",
    ]
    without = str(episode(prompt="", responses=(), gold=()))
    assert "problem p/1: (8 tokens; this episode was kept without its texts)" in without
    assert "turn 1: (4 tokens)" in without


def test_color_where_asked_and_a_models_markup_is_never_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = render_dialogue(PROBLEM, [TURN], None, color=True)
    assert "\x1b[1;31mwrong (different)" in text
    assert "[red]41[/red]" in text
    assert "\x1b[2J" not in text
    assert "\x1b" not in str(episode())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert "\x1b[1;32mright" in str(episode())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in str(episode())


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


def test_a_notebook_shows_what_render_returns() -> None:
    """Inside a notebook rich wrote into the notebook instead of the text, and `render()` returned ''."""
    env = MathMultiTurnEnv([PROBLEM], render_mode="ansi", num_turns=1)
    env.reset(seed=0)
    shown = env.render()
    assert isinstance(shown, str)
    assert shown.startswith("problem p/1: What is 40+2?")
    page = shown._repr_html_()  # type: ignore[attr-defined]
    assert "What is 40+2?" in page
    assert page.startswith("<div")
    moved = pickle.loads(pickle.dumps(shown))  # out of the process of a vector environment
    assert (moved, moved._repr_html_()) == (shown, page)


def test_rendering_without_a_mode_warns() -> None:
    env = MathMultiTurnEnv([PROBLEM])
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="render_mode='ansi'"):
        assert env.render() is None


def test_what_shows_nothing_is_made_visible() -> None:
    hidden = "\x00\x07\x1b\x7f\x85\u200b\u202e\u2066\ufeff\U000e0041\ud800"
    assert visible(hidden) == ("\u2400\u2407\u241b\u2421⟨U+0085⟩⟨U+200B⟩⟨U+202E⟩⟨U+2066⟩⟨U+FEFF⟩⟨U+E0041⟩⟨U+D800⟩")
    kept = "tab\tline\nnarrow\u202fspace √2 ≤ π 你好 שלום"
    assert visible(kept) == kept


def test_reprs_are_short() -> None:
    long = "x" * 10_000
    assert repr(episode()) == "Episode(3 on 'p/1': wrong → right, reward 0, 18 tokens)"
    assert repr(episode().turns[0]) == "Turn(0, 4 tokens, wrong, reward -1)"
    assert repr(Verdict(Status.WRONG, "different", answer="41")) == "Verdict(wrong: different, answer '41')"
    assert repr(Verdict(Status.WRONG, score=0.25)) == "Verdict(wrong, score 0.25)"
    assert repr(PROBLEM) == "Problem('p/1', 'What is 40+2?', gold '42')"
    assert len(repr(Problem(long, long, long))) < 200
    assert len(repr(Verdict(Status.WRONG, answer=long))) < 100
    assert shorten("ab\n", 9) == "'ab\\n'"


def test_rendering_an_episode_chooses_no_color_by_itself() -> None:
    assert str(render_episode(episode(), color=False)) == str(episode())
