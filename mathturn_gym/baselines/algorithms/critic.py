"""Algorithms with a critic: their common part, and the critic's training.

The critic is a separate network (`_value_network`). With a shared trunk, gradients of the critic's loss would change the
policy, which hurts small models.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mathturn_gym.baselines.algorithms._base import Algorithm, Clipping, Learner, State
from mathturn_gym.baselines.algorithms._credit import differ

if TYPE_CHECKING:
    import torch

    from mathturn_gym.baselines.algorithms._base import Metrics
    from mathturn_gym.episodes.packing.batch import PackedBatch
    from mathturn_gym.types import Episode


@dataclass(frozen=True, kw_only=True)
class CriticAlgorithm(Clipping, Algorithm["CriticState"]):
    """An algorithm with a separate critic, and PPO's clipped loss.

    Args:
        discount: Per turn, in [0, 1].
        gae_lambda: Lambda of the generalized advantages, in [0, 1].
        critic_learning_rate: Learning rate of the critic, scheduled like the policy's; None is the policy's.
    """

    discount: float = 1.0
    gae_lambda: float = 0.95
    critic_learning_rate: float | None = None

    @abstractmethod
    def judge(
        self, episodes: Sequence[Episode], batch: PackedBatch, values_BT: torch.Tensor, state: CriticState
    ) -> PackedBatch:
        """Returns the batch with `advantages`, and with the critic's targets in `returns`.

        Args:
            episodes: An iteration's.
            batch: Row i is episode i.
            values_BT: float32, on the CPU; the critic's value of the context that ends with each token.
            state: Of the run.
        """

    @abstractmethod
    def judged(self, part: PackedBatch) -> torch.Tensor:
        """Bool (B, T): tokens whose preceding context the critic is trained on."""

    def begin(self, trainer: Learner) -> CriticState:
        """Returns an untrained critic."""
        return CriticState(self, trainer)

    def credit(self, episodes: Sequence[Episode], state: CriticState) -> PackedBatch:
        """Advantages from the critic before this iteration's update."""
        batch = state.trainer.pack(episodes)
        judged = self.judge(episodes, batch, state.values(batch), state)
        if not differ(episodes):
            # With equal returns, advantages are only the critic's error, which normalizing would scale up to a signal.
            return judged.replace_tensors({"advantages": judged.advantages.new_zeros(judged.advantages.shape)})
        return judged


class CriticState(State):
    """The critic of a run, with its optimizer; the algorithm decides at which tokens it is trained."""

    def __init__(self, algorithm: CriticAlgorithm, trainer: Learner) -> None:
        # Here, because it loads torch, which options do not need.
        from mathturn_gym.baselines.algorithms._value_network import ValueNetwork

        self.trainer, self._algorithm = trainer, algorithm
        self.critic = ValueNetwork(trainer.policy.model)
        self._optimizer = trainer.make_optimizer(self.critic, algorithm.critic_learning_rate)

    def values(self, batch: PackedBatch) -> torch.Tensor:
        """Float32 (B, T), on the CPU: the value of the context that ends with each token."""
        import torch

        values = torch.zeros(batch.input_ids.shape)
        with torch.no_grad(), self.trainer.autocast():
            for rows, part in self.trainer.forward_parts(batch):
                found = self.critic(part).float().cpu()
                # A part is as wide as its own longest row.
                values[rows, : found.shape[1]] = found
        return values

    def update(self, batch: PackedBatch, rate: float) -> Metrics:
        """Trains the critic on the squared error to its targets, with as many steps as the policy takes."""
        judged = self._algorithm.judged
        errors, targets = [], batch.returns[judged(batch)]
        for minibatch in self.trainer.minibatches(batch, "critic"):
            count = max(1, int(judged(minibatch).sum()))
            error = 0.0
            for part in self.trainer.parts(minibatch):
                at = judged(part)
                with self.trainer.autocast():
                    values = self.critic(part)
                # The value of a context stands at its last token: one before the token that follows it.
                loss = (values[:, :-1][at[:, 1:]] - part.returns[at]).square().sum() / count
                loss.backward()
                error += float(loss.detach())
            norm, error = self._optimizer.step(rate), self.trainer.summed(error)
            self.trainer.check_finite("the critic's loss", error, norm)
            errors.append(error)
        spread = float(targets.var(unbiased=False)) if targets.numel() else 0.0
        explained = 1.0 - errors[0] / spread if spread else 0.0  # by the critic as it was before
        return {"critic_loss": float(np.mean(errors)), "critic_explained_variance": explained}

    def numbers(self) -> Mapping[str, Any]:
        """Returns the number of gradient steps."""
        return {"critic_steps": self._optimizer.steps}

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Weights and the optimizer's state."""
        weights = {f"critic.weights.{name}": tensor for name, tensor in self.critic.state_dict().items()}
        return {**weights, **self._optimizer.tensors("critic")}

    def load(self, numbers: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Restores weights and optimizer."""
        prefix = "critic.weights."
        weights = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        try:
            self.critic.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"the critic's weights do not fit: {error}") from error
        self._optimizer.load(tensors, "critic", int(numbers["critic_steps"]))
