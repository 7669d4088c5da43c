"""The scheduler for policies that answer requests as they end: no episode waits for the others' turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mathturn_gym.rollout._seat import Seat
from mathturn_gym.rollout.plan import EpisodePlan
from mathturn_gym.rollout.policies import StreamingPolicy
from mathturn_gym.types import Episode

__all__ = ["play_streaming"]


def play_streaming(
    seats: Sequence[Seat],
    policy: StreamingPolicy,
    plan: EpisodePlan,
    indices: Iterable[int],
    keep: Callable[[Episode], None],
) -> None:
    """Plays episodes, each going on as soon as its completion is there.

    Args:
        seats: One per episode that runs at the same time.
        policy: The policy.
        plan: What the episodes are.
        indices: Which are played.
        keep: Called with each as it ends.
    """
    upcoming, idle = iter(indices), list(seats)[::-1]
    asked: dict[int, Seat] = {}

    def go_on(seat: Seat) -> None:
        run = seat.run
        if run.over:
            idle.append(seat)
            policy.release(run.context)
            keep(run.episode())
        else:
            asked[policy.submit(run.context, max_tokens=run.budget, seed=run.turn_seed)] = seat

    def begin() -> None:
        while idle and (index := next(upcoming, None)) is not None:
            seat = idle.pop()
            seat.begin(plan, index)
            go_on(seat)

    try:
        begin()
        while asked:
            for ticket, completion in policy.advance():
                seat = asked.pop(ticket)
                seat.play(completion)
                go_on(seat)
            begin()
    finally:
        for ticket in asked:
            policy.cancel(ticket)
