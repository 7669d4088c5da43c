"""Views for classic algorithms: observations of a fixed shape, and `TokenLevelEnv`, one token per step (`Discrete` actions).

stable-baselines3, sb3-contrib, CleanRL-style loops and RLlib can use it; this module loads none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, cast

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.errors import EpisodeStateError, InvalidActionError, InvalidValueError, check_int, raise_unknown_name
from mathturn_gym.types import Ids, Status, Verdict

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
    """Base of both views: the window, the ids of the actions, and a turn of the wrapped environment."""

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
        """The rendering of the wrapped environment."""
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
            # A step after this must fail, and not play on in an episode that has ended.
            self._context = None
            info = {**info, "is_success": self._solved}
        return observation, float(reward), terminated, truncated, info

    def _observation(self, context: Ids) -> Observation:
        shown = self.window.of(context)
        if not self._as_dict:
            return shown
        # What the policy is told: with `verdict_noise` the verifier's own verdict would be a leak.
        verdict = cast(Verdict | None, self._info.get("feedback_verdict", self._info["verdict"]))
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


# ---- one token per step


class TokenLevelEnv(TokenView):
    """One token per step: the closing token plays the turn, and brings its reward and the environment's info.

    An answer is closed by an end-of-turn id, or by the last id that its budget has room for; every other token is
    worth 0. The observation is the last `window` ids of the context and the answer so far, int64 (window,), with the
    id V behind them where there are fewer; or a dict of that ("ids"), the turns played ("turn"), and the last verdict
    ("verdict": 0 none yet, then right, wrong, no answer, undecided).

    Args:
        env: A `MathMultiTurnEnv`, wrapped or not, or its id. Its answers are at most `max_completion_tokens` ids long.
        action_ids: Action a is `action_ids[a]`: `Discrete(n)`. None makes every id an action, `Discrete(V)`.
        allowed_ids: With `Discrete(V)`: the ids that `action_masks` lets through; None for all.
        window: Ids in view, N.
        pinned: Of these, the first ids of the prompt that stay in view when the context has outgrown the window.
        observation: "ids" or "dict".
        grammar: Takes the ids of the answer so far and gives the ids that may come next; a narrower mask than
            `allowed_ids`, computed for each id (`mathturn_gym.policies.sampling.answer_grammar` is one).
        force_end: The masks let through nothing but end-of-turn ids where one more id would use up the budget.

    Raises:
        InvalidValueError: an argument is outside what is allowed.

    >>> import mathturn_gym
    >>> env = TokenLevelEnv("MathSingleTurn-v0", window=32)
    >>> observation, _ = env.reset(seed=0)
    >>> observation.shape, env.action_space
    ((32,), Discrete(405))
    >>> _, reward, terminated, _, _ = env.step(65)
    >>> reward, terminated
    (0.0, False)
    >>> _, reward, terminated, _, info = env.step(env.unwrapped.env.unwrapped.dialogue.end_of_turn[-1])
    >>> reward, terminated, info["is_success"]
    (-1.0, True, False)
    """

    def __init__(
        self,
        env: gym.Env[Any, Any] | str,
        *,
        action_ids: Sequence[int] | None = None,
        allowed_ids: Sequence[int] | None = None,
        grammar: Callable[[Sequence[int]], Sequence[int]] | None = None,
        window: int = 64,
        pinned: int = 0,
        observation: str = "ids",
        force_end: bool = False,
    ) -> None:
        super().__init__(
            env, action_ids=action_ids, allowed_ids=allowed_ids, window=window, pinned=pinned, observation=observation
        )
        if force_end and not self._closing.any():
            raise InvalidValueError(
                f"force_end needs an end-of-turn id ({sorted(self.stop_ids)}) among the ids allowed"
            )
        self._force_end = bool(force_end)
        self._grammar = grammar
        self.action_space = spaces.Discrete(len(self.action_ids))
        self._answer: list[int] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins an episode, as `MathMultiTurnEnv.reset` does, and shows its prompt."""
        self._answer = []
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Adds one id to the answer, and plays the turn where that closes it.

        Args:
            action: In `Discrete(n)`; masks are advice, an id that they hide is an id like others here.

        Raises:
            InvalidActionError: the action is not in the action space.
            EpisodeStateError: there is no episode, or it has ended.
        """
        context = self._current()
        if not self.action_space.contains(action):
            raise InvalidActionError(f"action must be an integer in [0, {len(self.action_ids)}), got {action!r}")
        budget = self._info["completion_budget"]
        if budget:  # a prompt that leaves no room for an answer gets none: the environment ends that episode
            self._answer.append(int(self.action_ids[action]))
        answer = np.array(self._answer, np.int64)
        if len(answer) < budget and self._answer[-1] not in self.stop_ids:
            return self._observation(np.concatenate([context, answer])), 0.0, False, False, {}
        self._answer = []
        return self._play(answer)

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """The actions that are allowed now, bool (n,): the protocol of sb3-contrib's `MaskablePPO`."""
        budget = 0 if self._context is None else self._info["completion_budget"]
        return self.masks_at(self._answer, budget)

    def masks_at(self, answer: Sequence[int], budget: int) -> npt.NDArray[np.bool_]:
        """The same after the ids of `answer`, of which there may be `budget`."""
        if self._force_end and len(answer) + 1 == budget:
            return self._closing.copy()
        if self._grammar is None:
            return self._allowed.copy()
        return self._allowed & np.isin(self.action_ids, self._grammar(answer))
