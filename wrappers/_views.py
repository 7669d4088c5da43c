"""What the views for classic algorithms share: a window of ids, the ids behind actions, and a played turn.

context (L,) ─► Window ─► the last N ids          action ─► ids ─► a turn of the environment below
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.errors import EpisodeStateError, InvalidValueError, check_int, raise_unknown_name
from mathturn_gym.types import Ids, Status, Verdict

__all__ = ["Observation", "TokenView", "Window"]

Observation: TypeAlias = Any
"""int64 (window,), or a dict with it: the observation space says which."""

_OBSERVATIONS: Final = ("ids", "dict")
_VERDICTS: Final = (None, *Status)


class Window:
    """A context as an array of fixed length: its last ids, and behind them `pad`, which is no id.

    Args:
        vocab_size: Ids are in [0, vocab_size); `pad` is vocab_size.
        size: Length of the window, N >= 1.
        pinned: The context's first ids that stay in view when it has outgrown the window (the problem, for later
            turns), in [0, size).

    Raises:
        InvalidValueError: a value outside its range.

    >>> window = Window(vocab_size=10, size=5, pinned=2)
    >>> window.of(np.array([1, 2, 3])).tolist()
    [1, 2, 3, 10, 10]
    >>> window.of(np.array([1, 2, 3, 4, 5, 6, 7])).tolist()
    [1, 2, 5, 6, 7]
    """

    def __init__(self, vocab_size: int, size: int, pinned: int = 0) -> None:
        self.size = check_int("window", size, low=1)
        self.pinned = check_int("pinned", pinned, low=0, high=self.size - 1)
        self.pad = check_int("vocab_size", vocab_size, low=1)
        self.space = spaces.Box(0, self.pad, (self.size,), np.int64)

    def of(self, context: Ids) -> Ids:
        """The window of a context, int64 (L,): int64 (N,)."""
        length = context.shape[0]
        if length > self.size:
            return np.concatenate([context[: self.pinned], context[length - self.size + self.pinned :]])
        shown = np.full(self.size, self.pad, np.int64)
        shown[:length] = context
        return shown


class TokenView(gym.Env[Any, Any]):
    """What the two views share: the window, the ids behind actions, and a turn of the environment below."""

    def __init__(
        self,
        env: gym.Env[Any, Any] | str,
        *,
        action_ids: Sequence[int] | None,
        allowed_ids: Sequence[int] | None,
        window: int,
        pinned: int,
        observation: str,
    ) -> None:
        self.env: gym.Env[Any, Any] = gym.make(env, disable_env_checker=True) if isinstance(env, str) else env
        base = self.env.unwrapped
        if not isinstance(base, MathMultiTurnEnv):
            raise InvalidValueError(f"env must be a MathMultiTurnEnv, wrapped or not, or its id, got {self.env!r}")
        if observation not in _OBSERVATIONS:
            raise_unknown_name("observation", observation, _OBSERVATIONS)
        if action_ids is not None and allowed_ids is not None:
            raise InvalidValueError("action_ids and allowed_ids are two ways to say one thing: give one of them")
        size = base.dialogue.vocab_size
        self.window = Window(size, window, pinned)
        self.max_answer_ids = base.max_completion_tokens
        self.stop_ids = _stop_ids(base)
        self.action_ids: Ids = (
            np.arange(size) if action_ids is None else _checked_ids("action_ids", action_ids, size, keep_order=True)
        )
        allowed = self.action_ids if allowed_ids is None else _checked_ids("allowed_ids", allowed_ids, size)
        self._allowed = np.isin(self.action_ids, allowed)
        self._closing = self._allowed & np.isin(self.action_ids, sorted(self.stop_ids))
        self.metadata = self.env.metadata
        self.render_mode = self.env.render_mode
        self.observation_space: spaces.Space[Any] = self.window.space
        self._as_dict = observation == "dict"
        if self._as_dict:
            self.observation_space = spaces.Dict(
                {
                    "ids": self.window.space,
                    "turn": spaces.Discrete(base.num_turns + 1),
                    "verdict": spaces.Discrete(len(_VERDICTS)),
                }
            )
        self._context: Ids | None = None
        self._info: dict[str, Any] = {}
        self._solved = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins an episode, as `MathMultiTurnEnv.reset` does, and shows its prompt."""
        super().reset(seed=seed)
        self._context, self._info = self.env.reset(seed=seed, options=options)
        self._solved = False
        return self._observation(self._context), self._info

    def render(self) -> Any:
        """What the environment below renders."""
        return self.env.render()

    def close(self) -> None:
        """Closes the environment below."""
        self.env.close()

    def _current(self) -> Ids:
        if self._context is None:
            raise EpisodeStateError("step() before reset(), or after the episode's end: call reset() to begin one")
        return self._context

    def _play(self, answer: Ids) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Plays a turn. The info is the environment's, and "is_success" where the episode ends."""
        context, reward, terminated, truncated, info = self.env.step(answer)
        verdict = info["verdict"]
        self._solved |= verdict is not None and verdict.correct
        self._info = info
        observation = self._observation(context)
        self._context = context
        if terminated or truncated:
            self._context = None
            info = {**info, "is_success": self._solved}
        return observation, float(reward), terminated, truncated, info

    def _observation(self, context: Ids) -> Observation:
        shown = self.window.of(context)
        if not self._as_dict:
            return shown
        verdict = cast(Verdict | None, self._info["verdict"])
        status = _VERDICTS.index(None if verdict is None else verdict.status)
        return {"ids": shown, "turn": np.int64(self._info["turn"]), "verdict": np.int64(status)}


def _stop_ids(env: MathMultiTurnEnv) -> frozenset[int]:
    """The ids that close an answer: the chat template's end of turn and the tokenizer's end of sequence."""
    ends = {*env.dialogue.end_of_turn[-1:], env.dialogue.tokenizer.eos_token_id}
    return frozenset(int(one) for one in ends if one is not None)


def _checked_ids(name: str, ids: Sequence[int], vocab_size: int, *, keep_order: bool = False) -> Ids:
    found = [check_int(f"{name}[{place}]", one, low=0, high=vocab_size - 1) for place, one in enumerate(ids)]
    if not found or len(set(found)) < len(found):
        raise InvalidValueError(f"{name} must be ids, at least one and none twice, got {list(ids)!r}")
    return np.array(found if keep_order else sorted(found), np.int64)
