"""AdamW with a clipped gradient, whose state travels as named tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch

from mathturn_gym.baselines.config import TrainConfig

__all__ = ["Optimizer"]

_MOMENTS: Final = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """AdamW over a module's parameters.

    Args:
        module: What is trained.
        learning_rate: At the schedule's factor 1.
        config: Gives the rest of AdamW's settings, and the most that a gradient's norm may be.

    Attributes:
        steps: Gradient steps done.
    """

    def __init__(self, module: torch.nn.Module, learning_rate: float, config: TrainConfig) -> None:
        self._module, self._learning_rate, self._max_norm = module, learning_rate, config.max_grad_norm
        self._adamw = torch.optim.AdamW(
            module.parameters(),
            lr=learning_rate,
            betas=(0.9, config.adam_beta2),
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
            fused=True,  # of a small model, a loop over parameters would take a quarter of the backward pass
        )
        self._adamw.zero_grad(set_to_none=True)
        self.steps = 0

    def step(self, rate: float) -> float:
        """Clips the gradients that were accumulated, takes a step, and forgets them.

        Args:
            rate: The learning rate's factor.

        Returns:
            The gradient's norm before clipping; where it is not finite no step is taken.
        """
        norm = float(torch.nn.utils.clip_grad_norm_(self._module.parameters(), self._max_norm))
        if math.isfinite(norm):
            for group in self._adamw.param_groups:
                group["lr"] = self._learning_rate * rate
            self._adamw.step()
            self.steps += 1
        self._adamw.zero_grad(set_to_none=True)
        return norm

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """AdamW's moments, as "NAME.exp_avg.PARAMETER" and "NAME.exp_avg_sq.PARAMETER"."""
        return {
            f"{name}.{kind}.{parameter_name}": self._adamw.state[parameter][kind].detach().cpu()
            for parameter_name, parameter in self._module.named_parameters()
            if parameter in self._adamw.state
            for kind in _MOMENTS
        }

    def load(self, tensors: Mapping[str, torch.Tensor], name: str, steps: int) -> None:
        """Takes back what `tensors` gave.

        Raises:
            ValueError: a tensor is missing or of another shape.
        """
        found = {}
        for parameter_name, parameter in self._module.named_parameters():
            moments = {kind: tensors.get(f"{name}.{kind}.{parameter_name}") for kind in _MOMENTS}
            for kind, tensor in moments.items():
                if tensor is None or tensor.shape != parameter.shape:
                    raise ValueError(f"no {kind} of {name} parameter {parameter_name} with shape {parameter.shape}")
            placed = {kind: tensor.to(parameter.device) for kind, tensor in moments.items() if tensor is not None}
            found[parameter] = {"step": torch.tensor(float(steps), device=parameter.device), **placed}
        for parameter, state in found.items():
            self._adamw.state[parameter] = state
        self.steps = steps
