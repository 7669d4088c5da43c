"""From a stream of tokens with a mask, and messages that may go with it, to an episode with its turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.types import NO_VERSION
from mathturn_gym.view._records import Message, ViewEpisode
from mathturn_gym.view.adapters._base import runs

__all__ = ["Stream", "episode_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A prompt's ids, and what came after it.

    Args:
        prompt_ids: int64 (P,).
        ids: int64 (C,); completions and what was said in between.
        mask: bool (C,); True on completions.
        values: Numbers by name, float32 (C,).

    Raises:
        InvalidValueError: a mask or numbers of another length.
    """

    prompt_ids: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]
    values: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the lengths."""
        for name, row in {"the mask": self.mask, **self.values}.items():
            if len(row) != len(self.ids):
                raise InvalidValueError(f"{name} has {len(row)} entries for {len(self.ids)} completion ids")


def episode_of(
    stream: Stream | None,
    *,
    problem_id: str,
    prompt: Sequence[Message],
    answers: Sequence[Message],
    per_episode: Mapping[str, float | None] | None = None,
    version: int | None = None,
    **facts: Any,
) -> ViewEpisode:
    """An episode of what a trainer's row holds.

    Args:
        stream: Its tokens, or None.
        problem_id: See `ViewEpisode`.
        prompt: The messages before the first answer.
        answers: Answers and what was said in between.
        per_episode: Numbers that hold for every token of the policy, None where unknown.
        version: Version of the weights, or the training step.
        **facts: Other fields of `ViewEpisode`.
    """
    if stream is None:
        return ViewEpisode(problem_id=problem_id, messages=(*prompt, *answers), **facts)
    head = len(stream.prompt_ids)
    nothing = np.zeros(head, np.bool_)
    mask = np.concatenate([nothing, stream.mask])
    blank = np.full(head, np.nan, np.float32)
    values = {
        name: np.where(mask, np.concatenate([blank, row]), np.float32(np.nan)) for name, row in stream.values.items()
    }
    for name, value in (per_episode or {}).items():
        if value is not None:
            values[name] = np.where(mask, np.float32(value), np.float32(np.nan))
    return ViewEpisode(
        problem_id=problem_id,
        messages=_placed(prompt, answers, head, mask),
        ids=np.concatenate([stream.prompt_ids, stream.ids]),
        mask=mask,
        values=values,
        versions=None if version is None else np.where(mask, version, NO_VERSION).astype(np.int32),
        **facts,
    )


def _placed(
    prompt: Sequence[Message], answers: Sequence[Message], head: int, mask: npt.NDArray[np.bool_]
) -> tuple[Message, ...]:
    """The messages with their tokens: the prompt's on its last message, each answer's on its stretch of the mask.

    Where the messages are not as many answers as the mask has stretches, the stretches are shown without their texts
    (a tokenizer gives them), since nothing says which belongs to which.
    """
    spans = runs(mask)
    said = [message for message in answers if message.role == "assistant"]
    between = [message for message in answers if message.role != "assistant"]
    fits = len(said) == len(spans)
    placed = [*prompt[:-1], replace(prompt[-1] if prompt else Message("user", None), start=0, end=head)]
    for number, (start, end) in enumerate(spans):
        answer = said[number] if fits else Message("assistant", None)
        placed.append(replace(answer, start=start, end=end))
        follows = spans[number + 1][0] if number + 1 < len(spans) else len(mask)
        if follows > end:
            reply = between[number] if fits and number < len(between) else Message("user", None)
            placed.append(replace(reply, start=end, end=follows))
    return tuple(placed)
