"""What the tests of several adaptors share: an engine that follows a script, and the episode that must come of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mathturn_gym import collect
from mathturn_gym.env.config import EnvConfig
from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.testing import ScriptedPolicy
from mathturn_gym.types import Completion, Episode, Ids, Problem


class Script:
    """An engine of a trainer's: three answers, the second of which is cut off by its budget, each id with a log-prob."""

    problem = Problem("p/1", "What is 40+2?", ("42", "forty-two"), hints=("It is even.",), metadata={"family": "sums"})
    settings: dict[str, Any] = {"num_turns": 5, "max_completion_tokens": 24, "feedback": "hint"}  # noqa: RUF012

    def __init__(self) -> None:
        self.dialogue = Dialogue("builtin")
        answers = ["no idea", r"\boxed{41} and more than fits into the budget of this turn", r"It is \boxed{42}."]
        self._policy = ScriptedPolicy(answers, self.dialogue)

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.dialogue.tokenizer

    def completion(self, context: Sequence[int] | Ids, max_tokens: int) -> Completion:
        """The next answer."""
        (said,) = self._policy.complete([np.array(context, np.int64)], max_tokens=[max_tokens])
        logprobs = -0.01 * np.arange(1, len(said) + 1, dtype=np.float32)
        return Completion(said.ids, logprobs, said.truncated, version_start=3)

    def complete(self, contexts: Any, *, max_tokens: Any, seeds: Any = None) -> list[Completion]:
        """See `Policy.complete`."""
        return [self.completion(context, limit) for context, limit in zip(contexts, max_tokens, strict=True)]

    def episode(self, **changes: Any) -> Episode:
        """The episode as our own `collect` plays it."""
        env: Any = EnvConfig(**{**self.settings, **changes}).make(num_envs=1, problems=[self.problem])
        (episode,) = collect(env, self, 1)
        assert [verdict.correct for verdict in episode.verdicts] == [False, False, True]
        assert episode.turn_truncated == (False, True, False)
        return episode


@pytest.fixture
def script() -> Script:
    """See `Script`."""
    return Script()
