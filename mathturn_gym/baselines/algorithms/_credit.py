"""What algorithms make their credit of: the estimators of `mathturn_gym.returns`, and returns of single tokens."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mathturn_gym.returns import BiasedEstimatorWarning, Estimator, advantages

if TYPE_CHECKING:
    from mathturn_gym.baselines.algorithms._base import Advantages
    from mathturn_gym.types import Episode

__all__ = ["estimate", "token_gae", "token_returns"]


def estimate(episodes: Sequence[Episode], estimator: Estimator, **options: Any) -> Advantages:
    """`advantages` without the warning about a biased estimator: an algorithm is what its paper says it is.

    Args:
        episodes: An iteration's.
        estimator: Of `mathturn_gym.returns`.
        **options: More keywords of `advantages`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiasedEstimatorWarning)
        return advantages(episodes, estimator, **options)


def token_gae(
    values: npt.NDArray[np.float64],
    lengths: npt.NDArray[np.int64],
    rewards: npt.ArrayLike,
    discount: float,
    gae_lambda: float,
    last_value: float = 0.0,
) -> npt.NDArray[np.float64]:
    """Generalized advantages of the tokens of one episode (Schulman et al. 2016, arXiv:1506.02438).

    Args:
        values: float64 (n,); the value of the context before each sampled token.
        lengths: int64 (K,), adding up to n; tokens of each turn. A turn without tokens passes its reward on to the one
            before.
        rewards: (K,); each falls on its turn's last token.
        discount: Between the last token of a turn and the next turn.
        gae_lambda: Per token.
        last_value: What follows the last turn; 0 unless the episode was truncated.

    Returns:
        float64 (n,).

    >>> token_gae(np.array([0.5, 0.5, 0.0]), np.array([2, 1]), [0.0, 1.0], discount=1.0, gae_lambda=1.0).tolist()
    [0.5, 0.5, 1.0]
    """
    result = np.zeros(len(values))
    at, following, ahead = len(values), last_value, 0.0  # value and advantage of what comes next
    for length, reward in zip(lengths[::-1], np.asarray(rewards, np.float64)[::-1], strict=True):
        following, ahead = reward + discount * following, discount * ahead
        for _ in range(length):
            at -= 1
            ahead = following - values[at] + gae_lambda * ahead
            result[at], following = ahead, values[at]
    return result


def token_returns(
    token_rewards: npt.NDArray[np.float64], lengths: npt.NDArray[np.int64], rewards: npt.ArrayLike, discount: float
) -> npt.NDArray[np.float64]:
    """Returns-to-go of the tokens of one episode that have rewards of their own besides their turns'.

    Args:
        token_rewards: float64 (n,).
        lengths: int64 (K,), adding up to n; tokens of each turn.
        rewards: (K,); each falls on its turn's last token.
        discount: Between turns; within a turn nothing is discounted.

    Returns:
        float64 (n,).

    >>> token_returns(np.array([-0.5, 0.0, -1.0]), np.array([2, 1]), [0.0, 4.0], discount=0.5).tolist()
    [1.0, 1.5, 3.0]
    """
    result = np.zeros(len(token_rewards))
    at, ahead = len(token_rewards), 0.0
    for length, reward in zip(lengths[::-1], np.asarray(rewards, np.float64)[::-1], strict=True):
        ahead = reward + discount * ahead
        for _ in range(length):
            at -= 1
            ahead += token_rewards[at]
            result[at] = ahead
    return result
