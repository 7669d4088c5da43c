"""The episodes of a seed stay what they were: recorded runs and published figures depend on it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import mathturn_gym  # noqa: F401 - registers the ids
from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.testing import RandomPolicy, ScriptedPolicy
from mathturn_gym.types import Completion, Episode, Ids

DIALOGUE = Dialogue("builtin")


class Streaming:
    """Any policy as a streaming one, whose answers come back in an order of their own."""

    scheduler = "streaming"

    def __init__(self, policy: Any) -> None:
        self._policy, self._next = policy, 0
        self._waiting: dict[int, tuple[Ids, int, int | None]] = {}

    def submit(self, context: Ids, *, max_tokens: int, seed: int | None = None) -> int:
        self._next += 1
        self._waiting[self._next] = context, max_tokens, seed
        return self._next

    def advance(self, steps: int | None = None) -> list[tuple[int, Completion]]:
        tickets = sorted(self._waiting, key=lambda ticket: hash((ticket, "order")))[: 1 + len(self._waiting) // 2]
        found = []
        for ticket in tickets:
            context, budget, seed = self._waiting.pop(ticket)
            found.append((ticket, self._policy.complete([context], max_tokens=[budget], seeds=[seed])[0]))
        return found

    def cancel(self, ticket: int) -> bool:
        return self._waiting.pop(ticket, None) is not None

    def release(self, context: Ids) -> None:
        pass


class Async:
    """Any policy as an async one."""

    scheduler = "async"

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    async def acomplete(
        self, context: Ids, *, max_tokens: int, seed: int | None = None, session: Any = None
    ) -> Completion:
        return self._policy.complete([context], max_tokens=[max_tokens], seeds=[seed])[0]  # type: ignore[no-any-return]


def random_ids() -> RandomPolicy:
    return RandomPolicy(DIALOGUE.vocab_size, DIALOGUE.end_of_turn[-1])


def guesses() -> ScriptedPolicy:
    def say(context: str) -> str:
        return f"{len(context) % 7} so \\boxed{{{len(context) % 11}}}"

    return ScriptedPolicy(say, DIALOGUE)


# Computed with the first release, before the three schedulers shared one core; "plain" again when the verifier stopped
# to find answers in sentences that name none ("answer is wrong"): 8 of its 60 turns have another status, and the same ids; and
# once more when a command that LaTeX does not have stopped to make a formula of what follows it: one turn, "wrong" before and
# "no answer" now.
CASES: dict[str, tuple[Any, str, dict[str, Any], dict[str, Any], str]] = {
    "plain": (
        random_ids,
        "MathMultiTurn-v0",
        {"problems": "lins", "num_turns": 3, "max_completion_tokens": 12},
        {"episodes": 20, "seed": 3, "group_size": 2},
        "54e32f50e3af279517c5cdb66037419a",
    ),
    "hints": (
        guesses,
        "MathMultiTurnUntilCorrect-v0",
        {"problems": "add1", "num_turns": 4, "max_completion_tokens": 24, "feedback": "hint"},
        {"episodes": 16, "seed": 1, "discount": 0.5, "first_index": 5},
        "5bfd6ce0c5cb02ef6a3d85489032d9e6",
    ),
    "graded, terms": (
        guesses,
        "MathMultiTurn-v0",
        {
            "problems": "lins",
            "num_turns": 3,
            "max_completion_tokens": 24,
            "feedback": "graded",
            "reward_terms": {"overlong": 0.5, "repeated_answer": 1.0},
            "reward_bias": 0.25,
            "reward_scaling": 5.0,
        },
        {"episodes": 12, "seed": 2},
        "a96e2e74d6dda01605a61ec49b3ab88d",
    ),
    "tight": (
        guesses,
        "MathMultiTurn-v0",
        {
            "problems": "lins",
            "num_turns": 5,
            "max_completion_tokens": 24,
            "max_context_tokens": 85,
            "system_prompt": "Be brief.",
        },
        {"episodes": 12, "seed": 2},
        "87ab9f5b1af17f03aa356def8e9ac190",
    ),
    "areal": (
        guesses,
        "MathMultiTurn-v0",
        {"problems": "lins", "num_turns": 3, "max_completion_tokens": 24, "feedback": "areal-v0.3"},
        {"episodes": 12, "seed": 2},
        "50b9afc4f65df299088f504a66aa29b1",
    ),
}


def digest(episode: Episode) -> str:
    """Everything of an episode but the problem's id and what a verdict says besides its status and score."""
    made = hashlib.blake2b(digest_size=8)
    for array in (
        *(episode.ids, episode.loss_mask, episode.logprobs, episode.versions),
        *(episode.turn_spans, episode.rewards, episode.returns),
    ):
        made.update(np.ascontiguousarray(array).tobytes())
    said = [
        [verdict.status.value for verdict in episode.verdicts],
        [verdict.value for verdict in episode.verdicts],
        list(episode.feedbacks),
        list(episode.turn_truncated),
        episode.terminated,
        episode.truncated,
        episode.stop_reason and episode.stop_reason.value,
        episode.index,
        episode.group,
    ]
    made.update(json.dumps(said).encode())
    return made.hexdigest()


@pytest.mark.parametrize("scheduler", ["batched", "streaming", "async"])
@pytest.mark.parametrize("case", CASES)
def test_the_episodes_of_a_seed_are_what_they_were(case: str, scheduler: str) -> None:
    make_policy, env_id, env_kwargs, kwargs, expected = CASES[case]
    policy = {"batched": lambda one: one, "streaming": Streaming, "async": Async}[scheduler](make_policy())
    env = gym.make_vec(env_id, num_envs=5, **env_kwargs)
    episodes = collect(env, policy, **kwargs)
    assert hashlib.blake2b("".join(map(digest, episodes)).encode(), digest_size=16).hexdigest() == expected
