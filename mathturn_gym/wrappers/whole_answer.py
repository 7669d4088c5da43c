"""The environment for classic algorithms, one whole answer per step: `MultiDiscrete` actions, made for short answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from mathturn_gym.errors import InvalidActionError
from mathturn_gym.wrappers.token_level import Observation, TokenView


class WholeAnswerEnv(TokenView):
    """One answer per step: `MultiDiscrete` actions, one entry per id of the answer; made for short answers.

    The answer ends with the first end-of-turn id among the entries; those behind it have no effect.

    Args:
        env: A `MathMultiTurnEnv`, wrapped or not, or its id; there are `max_completion_tokens` entries.
        action_ids: Entry a stands for `action_ids[a]`. None makes every id an entry's value.
        allowed_ids, window, pinned, observation: See `TokenLevelEnv`.

    Raises:
        InvalidValueError: an argument is outside what is allowed.

    >>> import mathturn_gym
    >>> WholeAnswerEnv(gym.make("MathSingleTurn-v0", max_completion_tokens=3), action_ids=range(20)).action_space
    MultiDiscrete([20 20 20])
    """

    def __init__(
        self,
        env: gym.Env[Any, Any] | str,
        *,
        action_ids: Sequence[int] | None = None,
        allowed_ids: Sequence[int] | None = None,
        window: int = 64,
        pinned: int = 0,
        observation: str = "ids",
    ) -> None:
        super().__init__(
            env, action_ids=action_ids, allowed_ids=allowed_ids, window=window, pinned=pinned, observation=observation
        )
        self.action_space = spaces.MultiDiscrete([len(self.action_ids)] * self.max_answer_ids)

    def step(self, action: npt.NDArray[np.int64]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Plays a turn.

        Args:
            action: int64 (max_completion_tokens,), in `MultiDiscrete`.

        Raises:
            InvalidActionError: the action is not in the action space.
            EpisodeStateError: there is no episode, or it has ended.
        """
        self._current()
        if not self.action_space.contains(action):
            raise InvalidActionError(f"action must be in {self.action_space}, got {action!r}")
        answer = self.action_ids[action][: self._info["completion_budget"]]
        stops = np.flatnonzero(np.isin(answer, sorted(self.stop_ids)))
        return self._play(answer[: stops[0] + 1] if stops.size else answer)

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """The allowed values of every entry, end to end, bool (max_completion_tokens * n,), as sb3-contrib takes them."""
        # The same for every entry: those behind an end of turn have no effect.
        return np.tile(self._allowed, self.max_answer_ids)
