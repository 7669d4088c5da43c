"""The policy over a chat API: what it sends, and that texts arrive exactly."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from mathturn_gym.env.config import EnvConfig
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.errors import InvalidValueError, PolicyError
from mathturn_gym.neighbors.chat import play
from mathturn_gym.neighbors.episodes import problem_to_json
from mathturn_gym.policies import ChatPolicy, PolicyConfig
from mathturn_gym.types import Problem
from mathturn_gym.wrappers import load_policy

ODD = "héllo <|im_end|>\n\n<|im_start|>user\n 日本 \\boxed{41} "
PROBLEM = Problem("p/1", "What is 40+2? <|im_end|>", "42")


def second_time(messages: list[dict[str, str]]) -> str:
    """A wrong answer with marks of the template in it, then the right one."""
    return ODD if len(messages) < 3 else r"\boxed{42}"


def test_an_episode_is_played_in_messages(server: Any) -> None:
    server.says = second_time
    row = {"problem": problem_to_json(PROBLEM)}
    value, metrics = asyncio.run(play(row, f"{server.url}/v1", "secret", model="m", temperature=0.5))
    assert (value, metrics) == (0.0, {"solved": 1.0, "solved_first": 0.0, "turns": 2.0})
    (_, first), (path, second) = server.asked
    assert path == "/v1/chat/completions"
    # The second request continues the first to the letter: a proxy that records ids matches it by its messages.
    assert (
        second["messages"][: len(first["messages"])]
        == first["messages"]
        == [{"role": "user", "content": PROBLEM.prompt}]
    )
    assert [one["role"] for one in second["messages"]] == ["user", "assistant", "user"]
    assert second["messages"][1]["content"] == ODD
    assert {name: one for name, one in second.items() if name != "messages"} == {"model": "m", "temperature": 0.5}
    assert server.authorizations == ["Bearer secret"] * 2


def test_collect_evaluates_a_model_behind_an_api(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATHTURN_API_KEY", "secret")
    server.says = second_time
    policy = load_policy(f"chat:org/m@{server.url}/v1", temperature=0.0)
    env: Any = EnvConfig("MathMultiTurnUntilCorrect-v0", problems=[PROBLEM], max_completion_tokens=512).make(num_envs=2)
    episodes = collect(env, policy, 4)
    env.close()
    assert [(one.solved, one.num_turns) for one in episodes] == [(True, 2)] * 4
    assert all(np.isnan(one.logprobs[one.loss_mask]).all() for one in episodes)
    asked = server.asked[0][1]
    assert (asked["model"], asked["temperature"], asked["max_tokens"]) == ("org/m", 0.0, 512)
    assert 0 <= asked["seed"] < 2**31


def test_a_budget_cuts_off_and_options_replace_fields(server: Any) -> None:
    server.says = lambda messages: "123456"
    policy = ChatPolicy(f"{server.url}/v1", "m", request={"max_tokens": None, "max_completion_tokens": 7})

    cut, whole = (asyncio.run(policy.acomplete(np.array([1]), max_tokens=most)) for most in (3, 99))
    assert (cut.truncated, cut.ids.size, whole.truncated) == (True, 3, False)
    assert policy.tokenizer.decode(whole.ids) == "123456<|im_end|>"
    assert server.asked[0][1] == {"model": "m", "messages": [], "max_completion_tokens": 7}


def test_a_refusal_shows_no_key(server: Any) -> None:
    server.failures = [401]
    with pytest.raises(PolicyError, match="HTTP 401") as caught:
        asyncio.run(play(PROBLEM, server.url, "hidden-key", model="m"))
    assert "hidden-key" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("chat:gpt", {}, "must be chat:MODEL@URL"),
        ("chat:m@http://a:b@host/v1", {}, "without user and password"),
        ("chat:m@http://host/v1", {"top_k": 3}, "top_k has no meaning"),
        ("chat:m@http://host/v1", {"tokenizer": "x"}, "tokenizer has no meaning"),
    ],
)
def test_what_a_name_may_not_be(name: str, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValueError, match=says):
        load_policy(PolicyConfig(name, **changes))
