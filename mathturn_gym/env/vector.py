"""The environment's batched form: one verifier call per vector step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from mathturn_gym.env.environment import MathMultiTurnEnv, Transition
from mathturn_gym.errors import EpisodeStateError, InvalidActionError, InvalidValueError, check_int, raise_unknown_name
from mathturn_gym.spaces import TokenIds
from mathturn_gym.types import Ids

BoolArray: TypeAlias = npt.NDArray[np.bool_]


class MathMultiTurnVectorEnv(gym.vector.VectorEnv[tuple[Ids, ...], Sequence[Ids], npt.NDArray[Any]]):
    """`num_envs` environments that share a tokenizer, problems and one verifier call per step.

    Behaves as `gymnasium.vector.SyncVectorEnv` does over `MathMultiTurnEnv` in every autoreset mode, observations
    being tuples of arrays. `gym.make_vec(id, num_envs=n)` makes it.

    Args:
        num_envs: Number of environments, >= 1.
        autoreset_mode: `gymnasium.vector.AutoresetMode` or its value.
        **kwargs: Of `MathMultiTurnEnv`.

    Raises:
        InvalidValueError: an argument is outside what is allowed.
    """

    def __init__(
        self, num_envs: int = 1, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP, **kwargs: Any
    ) -> None:
        super().__init__()
        self.single_action_space: TokenIds
        self.num_envs = check_int("num_envs", num_envs, low=1)
        try:
            self.autoreset_mode = AutoresetMode(autoreset_mode)
        except ValueError:
            raise_unknown_name("autoreset_mode", autoreset_mode, [mode.value for mode in AutoresetMode])
        first = MathMultiTurnEnv(**kwargs)
        # What the first has loaded serves all of them.
        own = {name: value for name, value in kwargs.items() if name not in ("tokenizer", "system_prompt")}
        shared = {**own, "problems": first.source, "dialogue": first.dialogue, "verifier": first.verifier}
        self.envs = [first, *(MathMultiTurnEnv(**shared) for _ in range(num_envs - 1))]
        self.metadata = {**first.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = first.render_mode
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(first.observation_space, num_envs)
        self.action_space = batch_space(first.action_space, num_envs)
        self._observations: list[Ids] = [np.zeros(0, np.int64)] * num_envs
        self._done = np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[Ids, ...], dict[str, Any]]:
        """Begins episodes everywhere, or where `options["reset_mask"]` (bool (num_envs,)) says.

        Args:
            seed: None, one int (environment i gets seed + i), or one per environment.
            options: Of `MathMultiTurnEnv.reset`, and "reset_mask".
        """
        options = dict(options or {})
        mask = self._reset_mask(options.pop("reset_mask", None))
        seeds = self._seeds(seed)
        chosen = np.flatnonzero(mask).tolist()
        beginnings = {i: self.envs[i].plan_reset(seed=seeds[i], options=options) for i in chosen}
        infos: dict[str, Any] = {}
        for i, beginning in beginnings.items():
            infos = self._add_info(infos, beginning.info, i)
        for i, beginning in beginnings.items():
            self._observations[i], _ = self.envs[i].commit_reset(beginning)
        self._done[mask] = False
        return self._copies(), infos

    def step(
        self, actions: Sequence[Ids]
    ) -> tuple[tuple[Ids, ...], npt.NDArray[np.float64], BoolArray, BoolArray, dict[str, Any]]:
        """Plays one turn everywhere (or resets, where the autoreset mode says so).

        Args:
            actions: num_envs int64 arrays.
        """
        if len(actions) != self.num_envs:
            raise InvalidActionError(f"actions must be {self.num_envs} arrays, one per environment, got {len(actions)}")
        next_step = self.autoreset_mode is AutoresetMode.NEXT_STEP
        if self.autoreset_mode is AutoresetMode.DISABLED and self._done.any():
            raise EpisodeStateError(
                f"step() after the end of environments {np.flatnonzero(self._done).tolist()} with autoreset_mode"
                " DISABLED: reset(options={'reset_mask': …}) them first"
            )
        # All turns and resets are worked out before the first changes anything: whatever raises, no environment has
        # advanced before the others.
        playing = [i for i in range(self.num_envs) if not (next_step and self._done[i])]
        turns = self._turns(playing, actions)
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        ended = [i for i, turn in turns.items() if turn.terminated or turn.truncated]
        resetting = ended if same_step else [i for i in range(self.num_envs) if i not in turns]
        beginnings = {i: self.envs[i].plan_reset() for i in resetting}
        infos: dict[str, Any] = {}
        for i in range(self.num_envs):
            if i in turns and i in beginnings:
                infos = self._add_info(infos, {"final_obs": turns[i].observation, "final_info": turns[i].info}, i)
            infos = self._add_info(infos, (beginnings if i in beginnings else turns)[i].info, i)
        rewards = np.zeros(self.num_envs, np.float64)
        terminated, truncated = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        for i, turn in turns.items():
            self._observations[i], rewards[i], terminated[i], truncated[i], _ = self.envs[i].commit_turn(turn)
        for i, beginning in beginnings.items():
            self._observations[i], _ = self.envs[i].commit_reset(beginning)
        self._done = (terminated | truncated) & (not same_step)
        return self._copies(), rewards, terminated, truncated, infos

    def render(self) -> tuple[Any, ...]:
        """Each environment's dialogue."""
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the environments."""
        for env in self.envs:
            env.close()

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Each environment's attribute `name`, called where it is callable."""
        attributes = [getattr(env, name) for env in self.envs]
        return tuple(value(*args, **kwargs) if callable(value) else value for value in attributes)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Each environment's attribute `name`."""
        return tuple(getattr(env, name) for env in self.envs)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seeds of the environments."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The random generators of the environments."""
        return self.get_attr("np_random")

    def _turns(self, playing: list[int], actions: Sequence[Ids]) -> dict[int, Transition]:
        """The turns that the actions make, with one verifier call for all of them."""
        for i in playing:  # all actions are checked before any is decoded
            reason = self.single_action_space.why_not(actions[i])
            if reason is not None:
                raise InvalidActionError(f"actions[{i}] is not in {self.single_action_space}: {reason}")
        contexts = {i: self.envs[i].begin_turn(actions[i]) for i in playing}
        judged = {i: context for i, context in contexts.items() if context is not None}
        found = self.envs[0].verifier.verify_turns(list(judged.values()))
        verdicts = dict(zip(judged, found, strict=True))
        return {i: self.envs[i].weigh_turn(context, verdicts.get(i)) for i, context in contexts.items()}

    def _copies(self) -> tuple[Ids, ...]:
        return tuple(observation.copy() for observation in self._observations)

    def _reset_mask(self, mask: Any) -> BoolArray:
        if mask is None:
            return np.ones(self.num_envs, np.bool_)
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise InvalidValueError(
                f"options['reset_mask'] must be a bool array of shape ({self.num_envs},), got {mask!r}"
            )
        if not mask.any():
            raise InvalidValueError("options['reset_mask'] must be True somewhere, got all False")
        return mask

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None or isinstance(seed, (int, np.integer)):
            return [None if seed is None else int(seed) + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise InvalidValueError(f"seed must be one int or {self.num_envs} of them, got {len(seed)}")
        return list(seed)
