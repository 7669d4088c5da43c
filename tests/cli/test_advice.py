"""Every warning of an evaluation, triggered; and the figures that tell format from mathematics."""

from __future__ import annotations

from typing import Any

import pytest

from mathturn_gym.cli._advice import advice
from mathturn_gym.env.config import EnvConfig
from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.episodes.metrics import read_leniently, summarize
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.testing import ScriptedPolicy
from mathturn_gym.types import Episode, Problem

DIALOGUE = Dialogue("builtin")
PROBLEMS = [Problem(f"p/{i}", f"What is {i}+{i}?", str(2 * i)) for i in range(10, 20)]


def played(
    text: str, other: str = "", *, gold_in_info: bool = True, **keywords: Any
) -> tuple[list[Episode], EnvConfig]:
    """Ten problems once; one text for those whose numbers are even, and another one for the rest."""
    config = EnvConfig(**{"num_turns": 1, "max_completion_tokens": 80, **keywords})
    env: Any = config.make("test", 4, policy=None, problems=PROBLEMS, gold_in_info=gold_in_info)

    def say(context: str) -> str:
        return text if any(f"{n}+{n}" in context for n in range(10, 20, 2)) or not other else other

    return collect(env, ScriptedPolicy(say, DIALOGUE), 10, seed=0), config


def warned(text: str, other: str = "", **keywords: Any) -> str:
    episodes, config = played(text, other, **keywords)
    return "\n".join(advice(episodes, read_leniently(episodes), config))


def test_nothing_is_said_where_nothing_is_wrong() -> None:
    assert warned(r"\boxed{20}") == ""


def test_answers_that_were_cut_off() -> None:
    assert (
        "100% of 10 turns were cut off by their budget of 5 tokens: raise --max-completion-tokens, to 20 say"
        in warned("so long an answer", max_completion_tokens=5)
    )


def test_thoughts_that_were_cut_off() -> None:
    said = warned("<think>so long a thought", max_completion_tokens=12)
    assert """--chat-template-kwargs '{"enable_thinking": false}' (most were cut off inside a thought)""" in said


def test_a_context_that_is_full() -> None:
    long = len(DIALOGUE.prompt_ids(PROBLEMS[0].prompt))
    said = warned("so long an answer to so short a question", max_context_tokens=long + 12)
    assert "because the context was full: raise --max-context-tokens, or take fewer turns" in said


def test_a_prompt_that_asks_for_no_mark() -> None:
    said = warned("I think it is 20.", "Not that I would know")
    assert "100% of 10 turns ended by themselves and have no answer that is marked" in said
    assert "(the last number or formula of 5 is an answer, of 1 the right one)" in said, "20 is right for one of them"
    assert r"the prompt asks for no mark; --prompt-template '{problem} Put the final answer in \boxed{}.' does" in said


def test_a_policy_that_does_not_know_the_form() -> None:
    said = warned("I think it is 20.", prompt_template=r"{problem} Use \boxed{}.")
    assert "though the prompt asks for a box" in said
    assert "--verifier lenient" in said


def test_few_are_no_reason_to_warn() -> None:
    episodes, config = played("Who knows", r"\boxed{3}")
    silent = [episode for episode in episodes if episode.responses == ("Who knows",)]
    rest = [episode for episode in episodes if episode not in silent] * 4
    assert advice([*rest, silent[0]], None, config) == [], "one of 21"
    assert len(advice([*rest, *silent[:2]], None, config)) == 1, "two of 22"


def test_format_and_mathematics_are_told_apart() -> None:
    episodes, _ = played("I think it is 20.", r"\boxed{22}")
    assert {e.problem_id for e in episodes if e.solved} == {"p/11"}
    again = read_leniently(episodes)
    assert {e.problem_id for e in again if e.solved} == {"p/10", "p/11"}
    assert (summarize(episodes)["acc@1"].value, summarize(again)["acc@1"].value) == (0.1, 0.2)
    for before, after in zip(episodes, again, strict=True):
        if "boxed" in before.responses[0]:
            assert after.verdicts == before.verdicts, "what has an answer keeps its verdict"


def test_episodes_without_gold_answers_cannot_be_read_again() -> None:
    episodes, _ = played("I think it is 20.", gold_in_info=False)
    with pytest.raises(InvalidValueError, match="collect with gold_in_info=True"):
        read_leniently(episodes)
