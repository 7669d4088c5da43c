"""Registers the environments with Gymnasium."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from gymnasium.envs.registration import register

from mathturn_gym.env import ENV_DEFAULTS
from mathturn_gym.errors import raise_unknown_name


def make_env(server: str | None = None, **keywords: Any) -> Any:
    """What `gym.make` calls: the environment in this process, or the one of a server.

    Args:
        server: URL of a server that `mathturn serve` started, or None.
        **keywords: Of `MathMultiTurnEnv`, or of `mathturn_gym.neighbors.serve.RemoteEnv`.
    """
    if server is None:
        kind = import_module("mathturn_gym.env").MathMultiTurnEnv
        _check_known(keywords)
        return kind(**keywords)
    return import_module("mathturn_gym.neighbors.serve.client").RemoteEnv(server, **keywords)


def make_vector_env(num_envs: int = 1, server: str | None = None, **keywords: Any) -> Any:
    """What `gym.make_vec` calls; see `make_env`."""
    if server is None:
        kind = import_module("mathturn_gym.env.vector").MathMultiTurnVectorEnv
        _check_known(keywords, *inspect.signature(kind).parameters)
        return kind(num_envs, **keywords)
    return import_module("mathturn_gym.neighbors.serve.client").RemoteVectorEnv(num_envs, server=server, **keywords)


def _check_known(keywords: Mapping[str, Any], *more: str) -> None:
    """Raises for a keyword that the environment lacks: `gym.make` itself would not suggest the nearest one."""
    known = [*inspect.signature(import_module("mathturn_gym.env").MathMultiTurnEnv).parameters, *more]
    for name in keywords:
        if name not in known:
            raise_unknown_name("keyword of the environment", name, known)


def register_environments() -> None:
    """Makes `gym.make` and `gym.make_vec` know the ids; their modules are loaded when an environment is made."""
    for env_id, defaults in ENV_DEFAULTS.items():
        register(
            env_id,
            entry_point="mathturn_gym.registration:make_env",
            vector_entry_point="mathturn_gym.registration:make_vector_env",
            kwargs=dict(defaults),
        )
