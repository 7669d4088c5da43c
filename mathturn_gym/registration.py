"""Registers the environments with Gymnasium."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gymnasium.envs.registration import register

from mathturn_gym.env import ENV_DEFAULTS


def make_env(server: str | None = None, **keywords: Any) -> Any:
    """What `gym.make` calls: the environment in this process, or the one of a server.

    Args:
        server: URL of a server that `mathturn serve` started, or None.
        **keywords: Of `MathMultiTurnEnv`, or of `mathturn_gym.neighbors.serve.RemoteEnv`.
    """
    if server is None:
        return import_module("mathturn_gym.env").MathMultiTurnEnv(**keywords)
    return import_module("mathturn_gym.neighbors.serve.client").RemoteEnv(server, **keywords)


def make_vector_env(num_envs: int = 1, server: str | None = None, **keywords: Any) -> Any:
    """What `gym.make_vec` calls; see `make_env`."""
    if server is None:
        return import_module("mathturn_gym.env.vector").MathMultiTurnVectorEnv(num_envs, **keywords)
    return import_module("mathturn_gym.neighbors.serve.client").RemoteVectorEnv(num_envs, server=server, **keywords)


def register_environments() -> None:
    """Makes `gym.make` and `gym.make_vec` know the ids; their modules are loaded when an environment is made."""
    for env_id, defaults in ENV_DEFAULTS.items():
        register(
            env_id,
            entry_point="mathturn_gym.registration:make_env",
            vector_entry_point="mathturn_gym.registration:make_vector_env",
            kwargs=dict(defaults),
        )
