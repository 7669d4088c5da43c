"""Expert iteration: each round samples, keeps right answers, and trains the *first* policy on them (ReST-EM, arXiv:2312.06585).

    mathturn train lins --algorithm expert_iteration:ExpertIteration \
        --set optimization.batch_episodes=512 optimization.minibatches=16 optimization.epochs=4     # folder on PYTHONPATH

An iteration is a round: let it be large. At most `most` answers to a problem are kept, so that easy problems do not crowd
out hard ones. Unlike online RFT, weights go back to those at the start before each round's gradient steps, so that only the
data improve from round to round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mathturn_gym.baselines.algorithms import Advantages, Algorithm, Learner, Metrics, Part, State
from mathturn_gym.types import Status

if TYPE_CHECKING:
    import torch

    from mathturn_gym.episodes.losses import PolicyLoss
    from mathturn_gym.episodes.packing.batch import PackedBatch
    from mathturn_gym.types import Episode


class First(State):
    """The weights at the start; a checkpoint has them, so that a resumed run goes back to the same."""

    def __init__(self, trainer: Learner) -> None:
        self.model = trainer.policy.model
        self.weights = {name: weight.detach().clone() for name, weight in self.model.state_dict().items()}

    def update(self, batch: PackedBatch, rate: float) -> Metrics:
        """Puts the weights back, before the round's gradient steps, unless nothing was right."""
        if bool((batch.advantages > 0).any()):
            self.model.load_state_dict(self.weights)
        return {}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns the weights."""
        return {f"first.{name}": weight for name, weight in self.weights.items()}

    def load(self, numbers: object, tensors: dict[str, torch.Tensor]) -> None:  # type: ignore[override]
        """Restores them."""
        self.weights = {name: tensors[f"first.{name}"] for name in self.weights}


@dataclass(frozen=True, kw_only=True)
class ExpertIteration(Algorithm[First]):
    """Expert iteration; see the module.

    Args:
        most: Right answers to a problem that are kept in a round.
    """

    continues_truncated = False

    most: int = 4

    def begin(self, trainer: Learner) -> First:
        """Returns the weights at the start."""
        return First(trainer)

    def credit(self, episodes: Sequence[Episode], state: First) -> Advantages:
        """1 for right answers that are kept, 0 for all others."""
        kept: Counter[str] = Counter()
        found = []
        for episode in episodes:
            turns = np.zeros(episode.num_turns, np.float32)
            for k, verdict in enumerate(episode.verdicts):
                if verdict.status is Status.RIGHT and kept[episode.problem_id] < self.most:
                    kept[episode.problem_id] += 1
                    turns[k] = 1.0
            found.append(turns)
        return found

    def loss(self, logprobs: torch.Tensor, part: Part, state: First) -> PolicyLoss:
        """Mean negative log-likelihood of the kept tokens."""
        kept = max(1.0, float(part.minibatch.advantages.sum()))
        return part.policy_loss(logprobs, objective="policy_gradient", ratio=None, denominator=kept)
