"""The algorithms: a file each, a frozen dataclass of its own options with two methods, `credit` and `loss`.

    reinforce, rloo, reinforce_pp, reinforce_pp_baseline, grpo, dr_grpo, gspo, ppo, online_rft    as published
    clipped_reinforce, turn_rloo, shrunk_rloo, turn_reinforce_pp, scaled_dr_grpo, turn_ppo        variants that say what
                                                                                                  they vary

`register` makes a class known by a name; a file that is put here is found. Nothing here loads torch.
"""

from __future__ import annotations

from mathturn_gym.baselines.algorithms._base import (
    Advantages,
    Algorithm,
    BaseAlgorithm,
    Clipping,
    GroupAlgorithm,
    Learner,
    Metrics,
    Part,
    RunParts,
    State,
)
from mathturn_gym.baselines.algorithms._registry import algorithm_from_json, algorithm_named, register, registered

__all__ = [
    "Advantages",
    "Algorithm",
    "BaseAlgorithm",
    "Clipping",
    "GroupAlgorithm",
    "Learner",
    "Metrics",
    "Part",
    "RunParts",
    "State",
    "algorithm_from_json",
    "algorithm_named",
    "register",
    "registered",
]
