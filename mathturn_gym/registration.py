"""Registers the environments with Gymnasium."""

from __future__ import annotations

from typing import Any, Final

from gymnasium.envs.registration import register

__all__ = ["ENV_DEFAULTS", "register_environments"]

ENV_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "MathMultiTurn-v0": {},
    "MathMultiTurnUntilCorrect-v0": {"stop_on_success": True},
    "MathSingleTurn-v0": {"num_turns": 1},
}
"""Environment ids, and the keyword defaults in which they differ."""


def register_environments() -> None:
    """Makes `gym.make` and `gym.make_vec` know the ids; their modules are loaded when an environment is made."""
    for env_id, defaults in ENV_DEFAULTS.items():
        register(
            env_id,
            entry_point="mathturn_gym.env:MathMultiTurnEnv",
            vector_entry_point="mathturn_gym.vector:MathMultiTurnVectorEnv",
            kwargs=dict(defaults),
        )
