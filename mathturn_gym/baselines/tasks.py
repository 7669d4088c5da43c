"""The tasks that algorithms are compared on, and the settings that were chosen on their validation problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["PRESETS", "TUNED"]

_ARITHMETIC: Final[Mapping[str, Any]] = {
    "num_turns": 4,
    "batch_episodes": 128,
    "minibatches": 8,
    "epochs": 2,
    "warmup_iterations": 10,
}
PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    # From random weights: what the warm start knows of sums would leave little to learn.
    "add1": {
        "problems": "add1:all",  # 55 sums: what is measured is fitting them, from nothing
        **_ARITHMETIC,
        "random_weights": True,
        "answers_only": True,
        "max_completion_tokens": 4,
        "episodes": 10_240,
    },
    "lins": {"problems": "lins", **_ARITHMETIC},
    "guess8": {
        "problems": "guess8",
        "num_turns": 3,
        "feedback": "hint",
        "discount": 1.0,  # a guess that brings a hint is worth what the hint brings
        "entropy_weight": 0.0,
        "episodes": 6400,
        "epochs": 2,
        "learning_rate": 1.5e-3,
    },
    # Beyond reach: products of two two-digit numbers, written down at once by two layers.
    "mul2": {"problems": "mul2", **_ARITHMETIC, "episodes": 10_240},
    "mixed": {
        "problems": "curriculum:integers,linear,division,gcd-lcm@1-3",
        **_ARITHMETIC,
        "max_completion_tokens": 12,
        "episodes": 10_240,
    },
}
"""Tasks from easy to beyond reach: the environment, and REINFORCE's settings."""

_GROUPS: Final[Mapping[str, Any]] = {"group_size": 4, "discount": 1.0}
TUNED: Final[Mapping[tuple[str, str | None], Mapping[str, Any]]] = {
    ("rloo", None): {"group_size": 4},
    ("rloo", "lins"): {"group_size": 2, "learning_rate": 5e-4},
    ("grpo", None): _GROUPS,
    ("grpo", "lins"): {"group_size": 2, "learning_rate": 5e-4},
    ("dr_grpo", None): _GROUPS,
    ("dr_grpo", "lins"): {"group_size": 2, "learning_rate": 5e-4},
    ("gspo", None): {**_GROUPS, "clip": 0.02, "entropy_weight": 0.001},
    ("gspo", "add1"): {"clip": 0.2, "learning_rate": 5e-4},
    ("ppo", "lins"): {"gae_lambda": 1.0},
    ("ppo", "guess8"): {"gae_lambda": 1.0},
    ("turn_ppo", "add1"): {"critic_learning_rate": 3e-3},
    ("turn_ppo", "guess8"): {"critic_learning_rate": 3e-3},
    ("rft", None): {"entropy_weight": 0.0},  # likelihood alone, as it is defined
    ("rft", "lins"): {"learning_rate": 2e-3},
}
"""What an algorithm changes, on every task (None) or on one: what `benchmarks/tune.py` found clearly better."""
