"""The environment: problems in, token ids out, each answer verified and rewarded.

    MathMultiTurnEnv          one episode at a time (`environment`)
    MathMultiTurnVectorEnv    many at once (`vector`)
    EnvConfig                 an environment with its splits, as plain data (`config`)

What an environment is made of has a module each: `dialogue` (the only place where text and ids meet), `feedback`, `rewards`
and `verification`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mathturn_gym.base.lazy import lazy_exports

if TYPE_CHECKING:
    from mathturn_gym.env.config import EnvConfig
    from mathturn_gym.env.environment import EpisodeState, MathMultiTurnEnv, StepInfo
    from mathturn_gym.env.vector import MathMultiTurnVectorEnv

ENV_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "MathMultiTurn-v0": {"stop_on_success": False},
    "MathMultiTurnUntilCorrect-v0": {"stop_on_success": True},
    "MathSingleTurn-v0": {"num_turns": 1},
}
"""The environment ids, and the keyword defaults in which they differ."""

__all__ = ["ENV_DEFAULTS", "EnvConfig", "EpisodeState", "MathMultiTurnEnv", "MathMultiTurnVectorEnv", "StepInfo"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "config": "EnvConfig",
            "environment": "EpisodeState MathMultiTurnEnv StepInfo",
            "vector": "MathMultiTurnVectorEnv",
        },
    )
