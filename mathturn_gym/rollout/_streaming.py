"""The scheduler for policies that answer requests as they end: no episode waits for the others' turns.

    submit ─► advance ─► what ended together ─► one verifier call, beside the decoding ─► step ─► submit …

What is drawn depends on (seed, episode, turn) alone, so the episodes are the same whatever is slow. The order in which
they end, and the last bits of log-probs (who shares a batch with whom), may depend on a verifier that is slow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Final, TypeAlias

from mathturn_gym.errors import PolicyError
from mathturn_gym.rollout._plan import EpisodePlan
from mathturn_gym.rollout._policies import StreamingPolicy
from mathturn_gym.rollout._seat import Seat
from mathturn_gym.types import Completion, Episode, TurnContext, Verdict
from mathturn_gym.verification import TurnVerifier

__all__ = ["play_streaming"]

PATIENCE_SECONDS: Final = 0.1
"""How long decoding waits for verdicts while no others are outstanding.

Nearly all verdicts are there within it, so that a run goes the same way each time: the same requests share a batch. Async
judges wait for something elsewhere, and are not waited for.
"""

STEPS_BETWEEN_LOOKS: Final = 8
"""Steps of decoding after which outstanding verdicts are looked at again."""

_Answer: TypeAlias = tuple[Seat, Completion, TurnContext]


def play_streaming(
    seats: Sequence[Seat],
    policy: StreamingPolicy,
    plan: EpisodePlan,
    indices: Iterable[int],
    keep: Callable[[Episode], None],
) -> None:
    """Plays episodes, each going on as soon as its completion and its verdict are there.

    Args:
        seats: One per episode that runs at the same time.
        policy: The policy.
        plan: What the episodes are.
        indices: Which are played.
        keep: Called with each as it ends.
    """
    stream = _Stream(seats, policy, plan, indices, keep)
    try:
        stream.run()
    finally:
        stream.cancel()


class _Stream:
    """Episodes on their way between the policy, which has been `asked`, and the verifier, which is `judging`."""

    def __init__(
        self,
        seats: Sequence[Seat],
        policy: StreamingPolicy,
        plan: EpisodePlan,
        indices: Iterable[int],
        keep: Callable[[Episode], None],
    ) -> None:
        self._policy, self._plan, self._upcoming, self._keep = policy, plan, iter(indices), keep
        self._idle = deque(seats)
        self._asked: dict[int, Seat] = {}
        self._judging: dict[Future[Verdict], _Answer] = {}

    def run(self) -> None:
        """Plays all episodes to their ends."""
        self._begin()
        while self._asked or self._judging:
            if self._asked:
                self._judge(self._advance())
            self._settle()
            self._begin()

    def cancel(self) -> None:
        """Drops what is under way (after an error); verdicts that come later are nobody's."""
        for ticket in self._asked:
            self._policy.cancel(ticket)

    def _begin(self) -> None:
        while self._idle and (index := next(self._upcoming, None)) is not None:
            seat = self._idle.popleft()
            seat.begin(self._plan, index)
            self._go_on(seat)

    def _go_on(self, seat: Seat) -> None:
        """Asks for the episode's next completion, or hands it out where it is over."""
        run = seat.run
        if run.over:
            self._idle.appendleft(seat)
            for context in run.contexts:
                self._policy.release(context)
            self._keep(run.episode())
        else:
            self._asked[self._policy.submit(run.context, max_tokens=run.budget, seed=run.turn_seed)] = seat

    def _advance(self) -> list[tuple[Seat, Completion]]:
        """What has ended since the last look."""
        steps = STEPS_BETWEEN_LOOKS if self._judging else None
        ended = self._policy.advance(steps) if steps else self._policy.advance()
        strangers = [ticket for ticket, _ in ended if ticket not in self._asked]
        if strangers or not (ended or self._judging):
            raise PolicyError(
                f"advance() of {self._policy!r} must return completions of requests that were submitted, got"
                f" {f'tickets {strangers}' if strangers else 'none'} with {len(self._asked)} requests waiting"
            )
        return [(self._asked.pop(ticket), completion) for ticket, completion in ended]

    def _judge(self, ended: Sequence[tuple[Seat, Completion]]) -> None:
        """Has what ended together judged in one call per verifier, and waits for it if that may be quick."""
        batches: dict[TurnVerifier, list[_Answer]] = {}
        for seat, completion in ended:
            context, verifier = seat.turn(completion), seat.verifier
            if context is None or verifier is None:
                seat.play(completion)
                self._go_on(seat)
            else:
                batches.setdefault(verifier, []).append((seat, completion, context))
        patient = not self._judging and not any(verifier.is_async for verifier in batches)
        for verifier, answers in batches.items():
            futures = verifier.submit_turns([context for *_, context in answers])
            self._judging.update(zip(futures, answers, strict=True))
        if patient:
            wait(self._judging, timeout=PATIENCE_SECONDS)

    def _settle(self) -> None:
        """Plays the turns whose verdicts have come; waits for some where there is nothing else to do."""
        if self._judging and not self._asked:
            wait(self._judging, return_when=FIRST_COMPLETED)
        for future in [future for future in self._judging if future.done()]:
            seat, completion, context = self._judging.pop(future)
            seat.play(completion, context, future.result())
            self._go_on(seat)
