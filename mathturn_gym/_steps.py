"""When a step can be played: asked by the environment, and by a client before anything is sent."""

from __future__ import annotations

from mathturn_gym.errors import EpisodeStateError, InvalidActionError
from mathturn_gym.spaces import TokenIds
from mathturn_gym.types import Ids, StopReason

__all__ = ["check_step"]


def check_step(action: Ids, space: TokenIds, *, begun: bool, ended: bool, stop_reason: StopReason | None) -> None:
    """Raises where `step(action)` cannot be played.

    Raises:
        EpisodeStateError: there is no episode, or it has ended.
        InvalidActionError: the action is not in the action space; the message says why.
    """
    if not begun:
        raise EpisodeStateError("step() before reset(): call reset() to begin an episode")
    if ended:
        why = "" if stop_reason is None else f" (stop reason: {stop_reason.value})"
        raise EpisodeStateError(f"step() after the episode's end{why}: call reset() to begin another")
    reason = space.why_not(action)
    if reason is not None:
        raise InvalidActionError(
            f"action is not in {space}: {reason}; actions are int64 arrays of at most {space.max_length} ids in"
            f" [0, {space.vocab_size})"
        )
