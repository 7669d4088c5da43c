"""Advantages as the trainers use them: an estimator of `mathturn_gym.returns`, chosen with open eyes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from mathturn_gym.baselines.config import TrainConfig
from mathturn_gym.returns import BiasedEstimatorWarning, Estimator, advantages
from mathturn_gym.types import Episode

__all__ = ["estimated", "scaled"]

Advantages = list[npt.NDArray[np.float32]]


def estimated(episodes: Sequence[Episode], config: TrainConfig, default: Estimator, **options: Any) -> Advantages:
    """The advantages of the config's estimator, or of the algorithm's own.

    Args:
        episodes: An iteration's.
        config: Gives discount and, where set, the estimator.
        default: The algorithm's own estimator.
        **options: More keywords of `mathturn_gym.returns.advantages`.
    """
    with warnings.catch_warnings():
        # Who trains with GRPO has chosen its bias; `docs/returns.md` says what it is.
        warnings.simplefilter("ignore", BiasedEstimatorWarning)
        estimator = cast(Estimator, config.estimator or default)
        return advantages(episodes, estimator, discount=config.discount, **options)


def scaled(per_turn: Advantages) -> Advantages:
    """Advantages divided by one number, their root mean square over all turns: their signs and proportions stay.

    >>> three, four = scaled([np.array([3.0], np.float32), np.array([-4.0, 0.0], np.float32)])
    >>> print(three.round(3), four.round(3))
    [1.039] [-1.386  0.   ]
    """
    size = float(np.sqrt(np.mean(np.concatenate(per_turn).astype(np.float64) ** 2)))
    return [(a / (size + 1e-6)).astype(np.float32) for a in per_turn]
