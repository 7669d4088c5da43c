"""mathturn_gym: multi-turn mathematics reinforcement learning for language models.

`import mathturn_gym` registers the environments

    MathMultiTurn-v0               always `num_turns` (5) turns, each verified and rewarded
    MathMultiTurnUntilCorrect-v0   ends at the first right answer
    MathSingleTurn-v0              one turn: the bandit that the others are compared with

and loads nothing heavy; `from mathturn_gym import X` loads what X needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from mathturn_gym.base import VERSION
from mathturn_gym.base.display import set_displays
from mathturn_gym.base.lazy import lazy_exports
from mathturn_gym.registration import register_environments

if TYPE_CHECKING:
    from mathturn_gym.env import EnvConfig, EpisodeState, MathMultiTurnEnv, MathMultiTurnVectorEnv, StepInfo
    from mathturn_gym.env.dialogue import Dialogue
    from mathturn_gym.episodes.packing import PackedBatch, pack
    from mathturn_gym.episodes.rollout import acollect, collect
    from mathturn_gym.errors import MathTurnError
    from mathturn_gym.policies import PolicyConfig
    from mathturn_gym.problems import ProblemSource, load_problems
    from mathturn_gym.spaces import TokenIds
    from mathturn_gym.types import Completion, Episode, Policy, Problem, Status, StopReason, Turn, TurnContext, Verdict
    from mathturn_gym.verifier import Verifier
    from mathturn_gym.wrappers import CausalLMPolicy, load_policy

__version__: Final = VERSION

__all__ = [  # noqa: RUF022 - classes and functions, then the version
    "CausalLMPolicy",
    "Completion",
    "Dialogue",
    "EnvConfig",
    "Episode",
    "EpisodeState",
    "MathMultiTurnEnv",
    "MathMultiTurnVectorEnv",
    "MathTurnError",
    "PackedBatch",
    "Policy",
    "PolicyConfig",
    "Problem",
    "ProblemSource",
    "Status",
    "StepInfo",
    "StopReason",
    "TokenIds",
    "Turn",
    "TurnContext",
    "Verdict",
    "Verifier",
    "acollect",
    "collect",
    "load_policy",
    "load_problems",
    "pack",
    "__version__",
]


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "env": "EnvConfig EpisodeState MathMultiTurnEnv MathMultiTurnVectorEnv StepInfo",
            "env.dialogue": "Dialogue",
            "episodes.packing": "PackedBatch pack",
            "episodes.rollout": "acollect collect",
            "errors": "MathTurnError",
            "policies": "PolicyConfig",
            "problems": "ProblemSource load_problems",
            "spaces": "TokenIds",
            "types": "Completion Episode Policy Problem Status StopReason Turn TurnContext Verdict",
            "verifier": "Verifier",
            "wrappers": "CausalLMPolicy load_policy",
        },
    )


register_environments()
set_displays(lambda: import_module("mathturn_gym.show.notebook").DISPLAYS)
