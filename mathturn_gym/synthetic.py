"""Made-up episodes of given lengths, for tests and benchmarks of what comes after the environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import NO_VERSION, Episode, Status, StopReason, Verdict

__all__ = ["synthetic_episode"]


def synthetic_episode(
    seed: int,
    index: int,
    completions: Sequence[int],
    *,
    prompt: int | Sequence[int] = 8,
    feedback: int = 4,
    anew: Sequence[int] = (),
    group: str | None = None,
    vocab_size: int = 100,
    logprobs: bool = True,
    max_version: int = 0,
    **fields: Any,
) -> Episode:
    """A lawful episode of random ids, log-probs, versions, verdicts and rewards.

    Args:
        seed: Of the collection.
        index: Of the episode; `(seed, index)` determine it, and `(seed, group)` its prompt.
        completions: Lengths of its K completions; 0 is an empty one.
        prompt: The prompt's length, or its ids.
        feedback: Ids of feedback between two turns.
        anew: Turns, from 1 on, before which the context is written anew: each begins a segment, with a context that is as
            long as prompt and feedback together.
        group: See `Episode.group`.
        vocab_size: Ids are in [0, vocab_size).
        logprobs: False: the policy gave none (NaN).
        max_version: Versions rise within [0, max_version].
        fields: Other fields of `Episode`, or different ones.

    Raises:
        InvalidValueError: a negative length, or a turn in `anew` that is not there.

    >>> synthetic_episode(0, 0, [3, 2], prompt=5, feedback=4).turn_spans.tolist()
    [[5, 8], [12, 14]]
    """
    if min([feedback, *completions, 0]) < 0:
        raise InvalidValueError(f"lengths must be >= 0, got feedback {feedback}, completions {list(completions)}")
    rng = np.random.default_rng(derive_seed(seed, index))
    start = np.asarray(
        np.random.default_rng(derive_seed(seed, group or index)).integers(vocab_size, size=prompt)
        if isinstance(prompt, int)
        else prompt,
        dtype=np.int64,
    )
    turns = len(completions)
    if not set(anew) <= set(range(1, turns)):
        raise InvalidValueError(f"anew must hold turns in [1, {turns - 1}], got {list(anew)}")
    lengths, gaps = np.array(completions, np.int64), np.full(turns, feedback, np.int64)
    gaps[:1] = len(start)
    gaps[list(anew)] = max(1, len(start) + feedback)
    begins = np.cumsum(lengths + gaps) - lengths
    spans = np.stack([begins, begins + lengths], axis=1).reshape(-1, 2)
    size = int(spans[-1, 1]) if turns else len(start)
    mask = np.zeros(size, np.bool_)
    for begin, end in spans.tolist():
        mask[begin:end] = True
    drawn = np.log1p(-rng.random(size)).astype(np.float32) if logprobs else np.float32(np.nan)
    versions = np.full(size, NO_VERSION, np.int32)
    versions[mask] = np.sort(rng.integers(max_version + 1, size=int(mask.sum())))
    right = rng.random(turns) < 0.3
    known: dict[str, Any] = {
        "problem_id": f"synthetic/{group or index}",
        "ids": np.concatenate([start, rng.integers(vocab_size, size=size - len(start))]),
        "loss_mask": mask,
        "logprobs": np.where(mask, drawn, np.float32(0)).astype(np.float32),
        "versions": versions,
        "turn_spans": spans,
        "rewards": rng.normal(size=turns),
        "verdicts": tuple(Verdict(Status.RIGHT if flag else Status.WRONG, "synthetic") for flag in right.tolist()),
        "feedbacks": tuple("again" if k + 1 < turns else "" for k in range(turns)),
        "turn_truncated": (False,) * turns,
        "terminated": True,
        "truncated": False,
        "stop_reason": StopReason.TURNS,
        "index": index,
        "seed": seed,
        "group": group,
        "segment_starts": np.array([0, *(int(spans[turn - 1, 1]) for turn in sorted(anew))], np.int64),
    }
    return Episode(**{**known, **fields})
