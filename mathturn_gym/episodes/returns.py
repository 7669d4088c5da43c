"""Returns and advantages per turn: what each estimator computes, and what it assumes.

An estimator here gives one number per turn. The policy gradient made from it is

    g = sum over turns k of  A[k] * grad log pi(completion k | everything before it)

and it is *unbiased* where its mean is the gradient of J = E[sum over k of discount**k * r[k]]. That holds for every
estimator below that is not labeled *Biased*, on two conditions: the episodes were sampled from the policy that is
differentiated, and episodes of one group are independent given their problem. `docs/returns.md` has the table.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from mathturn_gym.errors import InvalidValueError, check_float, raise_unknown_name
from mathturn_gym.types import Episode

logger = logging.getLogger(__name__)

Estimator: TypeAlias = Literal[
    "turn_rloo",
    "shrunk_rloo",
    "rloo",
    "reinforce",
    "gae",
    "grpo",
    "dr_grpo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "turn_reinforce_pp",
    "turn_mean",
]
ESTIMATORS: Final[tuple[str, ...]] = get_args(Estimator)

BIASED: Final[dict[str, str]] = {
    "grpo": "its mean includes the episode itself and, with normalize_std, it is divided by a sampled deviation",
    "dr_grpo": "its mean includes the episode itself: the gradient is scaled by (G - 1) / G in a group of G",
    "reinforce_pp": "it is centered and scaled by figures of the same batch",
    "reinforce_pp_baseline": "its mean includes the episode itself, and it is scaled by figures of the same batch",
    "turn_reinforce_pp": "it is centered and scaled by figures of the same batch",
    "turn_mean": "turns are centered per index, so whatever decides how many turns there are gets no credit",
}
"""Estimators whose expected gradient is not the gradient of J, and why."""

# Estimators that give all turns of an episode one number.
_WHOLE_EPISODE: Final = ("rloo", "grpo", "dr_grpo", "reinforce_pp_baseline")

_STD_EPSILON: Final = 1e-4  # the field's (DeepSeekMath has none; TRL and others divide by std + 1e-4)

_Matrix: TypeAlias = npt.NDArray[np.float64]


class BiasedEstimatorWarning(UserWarning):
    """The chosen estimator does not have the policy gradient as its mean."""


def returns_to_go(rewards_K: npt.ArrayLike, discount: float) -> npt.NDArray[np.float32]:
    """Discounted sum of rewards from each turn to the end of the episode: G[k] = r[k] + discount * G[k+1].

    Args:
        rewards_K: shape (K,), finite; one reward per turn.
        discount: Per turn (not per token), in [0, 1].

    Returns:
        float32 (K,), computed in float64; entry k includes turn k's own reward.

    Raises:
        InvalidValueError: rewards that are not a finite 1-D array, or whose sums leave float32; a discount outside [0, 1].

    >>> returns_to_go([0.0, 1.0], discount=0.5).tolist()
    [0.5, 1.0]
    """
    rewards = np.asarray(rewards_K, dtype=np.float64)
    if rewards.ndim != 1 or not np.all(np.isfinite(rewards)):
        raise InvalidValueError(f"rewards_K must be a 1-D array of finite numbers, got {rewards.tolist()!r}")
    gamma = check_float("discount", discount, low=0.0, high=1.0)
    with np.errstate(over="ignore"):  # what overflows is refused below
        sums = discounted_sums(rewards[None, :], gamma)[0]
    if np.any(np.abs(sums) > np.finfo(np.float32).max):
        raise InvalidValueError(f"returns must fit into float32, got {sums.tolist()!r}: scale the rewards down")
    result: npt.NDArray[np.float32] = sums.astype(np.float32)
    return result


def advantages(
    episodes: Sequence[Episode],
    estimator: Estimator = "turn_rloo",
    *,
    discount: float = 1.0,
    discount_states: bool = False,
    normalize_std: bool = True,
    values: Sequence[npt.ArrayLike] | None = None,
    gae_lambda: float = 1.0,
    shrinkage: float | None = None,
) -> list[npt.NDArray[np.float32]]:
    r"""One advantage per turn, for every episode.

    G is the discounted return-to-go, i the episode, m its group's members (`Episode.group`; an episode without one
    is a group of its own), g = discount.

    * `"turn_rloo"` (default): G_i[k] minus the mean of G_j[k] over the *other* members j that reached turn k. Where no
      other did, minus the mean of the *other* groups' means at that turn, or minus 0 if there is none. The
      baseline depends on other episodes only, so it is independent of what i says: unbiased. (Kool et al. 2019, "Buy 4
      REINFORCE samples, get a baseline for free!", per turn.)
    * `"shrunk_rloo"`: G_i[k] minus (n * m + s * c) / (n + s), m being the mean over the n other members that reached
      turn k, c the mean of the other groups' means, s the `shrinkage`. A mean of one or two
      episodes is a poor baseline; c is a good one that knows nothing of the problem. Without a `shrinkage` s is the
      variance within groups divided by that between groups, both estimated at turn k from the *other* groups (the
      weight of a James-Stein estimator; Efron & Morris 1973, JASA 68): everything in the baseline comes from other
      episodes, so it is unbiased as well.
    * `"rloo"`: G_i[0] minus the mean of the others' G_j[0], for every turn; the plain return in a group of one.
      Unbiased. (Ahmadian et al. 2024, arXiv:2402.14740.)
    * `"reinforce"`: G_i[k]. Unbiased, the largest variance. (Williams 1992.)
    * `"gae"`: sum over l of (g * gae_lambda)**l * d[k+l], d[k] = r[k] + g * V[k+1] - V[k], V from `values`.
      Unbiased for `gae_lambda` 1 (V is then a baseline) or exact values; otherwise **Biased** by the critic's error.
      (Schulman et al. 2016, arXiv:1506.02438.)
    * `"grpo"`: (G_i[0] - mean of G_m[0]) / (std of G_m[0] + 1e-4), std with G - 1; `normalize_std=False` leaves the
      division out. **Biased.** (Shao et al. 2024, arXiv:2402.03300.)
    * `"dr_grpo"`: G_i[0] - mean of G_m[0]. **Biased** by the factor (G - 1) / G alone. Its other half, no division
      by a response's length, is `policy_loss(normalization="token", denominator=...)`. (Liu et al. 2025,
      arXiv:2503.20783.)
    * `"reinforce_pp"`: G_i[k] centered and scaled by mean and std over all sampled tokens of all `episodes`, each with
      its turn's return. **Biased**, the less the larger the batch. (Hu et al. 2025, arXiv:2501.03262.)
    * `"reinforce_pp_baseline"`: G_i[0] minus the mean of G_m[0], then divided by the deviation over all sampled tokens
      of all `episodes`. **Biased.** (The same paper: REINFORCE++ with baseline.)
    * `"turn_reinforce_pp"`: `"reinforce_pp"` with every turn counting once, however many tokens it has. **Biased.**
    * `"turn_mean"`: sum over l of g**l * (r_i[k+l] - mean of r_m[k+l] over the members that reached that turn).
      **Biased**, even to a gradient of zero where turns are alike and only their number depends on the policy.
      (The naive turn-level GRPO; kept for comparison.)

    A turn whose completion is empty gets 0: there is no token to reinforce (its reward still counts in the others'
    baselines). Where every completion is empty all advantages are 0, and a warning is logged.

    With a discount below 1, return-to-go estimators follow the gradient of J only if turn k is also weighted by
    discount**k (`discount_states=True`); without it (the field's habit) later turns weigh more than J gives them.
    (Nota & Thomas 2020, arXiv:1906.07073.) Whole-episode estimators (rloo, grpo, dr_grpo, reinforce_pp_baseline) need
    no such weight.

    Args:
        episodes: E episodes, at least one.
        estimator: One of `ESTIMATORS`.
        discount: Per turn, in [0, 1].
        discount_states: Weight turn k by discount**k (return-to-go estimators).
        normalize_std: `"grpo"` only.
        values: `"gae"` only: for every episode float (K,) values of the contexts at which its turns began, or
            (K + 1,) with the value of what it ended in, which a *truncated* episode must have (0 to bootstrap nothing).
        gae_lambda: `"gae"` only, in [0, 1].
        shrinkage: `"shrunk_rloo"` only: how many episodes the other groups' mean counts for, >= 0; None estimates it.

    Returns:
        E arrays, float32 (K,), computed in float64.

    Raises:
        InvalidValueError: no episodes, an unknown estimator, a number out of range, `values` missing, unused, of
            the wrong length or not finite, or a group of one where the estimator centers by its own group.

    Warns:
        BiasedEstimatorWarning: a biased estimator was chosen (`warnings.simplefilter` silences it).
    """
    if estimator not in ESTIMATORS:
        raise_unknown_name("estimator", estimator, ESTIMATORS)
    if len(episodes) == 0:
        raise InvalidValueError("episodes must hold at least one episode, got none")
    gamma = check_float("discount", discount, low=0.0, high=1.0)
    lam = check_float("gae_lambda", gae_lambda, low=0.0, high=1.0)
    if (values is not None) != (estimator == "gae"):
        raise InvalidValueError(f"values are given with estimator 'gae' and only then, got estimator {estimator!r}")
    if shrinkage is not None and estimator != "shrunk_rloo":
        raise InvalidValueError(f"shrinkage is read by estimator 'shrunk_rloo' alone, got estimator {estimator!r}")
    _warn_if_biased(estimator, lam)
    table = _Table.of(episodes, gamma)
    if values is not None:
        result = _gae(table, _value_table(episodes, values, table.reached.shape[1]), lam)
    else:
        options: dict[str, Any] = {"normalize_std": normalize_std} if estimator == "grpo" else {}
        if estimator == "shrunk_rloo":
            options["shrinkage"] = None if shrinkage is None else check_float("shrinkage", shrinkage, low=0.0)
        result = _TABLE_ESTIMATORS[estimator](table, **options)
    # Whole-episode estimators have G[0] at every turn, whose discounts are inside it.
    if discount_states and estimator not in _WHOLE_EPISODE:
        result = result * gamma ** np.arange(result.shape[1])
    spoken: npt.NDArray[np.float32] = np.where(table.spoken, result, 0.0).astype(np.float32)
    if not table.spoken.any():
        logger.warning("all completions of %d episodes are empty: every advantage is 0", len(episodes))
    return [spoken[e, : episode.num_turns] for e, episode in enumerate(episodes)]


def scale_advantages(
    per_turn: Sequence[npt.NDArray[Any]],
    *,
    center: bool = True,
    by: Literal["std", "rms"] = "std",
    weights: Sequence[npt.ArrayLike] | None = None,
    epsilon: float = 1e-6,
) -> list[npt.NDArray[np.float32]]:
    """Advantages on a common scale: all of them divided by one number.

    Args:
        per_turn: Arrays (K,), one per episode; or one array of all tokens' advantages.
        center: Subtract their mean first. Without it signs and proportions stay, and so does an unbiased gradient's
            direction, but for the divisor's dependence on the same batch.
        by: Divide by their standard deviation, or by their root mean square (which a common offset does not change
            into a small number).
        weights: For each entry what it counts for, in the shapes of `per_turn` (tokens of a turn, say); None: all alike.
        epsilon: Added to the divisor.

    Returns:
        float32, in the shapes of `per_turn`.

    >>> [a.tolist() for a in scale_advantages([np.array([3.0]), np.array([1.0, 2.0, 2.0])], epsilon=0.0)]
    [[1.4142135381698608], [-1.4142135381698608, 0.0, 0.0]]
    >>> three, four = scale_advantages([np.array([3.0]), np.array([-4.0, 0.0])], center=False, by="rms")
    >>> print(three.round(3), four.round(3))
    [1.039] [-1.386  0.   ]
    """
    # In single precision the mean of equal numbers is not always that number, and the rest of it would be divided by
    # a spread of zero.
    flat = np.concatenate(per_turn).astype(np.float64)
    share = None if weights is None else np.concatenate([np.asarray(one, np.float64) for one in weights])
    mean = float(np.average(flat, weights=share))
    around = mean if by == "std" else 0.0
    spread = float(np.sqrt(np.average((flat - around) ** 2, weights=share)))
    shift = mean if center else 0.0
    return [((one.astype(np.float64) - shift) / (spread + epsilon)).astype(np.float32) for one in per_turn]


def group_index(episodes: Sequence[Episode]) -> npt.NDArray[np.int64]:
    """The number of each episode's group, in order of first appearance; `group=None` is a group of its own.

    Args:
        episodes: E episodes.

    Returns:
        int64 (E,).
    """
    numbers: dict[str | int, int] = {}
    # An int cannot equal a group's name, so it keeps the unnamed apart.
    keys = (e if episode.group is None else episode.group for e, episode in enumerate(episodes))
    return np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), np.int64, len(episodes))


def episode_returns(episodes: Sequence[Episode], discount: float | None) -> npt.NDArray[np.float32]:
    """The returns of all turns of all episodes, end to end: float32 (sum of K,).

    Args:
        episodes: E episodes.
        discount: Recomputed with it; None keeps `Episode.returns`, and uses 1 where an episode has none.
    """
    gamma = 1.0 if discount is None else check_float("discount", discount, low=0.0, high=1.0)
    rewards, reached = _rectangle(episodes)
    flat: npt.NDArray[np.float32] = discounted_sums(rewards, gamma)[reached].astype(np.float32)
    # Returns that an episode brings may be shaped by a wrapper: they are kept unless a discount asks for others.
    own = [None] * len(episodes) if discount is not None else [episode.returns for episode in episodes]
    if any(returns is not None for returns in own):
        ends = np.cumsum(reached.sum(1)).tolist()
        for returns, end in zip(own, ends, strict=True):
            if returns is not None:
                flat[end - len(returns) : end] = returns
    return flat


@dataclass(frozen=True, slots=True)
class _Table:
    """Episodes as (E, K) rectangles, K the longest one's turns; 0 where a turn was not reached."""

    rewards: _Matrix
    returns: _Matrix
    reached: npt.NDArray[np.bool_]
    tokens: _Matrix  # of each turn's completion
    groups: npt.NDArray[np.int64]
    discount: float
    episodes: Sequence[Episode]

    @classmethod
    def of(cls, episodes: Sequence[Episode], discount: float) -> _Table:
        rewards, reached = _rectangle(episodes)
        spans = np.concatenate([episode.turn_spans for episode in episodes])
        tokens = np.zeros(reached.shape)
        tokens[reached] = spans[:, 1] - spans[:, 0]
        returns = discounted_sums(rewards, discount)
        return cls(rewards, returns, reached, tokens, group_index(episodes), discount, episodes)

    @property
    def spoken(self) -> npt.NDArray[np.bool_]:
        """True where a turn was reached and its completion is not empty."""
        spoken: npt.NDArray[np.bool_] = self.tokens > 0
        return spoken

    def group_sum(self, matrix: _Matrix) -> _Matrix:
        """Each row replaced by the sum over its group's rows."""
        sums = np.zeros((int(self.groups.max()) + 1, *matrix.shape[1:]))
        # add.at: with +=, an index that comes twice would count once.
        np.add.at(sums, self.groups, matrix)
        return sums[self.groups]

    def whole(self) -> _Matrix:
        """The return of the whole episode, G[0]; 0 for an episode without turns."""
        return self.returns[:, :1] if self.returns.shape[1] else np.zeros((len(self.episodes), 1))

    def group_size(self) -> _Matrix:
        return self.group_sum(np.ones((len(self.episodes), 1)))

    def check_groups(self, estimator: str) -> None:
        alone = np.flatnonzero(self.group_size()[:, 0] < 2)
        if alone.size:
            one = self.episodes[int(alone[0])]
            raise InvalidValueError(
                f"estimator {estimator!r} needs groups of at least 2 episodes, but episode {one.index} on "
                f"{one.problem_id!r} (group {one.group!r}) is alone: sample more per problem, or use 'turn_rloo'"
            )


def _rectangle(episodes: Sequence[Episode]) -> tuple[_Matrix, npt.NDArray[np.bool_]]:
    """Rewards as (E, K), 0 where a turn was not reached, and where turns were reached."""
    rewards_of = [episode.rewards for episode in episodes]
    turns_E = np.fromiter(map(len, rewards_of), np.int64, len(episodes))
    reached = np.arange(int(turns_E.max()))[None, :] < turns_E[:, None]
    rewards = np.zeros(reached.shape)
    rewards[reached] = np.concatenate(rewards_of)
    return rewards, reached


def _turn_rloo(table: _Table) -> _Matrix:
    mean, count = _others_mean(table)
    return table.returns - np.where(count > 0, mean, _Elsewhere.of(table).center())


def _shrunk_rloo(table: _Table, *, shrinkage: float | None) -> _Matrix:
    mean, count = _others_mean(table)
    elsewhere = _Elsewhere.of(table)
    pseudo = elsewhere.shrinkage() if shrinkage is None else np.full_like(mean, shrinkage)
    # With one group there is no other mean: only the siblings count then.
    pseudo = np.where(elsewhere.groups > 0, pseudo, 0.0)  # nothing to shrink towards
    weight = count + pseudo
    # An infinite shrinkage is the others' mean alone.
    own = np.divide(count, weight, out=np.zeros_like(mean), where=np.isfinite(weight) & (weight > 0))
    baseline = own * mean + (1.0 - own) * elsewhere.center()
    return table.returns - baseline


def _others_mean(table: _Table) -> tuple[_Matrix, _Matrix]:
    """Mean return, at each turn, of the group's other members that reached it (0 for none), and their number."""
    others = np.maximum(table.group_sum(table.reached.astype(np.float64)) - 1, 0)
    total = table.group_sum(table.returns) - table.returns
    return np.divide(total, others, out=np.zeros_like(total), where=others > 0), others


def _of_others(per_group: _Matrix) -> _Matrix:
    """Each row replaced by the sum of all other rows."""
    nothing = np.zeros((1, per_group.shape[1]))
    before = np.concatenate([nothing, np.cumsum(per_group, axis=0)[:-1]])
    behind = np.concatenate([np.cumsum(per_group[::-1], axis=0)[::-1][1:], nothing])
    return np.asarray(before + behind)


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """Statistics of the *other* groups at each turn; every array is (E, K), and equal within a group.

    All are sums over the groups before and behind the own one. (A total less the own part would be the same but for
    rounding, and rounding that depends on the own group is a bias where a comparison with zero follows.)
    """

    members: _Matrix  # that reached the turn
    groups: _Matrix  # with at least one of these
    means: _Matrix  # sum of those groups' mean returns
    squared_means: _Matrix
    squared_errors: _Matrix  # of returns about their group's mean
    inverse_sizes: _Matrix  # sum over groups of 1 / members

    @classmethod
    def of(cls, table: _Table) -> _Elsewhere:
        number = int(table.groups.max()) + 1
        shape = (number, table.returns.shape[1])

        def summed(matrix: _Matrix) -> _Matrix:
            result = np.zeros(shape)
            np.add.at(result, table.groups, matrix)
            return result

        members = summed(table.reached.astype(np.float64))
        sums = summed(np.where(table.reached, table.returns, 0.0))
        there = members > 0
        means = np.divide(sums, members, out=np.zeros(shape), where=there)
        errors = summed(np.where(table.reached, (table.returns - means[table.groups]) ** 2, 0.0))
        inverse = np.divide(1.0, members, out=np.zeros(shape), where=there)
        per_group = (members, there.astype(np.float64), means, means**2, errors, inverse)
        return cls(*(_of_others(one)[table.groups] for one in per_group))

    def center(self) -> _Matrix:
        """The mean of the groups' means; 0 where no group reached the turn."""
        return np.divide(self.means, self.groups, out=np.zeros_like(self.means), where=self.groups > 0)

    def shrinkage(self) -> _Matrix:
        """Variance within groups divided by that between them; infinite where groups do not differ (or cannot tell).

        Between groups: the variance of their means, less what the episodes' own noise adds to it. Where no group has
        two members, noise and difference are not distinguishable; the weight does not matter then, for the own group has
        (nearly always) no other member either.
        """
        freedom = self.members - self.groups
        within = np.divide(self.squared_errors, freedom, out=np.zeros_like(self.means), where=freedom > 0)
        spread = self.squared_means - self.groups * self.center() ** 2
        of_means = np.divide(spread, self.groups - 1, out=np.zeros_like(self.means), where=self.groups > 1)
        noise = within * np.divide(self.inverse_sizes, self.groups, out=np.zeros_like(within), where=self.groups > 0)
        # Groups of the same true mean still differ by their own noise: it is no reason to trust them.
        between = of_means - noise
        result = np.full_like(within, np.inf)
        # A difference of squares has rounding of its own.
        known = (freedom > 0) & (self.groups > 1) & (between > 1e-9 * self.squared_means)
        result[known] = within[known] / between[known]
        return result


def _rloo(table: _Table) -> _Matrix:
    whole, others = table.whole(), table.group_size() - 1
    total = table.group_sum(whole) - whole
    return _per_turn(table, whole - np.divide(total, others, out=np.zeros_like(total), where=others > 0))


def _reinforce(table: _Table) -> _Matrix:
    return table.returns


def _grpo(table: _Table, *, normalize_std: bool = True) -> _Matrix:
    table.check_groups("grpo" if normalize_std else "dr_grpo")
    whole, size = table.whole(), table.group_size()
    centered = whole - table.group_sum(whole) / size
    if normalize_std:
        # The deviation is divided by G - 1, as torch.std does in the published implementations.
        centered = centered / (np.sqrt(table.group_sum(centered**2) / (size - 1)) + _STD_EPSILON)
    return _per_turn(table, centered)


def _dr_grpo(table: _Table) -> _Matrix:
    return _grpo(table, normalize_std=False)


def _reinforce_pp_baseline(table: _Table) -> _Matrix:
    table.check_groups("reinforce_pp_baseline")
    whole = table.whole()
    centered = _per_turn(table, whole - table.group_sum(whole) / table.group_size())
    result = np.zeros_like(centered)
    if table.spoken.any():
        tokens = [table.tokens[table.spoken]]
        result[table.spoken] = scale_advantages([centered[table.spoken]], weights=tokens, epsilon=1e-8)[0]
    return result


def _turn_reinforce_pp(table: _Table, *, by_tokens: bool = False) -> _Matrix:
    result = np.zeros_like(table.returns)
    if table.spoken.any():
        tokens = [table.tokens[table.spoken]] if by_tokens else None
        result[table.spoken] = scale_advantages([table.returns[table.spoken]], weights=tokens, epsilon=1e-8)[0]
    return result


def _reinforce_pp(table: _Table) -> _Matrix:
    return _turn_reinforce_pp(table, by_tokens=True)


def _turn_mean(table: _Table) -> _Matrix:
    table.check_groups("turn_mean")
    reached = table.group_sum(table.reached.astype(np.float64))
    centered = table.rewards - table.group_sum(table.rewards) / np.maximum(reached, 1)
    return discounted_sums(np.where(table.reached, centered, 0.0), table.discount)


_TABLE_ESTIMATORS: Final[dict[str, Callable[..., _Matrix]]] = {
    "turn_rloo": _turn_rloo,
    "shrunk_rloo": _shrunk_rloo,
    "rloo": _rloo,
    "reinforce": _reinforce,
    "grpo": _grpo,
    "dr_grpo": _dr_grpo,
    "reinforce_pp": _reinforce_pp,
    "reinforce_pp_baseline": _reinforce_pp_baseline,
    "turn_reinforce_pp": _turn_reinforce_pp,
    "turn_mean": _turn_mean,
}


def _gae(table: _Table, values_EK1: _Matrix, gae_lambda: float) -> _Matrix:
    deltas = table.rewards + table.discount * values_EK1[:, 1:] - values_EK1[:, :-1]
    return discounted_sums(np.where(table.reached, deltas, 0.0), table.discount * gae_lambda)


def _value_table(episodes: Sequence[Episode], values: Sequence[npt.ArrayLike], turns: int) -> _Matrix:
    """`values` as (E, K + 1), 0 after each episode's end, or an error that names the episode."""
    if len(values) != len(episodes):
        raise InvalidValueError(f"values has {len(values)} entries for {len(episodes)} episodes")
    table = np.zeros((len(episodes), turns + 1))
    for e, (episode, given) in enumerate(zip(episodes, values, strict=True)):
        who = f"values[{e}] of episode {episode.index} on {episode.problem_id!r}"
        array = np.asarray(given, dtype=np.float64)
        # Truncated is not terminated (law 8): what would have followed is the critic's to say.
        allowed = (episode.num_turns + 1,) if episode.truncated else (episode.num_turns, episode.num_turns + 1)
        if array.ndim != 1 or len(array) not in allowed:
            why = " (it was truncated: the value of its last context is needed)" if episode.truncated else ""
            raise InvalidValueError(f"{who} must have {' or '.join(map(str, allowed))} entries{why}, got {array.shape}")
        if not np.all(np.isfinite(array)):
            raise InvalidValueError(f"{who} must be finite, got {array.tolist()}")
        table[e, : len(array)] = array
        if episode.terminated:
            table[e, episode.num_turns] = 0.0  # nothing comes after the end, whatever the critic says
    return table


def discounted_sums(rewards_EK: _Matrix, discount: float) -> _Matrix:
    """Discounted sums from each column to the last, row by row."""
    result = np.array(rewards_EK, dtype=np.float64)
    # Column by column over all episodes: turns are few, episodes many.
    for k in range(result.shape[1] - 2, -1, -1):
        result[:, k] += discount * result[:, k + 1]
    return result


def _per_turn(table: _Table, one_E1: _Matrix) -> _Matrix:
    return np.where(table.reached, one_E1, 0.0)


def _warn_if_biased(estimator: str, gae_lambda: float) -> None:
    why = BIASED.get(estimator)
    # With lambda 1 the critic is only a baseline, which no value of its makes wrong.
    if estimator == "gae" and gae_lambda < 1.0:
        why = f"gae_lambda {gae_lambda:g} bootstraps from the critic's values, which are not exact"
    if why is not None:
        warnings.warn(f"estimator {estimator!r} is biased: {why}", BiasedEstimatorWarning, stacklevel=3)
