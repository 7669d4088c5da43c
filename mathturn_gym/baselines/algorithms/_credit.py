"""Building blocks of `credit`: estimators of advantages, corrected rewards, returns of tokens, running means."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from mathturn_gym.baselines.algorithms._base import State
from mathturn_gym.episodes.returns import BiasedEstimatorWarning, Estimator, advantages, returns_to_go

if TYPE_CHECKING:
    import torch

    from mathturn_gym.baselines.algorithms._base import Advantages
    from mathturn_gym.types import Episode


def estimate(episodes: Sequence[Episode], estimator: Estimator, **options: Any) -> Advantages:
    """Calls `advantages` without its warning about biased estimators.

    An algorithm is implemented as published, also where its estimator is biased (`docs/returns.md`).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiasedEstimatorWarning)
        return advantages(episodes, estimator, **options)


def differ(episodes: Sequence[Episode]) -> bool:
    """True if two episodes have different returns at some turn, so that their group has a learning signal."""
    returns = [episode.returns for episode in episodes if episode.returns is not None]
    for turn in range(max(map(len, returns), default=0)):
        seen = np.array([one[turn] for one in returns if len(one) > turn], np.float64)
        # Relative to their size: the same rewards, summed in another order, differ in the last bits.
        if np.ptp(seen) > 1e-6 * max(1e-30, float(np.abs(seen).max())):
            return True
    return False


def continued(episodes: Sequence[Episode], discount: float) -> list[Episode]:
    """Bootstraps truncated episodes with the mean return of the other episodes at the turn that is missing.

    The mean is over the episodes of the batch that terminated and reached that turn; it is 0 if there is none. A critic's
    value of the last context would not do: no loss trains the critic at that position, because no token follows it.
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
    """Takes each turn's KL to the initial policy off its reward.

    `spent` has one array (K,) per episode, the KL of its turns in nats; `price` is the reward per nat.
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
        lengths: int64 (K,), with sum n; tokens of each turn. The reward of a turn without tokens goes to the turn before.
        rewards: (K,); each is the reward of its turn's last token.
        discount: Applied between the last token of a turn and the next turn.
        gae_lambda: Per token.

    Returns:
        float64 (n,).

    >>> token_gae(np.array([0.5, 0.5, 0.0]), np.array([2, 1]), [0.0, 1.0], discount=1.0, gae_lambda=1.0).tolist()
    [0.5, 0.5, 1.0]
    """
    result = np.zeros(len(values))
    at, following, ahead = len(values), 0.0, 0.0  # value and advantage of what comes next
    for length, reward in zip(lengths[::-1], np.asarray(rewards, np.float64)[::-1], strict=True):
        # At a turn's end comes its reward, then the discounted value of the next turn; inside it, the value of the next
        # context.
        following, ahead = reward + discount * following, discount * ahead
        for _ in range(length):
            at -= 1
            ahead = following - values[at] + gae_lambda * ahead
            result[at], following = ahead, values[at]
    return result


def token_returns(
    token_rewards: npt.NDArray[np.float64], lengths: npt.NDArray[np.int64], rewards: npt.ArrayLike, discount: float
) -> npt.NDArray[np.float64]:
    """Returns-to-go of the tokens of one episode, from rewards per token and rewards per turn.

    Args:
        token_rewards: float64 (n,).
        lengths: int64 (K,), with sum n; tokens of each turn.
        rewards: (K,); each is the reward of its turn's last token.
        discount: Applied between turns, not within a turn.

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


_LEAST_SPREAD: Final = 1e-3  # share of the returns' size below which a spread of advantages is rounding


class RunningMeans(State):
    """Running means of the returns of each turn.

    The mean of a turn is over earlier iterations only. It does not depend on the actions that it is the baseline of, so the
    gradient is unbiased. In the first iteration with a turn, the mean of that batch is used.

    Args:
        decay: Weight of the old mean in an iteration's update, in [0, 1].

    >>> baseline = RunningMeans(decay=0.5)
    >>> [a.tolist() for a in baseline.center([np.array([1.0]), np.array([-1.0, 1.0])])]
    [[1.0], [-1.0, 0.0]]
    >>> [a.tolist() for a in baseline.center([np.array([1.0, -1.0])])]
    [[1.0, -2.0]]
    >>> baseline.means
    [0.5, 0.0]
    """

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self.means: list[float] = []
        self.mean_square: float | None = None

    def center(self, returns: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[np.float64]]:
        """Subtracts the mean of its turn from each return, arrays (K,) per episode, and updates the means."""
        used = list(self.means)
        for turn in range(max(map(len, returns), default=0)):
            seen = [float(r[turn]) for r in returns if len(r) > turn]
            now = float(np.mean(seen))
            if turn < len(self.means):
                self.means[turn] = self._decay * self.means[turn] + (1 - self._decay) * now
            else:
                self.means.append(now)
                # A turn that was never seen has no earlier mean: its own batch's must do.
                used.append(now)
        return [np.asarray(r, np.float64) - used[: len(r)] for r in returns]

    def scale(
        self, centered: Sequence[npt.NDArray[Any]], returns: Sequence[npt.NDArray[Any]]
    ) -> list[npt.NDArray[np.float32]]:
        """Divides advantages by their root mean square, and updates its running mean.

        The divisor is the larger one of this batch's and the running one. With this batch's alone, a batch without success
        after one with success would get advantages of full size. With the running one alone, the first success after a long
        time could get an advantage of any size. The larger one bounds advantages by the square root of their number.

        >>> baseline = RunningMeans(decay=0.5)
        >>> dry, lucky = [np.array([-1.0, -1.0])], [np.array([-1.0, 1.0])]
        >>> [baseline.scale(baseline.center(batch), batch)[0].tolist() for batch in (dry, lucky)]
        [[0.0, 0.0], [0.0, 1.4142135381698608]]
        """
        now = _mean_square(centered)
        before = now if self.mean_square is None else self.mean_square
        self.mean_square = self._decay * before + (1 - self._decay) * now
        divisor = max(now, before, _LEAST_SPREAD**2 * _mean_square(returns)) ** 0.5
        return [(one / divisor if divisor else np.zeros_like(one)).astype(np.float32) for one in centered]

    def numbers(self) -> Mapping[str, Any]:
        """Returns the means by turn and the mean square of the advantages."""
        return {"baselines": list(self.means), "mean_square": self.mean_square}

    def load(self, numbers: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Restores the means."""
        self.means = [float(mean) for mean in numbers["baselines"]]
        square = numbers["mean_square"]
        self.mean_square = None if square is None else float(square)


def _mean_square(arrays: Sequence[npt.NDArray[Any]]) -> float:
    flat = np.concatenate([np.asarray(one, np.float64) for one in arrays])
    return float(np.mean(flat**2)) if flat.size else 0.0
