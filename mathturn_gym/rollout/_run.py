"""One episode as it is played."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from mathturn_gym.rollout._plan import EpisodePlan
from mathturn_gym.rollout._recorder import EpisodeRecorder
from mathturn_gym.types import Completion, Episode, Ids

__all__ = ["EMPTY_COMPLETION", "EpisodeRun"]

EMPTY_COMPLETION: Final = Completion(np.zeros(0, np.int64), np.zeros(0, np.float32), truncated=True)
"""What is played where there is no room to answer: nobody is asked."""


class EpisodeRun:
    """Episode `index` of a plan as it is played: what the policy is asked next, and the record of what it said.

    Args:
        plan: The plan.
        index: The episode's number.
        observation: int64 (L0,); what `reset` returned.
        info: The info of `reset`.

    Attributes:
        index: The episode's number.
        context: int64 (L,); the last observation.
        budget: The most tokens that the next completion can use; 0 where there is no room to answer.
        over: True once the episode has ended.
    """

    def __init__(self, plan: EpisodePlan, index: int, observation: Ids, info: Mapping[str, Any]) -> None:
        self._plan, self.index = plan, index
        self.context, self.budget, self.over = observation, int(info["completion_budget"]), False
        self._recorder = EpisodeRecorder(observation, info, index=index, seed=plan.seed, group=plan.group(index))

    @property
    def turn_seed(self) -> int:
        """Seed of the next completion."""
        return self._plan.turn_seed(self.index, self._recorder.num_turns)

    @property
    def session(self) -> str:
        """Name that all requests of this episode share."""
        return self._plan.session(self.index)

    @property
    def contexts(self) -> tuple[Ids, ...]:
        """Every context that a policy may hold something of: the last one, and those that were written anew since."""
        return self._recorder.contexts

    def add(
        self,
        completion: Completion,
        observation: Ids,
        reward: float,
        terminated: bool,
        truncated: bool,
        info: Mapping[str, Any],
    ) -> None:
        """Records one transition (see `EpisodeRecorder.add`)."""
        self._recorder.add(completion, observation, float(reward), bool(terminated), bool(truncated), info)
        self.context, self.budget, self.over = observation, int(info["completion_budget"]), self._recorder.ended

    def episode(self) -> Episode:
        """The episode so far."""
        return self._recorder.episode(self._plan.discount)
