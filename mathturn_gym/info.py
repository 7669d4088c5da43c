"""What `reset` and `step` say besides the observation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np

from mathturn_gym.types import Verdict

__all__ = ["StepInfo", "info_of"]


class StepInfo(TypedDict, total=False):
    """What `reset` and `step` say besides the observation. No clock in it: the same call gives the same info.

    Attributes:
        problem_id: The problem's id; `reset(options={"problem_id": …})` gives the same problem again.
        prompt: The problem's text.
        metadata: The problem's metadata (family, split, level, …).
        turn: Turns played so far, 0 after `reset`.
        turns_left: Turns that may still be played.
        verdict: The verdict of the turn just played, without the gold answer; None after `reset`.
        response: The text that was verified ("" after `reset`).
        feedback: What the environment said about it, as text ("" where it said nothing: after `reset`, at the end).
        new_ids_start: `obs[new_ids_start:]` came with this call: the prompt, or the action and its feedback; all of it
            where the observation was written anew.
        feedback_start: `obs[feedback_start:]` is the feedback (the prompt, after `reset`).
        segment: How many times the observation was written anew in this episode (`history="keep"`: 0).
        completion_budget: The most tokens that the next completion can use, 0 at the end.
        context_left: `max_context_tokens` minus the observation's length, never below 0.
        stop_reason: "solved", "turns", "context", "tokens" or "time" at the end (see `StopReason`), None before.
        verifier_errors: Turns so far whose verifier raised (`verdict.is_verifier_error`).
        judged_turns: Turns so far on which a judge decided (`verdict.is_judged`).
        gold: The accepted answers; only with `gold_in_info=True`.
        reward_terms: What the reward of the turn just played is the sum of ("verdict" and the names asked for); only with
            `reward_terms`, and not after `reset`.
    """

    problem_id: str
    prompt: str
    metadata: dict[str, Any]
    turn: int
    turns_left: int
    verdict: Verdict | None
    response: str
    feedback: str
    new_ids_start: int
    feedback_start: int
    segment: int
    completion_budget: int
    context_left: int
    stop_reason: str | None
    verifier_errors: int
    judged_turns: int
    gold: tuple[str, ...]
    reward_terms: dict[str, float]


def info_of(infos: Mapping[str, Any], i: int) -> dict[str, Any]:
    """Environment i's info out of a vector environment's infos.

    A key belongs to environment i where its mask (`infos["_key"][i]`) says so, or where there is no mask: Gymnasium's
    wrappers add dictionaries whose keys have none (`RecordEpisodeStatistics`).

    Args:
        infos: As a vector environment's `reset` or `step` returned them.
        i: Number of the environment.

    >>> info_of({"turn": np.array([1, 2]), "_turn": np.array([True, True])}, 1)
    {'turn': 2}
    """
    info: dict[str, Any] = {}
    for key, values in infos.items():
        if key.startswith("_") or (f"_{key}" in infos and not infos[f"_{key}"][i]):
            continue
        value = values
        if isinstance(values, dict):
            value = info_of(values, i)
        elif isinstance(values, (np.ndarray, list, tuple)):
            value = values[i]
        info[key] = value.item() if isinstance(value, np.generic) else value
    return info
