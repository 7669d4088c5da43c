"""The critic's network: a copy of the policy's body, with a head that gives one number per token."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from mathturn_gym.episodes.packing import model_inputs

if TYPE_CHECKING:
    from mathturn_gym.episodes.packing.batch import PackedBatch


class ValueNetwork(torch.nn.Module):
    """Values of contexts; 0 everywhere before it is trained.

    The body of a causal language model is copied. Of a peft model the adapters are copied with it, and these and the new
    head are all that is trained.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        whole = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.body = copy.deepcopy(whole.base_model)
        self.head = torch.nn.Linear(whole.config.get_text_config().hidden_size, 1)
        # Zeros: an untrained critic says nothing, instead of noise that the first advantages would contain.
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.to(whole.device)

    def forward(self, batch: PackedBatch) -> torch.Tensor:
        """Float (B, T): the value of the context that ends with each token, this one included."""
        hidden = self.body(**model_inputs(batch), use_cache=False).last_hidden_state
        values: torch.Tensor = self.head(hidden.float())[..., 0]
        return values
