from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import mathturn_gym  # noqa: F401 - registers the ids
from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.env.feedback import FEEDBACK, feedback_mode
from mathturn_gym.env.feedback._registry import _REGISTRY, TEXTS, FeedbackMode, get_feedback
from mathturn_gym.errors import InvalidValueError, UserFunctionError
from mathturn_gym.types import Ids, Problem, TurnContext

ONE = Problem("p/1", "What is 40+2?", "42")


@pytest.fixture(autouse=True)
def forget_modes() -> Any:
    """Modes that a test registers are gone after it."""
    known = dict(_REGISTRY._modes)
    yield
    _REGISTRY._modes.clear()
    _REGISTRY._modes.update(known)


def said(feedback: Any, **kwargs: Any) -> str:
    env = gym.make("MathMultiTurn-v0", problems=[ONE], feedback=feedback, **kwargs)
    env.reset(seed=0)
    return str(env.step(np.array([70]))[-1]["feedback"])


def test_a_new_mode_is_one_decorated_function() -> None:
    @feedback_mode("count")
    def count(context: TurnContext) -> str:
        return f"{context.turn + 1} of {context.num_turns}"

    assert said("count") == "1 of 5" == said(count)
    assert "count" in FEEDBACK
    assert "count:zh" not in FEEDBACK
    assert isinstance(get_feedback("count"), FeedbackMode)
    assert get_feedback("count") is count


def test_a_mode_that_takes_texts_speaks_every_language() -> None:
    @feedback_mode("neutral")
    def neutral(context: TurnContext, texts: Any) -> str:
        return str(texts["neutral"])

    assert said("neutral") == TEXTS["en"]["neutral"]
    assert said("neutral:zh") == TEXTS["zh"]["neutral"]
    assert neutral is get_feedback("neutral")


def test_a_name_is_taken_once_and_a_cell_can_be_run_again() -> None:
    def define() -> FeedbackMode:
        @feedback_mode("mine")
        def mine(context: TurnContext) -> str:
            return "x"

        return mine

    first = define()
    assert get_feedback("mine") is first
    assert get_feedback("mine") is not define()
    for name in ("mine", "plain", "areal-v0.3"):
        with pytest.raises(InvalidValueError, match=f"feedback mode '{name}' is registered already"):

            @feedback_mode(name)
            def another(context: TurnContext) -> str:
                return "y"


def test_what_cannot_be_called_is_refused_when_it_is_registered_or_given() -> None:
    with pytest.raises(InvalidValueError, match=r"feedback mode 'bad' is called as f\(context\), which"):
        feedback_mode("bad")(lambda: "x")
    with pytest.raises(InvalidValueError, match=r"feedback mode 'bad' is called as f\(context, texts\), which"):
        feedback_mode("bad")(lambda a, b, c: "x")
    with pytest.raises(
        InvalidValueError, match=r"feedback is called as f\(context\), which .*<lambda>.* does not take"
    ):
        MathMultiTurnEnv([ONE], feedback=lambda verdict, turn: "x")  # type: ignore[arg-type, misc]
    with pytest.raises(InvalidValueError, match="fewest_turns"):
        feedback_mode("bad", fewest_turns=-1)


def test_a_mode_says_what_it_needs_of_the_environment() -> None:
    class Shouting(Dialogue):
        # One that does not take `response` is not given it.
        def feedback_ids(self, text: str, turn: int, completion_ids: Ids) -> Ids:  # type: ignore[override]
            return super().feedback_ids(text.upper(), turn, completion_ids)

    @feedback_mode("loud", dialogue=Shouting, fewest_turns=2)
    def loud(context: TurnContext) -> str:
        return "no"

    for feedback in ("loud", loud):
        env = MathMultiTurnEnv([ONE], feedback=feedback, system_prompt="Be brief.")
        assert isinstance(env.dialogue, Shouting)
        assert env.dialogue.system_prompt == "Be brief."
        with pytest.raises(InvalidValueError, match="num_turns must be an integer >= 2, got 1"):
            MathMultiTurnEnv([ONE], feedback=feedback, num_turns=1)
    own = MathMultiTurnEnv([ONE], feedback="loud", dialogue=Dialogue)
    assert not isinstance(own.dialogue, Shouting), "what is asked for wins"


def test_a_feedback_that_raises_is_named() -> None:
    def broken(context: TurnContext) -> str:
        return context.response[5]

    with pytest.raises(UserFunctionError, match=r"feedback .*broken \(test_registry.py, line \d+\) raised IndexError"):
        said(broken)


def test_modes_of_other_packages_are_loaded_when_they_are_asked_for() -> None:
    code = (
        "import sys, mathturn_gym.env.feedback as f\n"
        "assert 'areal-v0.3' in f.FEEDBACK and 'areal-v0.3' in list(f.FEEDBACK)\n"
        "assert 'mathturn_gym.neighbors.areal' not in sys.modules\n"
        "mode = f.FEEDBACK['areal-v0.3']\n"
        "assert mode.fewest_turns == 0 and mode.dialogue.__name__ == 'ArealDialogue'\n"
        "assert len(f.FEEDBACK) == len(list(f.FEEDBACK))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_modes_of_the_user_can_be_sent_where_they_are_registered() -> None:
    @feedback_mode("sent")
    def sent(context: TurnContext) -> str:
        return "x"

    assert pickle.loads(pickle.dumps(sent)) is sent  # made here
