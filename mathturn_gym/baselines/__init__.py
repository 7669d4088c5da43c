"""Reinforcement learning of policies: runs made of exchangeable parts, and comparisons of them.

    train(env=EnvConfig(…), policy=PolicyConfig(…), algorithm=GRPO(…), budget=Budget(…), run_dir="runs/mine")

A run is an environment with its splits, a policy, an algorithm, a budget, and how it is optimized and measured
(`RunConfig`); `load_task` has such parts ready by name. Algorithms are a file each in `algorithms/`; those of
stable-baselines3 are in `classic/`; `compare/` runs matrices of them. `tiny`, `recipes` and `warmup` make the built-in
model. Names are loaded when they are first asked for, and nothing but a run loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mathturn_gym.baselines.algorithms import Algorithm, register
    from mathturn_gym.baselines.algorithms.clipped_reinforce import ClippedREINFORCE
    from mathturn_gym.baselines.algorithms.dr_grpo import DrGRPO
    from mathturn_gym.baselines.algorithms.grpo import GRPO
    from mathturn_gym.baselines.algorithms.gspo import GSPO
    from mathturn_gym.baselines.algorithms.online_rft import OnlineRFT
    from mathturn_gym.baselines.algorithms.ppo import PPO
    from mathturn_gym.baselines.algorithms.reinforce import REINFORCE
    from mathturn_gym.baselines.algorithms.reinforce_pp import ReinforcePP
    from mathturn_gym.baselines.algorithms.reinforce_pp_baseline import ReinforcePPBaseline
    from mathturn_gym.baselines.algorithms.rloo import RLOO
    from mathturn_gym.baselines.algorithms.scaled_dr_grpo import ScaledDrGRPO
    from mathturn_gym.baselines.algorithms.shrunk_rloo import ShrunkRLOO
    from mathturn_gym.baselines.algorithms.turn_ppo import TurnPPO
    from mathturn_gym.baselines.algorithms.turn_reinforce_pp import TurnReinforcePP
    from mathturn_gym.baselines.algorithms.turn_rloo import TurnRLOO
    from mathturn_gym.baselines.settings import Budget, Evaluation, Optimization, RunConfig
    from mathturn_gym.baselines.training import TrainResult, train
    from mathturn_gym.config import EnvConfig
    from mathturn_gym.decoding import PolicyConfig
    from mathturn_gym.tasks import load_task

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
    "GRPO": "baselines.algorithms.grpo",
    "GSPO": "baselines.algorithms.gspo",
    "PPO": "baselines.algorithms.ppo",
    "REINFORCE": "baselines.algorithms.reinforce",
    "RLOO": "baselines.algorithms.rloo",
    "Algorithm": "baselines.algorithms",
    "Budget": "baselines.settings",
    "ClippedREINFORCE": "baselines.algorithms.clipped_reinforce",
    "DrGRPO": "baselines.algorithms.dr_grpo",
    "EnvConfig": "config",
    "Evaluation": "baselines.settings",
    "OnlineRFT": "baselines.algorithms.online_rft",
    "Optimization": "baselines.settings",
    "PolicyConfig": "decoding",
    "ReinforcePP": "baselines.algorithms.reinforce_pp",
    "ReinforcePPBaseline": "baselines.algorithms.reinforce_pp_baseline",
    "RunConfig": "baselines.settings",
    "ScaledDrGRPO": "baselines.algorithms.scaled_dr_grpo",
    "ShrunkRLOO": "baselines.algorithms.shrunk_rloo",
    "TrainResult": "baselines.training",
    "TurnPPO": "baselines.algorithms.turn_ppo",
    "TurnReinforcePP": "baselines.algorithms.turn_reinforce_pp",
    "TurnRLOO": "baselines.algorithms.turn_rloo",
    "load_task": "tasks",
    "register": "baselines.algorithms",
    "train": "baselines.training",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Loads a public name's module when the name is first asked for."""
        if name in _HOME:
            return getattr(import_module(f"mathturn_gym.{_HOME[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """The public names, loaded or not."""
        return sorted(__all__)
