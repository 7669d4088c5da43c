"""The tasks that algorithms are compared on, and the settings that were chosen on their validation problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from mathturn_gym.errors import InvalidValueError

if TYPE_CHECKING:
    from mathturn_gym.problems import ProblemSource

__all__ = ["PRESETS", "TUNED", "curriculum_of"]

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


def curriculum_of(name: str, split: str) -> ProblemSource:
    """The problems of "curriculum:FAMILY,FAMILY@LOW-HIGH".

    Args:
        name: Families by name; levels LOW to HIGH of each.
        split: "train" gives the curriculum; every other split all cells alike, so that evaluations stay comparable.

    Raises:
        InvalidValueError: not of this form, or an unknown family or level.

    >>> curriculum_of("curriculum:integers,linear@1-2", "validation").name
    'integers@1+integers@2+linear@1+linear@2'
    """
    from mathturn_gym.problems import Curriculum, Mixture, load_problems

    families, at, levels = name.removeprefix("curriculum:").partition("@")
    low, dash, high = levels.partition("-")
    if not (families and at and dash and low.isdigit() and high.isdigit() and int(low) <= int(high)):
        raise InvalidValueError(f"problems must be 'curriculum:FAMILY,FAMILY@LOW-HIGH', got {name!r}")
    names = families.split(",")
    cells = range(int(low), int(high) + 1)
    if split == "train":
        return Curriculum(names, cells)
    sources = [load_problems(f"{family}@{level}:{split}") for family in names for level in cells]
    return Mixture(sources, name="+".join(f"{family}@{level}" for family in names for level in cells))
