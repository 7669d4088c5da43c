"""Classic algorithms (stable-baselines3, sb3-contrib) on the tasks of the language models' trainers, one id per step.

    make_token_env                             the environment that they play
    WindowTransformer, language_model_kwargs, load_language_model    a small Llama as their features extractor
    Sb3Policy                                  what they trained, as a `Policy`
    run_classic, load_classic, ClassicRun      a run, and the policy that it ended with
    ClassicConfig, CLASSIC, algorithm_class    its settings

A name's module (and with it stable-baselines3 and torch) is loaded when the name is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mathturn_gym._lazy import lazy_exports

if TYPE_CHECKING:
    from mathturn_gym.baselines.classic.features import WindowTransformer, language_model_kwargs, load_language_model
    from mathturn_gym.baselines.classic.make import make_token_env
    from mathturn_gym.baselines.classic.policy import Sb3Policy
    from mathturn_gym.baselines.classic.settings import CLASSIC, ClassicConfig, algorithm_class
    from mathturn_gym.baselines.classic.training import ClassicRun, load_classic, run_classic

__all__ = [
    "CLASSIC",
    "ClassicConfig",
    "ClassicRun",
    "Sb3Policy",
    "WindowTransformer",
    "algorithm_class",
    "language_model_kwargs",
    "load_classic",
    "load_language_model",
    "make_token_env",
    "run_classic",
]

_HOME: Final = {
    "CLASSIC": "settings",
    "ClassicConfig": "settings",
    "ClassicRun": "training",
    "Sb3Policy": "policy",
    "WindowTransformer": "features",
    "algorithm_class": "settings",
    "language_model_kwargs": "features",
    "load_classic": "training",
    "load_language_model": "features",
    "make_token_env": "make",
    "run_classic": "training",
}


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _HOME)
