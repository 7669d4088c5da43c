"""The scheduler for policies that answer whole batches: all running episodes go one turn further at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.info import info_of
from mathturn_gym.rollout._plan import EpisodePlan
from mathturn_gym.rollout._run import EMPTY_COMPLETION, EpisodeRun
from mathturn_gym.types import Completion, Episode, Policy

__all__ = ["play_batched"]

VectorEnv = gym.vector.VectorEnv[Any, Any, Any]


def play_batched(
    env: VectorEnv, policy: Policy, plan: EpisodePlan, indices: Sequence[int], keep: Callable[[Episode], None]
) -> None:
    """Plays episodes with one call of the policy and one step of the environment per turn of all that run.

    Args:
        env: Any vector environment, in any autoreset mode.
        policy: The policy.
        plan: What the episodes are.
        indices: Which are played.
        keep: Called with each as it ends.
    """
    slots = _Slots(env, plan)
    release = getattr(policy, "release", None)
    upcoming = iter(indices)
    for slot, index in zip(range(env.num_envs), upcoming, strict=False):
        slots.begin(slot, index)
    slots.fill_idle()
    while slots.running():
        for slot in slots.step(policy):
            run = slots.runs[slot]
            assert run is not None
            if release is not None:
                for context in run.contexts:
                    release(context)
            keep(run.episode())
            following = next(upcoming, None)
            if following is None:
                slots.retire(slot)
            else:
                slots.begin(slot, following)


class _Slots:
    """The places of a vector environment, each with the episode that runs in it (or none)."""

    def __init__(self, env: VectorEnv, plan: EpisodePlan) -> None:
        mode = env.metadata.get("autoreset_mode")
        if mode is AutoresetMode.NEXT_STEP and getattr(env, "shared_memory", None) is False:
            # There AsyncVectorEnv forgets that a place was reset by hand, and resets it again instead of stepping.
            raise InvalidValueError(
                "collect() cannot use AsyncVectorEnv with shared_memory=False and autoreset_mode NEXT_STEP:"
                " leave shared_memory at its default, or use AutoresetMode.DISABLED"
            )
        self._env, self._plan = env, plan
        self._same_step = mode is AutoresetMode.SAME_STEP
        self.runs: list[EpisodeRun | None] = [None] * env.num_envs
        self._fresh = [False] * env.num_envs  # the place has an episode that can be stepped, ours or not

    def begin(self, slot: int, index: int) -> None:
        """Starts episode `index` in a place."""
        observation, info = self._reset(slot, self._plan.number(index))
        self.runs[slot] = EpisodeRun(self._plan, index, observation, info)

    def retire(self, slot: int) -> None:
        """Leaves a place without an episode of ours; it plays empty actions until the others are done."""
        self.runs[slot] = None
        self._reset(slot, 0)

    def fill_idle(self) -> None:
        """A vector environment steps all its places, so the unused ones need an episode to step through."""
        for slot in range(self._env.num_envs):
            if not self._fresh[slot]:
                self.retire(slot)

    def running(self) -> bool:
        """True while some place has an episode of ours."""
        return any(run is not None for run in self.runs)

    def step(self, policy: Policy) -> list[int]:
        """One vector step; returns the places whose episode of ours ended with it."""
        completions = self._complete(policy)
        actions = tuple(completions.get(slot, EMPTY_COMPLETION).ids for slot in range(self._env.num_envs))
        observations, rewards, terminated, truncated, infos = self._env.step(actions)
        ended = []
        for slot, run in enumerate(self.runs):
            over = bool(terminated[slot] or truncated[slot])
            if run is None:
                if over:
                    self.retire(slot)
                continue
            final = over and self._same_step
            observation = infos["final_obs"][slot] if final else observations[slot]
            info = info_of(infos["final_info"] if final else infos, slot)
            run.add(completions[slot], observation, rewards[slot], terminated[slot], truncated[slot], info)
            if over:
                ended.append(slot)
        return ended

    def _complete(self, policy: Policy) -> dict[int, Completion]:
        """The completions of all running episodes; the policy is asked for those that have room to answer."""
        runs = {slot: run for slot, run in enumerate(self.runs) if run is not None}
        asked = [slot for slot, run in runs.items() if run.budget > 0]
        found: list[Completion] = []
        if asked:
            found = policy.complete(
                [runs[slot].context for slot in asked],
                max_tokens=[runs[slot].budget for slot in asked],
                seeds=[runs[slot].turn_seed for slot in asked],
            )
        if len(found) != len(asked):
            raise InvalidValueError(f"policy {policy!r} returned {len(found)} completions for {len(asked)} contexts")
        return {**dict.fromkeys(runs, EMPTY_COMPLETION), **dict(zip(asked, found, strict=True))}

    def _reset(self, slot: int, number: int) -> tuple[Any, dict[str, Any]]:
        mask = np.zeros(self._env.num_envs, np.bool_)
        mask[slot] = True
        observations, infos = self._env.reset(
            seed=[self._plan.seed] * self._env.num_envs,  # type: ignore[arg-type]  # Gymnasium takes lists, its type does not
            options={"reset_mask": mask, **self._plan.options(number)},
        )
        self._fresh[slot] = True
        return np.array(observations[slot]), info_of(infos, slot)
