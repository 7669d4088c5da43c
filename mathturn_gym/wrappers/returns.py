"""Keep the turns of an episode, and give the whole `Episode`, returns included, at its end.

It stands in `info["trajectory"]`: `info["episode"]` is where Gymnasium's `RecordEpisodeStatistics` and stable-baselines3's
`Monitor` put their figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from mathturn_gym.env.environment import info_of
from mathturn_gym.episodes.rollout import EpisodeRecorder
from mathturn_gym.errors import EpisodeStateError, check_float
from mathturn_gym.types import Completion, Ids

ActionLike: TypeAlias = Completion | Ids


class ReturnsWrapper(gym.Wrapper[Ids, ActionLike, Ids, Ids], gym.utils.RecordConstructorArgs):
    """Gives `info["trajectory"]`, an `Episode` with discounted returns per turn, with the step that ends it.

    An action is a `Completion`, whose log-probs and versions go into the episode, or plain ids (log-probs NaN).
    The environment below sees ids alone.

    Args:
        env: A `MathMultiTurnEnv`, wrapped or not.
        discount: Per turn (not per token), in [0, 1].

    Raises:
        InvalidValueError: discount is outside [0, 1].

    >>> import gymnasium as gym, mathturn_gym, numpy as np
    >>> env = ReturnsWrapper(gym.make("MathMultiTurn-v0", num_turns=2), discount=0.5)
    >>> _ = env.reset(seed=0)
    >>> _ = env.step(np.array([65]))
    >>> env.step(np.array([66]))[-1]["trajectory"].returns.tolist()
    [-1.5, -1.0]
    """

    def __init__(self, env: gym.Env[Ids, Ids], discount: float = 1.0) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, discount=discount)
        gym.Wrapper.__init__(self, env)  # type: ignore[misc]
        self.discount = check_float("discount", discount, low=0.0, high=1.0)
        self._recorder: EpisodeRecorder | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Ids, dict[str, Any]]:
        """Begins an episode, and its record."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._recorder = EpisodeRecorder(observation, info)
        return observation, info

    def step(self, action: ActionLike) -> tuple[Ids, Any, bool, bool, dict[str, Any]]:
        """Plays and records one turn.

        Raises:
            EpisodeStateError: there is no episode.
        """
        if self._recorder is None:
            raise EpisodeStateError("step() before reset(): call reset() to begin an episode")
        completion = _completion(action)
        observation, reward, terminated, truncated, info = self.env.step(completion.ids)
        self._recorder.add(completion, observation, float(reward), terminated, truncated, info)
        if terminated or truncated:
            info = {**info, "trajectory": self._recorder.episode(self.discount)}
        return observation, reward, terminated, truncated, info


class VectorReturnsWrapper(gym.vector.VectorWrapper[Any, Any, Any, Any, npt.NDArray[Any]]):
    """The same for vector environments: `infos["trajectory"][i]` where environment i ended an episode with this step.

    Works in every autoreset mode; in `SAME_STEP` the episode stands in `infos`, not in `infos["final_info"]`.

    Args:
        env: A vector environment of `MathMultiTurnEnv`.
        discount: Per turn, in [0, 1].
    """

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, npt.NDArray[Any]], discount: float = 1.0) -> None:
        super().__init__(env)
        self.discount = check_float("discount", discount, low=0.0, high=1.0)
        self._recorders: list[EpisodeRecorder | None] = [None] * env.num_envs

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins episodes, and their records, where the environment does."""
        observations, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        for i in range(self.num_envs):
            if infos["_problem_id"][i]:
                self._recorders[i] = EpisodeRecorder(observations[i], info_of(infos, i))
        return observations, infos

    def step(
        self, actions: Sequence[ActionLike]
    ) -> tuple[Any, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], dict[str, Any]]:
        """Plays and records one turn everywhere.

        Raises:
            EpisodeStateError: there is no episode.
        """
        if any(recorder is None for recorder in self._recorders):
            raise EpisodeStateError("step() before reset(): call reset() to begin episodes")
        completions = [_completion(action) for action in actions]
        # In NEXT_STEP mode this call begins a new episode where the last one ended the old.
        beginning = [recorder is not None and recorder.ended for recorder in self._recorders]
        result = self.env.step(tuple(completion.ids for completion in completions))
        observations, rewards, terminated, truncated, infos = result
        same_step = self.env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        for i, completion in enumerate(completions):
            over = bool(terminated[i] or truncated[i])
            if beginning[i]:
                self._recorders[i] = EpisodeRecorder(observations[i], info_of(infos, i))
                continue
            final = over and same_step
            observation = infos["final_obs"][i] if final else observations[i]
            info = info_of(infos["final_info"] if final else infos, i)
            recorder = self._recorders[i]
            assert recorder is not None
            recorder.add(completion, observation, float(rewards[i]), bool(terminated[i]), bool(truncated[i]), info)
            if over:
                infos = self.env._add_info(infos, {"trajectory": recorder.episode(self.discount)}, i)
            if final:
                self._recorders[i] = EpisodeRecorder(observations[i], info_of(infos, i))
        return observations, rewards, terminated, truncated, infos


def _completion(action: ActionLike) -> Completion:
    return action if isinstance(action, Completion) else Completion(action)
