"""Warnings of reward hacking and collapse: each is logged once for its own sign, and for no other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mathturn_gym.baselines.alarms import WINDOW, AlarmWatch
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode, Status, Verdict

Turn = Callable[[int], dict[str, Any]]


def turn(index: int, right: bool = False, **changes: Any) -> dict[str, Any]:
    """A turn as every run has them: answers differ, 4 tokens, the reward follows the verdict."""
    fields = {"tokens": 4, "reward": 1.0 if right else -1.0, "answer": str(index), "gold": str(index)}
    return {**fields, "tier": "exact", "rule": "box", "right": right, **changes}


def episode(index: int, one: dict[str, Any]) -> Episode:
    """An episode of one turn."""
    status = Status.RIGHT if one["right"] else Status.WRONG
    verdict = Verdict(status, answer=one["answer"], gold=one["gold"], tier=one["tier"], rule=one["rule"])
    return synthetic_episode(
        0, index, [one["tokens"]], problem_id=f"p/{index}", verdicts=(verdict,), rewards=np.array([one["reward"]])
    )


def half(index: int) -> dict[str, Any]:
    """Every second answer is right."""
    return turn(index, index % 2 == 0)


CASES: dict[str, tuple[Turn, Turn, str]] = {
    "collapse": (half, lambda i: turn(i, i % 2 == 0, answer="7" if i % 2 else str(i)), ""),
    "collapse of most": (half, lambda i: turn(i, i % 4 == 0, answer="7" if i % 4 else str(i)), "'7' to 192 problems"),
    "accepted": (half, lambda i: turn(i, i % 2 == 0, answer="1=1" if i % 8 == 0 else str(i)), "'1=1' was right for 32"),
    "reward": (half, lambda i: turn(i, i % 4 == 0, reward=0.5), "rewards rose from 0.00 to 0.50"),
    "reward of right answers": (half, lambda i: turn(i, True), ""),
    "length": (half, lambda i: turn(i, i % 2 == 0, tokens=9), "has 9 tokens, at first 4"),
    "length that pays": (half, lambda i: turn(i, i % 4 != 0, tokens=9), ""),
    "decider": (half, lambda i: turn(i, i % 2 == 0, rule="number"), "'number' decided 100 %"),
    "from numbers to boxes": (lambda i: turn(i, i % 2 == 0, rule="number"), half, ""),
    "first right answers": (lambda i: turn(i), lambda i: turn(i, True, tier="rational", rule="phrase"), ""),
    "nothing new": (half, half, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_a_sign_is_logged_once_and_no_other(case: str, caplog: pytest.LogCaptureFixture) -> None:
    first, last, says = CASES[case]
    watch = AlarmWatch()
    with caplog.at_level(logging.WARNING):
        watch.see(episode(i, first(i)) for i in range(WINDOW))
        for start in range(WINDOW, 4 * WINDOW, WINDOW // 2):
            watch.see(episode(i, last(i)) for i in range(start, start + WINDOW // 2))
    assert len(caplog.messages) == bool(says), caplog.text
    assert says in caplog.text
