"""What every adapter needs: reading fields of unknown JSON, and tokens out of masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.show.view.records import Message, ViewEpisode
from mathturn_gym.types import NO_VERSION

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


@dataclass(frozen=True, slots=True)
class Adapter:
    """How one kind of line is recognized and read."""

    name: str  # what the page calls the log
    matches: Callable[[Mapping[str, Any]], bool]  # true for a line of this kind
    # From a line, its number and its file's name to episodes (a line may hold several).
    read: Callable[[Mapping[str, Any], int, str], Sequence[ViewEpisode]]


def integers(name: str, value: Any) -> npt.NDArray[np.int64]:
    """A list of integers; `InvalidValueError` where it is none."""
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise InvalidValueError(f"{name} must be a list of integers, got {str(value)[:80]}")
    try:
        return np.array(value, np.int64)
    except OverflowError:
        raise InvalidValueError(f"{name} has a number that does not fit in int64") from None


def floats(name: str, value: Any) -> npt.NDArray[np.float32]:
    """A list of numbers, null being NaN; `InvalidValueError` where it is none."""
    if not isinstance(value, list) or not all(item is None or type(item) in (int, float) for item in value):
        raise InvalidValueError(f"{name} must be a list of numbers, got {str(value)[:80]}")
    with np.errstate(over="ignore"):
        return np.array([np.nan if item is None else _float(item) for item in value], np.float64).astype(np.float32)


def number(value: Any) -> float | None:
    """The value where it is a number."""
    return _float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _float(value: float) -> float:
    """The number as a float; JSON's integers have no end, floats become infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def as_text(value: Any) -> str | None:
    """The value as text; None stays None."""
    return None if value is None else value if isinstance(value, str) else str(value)


def content_text(content: Any) -> str:
    """The text of a message's content: a text, or a list of parts of which the texts are taken."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "\n".join(part for part in parts if isinstance(part, str))
    return str(content)


def messages_of(value: Any) -> list[Message]:
    """A list of chat messages, or a text, as messages without tokens; what the model thought comes first."""
    if isinstance(value, str):
        return [Message("user", value)]
    found = []
    for message in value if isinstance(value, list) else []:
        if not isinstance(message, dict):
            raise InvalidValueError(f"a message must be an object, got {type(message).__name__}")
        thought = message.get("reasoning_content")
        text = content_text(message.get("content"))
        said = f"{thought}\n\n{text}" if isinstance(thought, str) and thought else text
        found.append(Message(_ROLES.get(str(message.get("role")), "user"), said))
    return found


def runs(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The stretches of a mask that are True, as [start, end).

    >>> runs(np.array([0, 1, 1, 0, 1], bool))
    [(1, 3), (4, 5)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def spread(values: npt.NDArray[np.float32], mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """Numbers of the masked tokens alone as a row with one entry per token, NaN elsewhere."""
    row = np.full(len(mask), np.nan, np.float32)
    row[mask] = values
    return row


# ---- from a stream of tokens with a mask, and messages that may go with it, to an episode with its turns


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A prompt's ids, and what came after it.

    Raises:
        InvalidValueError: a mask or numbers of another length.
    """

    prompt_ids: npt.NDArray[np.int64]  # int64 (P,)
    ids: npt.NDArray[np.int64]  # int64 (C,); completions and what was said in between
    mask: npt.NDArray[np.bool_]  # bool (C,); True on completions
    values: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)  # numbers by name, float32 (C,)

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

    `per_episode` has numbers that hold for every token of the policy, None where unknown; `facts` are other fields of
    `ViewEpisode`.
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
