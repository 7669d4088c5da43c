"""A policy that takes time and thinks nothing: for measuring what an engine costs, and for tests of what it loses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from mathturn_gym.env.dialogue import Dialogue, completion_ids
from mathturn_gym.errors import InvalidValueError, check_float, check_int
from mathturn_gym.types import Completion, Ids


class SimulatedPolicy:
    r"""Answers `\boxed{d}`, d being a digit that the seed decides, after a while that the seed decides too.

    The times of a request are log-normal (long-tailed, as those of real answers are) with mean `seconds`.

    Args:
        seconds: Mean time of a request.
        spread: Standard deviation of the time's logarithm; 0 makes all alike.
        replicas: Models that answer; each has one request at a time, the others wait.
        tokenizer: See `Dialogue`.
        scheduler: How it is asked: "async", or "batched" (then all requests of a batch take the time of the longest,
            and `replicas` means nothing).

    Attributes:
        busy_seconds: Time that the replicas spent answering, added up.
        version: Of the weights that `update_weights` was given.

    >>> policy = SimulatedPolicy(seconds=0.0, scheduler="batched")
    >>> (said,) = policy.complete([np.array([65])], max_tokens=[16], seeds=[4])
    >>> policy.tokenizer.decode(said.ids)[:7]
    '\\boxed{'
    """

    def __init__(
        self,
        seconds: float = 0.2,
        spread: float = 0.0,
        replicas: int = 1,
        tokenizer: str = "builtin",
        scheduler: Literal["async", "batched"] = "async",
    ) -> None:
        self._seconds = check_float("seconds", seconds, low=0.0)
        self._spread = check_float("spread", spread, low=0.0)
        if scheduler not in ("async", "batched"):
            raise InvalidValueError(f"scheduler must be 'async' or 'batched', got {scheduler!r}")
        self.scheduler = scheduler
        dialogue = Dialogue(tokenizer)
        self.tokenizer: Any = dialogue.tokenizer
        # Made once: what an answer costs here must not be taken for what an engine costs.
        self._answers = [completion_ids(dialogue, rf"\boxed{{{digit}}}") for digit in range(10)]
        self._free = asyncio.Semaphore(check_int("replicas", replicas, low=1))
        self.busy_seconds, self.version = 0.0, 0
        self._weights: Mapping[str, torch.Tensor] = {}

    def complete(
        self, contexts: Sequence[Ids], *, max_tokens: Sequence[int], seeds: Sequence[int] | None = None
    ) -> list[Completion]:
        """See `Policy.complete`."""
        chosen = [0] * len(contexts) if seeds is None else seeds
        if chosen:
            longest = max(self._time(seed) for seed in chosen)
            time.sleep(longest)
            self.busy_seconds += longest
        return [self._completion(limit, seed) for limit, seed in zip(max_tokens, chosen, strict=True)]

    async def acomplete(
        self, context: Ids, *, max_tokens: int, seed: int | None = None, session: str | None = None
    ) -> Completion:
        """See `AsyncPolicy.acomplete`."""
        async with self._free:
            began = time.perf_counter()
            await asyncio.sleep(self._time(seed or 0))
            self.busy_seconds += time.perf_counter() - began
        return self._completion(max_tokens, seed or 0)

    def update_weights(self, weights: Mapping[str, torch.Tensor], *, version: int) -> int:
        """Notes weights and version; the answers stay what they are."""
        self._weights, self.version = weights, version
        return version

    def _time(self, seed: int) -> float:
        if not self._spread:
            return self._seconds
        z = np.random.Generator(np.random.Philox(key=seed)).standard_normal()
        return self._seconds * float(np.exp(self._spread * z - self._spread**2 / 2))

    def _completion(self, limit: int, seed: int) -> Completion:
        ids = self._answers[seed % 10]
        logprobs = np.random.Generator(np.random.Philox(key=seed)).uniform(-2.0, 0.0, len(ids)).astype(np.float32)
        return Completion(ids[:limit], logprobs[:limit], truncated=len(ids) > limit, version_start=self.version)
