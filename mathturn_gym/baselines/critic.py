"""The critic of PPO: a network of its own, so that its loss moves nothing of the policy.

It begins as a copy of the policy's body, with one number per position in place of the logits; the number starts at 0.
A critic that shares the policy's trunk has its gradients in the policy: with a model this small, the two disagree.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mathturn_gym.baselines.config import TrainConfig
from mathturn_gym.baselines.optimizer import Optimizer
from mathturn_gym.baselines.runs import TrainerState
from mathturn_gym.baselines.trainer import DivergedError, Metrics, Trainer
from mathturn_gym.packing import PackedBatch, model_inputs, pack, select_rows
from mathturn_gym.types import Episode

__all__ = ["Critic", "CriticTrainer"]


class Critic(torch.nn.Module):
    """Values of contexts.

    Args:
        model: A causal language model, whose body is copied.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.body = copy.deepcopy(model.base_model)
        self.head = torch.nn.Linear(model.config.get_text_config().hidden_size, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.to(model.device)

    def forward(self, batch: PackedBatch) -> torch.Tensor:
        """Float (B, T): the value of the context that ends with each id, this id included."""
        hidden = self.body(**model_inputs(batch), use_cache=False).last_hidden_state
        values: torch.Tensor = self.head(hidden.float())[..., 0]
        return values


class CriticTrainer(Trainer):
    """A trainer with a separate critic.

    Args:
        config: The run.
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.critic = Critic(self.model)
        self._critic_optimizer = Optimizer(self.critic, config.critic_learning_rate, config)

    @abstractmethod
    def judge(self, episodes: Sequence[Episode], batch: PackedBatch, values_BT: torch.Tensor) -> PackedBatch:
        """The batch with `advantages`, and with `returns` holding what the critic should have said.

        Args:
            episodes: An iteration's.
            batch: Row i is episode i.
            values_BT: float32, on the CPU; the critic's value of the context that ends with each id.
        """

    @abstractmethod
    def judged(self, part: PackedBatch) -> torch.Tensor:
        """Bool (B, T): ids before which the critic is trained."""

    def credit(self, episodes: Sequence[Episode]) -> PackedBatch:
        """Advantages by the critic as it is before this iteration's update."""
        blank = [np.zeros(episode.num_turns, np.float32) for episode in episodes]
        batch = pack(episodes, advantages=blank, device=self.config.device)
        values = torch.zeros(batch.input_ids.shape)
        parts = np.array_split(np.arange(batch.num_rows), self.config.minibatches * self.config.accumulate)
        with torch.no_grad(), self.autocast():
            for rows in parts:
                part = self.critic(select_rows(batch, rows.tolist())).float().cpu()
                values[rows, : part.shape[1]] = part
        return self.judge(episodes, batch, values)

    def _learn(self, batch: PackedBatch, rate: float) -> Metrics:
        critic = self._update_critic(batch, rate)
        return {**self._update_policy(batch, rate), **critic}

    def _update_critic(self, batch: PackedBatch, rate: float) -> Metrics:
        """Squared error to the targets, in as many steps as the policy takes."""
        errors, targets = [], batch.returns[self.judged(batch)]
        for minibatch in self._minibatches(batch, "critic"):
            count = max(1, int(self.judged(minibatch).sum()))
            error = 0.0
            for part in self._parts(minibatch):
                at = self.judged(part)
                with self.autocast():
                    values = self.critic(part)
                loss = (values[:, :-1][at[:, 1:]] - part.returns[at]).square().sum() / count
                loss.backward()
                error += float(loss.detach())
            if not (np.isfinite(error) and np.isfinite(self._critic_optimizer.step(rate))):
                raise DivergedError(f"iteration {self.iteration + 1}: the critic's loss is {error}")
            errors.append(error)
        spread = float(targets.var(unbiased=False)) if targets.numel() else 0.0
        explained = 1.0 - errors[0] / spread if spread else 0.0  # by the critic as it was before
        return {"critic_loss": float(np.mean(errors)), "critic_explained_variance": explained}

    def _more_numbers(self) -> Mapping[str, Any]:
        return {"critic_steps": self._critic_optimizer.steps}

    def _more_tensors(self) -> Mapping[str, torch.Tensor]:
        weights = {f"critic.weights.{name}": tensor for name, tensor in self.critic.state_dict().items()}
        return {**weights, **self._critic_optimizer.tensors("critic")}

    def _load_more(self, state: TrainerState) -> None:
        prefix = "critic.weights."
        weights = {name.removeprefix(prefix): t for name, t in state.tensors.items() if name.startswith(prefix)}
        try:
            self.critic.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"the critic's weights do not fit: {error}") from error
        self._critic_optimizer.load(state.tensors, "critic", int(state.numbers["critic_steps"]))
