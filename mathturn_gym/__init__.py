"""mathturn_gym: multi-turn mathematics reinforcement learning for language models.

`import mathturn_gym` registers the environments

    MathMultiTurn-v0               always `num_turns` (5) turns, each verified and rewarded
    MathMultiTurnUntilCorrect-v0   ends at the first right answer
    MathSingleTurn-v0              one turn: the bandit that the others are compared with

and loads nothing heavy; `from mathturn_gym import X` loads what X needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mathturn_gym._lazy import lazy_exports
from mathturn_gym.registration import register_environments

if TYPE_CHECKING:
    from mathturn_gym.dialogue import Dialogue
    from mathturn_gym.env import EpisodeState, MathMultiTurnEnv, StepInfo
    from mathturn_gym.errors import MathTurnError
    from mathturn_gym.packing import PackedBatch, pack
    from mathturn_gym.problems import ProblemSource, load_problems
    from mathturn_gym.rollout import acollect, collect
    from mathturn_gym.spaces import TokenIds
    from mathturn_gym.types import Completion, Episode, Policy, Problem, Status, StopReason, Turn, TurnContext, Verdict
    from mathturn_gym.vector import MathMultiTurnVectorEnv
    from mathturn_gym.verifier import Verifier

__version__: Final = "0.1.0"

_HOME: Final = {
    "Completion": "types",
    "Dialogue": "dialogue",
    "Episode": "types",
    "EpisodeState": "env",
    "MathMultiTurnEnv": "env",
    "MathMultiTurnVectorEnv": "vector",
    "MathTurnError": "errors",
    "PackedBatch": "packing",
    "Policy": "types",
    "Problem": "types",
    "ProblemSource": "problems",
    "Status": "types",
    "StepInfo": "env",
    "StopReason": "types",
    "TokenIds": "spaces",
    "Turn": "types",
    "TurnContext": "types",
    "Verdict": "types",
    "Verifier": "verifier",
    "acollect": "rollout",
    "collect": "rollout",
    "load_problems": "problems",
    "pack": "packing",
}

__all__ = [  # noqa: RUF022 - classes and functions, then the version
    "Completion",
    "Dialogue",
    "Episode",
    "EpisodeState",
    "MathMultiTurnEnv",
    "MathMultiTurnVectorEnv",
    "MathTurnError",
    "PackedBatch",
    "Policy",
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
    "load_problems",
    "pack",
    "__version__",
]


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _HOME)


register_environments()
