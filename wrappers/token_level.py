"""The environment for classic algorithms, one id per step: `Discrete` actions and observations of a fixed shape.

stable-baselines3, sb3-contrib, CleanRL-style loops and RLlib can use it; this module loads none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from mathturn_gym.errors import InvalidActionError, InvalidValueError
from mathturn_gym.wrappers._views import Observation, TokenView

__all__ = ["TokenLevelEnv"]


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
            `allowed_ids`, made anew for each id (`mathturn_gym.decoding.grammar.answer_grammar` is one).
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
            env,
            action_ids=action_ids,
            allowed_ids=allowed_ids,
            window=window,
            pinned=pinned,
            observation=observation,
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
        """What may be chosen now, bool (n,): the protocol of sb3-contrib's `MaskablePPO`."""
        budget = 0 if self._context is None else self._info["completion_budget"]
        return self.masks_at(self._answer, budget)

    def masks_at(self, answer: Sequence[int], budget: int) -> npt.NDArray[np.bool_]:
        """The same after the ids of `answer`, of which there may be `budget`."""
        if self._force_end and len(answer) + 1 == budget:
            return self._closing.copy()
        if self._grammar is None:
            return self._allowed.copy()
        return self._allowed & np.isin(self.action_ids, self._grammar(answer))
