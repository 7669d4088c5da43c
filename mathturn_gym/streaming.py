"""Episodes one by one, without a barrier per turn: what `collect` and `acollect` share.

EpisodePlan (what episode i is) ─► EpisodeRun (episode i in an environment) ─► submit ─► advance ─► step ─► submit …
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np

from mathturn_gym.errors import InvalidValueError, check_float, check_int
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Completion, Episode, Ids, Policy

if TYPE_CHECKING:
    from mathturn_gym.rollout import EpisodeRecorder

__all__ = ["EMPTY_COMPLETION", "EpisodePlan", "EpisodeRun", "StreamingPolicy", "stream"]

EMPTY_COMPLETION = Completion(np.zeros(0, np.int64), np.zeros(0, np.float32), truncated=True)
"""What is played where there is no room to answer."""


@runtime_checkable
class StreamingPolicy(Policy, Protocol):
    """A policy that also answers requests one by one, as they end."""

    def submit(self, context: Ids, *, max_tokens: int, seed: int | None = None) -> int:
        """Queues a context; returns a ticket."""
        ...

    def advance(self) -> list[tuple[int, Completion]]:
        """Works until at least one request has ended; returns tickets and completions, none where none is queued."""
        ...

    def cancel(self, ticket: int) -> bool:
        """Drops a request."""
        ...

    def release(self, context: Ids) -> None:
        """Is told that a context will not be continued."""
        ...


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """What episode i of a collection is: its problem, its group, its samples. Depends on i and the seed alone.

    Args:
        seed: The collection's seed.
        group_size: Consecutive episodes that play the same problem.
        problem_ids: Play these, not the stream of `seed`.
        discount: For the episodes' `returns`.

    Raises:
        InvalidValueError: an argument is outside what is allowed.
    """

    seed: int = 0
    group_size: int = 1
    problem_ids: Sequence[str] | None = None
    discount: float = 1.0

    def __post_init__(self) -> None:
        """Checks the ranges."""
        check_int("seed", self.seed, low=0)
        check_int("group_size", self.group_size, low=1)
        check_float("discount", self.discount, low=0.0, high=1.0)
        if self.problem_ids is not None and not self.problem_ids:
            raise InvalidValueError("problem_ids must hold at least one id, got none")

    def number(self, index: int) -> int:
        """Number of the problem that episode `index` plays."""
        return index // self.group_size

    def options(self, number: int) -> dict[str, Any]:
        """Options of `reset` for problem `number`."""
        if self.problem_ids is None:
            return {"index": number}
        return {"problem_id": self.problem_ids[number % len(self.problem_ids)]}

    def group(self, index: int) -> str | None:
        """Name that episodes on one problem share."""
        return None if self.group_size == 1 else f"{self.seed}/{self.number(index)}"

    def turn_seed(self, index: int, turn: int) -> int:
        """Seed of one completion."""
        return derive_seed(self.seed, index, turn)


class EpisodeRun:
    """Episode `index` of a plan, in an environment of its own.

    Args:
        env: The environment; it is reset here.
        plan: The plan.
        index: The episode's number.

    Attributes:
        context: int64 (L,); the observation.
        budget: The most ids that the next completion can use.
        over: True once the episode has ended.
    """

    def __init__(self, env: gym.Env[Ids, Ids], plan: EpisodePlan, index: int) -> None:
        from mathturn_gym.rollout import EpisodeRecorder

        self.env, self._plan, self._index = env, plan, index
        self.context, info = env.reset(seed=plan.seed, options=plan.options(plan.number(index)))
        self.budget, self.over = int(info["completion_budget"]), False
        self._recorder: EpisodeRecorder = EpisodeRecorder(
            self.context, info, index=index, seed=plan.seed, group=plan.group(index)
        )
        self._play_empty()

    @property
    def turn_seed(self) -> int:
        """Seed of the next completion."""
        return self._plan.turn_seed(self._index, self._recorder.num_turns)

    def play(self, completion: Completion) -> bool:
        """Plays one completion; True where the episode has ended with it."""
        self._step(completion)
        self._play_empty()
        return self.over

    def episode(self) -> Episode:
        """The episode so far."""
        return self._recorder.episode(self._plan.discount)

    def _step(self, completion: Completion) -> None:
        self.context, reward, terminated, truncated, info = self.env.step(completion.ids)
        self._recorder.add(completion, self.context, float(reward), terminated, truncated, info)
        self.budget, self.over = int(info["completion_budget"]), bool(terminated or truncated)

    def _play_empty(self) -> None:
        """Where there is no room to answer, nobody is asked."""
        while not self.over and self.budget == 0:
            self._step(EMPTY_COMPLETION)


def stream(
    envs: Sequence[gym.Env[Ids, Ids]],
    policy: StreamingPolicy,
    plan: EpisodePlan,
    indices: Iterable[int],
    on_episode: Callable[[Episode], None],
) -> None:
    """Plays episodes, each going on as soon as its completion is there.

    Args:
        envs: One per episode that runs at the same time.
        policy: The policy.
        plan: What the episodes are.
        indices: Which are played.
        on_episode: Called with each as it ends.
    """
    upcoming, idle = iter(indices), list(envs)[::-1]
    running: dict[int, EpisodeRun] = {}

    def go_on(run: EpisodeRun) -> None:
        if run.over:
            idle.append(run.env)
            policy.release(run.context)
            on_episode(run.episode())
        else:
            running[policy.submit(run.context, max_tokens=run.budget, seed=run.turn_seed)] = run

    def begin() -> None:
        while idle and (index := next(upcoming, None)) is not None:
            go_on(EpisodeRun(idle.pop(), plan, index))

    try:
        begin()
        while running:
            for ticket, completion in policy.advance():
                run = running.pop(ticket)
                run.play(completion)
                go_on(run)
            begin()
    finally:
        for ticket in running:
            policy.cancel(ticket)
