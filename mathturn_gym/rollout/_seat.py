"""One environment that plays one episode after the other, for the schedulers without a barrier per turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.rollout._plan import EpisodePlan
from mathturn_gym.rollout._run import EMPTY_COMPLETION, EpisodeRun
from mathturn_gym.types import Completion, Ids, TurnContext, Verdict
from mathturn_gym.verification import TurnVerifier

__all__ = ["Seat", "seats_of"]


class Seat:
    """An environment, and the episode that runs in it.

    Args:
        env: The environment, wrapped or not.
    """

    def __init__(self, env: gym.Env[Ids, Ids]) -> None:
        self.env = env
        # Another environment below the wrappers verifies by itself, in `step`.
        base: Any = env.unwrapped
        self._base: MathMultiTurnEnv | None = base if isinstance(base, MathMultiTurnEnv) else None
        self._run: EpisodeRun | None = None

    @property
    def run(self) -> EpisodeRun:
        """The episode."""
        assert self._run is not None
        return self._run

    @property
    def verifier(self) -> TurnVerifier | None:
        """What judges its turns; None where the environment does so itself."""
        return None if self._base is None else self._base.verifier

    def begin(self, plan: EpisodePlan, index: int) -> None:
        """Starts episode `index`; where its prompt leaves no room to answer, also plays it."""
        observation, info = self.env.reset(seed=plan.seed, options=plan.options(plan.number(index)))
        self._run = EpisodeRun(plan, index, observation, info)
        self._play_empty()

    def turn(self, completion: Completion) -> TurnContext | None:
        """The turn that a completion makes, to be judged before it is played; None where there is nothing to judge."""
        return None if self._base is None else self._base.begin_turn(completion.ids)

    def play(self, completion: Completion, context: TurnContext | None = None, verdict: Verdict | None = None) -> None:
        """Plays one completion.

        Args:
            completion: The completion.
            context: What `turn` made of it, and
            verdict: its verdict, where it has been judged.
        """
        if self._base is not None and context is not None and verdict is not None:
            self._base.supply_verdict(context, verdict)
        self._step(completion)
        self._play_empty()

    def _play_empty(self) -> None:
        while not self.run.over and self.run.budget == 0:
            self._step(EMPTY_COMPLETION)

    def _step(self, completion: Completion) -> None:
        observation, reward, terminated, truncated, info = self.env.step(completion.ids)
        self.run.add(completion, observation, float(reward), terminated, truncated, info)


def seats_of(env: gym.vector.VectorEnv[Any, Any, Any], who: str) -> list[Seat]:
    """A seat for each environment of a vector environment that can be played one by one.

    Args:
        env: The vector environment.
        who: Who asks, for the message.

    Raises:
        InvalidValueError: its environments are out of reach (in other processes, or behind a vector wrapper).
    """
    envs: Sequence[gym.Env[Ids, Ids]] | None = getattr(env, "envs", None)
    if envs is None:
        raise InvalidValueError(
            f"{who} plays the environments of a vector environment one by one, and those of {env!r} are out of reach:"
            " use gym.make_vec's default form or SyncVectorEnv, and put wrappers around the single environments"
            " (make_vec(…, wrappers=[…]))"
        )
    return [Seat(one) for one in envs]
