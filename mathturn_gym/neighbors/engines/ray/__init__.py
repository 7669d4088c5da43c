"""Rollouts and evaluation on Ray: the episodes of `collect`, played by actors on one machine or many.

    with RayEngine(EnvConfig(problems="lins"), PolicyConfig("builtin"), RaySettings(rollout_actors=2)) as engine:
        episodes = engine.collect(1000, seed=4)

Needs `pip install '.[ray]'`. Two cores of a laptop and a cluster run the same program: `ray.init` finds the
cluster whose address stands in `RAY_ADDRESS`, and starts a local one where there is none.
"""

from __future__ import annotations

from typing import Final

from mathturn_gym.errors import install_extra
from mathturn_gym.neighbors.engines.ray_settings import RaySettings
from mathturn_gym.neighbors.require import require

_INSTALL: Final = install_extra("ray")
require("ray", "2.50", "3", _INSTALL)

from mathturn_gym.neighbors.engines.ray._engine import RayEngine  # noqa: E402
from mathturn_gym.neighbors.engines.ray._training import RayTraining  # noqa: E402

__all__ = ["RayEngine", "RaySettings", "RayTraining"]
