"""Mean gradients of every advantage estimator against exact gradients known in closed form.

    python benchmarks/unbiasedness.py [--groups 100000] [--size 8] [--out runs/unbiasedness.json]

Two decision processes of at most three turns, with everything an estimator can get wrong: the number of turns
depends on the policy, rewards come at every turn, and in the second one what an action leads to is random.

* stop: each turn is worth 0.2, and the policy says whether there is another one (one parameter for all turns).
* retry: the policy answers carefully or hastily (one parameter per turn); a careful answer is right with
  probability 0.7, a hasty one with 0.3; right ends the episode with reward 1, wrong costs 0.2.

Batches of a few episodes have few possible contents. For those the mean is not sampled but added up over every batch
that there can be, times its probability (`exact_mean`): groups on different problems in one batch, so that a baseline
that reads other groups is caught if it reads what it must not.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mathturn_gym.episodes.returns import BiasedEstimatorWarning, advantages
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode

Array = npt.NDArray[np.float64]
TURNS = 3
CHUNK = 1000  # groups handed to one call of `advantages`


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


@dataclass(frozen=True)
class Trajectory:
    """One of a process's few possible episodes: its rewards and the score (gradient of log pi) of each turn."""

    probability: float
    rewards: tuple[float, ...]
    scores: tuple[Array, ...]


@dataclass(frozen=True)
class Process:
    """A decision process: all its trajectories, the exact gradient, and the exact value of each turn's context."""

    name: str
    trajectories: list[Trajectory]
    gradient: Callable[[float], Array]
    values: Callable[[float], Array]


def stop_process(theta: float = 0.5) -> Process:
    """J = 0.2 * (1 + d p + d^2 p^2), p the probability of going on, so dJ/dtheta = 0.2 (d + 2 d^2 p) p (1 - p)."""
    p = float(sigmoid(np.array(theta)))
    on, off = np.array([1 - p]), np.array([-p])
    trajectories = [Trajectory(1 - p, (0.2,), (off,)), Trajectory(p * (1 - p), (0.2, 0.2), (on, off))]
    trajectories += [Trajectory(p * p * q, (0.2, 0.2, 0.2), (on, on, last)) for q, last in ((p, on), (1 - p, off))]
    return Process(
        "stop",
        trajectories,
        lambda d: np.array([0.2 * (d + 2 * d * d * p) * p * (1 - p)]),
        lambda d: np.array([0.2 * (1 + d * p + d * d * p * p), 0.2 * (1 + d * p), 0.2]),
    )


def retry_process(theta: Sequence[float] = (0.3, -0.4, 0.8)) -> Process:
    """V[k] = s[k] + (1 - s[k]) (-0.2 + d V[k+1]), s[k] = 0.3 + 0.4 sigmoid(theta[k]); as many turns as parameters."""
    careful, turns = sigmoid(np.array(theta)), len(theta)
    found: list[Trajectory] = []

    def walk(k: int, probability: float, rewards: tuple[float, ...], scores: tuple[Array, ...]) -> None:
        for action in (0, 1):
            score = np.zeros(turns)
            score[k] = action - careful[k]
            chance = probability * (careful[k] if action else 1 - careful[k])
            right = 0.7 if action else 0.3
            found.append(Trajectory(chance * right, (*rewards, 1.0), (*scores, score)))
            if k + 1 < turns:
                walk(k + 1, chance * (1 - right), (*rewards, -0.2), (*scores, score))
            else:
                found.append(Trajectory(chance * (1 - right), (*rewards, -0.2), (*scores, score)))

    walk(0, 1.0, (), ())
    solved = 0.3 + 0.4 * careful

    def values(d: float) -> Array:
        result = np.zeros(turns + 1)
        for k in range(turns - 1, -1, -1):
            result[k] = solved[k] + (1 - solved[k]) * (-0.2 + d * result[k + 1])
        return result[:-1]

    def gradient(d: float) -> Array:
        after = np.append(values(d)[1:], 0.0)
        reach = np.cumprod(np.append(1.0, d * (1 - solved[:-1])))
        return reach * 0.4 * careful * (1 - careful) * (1.2 - d * after)

    return Process("retry", found, gradient, values)


@dataclass(frozen=True)
class Case:
    """An estimator with its arguments; `factor` is its known scale where it has one, None where it has none."""

    label: str
    arguments: dict[str, Any]
    factor: float | None
    critic: Callable[[Array], Array] | None = None


def cases(size: int) -> list[Case]:
    """Every estimator; biased ones with the factor they are known to be off by, or None."""
    wrong = lambda values: 0.5 * values + np.arange(len(values)) - 1.0  # noqa: E731
    return [
        Case("turn_rloo (default)", {"estimator": "turn_rloo"}, 1.0),
        Case("shrunk_rloo", {"estimator": "shrunk_rloo"}, 1.0),
        Case("shrunk_rloo, shrinkage 2", {"estimator": "shrunk_rloo", "shrinkage": 2.0}, 1.0),
        Case("rloo", {"estimator": "rloo"}, 1.0),
        Case("reinforce", {"estimator": "reinforce"}, 1.0),
        Case("gae lambda 1, wrong critic", {"estimator": "gae", "gae_lambda": 1.0}, 1.0, wrong),
        Case("gae lambda 0.8, exact critic", {"estimator": "gae", "gae_lambda": 0.8}, 1.0, lambda values: values),
        Case("gae lambda 0.5, wrong critic", {"estimator": "gae", "gae_lambda": 0.5}, None, wrong),
        Case("dr_grpo", {"estimator": "dr_grpo"}, (size - 1) / size),
        Case("grpo without std", {"estimator": "grpo", "normalize_std": False}, (size - 1) / size),
        Case("grpo", {"estimator": "grpo"}, None),
        Case("reinforce_pp", {"estimator": "reinforce_pp"}, None),
        Case("reinforce_pp_baseline", {"estimator": "reinforce_pp_baseline"}, None),
        Case("turn_reinforce_pp", {"estimator": "turn_reinforce_pp"}, None),
        Case("turn_mean", {"estimator": "turn_mean"}, None),
    ]


EXACT: dict[str, dict[str, Any]] = {
    "turn_rloo": {"estimator": "turn_rloo"},
    "shrunk_rloo": {"estimator": "shrunk_rloo"},
    "shrunk_rloo, shrinkage 0.5": {"estimator": "shrunk_rloo", "shrinkage": 0.5},
    "rloo": {"estimator": "rloo"},
    "reinforce": {"estimator": "reinforce"},
}
"""What has no bias at all, by every possible batch."""


def mixed_batch() -> list[Process]:
    """Three problems, two of them alike: going on is likely in those, and unlikely in the third."""
    return [stop_process(1.0), stop_process(-1.5), stop_process(1.0)]


@dataclass(frozen=True)
class Row:
    """One line of the table: gradients are per parameter."""

    process: str
    discount: float
    case: Case
    exact: Array
    mean: Array
    standard_error: Array

    @property
    def deviations(self) -> Array:
        """How many standard errors the mean lies from the exact gradient."""
        return (self.mean - self.exact) / self.standard_error


def run(process: Process, discount: float, chosen: Sequence[Case], *, groups: int, size: int, seed: int) -> list[Row]:
    """Samples the same groups for every case, and averages the gradient over them."""
    pool = [
        [_in_group(episode, group) for group in range(CHUNK)]
        for episode in (_episode(trajectory, t, 0) for t, trajectory in enumerate(process.trajectories))
    ]
    scores = np.zeros((len(pool), TURNS, len(process.gradient(discount))))
    for t, trajectory in enumerate(process.trajectories):
        scores[t, : len(trajectory.scores)] = trajectory.scores
    chances = np.array([trajectory.probability for trajectory in process.trajectories])
    assert abs(chances.sum() - 1) < 1e-12
    rng = np.random.default_rng(seed)
    chunks = -(-groups // CHUNK)
    means = np.zeros((len(chosen), chunks, scores.shape[2]))
    squares = np.zeros((len(chosen), scores.shape[2]))
    for chunk in range(chunks):
        drawn = rng.choice(len(pool), p=chances, size=(CHUNK, size))
        episodes = [pool[t][group] for group, row in enumerate(drawn.tolist()) for t in row]
        for c, case in enumerate(chosen):
            gradients = _gradients(episodes, drawn, scores, case, discount, process)
            means[c, chunk] = gradients.mean(0)
            squares[c] += np.square(gradients).sum(0)
    total = chunks * CHUNK
    mean = means.mean(1)
    error = np.sqrt((squares / total - mean**2) / (total - 1))
    exact = process.gradient(discount)
    return [Row(process.name, discount, case, exact, mean[c], error[c]) for c, case in enumerate(chosen)]


def exact_mean(
    processes: Sequence[Process], size: int, arguments: dict[str, Any], discount: float
) -> tuple[Array, Array]:
    """The expected gradient of each group of a batch, added up over every batch that there can be.

    Args:
        processes: One per group of the batch; with as many parameters each.
        size: Members of a group.
        arguments: Of `advantages`.
        discount: Per turn.

    Returns:
        The expected gradients and the exact ones, float64 (groups, parameters) each.
    """
    members = [process for process in processes for _ in range(size)]
    pools = [
        [_episode(trajectory, i, i // size) for trajectory in process.trajectories] for i, process in enumerate(members)
    ]
    exact = np.stack([process.gradient(discount) for process in processes])
    mean = np.zeros_like(exact)
    for drawn in itertools.product(*(range(len(pool)) for pool in pools)):
        taken = [process.trajectories[t] for process, t in zip(members, drawn, strict=True)]
        found = advantages(
            [pool[t] for pool, t in zip(pools, drawn, strict=True)],
            discount=discount,
            discount_states=True,
            **arguments,
        )
        chance = float(np.prod([trajectory.probability for trajectory in taken]))
        for i, (trajectory, values) in enumerate(zip(taken, found, strict=True)):
            mean[i // size] += chance * (values @ np.stack(trajectory.scores)) / size
    return mean, exact


def _gradients(
    episodes: list[Episode], drawn: npt.NDArray[np.int64], scores: Array, case: Case, discount: float, process: Process
) -> Array:
    """The gradient that each group gives: the mean over its members of sum A[k] * score[k]."""
    arguments = dict(case.arguments)
    if case.critic is not None:
        critic = case.critic(process.values(discount))
        arguments["values"] = [critic[: episode.num_turns] for episode in episodes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiasedEstimatorWarning)
        found = advantages(episodes, discount=discount, discount_states=True, **arguments)
    table = np.zeros((len(episodes), TURNS))
    for row, values in zip(table, found, strict=True):
        row[: len(values)] = values
    per_episode = np.einsum("ek,ekp->ep", table, scores[drawn.reshape(-1)])
    per_group: Array = per_episode.reshape(*drawn.shape, -1).mean(1)
    return per_group


def _in_group(episode: Episode, group: int) -> Episode:
    """The same episode in another group; unchecked, as the one that it is made of has been."""
    other = copy.copy(episode)
    object.__setattr__(other, "group", str(group))
    return other


def _episode(trajectory: Trajectory, index: int, group: int) -> Episode:
    rewards = np.array(trajectory.rewards)
    return synthetic_episode(0, index, [1] * len(rewards), prompt=1, feedback=0, group=str(group), rewards=rewards)


def table(groups: int, size: int, seed: int = 0) -> list[Row]:
    """Every case on both processes at two discounts."""
    rows = []
    for p, process in enumerate((stop_process(), retry_process())):
        for discount in (1.0, 0.8):
            rows += run(process, discount, cases(size), groups=groups, size=size, seed=seed + p)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("runs/unbiasedness.json"))
    options = parser.parse_args()
    for label, arguments in EXACT.items():
        for discount in (1.0, 0.8):
            mean, exact = exact_mean(mixed_batch(), 2, arguments, discount)
            print(
                f"every batch of 3 problems x 2 episodes, discount {discount}: {label:26} {np.abs(mean - exact).max():.1e}"
            )
    rows = table(options.groups, options.size)
    print(f"{'process':8}{'discount':>9}  {'estimator':30}{'exact':>10}{'mean':>10}{'se':>10}{'(mean-exact)/se':>17}")
    for row in rows:
        for exact, mean, error, off in zip(row.exact, row.mean, row.standard_error, row.deviations, strict=True):
            print(
                f"{row.process:8}{row.discount:9.1f}  {row.case.label:30}{exact:+10.5f}{mean:+10.5f}{error:10.5f}{off:+17.3g}"
            )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    record = [
        {
            "process": row.process,
            "discount": row.discount,
            "estimator": row.case.label,
            "exact": row.exact.tolist(),
            "mean": row.mean.tolist(),
            "standard_error": row.standard_error.tolist(),
        }
        for row in rows
    ]
    options.out.write_text(json.dumps({"groups": options.groups, "size": options.size, "rows": record}, indent=1))


if __name__ == "__main__":
    main()
