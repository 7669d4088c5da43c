"""The environment inside other trainers: one module per neighbor, each loaded when it is imported.

    mathturn_gym.neighbors.trl         GRPOTrainer: a rollout, an environment with a tool, and credit per turn
    mathturn_gym.neighbors.verl        an AgentLoop
    mathturn_gym.neighbors.slime       a custom_generate
    mathturn_gym.neighbors.areal.workflow       a RolloutWorkflow
    mathturn_gym.neighbors.verifiers   load_environment, for verifiers and prime-rl
    mathturn_gym.neighbors.tinker      an Env and its builders

For a trainer without a module here: `EpisodePlayer.play(problem, generate)` plays one episode with any asynchronous engine.

None of these packages is installed with this one, and none is imported by `import mathturn_gym`. `docs/coming-from/index.md` has
the shortest use of each, and what each has been tested against.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mathturn_gym.base.lazy import lazy_exports

if TYPE_CHECKING:
    from mathturn_gym.neighbors.episodes import EpisodePlayer, completion_of

__all__ = ["EpisodePlayer", "completion_of"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, {"episodes": " ".join(__all__)})
