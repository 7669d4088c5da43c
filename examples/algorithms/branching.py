"""Turn Monte-Carlo credit by branching: the value of a context is measured by playing on from a copy of the episode.

    mathturn train guess8 --algorithm branching:Branching       # with this folder on PYTHONPATH

A turn's advantage is its reward plus the value of the context after it, less the value of the context before it. Both
values are means over `branches` continuations that the policy plays from the copied state (VinePPO, Kazemnejad et al. 2024,
arXiv:2410.01679, with turns for steps). No critic is trained, and no mean over other problems is subtracted; the price is
the ids of the branches, which `branch_tokens` adds up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mathturn_gym.baselines.algorithms import Advantages, Algorithm, Clipping, Learner, Metrics, Part, State
from mathturn_gym.episodes.returns import scale_advantages
from mathturn_gym.seeding import derive_seed

if TYPE_CHECKING:
    import torch

    from mathturn_gym.episodes.losses import PolicyLoss
    from mathturn_gym.episodes.packing.batch import PackedBatch
    from mathturn_gym.types import Episode


class Branches(State):
    """Environments to play on in, and the ids that this has taken so far."""

    def __init__(self, trainer: Learner) -> None:
        self.trainer = trainer
        vector: Any = trainer.config.env.make("train", 1, policy=trainer.policy)
        self.env = vector.envs[0].unwrapped
        self.tokens = 0

    def update(self, batch: PackedBatch, rate: float) -> Metrics:
        """Logs the ids that branches have taken."""
        return {"branch_tokens": float(self.tokens)}

    def numbers(self) -> dict[str, Any]:
        """Returns the number of ids."""
        return {"branch_tokens": self.tokens}

    def load(self, numbers: Any, tensors: Any) -> None:
        """Restores it."""
        self.tokens = int(numbers["branch_tokens"])

    def states(self, episode: Episode, options: dict[str, int]) -> list[Any]:
        """The environment's states before each turn of an episode, by playing its actions again."""
        self.env.reset(seed=episode.seed, options=options)
        found = []
        for start, end in episode.turn_spans.tolist():
            found.append(self.env.get_state())
            self.env.step(episode.ids[start:end])
        return found

    def values(self, states: Sequence[Any], branches: int, discount: float) -> npt.NDArray[np.float64]:
        """Mean return of `branches` continuations of each state; every state goes one turn further at a time."""
        at = [state for state in states for _ in range(branches)]
        returns, running, factor = np.zeros(len(at)), list(range(len(at))), 1.0
        while running:
            seeds = [derive_seed("branch", self.tokens, i) for i in running]
            contexts = [at[i].ids for i in running]
            budget = [self.env.max_completion_tokens] * len(running)
            with self.trainer.autocast():
                said = self.trainer.policy.complete(contexts, max_tokens=budget, seeds=seeds)
            left = []
            for i, completion in zip(running, said, strict=True):
                self.env.set_state(at[i])
                _, reward, terminated, truncated, _ = self.env.step(completion.ids)
                at[i], self.tokens = self.env.get_state(), self.tokens + len(completion.ids)
                returns[i] += factor * float(reward)
                left += [] if terminated or truncated else [i]
            running, factor = left, factor * discount
        return np.asarray(returns.reshape(len(states), branches).mean(1))


@dataclass(frozen=True, kw_only=True)
class Branching(Clipping, Algorithm[Branches]):
    """Turn Monte-Carlo credit; see the module.

    Args:
        branches: Continuations of each context.
        discount: Per turn, in [0, 1].
    """

    branches: int = 4
    discount: float = 1.0

    def begin(self, trainer: Learner) -> Branches:
        """Returns the environments for branches."""
        return Branches(trainer)

    def credit(self, episodes: Sequence[Episode], state: Branches) -> Advantages:
        """Reward plus the measured value after a turn, less that before it."""
        states = [state.states(episode, {"index": episode.index}) for episode in episodes]
        values = state.values([one for those in states for one in those], self.branches, self.discount)
        found, at = [], 0
        for episode in episodes:
            own = np.append(values[at : at + episode.num_turns], 0.0)  # nothing follows the last turn
            found.append(episode.rewards + self.discount * own[1:] - own[:-1])
            at += episode.num_turns
        return scale_advantages(found, center=False, by="rms")

    def loss(self, logprobs: torch.Tensor, part: Part, state: Branches) -> PolicyLoss:
        """The clipped objective, a mean over tokens."""
        return part.policy_loss(logprobs, clip=self.clip, clip_high=self.clip_high)
