"""The module by whose name verifiers and prime-rl find the taskset and its environment."""

from mathturn_gym.neighbors.verifiers import *  # noqa: F403
from mathturn_gym.neighbors.verifiers import __all__ as __all__
