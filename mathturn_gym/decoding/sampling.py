"""From logits to an id: temperature, top-k, top-p and min-p, and a draw that is determined by one uniform number."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mathturn_gym.errors import InvalidValueError, check_float, check_int

__all__ = ["Sampling", "entropy"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an id is drawn from logits: temperature, then top-k, then top-p, then min-p, then normalized again.

    The order is that of `transformers.generate`.

    Args:
        temperature: > 0 divides the logits; 0 takes the likeliest id. The log-probs of greedy sampling are those at
            temperature 1: they are no behavior log-probs, and no importance ratio can be built on them.
        top_p: Keep the smallest set of ids whose probability reaches this, in (0, 1]; 1 keeps all.
        top_k: Keep this many ids; 0 keeps all.
        min_p: Keep the ids whose probability is at least this share of the likeliest one's, in [0, 1]; 0 keeps all
            (Nguyen et al. 2024, arXiv:2407.01082).

    Raises:
        InvalidValueError: a value outside these ranges.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        """Checks the ranges."""
        check_float("temperature", self.temperature, low=0.0)
        check_int("top_k", self.top_k, low=0)
        check_float("min_p", self.min_p, low=0.0, high=1.0)
        if check_float("top_p", self.top_p, low=0.0, high=1.0) == 0.0:
            raise InvalidValueError("top_p must be in (0, 1], got 0.0; for greedy decoding use temperature=0")

    @property
    def truncates(self) -> bool:
        """True where some ids are cut off, so that importance ratios are biased."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    def log_distribution(self, logits_BV: torch.Tensor) -> torch.Tensor:
        """Log-probs under the distribution that is sampled from, float32 (B, V); -inf where an id is cut off."""
        logits_BV = logits_BV.float()
        if self.temperature not in (0.0, 1.0):
            logits_BV = logits_BV / self.temperature
        if self.top_k or self.top_p < 1.0:
            logits_BV = self._truncate(logits_BV)
        if self.min_p:
            floor_B1 = logits_BV.amax(dim=-1, keepdim=True) + math.log(self.min_p)
            logits_BV = logits_BV.masked_fill(logits_BV < floor_B1, -torch.inf)
        return torch.log_softmax(logits_BV, dim=-1)

    def draw(self, logprobs_BV: torch.Tensor, uniforms_B: torch.Tensor) -> torch.Tensor:
        """The id at which the cumulative distribution first exceeds each uniform number, int64 (B,)."""
        if self.temperature == 0.0:
            return logprobs_BV.argmax(dim=-1)
        cdf_BV = torch.cumsum(logprobs_BV.exp(), dim=-1, dtype=torch.float64)
        total_B = cdf_BV[:, -1]
        # Below the total, however it was rounded: the last id of positive probability is the last that can be drawn.
        target_B = torch.minimum(uniforms_B * total_B, torch.nextafter(total_B, torch.zeros_like(total_B)))
        return torch.searchsorted(cdf_BV, target_B[:, None], right=True)[:, 0].clamp_max(cdf_BV.shape[1] - 1)

    def _truncate(self, logits_BV: torch.Tensor) -> torch.Tensor:
        """Logits with -inf outside the top-k and top-p sets; ties go to the smaller id."""
        sorted_BV, order_BV = torch.sort(logits_BV, dim=-1, descending=True, stable=True)
        keep_BV = torch.ones_like(sorted_BV, dtype=torch.bool)
        if self.top_k:
            keep_BV[:, self.top_k :] = False
        if self.top_p < 1.0:
            probs_BV = torch.softmax(sorted_BV.masked_fill(~keep_BV, -torch.inf), dim=-1)
            # An id stays while those before it have not yet reached top_p: the first always does.
            keep_BV &= probs_BV.cumsum(dim=-1) - probs_BV < self.top_p
        return torch.full_like(logits_BV, -torch.inf).scatter(-1, order_BV, sorted_BV.masked_fill(~keep_BV, -torch.inf))


def entropy(logprobs_BV: torch.Tensor) -> torch.Tensor:
    """Entropy in nats, float32 (B,), of distributions given as log-probs; an id that is cut off (-inf) adds 0."""
    return -(logprobs_BV.exp() * logprobs_BV.masked_fill(logprobs_BV.isneginf(), 0.0)).sum(dim=-1)
