"""Classic algorithms (stable-baselines3, sb3-contrib) on the tasks of the language models' trainers, one id per step.

    make_token_env                             the environment that they play
    WindowTransformer, language_model_kwargs, load_language_model    a small Llama as their features extractor
    Sb3Policy                                  what they trained, as a `Policy`
    load_classic                               the policy that a run ended with
    ClassicAlgorithm, PPO, A2C, DQN, …         the algorithms, with their options; `train` runs them

A name's module (and with it stable-baselines3 and torch) is loaded when the name is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mathturn_gym.base.lazy import lazy_exports

if TYPE_CHECKING:
    from mathturn_gym.baselines.classic.algorithms import A2C, DQN, PPO, QRDQN, TRPO, MaskablePPO, RecurrentPPO
    from mathturn_gym.baselines.classic.features import WindowTransformer, language_model_kwargs, load_language_model
    from mathturn_gym.baselines.classic.policy import Sb3Policy, make_token_env
    from mathturn_gym.baselines.classic.training import load_classic

__all__ = ["A2C", "DQN", "PPO", "QRDQN", "TRPO", "MaskablePPO", "RecurrentPPO"]
__all__ += ["Sb3Policy", "WindowTransformer", "language_model_kwargs", "load_language_model"]
__all__ += ["load_classic", "make_token_env"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "algorithms": "A2C DQN MaskablePPO PPO QRDQN RecurrentPPO TRPO",
            "features": "WindowTransformer language_model_kwargs load_language_model",
            "policy": "Sb3Policy make_token_env",
            "training": "load_classic",
        },
    )
