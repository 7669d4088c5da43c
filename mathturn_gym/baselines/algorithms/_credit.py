"""What algorithms make their credit of: the estimators of `mathturn_gym.returns`, and returns of single tokens."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mathturn_gym.returns import BiasedEstimatorWarning, Estimator, advantages, returns_to_go

if TYPE_CHECKING:
    from mathturn_gym.baselines.algorithms._base import Advantages
    from mathturn_gym.types import Episode

__all__ = ["charged", "continued", "differ", "estimate", "token_gae", "token_returns"]


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


def differ(episodes: Sequence[Episode]) -> bool:
    """True where at some turn two episodes have different returns: something can be learned from the batch alone."""
    returns = [episode.returns for episode in episodes if episode.returns is not None]
    for turn in range(max(map(len, returns), default=0)):
        seen = np.array([one[turn] for one in returns if len(one) > turn], np.float64)
        if np.ptp(seen) > 1e-6 * max(1e-30, float(np.abs(seen).max())):
            return True
    return False


def continued(episodes: Sequence[Episode], discount: float) -> list[Episode]:
    """Episodes that their context cut off, worth what they got and what would have followed.

    A turn that nobody played has no return. What stands for it is the mean return of the turns of that number that
    were played in the batch, by episodes that came to their end; 0 where there was none. (A critic's value of the
    context at the cut would stand there by itself: no loss ever covers that position, for nothing follows it.)

    Args:
        episodes: An iteration's.
        discount: Per turn.
    """
    whole = [e.returns for e in episodes if not e.truncated and e.returns is not None]

    def following(episode: Episode) -> float:
        seen = [float(returns[episode.num_turns]) for returns in whole if len(returns) > episode.num_turns]
        return discount * float(np.mean(seen)) if seen else 0.0

    return [
        _with_rewards(e, np.append(e.rewards[:-1], e.rewards[-1] + following(e)), discount)
        if e.truncated and e.num_turns
        else e
        for e in episodes
    ]


def charged(
    episodes: Sequence[Episode], spent: Sequence[npt.NDArray[np.float64]], price: float, discount: float
) -> list[Episode]:
    """Episodes whose turns pay for their KL from the policy at the start.

    Args:
        episodes: An iteration's.
        spent: One array (K,) per episode: nats.
        price: Of a nat.
        discount: Per turn.
    """
    return [_with_rewards(e, e.rewards - price * kl, discount) for e, kl in zip(episodes, spent, strict=True)]


def _with_rewards(episode: Episode, rewards: npt.NDArray[np.float64], discount: float) -> Episode:
    return replace(episode, rewards=rewards, returns=returns_to_go(rewards, discount), discount=discount)


def token_gae(
    values: npt.NDArray[np.float64],
    lengths: npt.NDArray[np.int64],
    rewards: npt.ArrayLike,
    discount: float,
    gae_lambda: float,
) -> npt.NDArray[np.float64]:
    """Generalized advantages of the tokens of one episode (Schulman et al. 2016, arXiv:1506.02438).

    Args:
        values: float64 (n,); the value of the context before each sampled token.
        lengths: int64 (K,), adding up to n; tokens of each turn. A turn without tokens passes its reward on to the one
            before.
        rewards: (K,); each falls on its turn's last token.
        discount: Between the last token of a turn and the next turn.
        gae_lambda: Per token.

    Returns:
        float64 (n,).

    >>> token_gae(np.array([0.5, 0.5, 0.0]), np.array([2, 1]), [0.0, 1.0], discount=1.0, gae_lambda=1.0).tolist()
    [0.5, 0.5, 1.0]
    """
    result = np.zeros(len(values))
    at, following, ahead = len(values), 0.0, 0.0  # value and advantage of what comes next
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
