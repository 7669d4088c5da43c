"""Episodes for trainers that own the model and ask for one episode at a time, in asyncio."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, TypeAlias

import numpy as np

from mathturn_gym.config import EnvConfig
from mathturn_gym.dialogue import completion_ids
from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.errors import InvalidValueError, check_float
from mathturn_gym.integrations._known import KnownProblems
from mathturn_gym.returns import returns_to_go
from mathturn_gym.rollout import EpisodeRecorder
from mathturn_gym.types import Completion, Episode, Ids, Problem

__all__ = ["EpisodePlayer", "Generate", "TextEpisode", "completion_of", "problem_from_json", "problem_to_json"]

Generate: TypeAlias = Callable[[Ids, int], Awaitable[Completion]]
"""Continues a context, int64 (L,), by at most so many ids."""

_NOTHING = Completion(np.zeros(0, np.int64), np.zeros(0, np.float32), truncated=True)


def problem_to_json(problem: Problem) -> str:
    """A whole problem as text, for a column of a data set: workers need no problem file of their own.

    >>> problem_from_json(problem_to_json(Problem("p/1", "1+1?", ("2", "two")))).gold
    ('2', 'two')
    """
    return json.dumps(dataclasses.asdict(problem))


def problem_from_json(text: object) -> Problem:
    """The problem that `problem_to_json` was given.

    Raises:
        InvalidValueError: it is no such text; the message says where it should have come from.
    """
    try:
        return Problem(**json.loads(text))  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise InvalidValueError(
            f"a row's problem must be what this module's data set wrote, got {str(text)[:80]!r}: {error}"
        ) from error


def completion_of(
    ids: Sequence[int], logprobs: Sequence[float | None] | None, limit: int, ends: Collection[int], version: int = 0
) -> Completion:
    """What an engine sampled, as a completion.

    Args:
        ids: As sampled. What is beyond `limit` is left out: the beginning of a sample is a sample.
        logprobs: One per id; None (for one, or for all) where the engine gave none.
        limit: The most ids that the turn has room for.
        ends: Ids that end a turn.
        version: Of the weights.
    """
    kept = np.array(ids[:limit], np.int64)
    given = [None] * len(ids) if logprobs is None else logprobs
    values = np.array([np.nan if value is None else value for value in given[:limit]], np.float32)
    ended = len(kept) > 0 and int(kept[-1]) in ends
    return Completion(kept, values, truncated=not ended, version_start=version)


class EpisodePlayer:
    """Plays episodes on whatever problems, many at once; the environments are used again.

    Args:
        config: The environment; its `problems` are not looked at.
        tokenizer: The model's.
        discount: Of the episodes' returns, per turn.

    Attributes:
        ends: Ids that end a turn.
        decode: The text of ids.

    Raises:
        InvalidValueError: a value outside what is allowed.
    """

    def __init__(self, config: EnvConfig, tokenizer: Any, discount: float = 1.0) -> None:
        self.discount = check_float("discount", discount, low=0.0, high=1.0)
        self._config, self._known = config, KnownProblems()
        first = self._made(tokenizer=tokenizer)
        # What the first has loaded serves all of them; the dialogue has the tokenizer and the system prompt.
        kept = {name: value for name, value in config.keywords.items() if name not in ("tokenizer", "system_prompt")}
        shared: dict[str, Any] = {"dialogue": first.dialogue, "verifier": first.verifier}
        self._config = EnvConfig(config.id, **{**kept, **shared})
        self._idle = [first]
        self.decode = first.dialogue.decode
        tokens = {first.dialogue.tokenizer.eos_token_id, *first.dialogue.end_of_turn[-1:]}
        self.ends: frozenset[int] = frozenset(one for one in tokens if one is not None)

    async def play(self, problem: Problem, generate: Generate, *, index: int = 0, group: str | None = None) -> Episode:
        """Plays one episode.

        Args:
            problem: The problem.
            generate: The model.
            index: The episode's number, for its record.
            group: What its record calls its group.
        """
        self._known.add([problem])
        env = self._idle.pop() if self._idle else self._made()
        try:
            return await self._episode(env, problem, generate, index, group)
        finally:
            self._idle.append(env)

    async def _episode(
        self, env: MathMultiTurnEnv, problem: Problem, generate: Generate, index: int, group: str | None
    ) -> Episode:
        observation, info = env.reset(options={"problem_id": problem.id})
        recorder = EpisodeRecorder(observation, info, index=index, group=group)
        while not recorder.ended:
            budget = int(info["completion_budget"])
            completion = await generate(observation, budget) if budget else _NOTHING
            # A function of the user's may rely on the thread that calls it; the built-in verifier must not hold up others.
            if env.verifier.runs_beside:
                result = await asyncio.to_thread(env.step, completion.ids)
            else:
                result = env.step(completion.ids)
            observation, info = result[0], result[-1]
            recorder.add(completion, *result)
        return recorder.episode(self.discount)

    def _made(self, **changes: Any) -> MathMultiTurnEnv:
        # Made with a problem that fits: what an environment is then asked to play may be too long, and is truncated.
        made: Any = self._config.make(problems=Problem("-", "-", "-"), **changes)
        env: MathMultiTurnEnv = made.unwrapped
        env.source = self._known
        return env


class TextEpisode:
    """An episode for those who have texts only: the answers' ids are the tokenizer's own spelling.

    Args:
        env: The environment.
        discount: Of the return, per turn.
    """

    def __init__(self, env: MathMultiTurnEnv, discount: float) -> None:
        self._env, self._discount = env, discount
        self.rewards: list[float] = []
        self.over = True
        self.solved_at: int | None = None

    def begin(self, problem_id: str) -> None:
        """Begins an episode."""
        self._env.reset(options={"problem_id": problem_id})
        self.rewards, self.over, self.solved_at = [], False, None

    def answer(self, text: str) -> str:
        """Plays one turn; returns what the environment says ("" at the end)."""
        env = self._env
        _, reward, terminated, truncated, info = env.step(completion_ids(env.dialogue, text, env.max_completion_tokens))
        verdict = info["verdict"]
        if self.solved_at is None and verdict is not None and verdict.correct:
            self.solved_at = len(self.rewards)
        self.rewards.append(reward)
        self.over = terminated or truncated
        return str(info["feedback"])

    @property
    def value(self) -> float:
        """The return of the episode so far."""
        return float(returns_to_go(self.rewards, self._discount)[0]) if self.rewards else 0.0
