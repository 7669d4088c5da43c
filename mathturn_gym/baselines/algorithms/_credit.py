"""What algorithms make their credit of: the estimators of `mathturn_gym.episodes.returns`, and returns of single tokens."""

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
    """`advantages` without the warning about a biased estimator: an algorithm is what its paper says it is.

    Args:
        episodes: An iteration's.
        estimator: Of `mathturn_gym.episodes.returns`.
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


# ---- a baseline per turn that is known before the turn is played: a running mean of its returns


_LEAST_SPREAD: Final = 1e-3
"""Of the returns' own size: what is smaller is rounding, not a difference between actions."""


class RunningMeans(State):
    """Running means of the returns of each turn.

    A turn's mean is over earlier iterations only, so it does not depend on the actions that it judges, and the
    gradient stays unbiased; in a turn's first iteration there is nothing earlier, and that batch's own mean is taken.

    Args:
        decay: What is kept of the old mean per iteration, in [0, 1].

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
        """Each return minus the mean of its turn; moves the means on.

        Args:
            returns: One array (K,) per episode.

        Returns:
            One array per episode, float64 (K,).
        """
        used = list(self.means)
        for turn in range(max(map(len, returns), default=0)):
            seen = [float(r[turn]) for r in returns if len(r) > turn]
            now = float(np.mean(seen))
            if turn < len(self.means):
                self.means[turn] = self._decay * self.means[turn] + (1 - self._decay) * now
            else:
                self.means.append(now)
                used.append(now)
        return [np.asarray(r, np.float64) - used[: len(r)] for r in returns]

    def scale(
        self, centered: Sequence[npt.NDArray[Any]], returns: Sequence[npt.NDArray[Any]]
    ) -> list[npt.NDArray[np.float32]]:
        """Advantages divided by their root mean square; moves its running mean on.

        The divisor is that of this batch or of those before it, whichever is larger. Of this batch alone it would turn
        a batch in which all went wrong, after one in which something went right, into advantages of full size for
        everything; of those before it alone, the first success after a long time into one of any size. So no advantage
        exceeds the square root of the number of turns, and what a dry batch teaches fades as the dryness lasts.

        Args:
            centered: What `center` gave.
            returns: What it was given.

        Returns:
            One array per episode, float32 (K,).

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
        """The means by turn, and the mean square of the advantages."""
        return {"baselines": list(self.means), "mean_square": self.mean_square}

    def load(self, numbers: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes the means back."""
        self.means = [float(mean) for mean in numbers["baselines"]]
        square = numbers["mean_square"]
        self.mean_square = None if square is None else float(square)


def _mean_square(arrays: Sequence[npt.NDArray[Any]]) -> float:
    flat = np.concatenate([np.asarray(one, np.float64) for one in arrays])
    return float(np.mean(flat**2)) if flat.size else 0.0
