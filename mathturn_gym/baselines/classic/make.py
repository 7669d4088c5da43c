"""`make_token_env`: the token-level view from an environment's id, with a spec from which it can be made again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from mathturn_gym.wrappers.token_level import TokenLevelEnv

__all__ = ["make_token_env"]


def make_token_env(
    env_id: str = "MathMultiTurnUntilCorrect-v0",
    *,
    action_ids: Sequence[int] | None = None,
    allowed_ids: Sequence[int] | None = None,
    window: int = 64,
    pinned: int = 0,
    observation: str = "ids",
    force_end: bool = False,
    **kwargs: Any,
) -> TokenLevelEnv:
    """A `TokenLevelEnv` around `gym.make(env_id, **kwargs)`.

    It has a `spec` of its own, from which it can be made again (also in another process), but no registered id.

    Args:
        env_id: Id of the environment.
        action_ids: See `TokenLevelEnv`.
        allowed_ids: See `TokenLevelEnv`.
        window: See `TokenLevelEnv`.
        pinned: See `TokenLevelEnv`.
        observation: See `TokenLevelEnv`.
        force_end: See `TokenLevelEnv`.
        **kwargs: Of `MathMultiTurnEnv`.

    Raises:
        InvalidValueError: an argument is outside what is allowed.

    >>> import mathturn_gym
    >>> make_token_env(problems="add1", num_turns=4, max_completion_tokens=8).max_answer_ids
    8
    """
    view: dict[str, Any] = {
        "action_ids": action_ids,
        "allowed_ids": allowed_ids,
        "window": window,
        "pinned": pinned,
        "observation": observation,
        "force_end": force_end,
    }
    # Gymnasium's own checker knows nothing of a turn that is played after several steps, and slows each down.
    env = TokenLevelEnv(gym.make(env_id, disable_env_checker=True, **kwargs), **view)
    env.spec = gym.envs.registration.EnvSpec(
        "mathturn_gym/TokenLevel-v0",
        entry_point=f"{__name__}:make_token_env",
        disable_env_checker=True,
        order_enforce=False,
        kwargs={"env_id": env_id, **view, **kwargs},
    )
    return env
