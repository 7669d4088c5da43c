"""Reinforcement learning of policies: one run, built from exchangeable parts.

    train(env=EnvConfig(…), policy=PolicyConfig(…), algorithm=GRPO(…), budget=Budget(…), run_dir="runs/mine")

A run (`RunConfig`) consists of an environment with its splits, a policy, an algorithm, a budget, `Optimization` and
`Evaluation`. `load_task` returns such parts by name. Each algorithm and its variants are a file in `algorithms/`; those
of stable-baselines3 are in `classic/`.

Everything here is light, except `train`: it is loaded when it is first used, because it loads what draws and measures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mathturn_gym.base.lazy import lazy_exports
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
from mathturn_gym.env import EnvConfig
from mathturn_gym.policies import PolicyConfig

if TYPE_CHECKING:
    from mathturn_gym.baselines.training import TrainResult, train

# A run and its parts, then the algorithms.
__all__ = ["Algorithm", "Budget", "EnvConfig", "Evaluation", "Optimization", "PolicyConfig", "RunConfig", "TrainResult"]
__all__ += ["load_task", "register", "train"]
__all__ += ["GRPO", "GSPO", "PPO", "REINFORCE", "RLOO", "ClippedREINFORCE", "DrGRPO", "OnlineRFT", "ReinforcePP"]
__all__ += ["ReinforcePPBaseline", "ScaledDrGRPO", "ShrunkRLOO", "TurnPPO", "TurnRLOO", "TurnReinforcePP"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, {"training": "TrainResult train"})
