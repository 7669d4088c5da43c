"""The algorithms: each is a frozen dataclass of its options with two methods, `credit` and `loss`.

    reinforce.py    reinforce, clipped_reinforce, reinforce_pp, reinforce_pp_baseline, turn_reinforce_pp
    rloo.py         rloo, turn_rloo, shrunk_rloo
    grpo.py         grpo, dr_grpo, scaled_dr_grpo, gspo
    ppo.py          ppo, turn_ppo, on the critic of critic.py
    online_rft.py   online_rft

A file has a method as published and its variants, whose `source` says what they vary. `register` gives a class its name;
every file in this folder is found without being listed anywhere. Nothing here loads torch.
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
    State,
)
from mathturn_gym.baselines.algorithms._registry import register, registered

__all__ = ["Advantages", "Algorithm", "BaseAlgorithm", "Clipping", "GroupAlgorithm"]
__all__ += ["Learner", "Metrics", "Part", "State", "register", "registered"]
