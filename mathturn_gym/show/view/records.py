"""Episodes as the viewer shows them: messages with their verdicts, and a row of numbers per token.

    Episode, or a row of TRL, verl, verifiers, Inspect ─► ViewEpisode ─► the page

More lenient than `Episode`: another trainer's log may have no ids, no verdicts, or no rewards per turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mathturn_gym.base.text import shorten
from mathturn_gym.episodes.returns import advantages
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.types import Episode, Verdict

_ROLES: Final = ("system", "user", "assistant", "tool")
_KNOWN: Final = ("family", "level")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a dialogue."""

    role: str  # "system", "user", "assistant" or "tool"
    text: str | None  # what it says, as text; None where only its tokens are known
    start: int = 0  # where its tokens begin in the episode's
    end: int = 0  # where they end; equal to `start` where no tokens are known
    verdict: Verdict | None = None  # what a verifier said of it
    reward: float | None = None  # the reward that it got
    budget: int | None = None  # the most tokens that it could have had
    truncated: bool = False  # it was cut off by that budget

    def __post_init__(self) -> None:
        """Refuses an unknown role: the page would not know where to show it."""
        if self.role not in _ROLES:
            raise InvalidValueError(f"Message.role must be one of {', '.join(_ROLES)}, got {self.role!r}")


@dataclass(frozen=True, slots=True, eq=False)
class ViewEpisode:
    """One episode as the viewer shows it.

    Args:
        problem_id: What tells problems apart: episodes on one problem can be laid side by side.
        messages: The dialogue, in order.
        ids: int64 (T,); all token ids, or none.
        mask: bool (T,); True on the tokens that are trained on.
        token_texts: T texts, where the log carries them; None where a tokenizer must say.
        values: Numbers of each token by name, float32 (T,), NaN where it has none: "logprob", "advantage", "entropy" …
        versions: int32 (T,), version of the weights, -1 where no policy sampled the token; None where it was not recorded.
        index: The episode's number.
        reward: The episode's reward.
        solved: Some answer was right; None where there is no verdict.
        stop_reason: Why it ended.
        group: Episodes that were sampled together share it.
        gold: The accepted answers.
        family: The problem's family.
        level: Its level.
        facts: Whatever else is known of it, of JSON types.

    Raises:
        InvalidValueError: an array that is not one per token, or a message outside of them.
    """

    problem_id: str
    messages: tuple[Message, ...]
    ids: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    mask: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    token_texts: tuple[str, ...] | None = None
    values: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    versions: npt.NDArray[np.int32] | None = None
    index: int = 0
    reward: float | None = None
    solved: bool | None = None
    stop_reason: str | None = None
    group: str | None = None
    gold: tuple[str, ...] = ()
    family: str | None = None
    level: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """`ViewEpisode(3 on 'p/1': 5 messages, 57 tokens)`."""
        said = f"{len(self.messages)} messages, {len(self.ids)} tokens"
        return f"ViewEpisode({self.index} on {shorten(self.problem_id)}: {said})"

    def __post_init__(self) -> None:
        """Checks that everything that is said of tokens is said of these."""
        size = len(self.ids)
        arrays: dict[str, Sequence[Any] | None] = {
            "mask": self.mask,  # type: ignore[dict-item]  # an array has a length too
            "token_texts": self.token_texts,
            "versions": self.versions,  # type: ignore[dict-item]
            **self.values,  # type: ignore[dict-item]
        }
        for name, array in arrays.items():
            if array is not None and len(array) != size:
                raise InvalidValueError(
                    f"episode {self.index} on {self.problem_id!r}: {name} has {len(array)} entries for {size} tokens"
                )
        for number, message in enumerate(self.messages):
            if not 0 <= message.start <= message.end <= size:
                raise InvalidValueError(
                    f"episode {self.index} on {self.problem_id!r}: message {number} has tokens [{message.start},"
                    f" {message.end}) of {size}"
                )


def from_episodes(episodes: Sequence[Episode], *, credit: bool = True) -> list[ViewEpisode]:
    """Episodes as the viewer shows them.

    Args:
        episodes: Any number; groups are those within them.
        credit: Where no advantages are recorded and episodes share groups, "advantage" is what `advantages(episodes)` gives:
            the return minus the mean of what the others of its group got from the same turn on.
    """
    shown = [_from_episode(episode) for episode in episodes]
    groups = [episode.group for episode in episodes if episode.group is not None]
    recorded = any("advantage" in episode.token_values for episode in episodes)
    if not credit or recorded or len(groups) == len(set(groups)):
        return shown
    return [
        replace(one, values={**one.values, "advantage": _per_token(episode, own)})
        for one, episode, own in zip(shown, episodes, advantages(episodes), strict=True)
    ]


def _from_episode(episode: Episode) -> ViewEpisode:
    metadata = dict(episode.metadata)
    family, level = (None if metadata.get(key) is None else str(metadata.pop(key)) for key in _KNOWN)
    if episode.seed is not None:
        metadata["seed"] = episode.seed
    return ViewEpisode(
        problem_id=episode.problem_id,
        messages=_messages(episode),
        ids=episode.ids,
        mask=episode.loss_mask,
        values={"logprob": np.where(episode.loss_mask, episode.logprobs, np.float32(np.nan)), **_known_values(episode)},
        versions=episode.versions,
        index=episode.index,
        reward=float(episode.rewards.sum()),
        solved=episode.solved,
        stop_reason=None if episode.stop_reason is None else episode.stop_reason.value,
        group=episode.group,
        gold=episode.gold,
        family=family,
        level=level,
        facts=metadata,
    )


def _known_values(episode: Episode) -> dict[str, npt.NDArray[np.float32]]:
    """The episode's own numbers, and the return of each turn on its tokens."""
    own = dict(episode.token_values)
    if episode.returns is not None:
        own.setdefault("return", _per_token(episode, episode.returns))
    return own


def _per_token(episode: Episode, per_turn: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """A turn's number on each of its tokens, NaN elsewhere."""
    row = np.full(len(episode.ids), np.nan, np.float32)
    for (start, end), value in zip(episode.turn_spans.tolist(), per_turn.tolist(), strict=True):
        row[start:end] = value
    return row


def _messages(episode: Episode) -> tuple[Message, ...]:
    messages = [Message("user", episode.prompt or None, 0, episode.prompt_length)]
    ends = [*episode.turn_spans[1:, 0].tolist(), len(episode.ids)]
    begins = set(episode.segment_starts.tolist())
    for turn, (start, end), next_start in zip(episode.turns, episode.turn_spans.tolist(), ends, strict=False):
        judged = turn.verdict, turn.reward, turn.budget, turn.truncated
        messages.append(Message("assistant", turn.response, start, end, *judged))
        # a segment that begins here is the whole context re-rendered, feedback included: it has no feedback of its own.
        rendered = end in begins and next_start > end
        if turn.feedback or (next_start > end and not rendered):
            messages.append(Message("user", turn.feedback, end, end if rendered else next_start))
        if rendered:
            words = f"The context was re-rendered: {next_start - end} tokens, all of it as the policy saw it next."
            messages.append(Message("system", words, end, next_start))
    return tuple(messages)
