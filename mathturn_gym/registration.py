"""Registers the environments with Gymnasium: now where it is loaded, else at the moment it is.

`import mathturn_gym` must make `gym.make` know the ids, and the verifier must be usable in programs that never load
Gymnasium. Both hold if registering waits for Gymnasium instead of importing it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

__all__ = ["ENV_DEFAULTS", "make_env", "make_vector_env", "register_environments"]

ENV_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "MathMultiTurn-v0": {"stop_on_success": False},
    "MathMultiTurnUntilCorrect-v0": {"stop_on_success": True},
    "MathSingleTurn-v0": {"num_turns": 1},
}
"""Environment ids, and the keyword defaults in which they differ."""


def register_environments() -> None:
    """Registers the ids as soon as Gymnasium is there (at once, if it is)."""
    if "gymnasium" in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _WaitForGymnasium())


def make_env(server: str | None = None, **keywords: Any) -> Any:
    """What `gym.make` calls: the environment in this process, or the one of a server.

    Args:
        server: URL of a server that `mathturn serve` started, or None.
        **keywords: Of `MathMultiTurnEnv`, or of `mathturn_gym.serve.RemoteEnv`.
    """
    if server is None:
        return import_module("mathturn_gym.env").MathMultiTurnEnv(**keywords)
    return import_module("mathturn_gym.serve.client").RemoteEnv(server, **keywords)


def make_vector_env(num_envs: int = 1, server: str | None = None, **keywords: Any) -> Any:
    """What `gym.make_vec` calls; see `make_env`."""
    if server is None:
        return import_module("mathturn_gym.vector").MathMultiTurnVectorEnv(num_envs, **keywords)
    return import_module("mathturn_gym.serve.client").RemoteVectorEnv(num_envs, server=server, **keywords)


def _register() -> None:
    from gymnasium.envs.registration import register

    for env_id, defaults in ENV_DEFAULTS.items():
        register(
            env_id,
            entry_point="mathturn_gym.registration:make_env",
            vector_entry_point="mathturn_gym.registration:make_vector_env",
            kwargs=dict(defaults),
        )


class _WaitForGymnasium(MetaPathFinder):
    """Finds Gymnasium as the other finders do, and registers after its module has run; then it is gone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_register(module: ModuleType) -> None:
            run(module)
            _register()

        spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec
