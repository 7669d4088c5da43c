from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import mathturn_gym  # noqa: F401 - registers the ids
from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.env.feedback._registry import RIGHT_TEXT as OUR_RIGHT
from mathturn_gym.env.feedback._registry import WRONG_TEXT as OUR_WRONG
from mathturn_gym.env.feedback._registry import get_feedback
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.neighbors.areal.dialogue import PROMPT_IDS, RIGHT_TEXT, WRONG_TEXT, ArealDialogue, areal_feedback
from mathturn_gym.testing import make_tokenizer
from mathturn_gym.types import Problem, Status, TurnContext, Verdict

ONE = Problem("p/1", "What is 40+2?", "42")


def play(feedback: Any, tokenizer: Any, **kwargs: Any) -> list[Any]:
    """Everything an environment says in an episode."""
    env = gym.make("MathMultiTurn-v0", problems=[ONE], tokenizer=tokenizer, feedback=feedback, num_turns=3, **kwargs)
    base: Any = env.unwrapped
    observation, info = env.reset(seed=0)
    said: list[Any] = [observation.tolist(), info]
    for text in (r"\boxed{41}", r"\boxed{42}<|im_end|>", "What is 40+2?"):
        ids = np.array(base.dialogue.tokenizer(text, add_special_tokens=False)["input_ids"], np.int64)
        observation, *rest = env.step(ids)
        said += [observation.tolist(), *rest]
    return said


@pytest.mark.parametrize("template", ["chatml", "chatml-system", "header"])
def test_the_callable_and_the_name_give_the_same_ids(template: str) -> None:
    tokenizer = make_tokenizer(template, seed=2)
    named = play("areal-v0.3", tokenizer)
    assert play(areal_feedback, tokenizer) == named
    assert play(get_feedback("areal-v0.3"), tokenizer) == named
    assert play("areal-v0.3", tokenizer, dialogue=ArealDialogue) == named
    assert play("plain", tokenizer)[-5] != named[-5], "its ids are not those of the template"


def test_another_dialogue_can_be_put_to_its_texts_and_its_dialogue_to_other_texts() -> None:
    assert type(MathMultiTurnEnv([ONE], feedback="areal-v0.3", dialogue=Dialogue).dialogue) is Dialogue
    assert isinstance(MathMultiTurnEnv([ONE], feedback="hint", dialogue=ArealDialogue).dialogue, ArealDialogue)


def test_any_score_above_zero_is_congratulated() -> None:
    def say(score: float) -> str:
        verdict = Verdict(Status.RIGHT if score == 1 else Status.WRONG, score=score)
        return areal_feedback(TurnContext(ONE, 0, 5, "", verdict=verdict))

    assert [say(score) for score in (0.0, 0.25, 1.0)] == [WRONG_TEXT, RIGHT_TEXT, RIGHT_TEXT]
    assert (OUR_RIGHT, OUR_WRONG) == (RIGHT_TEXT, WRONG_TEXT), "plain says it in the same words"


def test_no_turns_at_all_are_allowed_with_it_alone() -> None:
    env = MathMultiTurnEnv([ONE], feedback="areal-v0.3", num_turns=0)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(np.zeros(0, np.int64))
    assert (reward, terminated, truncated, info["stop_reason"]) == (0.0, True, False, "turns")
    with pytest.raises(InvalidValueError, match="num_turns must be an integer >= 1, got 0"):
        MathMultiTurnEnv([ONE], dialogue=ArealDialogue, num_turns=0)


def test_a_prompt_may_be_given_as_ids() -> None:
    given = Problem("p/2", "as ids", "1", metadata={PROMPT_IDS: [5, 6, 7]})
    env = MathMultiTurnEnv([given], feedback="areal-v0.3")
    assert env.reset(seed=0)[0].tolist() == [5, 6, 7]
    for bad in ([-1], [10**9], [[1]], [0.5], "ids"):
        wrong = Problem("p/3", "as ids", "1", metadata={PROMPT_IDS: bad})
        with pytest.raises(InvalidValueError, match="must be a list of ids in"):
            MathMultiTurnEnv([wrong], feedback="areal-v0.3")
