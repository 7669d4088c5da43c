"""What the schedulers ask of a policy."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

from mathturn_gym.types import Completion, Ids, Policy

__all__ = ["AsyncPolicy", "Scheduler", "StreamingPolicy"]

Scheduler: TypeAlias = Literal["batched", "streaming", "async"]
"""How a policy is asked; a policy declares it as its attribute `scheduler` ("batched" where it has none)."""


class StreamingPolicy(Policy, Protocol):
    """A policy that also answers requests one by one, as they end."""

    def submit(self, context: Ids, *, max_tokens: int, seed: int | None = None) -> int:
        """Queues a context; returns a ticket."""
        ...

    def advance(self, steps: int | None = None) -> list[tuple[int, Completion]]:
        """Works until at least one request has ended.

        Args:
            steps: Gives up, with nothing, after about so many steps of decoding; None does not.

        Returns:
            Tickets and completions, in the order in which they ended; none where no request is queued.
        """
        ...

    def cancel(self, ticket: int) -> bool:
        """Drops a request; False where there is none of that ticket."""
        ...

    def release(self, context: Ids) -> None:
        """Is told that a context will not be continued."""
        ...


class AsyncPolicy(Protocol):
    """Anything that continues one context at a time, many at once, in asyncio.

    Cancelling `acomplete` must drop the request.
    """

    async def acomplete(
        self, context: Ids, *, max_tokens: int, seed: int | None = None, session: str | None = None
    ) -> Completion:
        """Continues a context.

        Args:
            context: int64 (L,).
            max_tokens: Budget, >= 0.
            seed: Determines the sample; None leaves it to the policy.
            session: The same for all turns of an episode: whoever holds its prefix may be asked again.
        """
        ...
