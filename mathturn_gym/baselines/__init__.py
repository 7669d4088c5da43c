"""Reinforcement learning of policies: runs made of exchangeable parts, and comparisons of them.

    train(env=EnvConfig(…), policy=PolicyConfig(…), algorithm=GRPO(…), budget=Budget(…), run_dir="runs/mine")

A run is an environment with its splits, a policy, an algorithm, a budget, and how it is optimized and measured
(`RunConfig`); `load_task` has such parts ready by name. Algorithms are a file each in `algorithms/`; those of
stable-baselines3 are in `classic/`; `compare/` runs matrices of them. `tiny`, `recipes` and `warmup` make the built-in
model. Names are loaded when they are first asked for, and nothing but a run loads torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mathturn_gym.base.lazy import lazy_exports

if TYPE_CHECKING:
    from mathturn_gym.baselines.algorithms import Algorithm, register
    from mathturn_gym.baselines.algorithms.grpo import GRPO, GSPO, DrGRPO, ScaledDrGRPO
    from mathturn_gym.baselines.algorithms.online_rft import OnlineRFT
    from mathturn_gym.baselines.algorithms.ppo import PPO, TurnPPO
    from mathturn_gym.baselines.algorithms.reinforce import (
        REINFORCE,
        ClippedREINFORCE,
        ReinforcePP,
        ReinforcePPBaseline,
        TurnReinforcePP,
    )
    from mathturn_gym.baselines.algorithms.rloo import RLOO, ShrunkRLOO, TurnRLOO
    from mathturn_gym.baselines.settings import Budget, Evaluation, Optimization, RunConfig
    from mathturn_gym.baselines.tasks import load_task
    from mathturn_gym.baselines.training import TrainResult, train
    from mathturn_gym.env import EnvConfig
    from mathturn_gym.policies import PolicyConfig

__all__ = [
    "GRPO",
    "GSPO",
    "PPO",
    "REINFORCE",
    "RLOO",
    "Algorithm",
    "Budget",
    "ClippedREINFORCE",
    "DrGRPO",
    "EnvConfig",
    "Evaluation",
    "OnlineRFT",
    "Optimization",
    "PolicyConfig",
    "ReinforcePP",
    "ReinforcePPBaseline",
    "RunConfig",
    "ScaledDrGRPO",
    "ShrunkRLOO",
    "TrainResult",
    "TurnPPO",
    "TurnRLOO",
    "TurnReinforcePP",
    "load_task",
    "register",
    "train",
]

_HOME: Final = {
    "GRPO": "algorithms.grpo",
    "GSPO": "algorithms.grpo",
    "PPO": "algorithms.ppo",
    "REINFORCE": "algorithms.reinforce",
    "RLOO": "algorithms.rloo",
    "Algorithm": "algorithms",
    "Budget": "settings",
    "ClippedREINFORCE": "algorithms.reinforce",
    "DrGRPO": "algorithms.grpo",
    "EnvConfig": "mathturn_gym.env",
    "Evaluation": "settings",
    "OnlineRFT": "algorithms.online_rft",
    "Optimization": "settings",
    "PolicyConfig": "mathturn_gym.policies",
    "ReinforcePP": "algorithms.reinforce",
    "ReinforcePPBaseline": "algorithms.reinforce",
    "RunConfig": "settings",
    "ScaledDrGRPO": "algorithms.grpo",
    "ShrunkRLOO": "algorithms.rloo",
    "TrainResult": "training",
    "TurnPPO": "algorithms.ppo",
    "TurnReinforcePP": "algorithms.reinforce",
    "TurnRLOO": "algorithms.rloo",
    "load_task": "tasks",
    "register": "algorithms",
    "train": "training",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _HOME)
