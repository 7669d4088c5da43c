"""Episodes for TRL, verl, AReaL, tinker and Hugging Face datasets: plain lists, arrays and tensors.

Every format has one stream per segment (most episodes have one), `prompt ++ everything after it`, with a mask of the
policy's own ids; nothing is decoded or encoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mathturn_gym.episodes.returns import returns_to_go
from mathturn_gym.errors import (
    InvalidEpisodeError,
    InvalidValueError,
    MissingDependencyError,
    check_float,
    check_int,
    install_extra,
)
from mathturn_gym.types import NO_VERSION, Episode

if TYPE_CHECKING:
    import torch


def to_trl(
    episodes: Sequence[Episode],
    *,
    discount: float = 1.0,
    empty_id: int | None = None,
    missing_logprobs: bool = False,
) -> dict[str, Any]:
    """What a `rollout_func` of TRL's `GRPOTrainer` returns, one entry per episode, in order.

    Args:
        episodes: As many as the trainer gave prompts, in their order.
        discount: Of `episode_return`.
        empty_id: Stands, masked, for a completion without any id, which TRL cannot take; None makes it an error.
        missing_logprobs: Log-probs may be missing. Each is None then, as TRL's own generation has it; `logprobs` itself is
            None where no episode has any. False makes one that is missing an error.

    Returns:
        `prompt_ids`, `completion_ids` (completions and feedback interleaved, to the last completion's end),
        `logprobs` (0.0 on feedback), `env_mask` (1 on the policy's ids), and `episode_return`, which TRL hands to
        reward functions (`trl_episode_return` is the one that gives it back).

    Raises:
        InvalidEpisodeError: log-probs missing, nothing after the prompt, or several segments, where TRL takes one stream;
            the episode (and turn) is named.
        InvalidValueError: a discount outside [0, 1], or a negative `empty_id`.
    """
    filler = None if empty_id is None else check_int("empty_id", empty_id, low=0)
    columns: dict[str, Any] = {
        name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "episode_return")
    }
    known = False
    for episode in episodes:
        if episode.num_segments > 1:
            raise InvalidEpisodeError(
                f"{_name(episode)} has {episode.num_segments} segments, and TRL takes one stream per prompt: play it with"
                ' history="keep"'
            )
        (stream,) = _streams(episode, None if missing_logprobs else "TRL")
        ids, mask = stream.ids.tolist(), stream.mask.astype(int).tolist()
        known |= bool(np.any(stream.mask & ~np.isnan(stream.logprobs)))
        # NaN is not equal to itself: JSON and TRL say None.
        logprobs = [None if value != value else value for value in stream.logprobs.tolist()]
        if not ids:
            if filler is None:
                raise InvalidEpisodeError(
                    f"{_name(episode)} has no id after its prompt, which TRL cannot take: leave it out, or give "
                    f"`empty_id` (the tokenizer's pad id, say) to stand for it, masked"
                )
            # Masked: no loss, and a shape that TRL can pad.
            ids, logprobs, mask = [filler], [0.0], [0]
        row = (stream.context.tolist(), ids, logprobs, mask, _episode_return(episode, discount))
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
    if missing_logprobs and not known:
        columns["logprobs"] = None
    return columns


def trl_episode_return(completions: Sequence[Any], episode_return: Sequence[float], **_: Any) -> list[float]:
    """The reward function for `GRPOTrainer(reward_funcs=[trl_episode_return])` with rollouts of `to_trl`."""
    if len(completions) != len(episode_return):
        raise InvalidValueError(f"{len(episode_return)} episode returns for {len(completions)} completions")
    return [float(value) for value in episode_return]


def trl_advantages(
    episodes: Sequence[Episode], advantages: Sequence[npt.ArrayLike], *, width: int
) -> npt.NDArray[np.float32]:
    """Advantages per turn as the (B, T) array that a subclass of `GRPOTrainer` may put in its inputs.

    Override `_generate_and_score_completions` and replace `out["advantages"]`; `width` is
    `out["completion_ids"].shape[1]`.

    Args:
        episodes: B episodes, the ones that `to_trl` was given.
        advantages: B arrays (K,).
        width: T, at least the longest completion stream.

    Returns:
        float32 (B, T); each of a turn's ids has its advantage, 0 on feedback and padding.

    Raises:
        InvalidValueError: a width that is too small, or advantages that do not fit their episode.
    """
    if len(advantages) != len(episodes):
        raise InvalidValueError(f"advantages has {len(advantages)} entries for {len(episodes)} episodes")
    result = np.zeros((len(episodes), check_int("width", width, low=0)), np.float32)
    for row, episode, given in zip(result, episodes, advantages, strict=True):
        (stream,) = _streams(episode, None)
        values = stream.values(_checked_values(episode, given))
        # A stream that is longer than TRL's tensor would put advantages on other tokens.
        if len(values) > len(row):
            raise InvalidValueError(f"width must be at least {len(values)} for {_name(episode)}, got {width}")
        row[: len(values)] = values
    return result


def to_verl(episodes: Sequence[Episode], *, discount: float = 1.0) -> list[dict[str, Any]]:
    """Keyword arguments for verl's `AgentLoopOutput`, one dict per segment (`metrics` is the caller's to add).

    Args:
        episodes: Any number.
        discount: Of `reward_score`, the return of the whole episode (verl puts it on the last id).

    Returns:
        `prompt_ids`, `response_ids`, `response_mask`, `response_logprobs` (None where the policy gave none),
        `reward_score`, `num_turns` (messages after the system prompt, the user's counted in, as verl counts), and in
        `extra_fields` "turn_scores", the rewards per turn, and "segment". All segments of an episode have its return and
        its rewards.
    """
    rows = []
    for episode in episodes:
        for number, stream in enumerate(_streams(episode, None)):
            # verl wants all log-probs or none.
            known = not bool(np.isnan(stream.logprobs).any())
            rows.append(
                {
                    "prompt_ids": stream.context.tolist(),
                    "response_ids": stream.ids.tolist(),
                    "response_mask": stream.mask.astype(int).tolist(),
                    "response_logprobs": stream.logprobs.tolist() if known else None,
                    "reward_score": _episode_return(episode, discount),
                    "num_turns": 2 * episode.num_turns,
                    "extra_fields": {"turn_scores": episode.rewards.tolist(), "segment": number},
                }
            )
    return rows


def to_areal(episode: Episode, *, discount: float = 1.0) -> dict[str, torch.Tensor]:
    """What `RolloutWorkflow.arun_episode` of AReaL returns: a row of tensors per segment.

    Args:
        episode: With behavior log-probs.
        discount: Of `rewards`, the return of the whole episode.

    Returns:
        (S, T) `input_ids` int32, `attention_mask` bool, `loss_mask` int32, `logprobs` float32, `versions` int32 and
        `turn_ids` int32 (both -1 on prompt and feedback), and (S,) `rewards` float32. A row ends with its last completion;
        shorter ones are padded on the right.

    Raises:
        InvalidEpisodeError: log-probs are missing; episode and turn are named.
    """
    import torch

    streams = _streams(episode, "AReaL")
    # Padded to the longest segment: AReaL stacks the rows of an episode.
    width = max(len(stream.all_ids) for stream in streams)

    def padded(rows: Sequence[npt.NDArray[Any]], fill: int, dtype: npt.DTypeLike) -> torch.Tensor:
        table = np.full((len(rows), width), fill, dtype)
        for row, values in zip(table, rows, strict=True):
            row[: len(values)] = values
        return torch.from_numpy(table)

    return {
        "input_ids": padded([one.all_ids for one in streams], 0, np.int32),
        "attention_mask": padded([np.ones(len(one.all_ids)) for one in streams], 0, np.bool_),
        "loss_mask": padded([one.over_all(one.mask, 0) for one in streams], 0, np.int32),
        "logprobs": padded([one.over_all(one.logprobs, 0) for one in streams], 0, np.float32),
        "versions": padded([one.over_all(one.versions, NO_VERSION) for one in streams], NO_VERSION, np.int32),
        "turn_ids": padded([one.over_all(one.turns, -1) for one in streams], -1, np.int32),
        "rewards": torch.full((len(streams),), _episode_return(episode, discount), dtype=torch.float32),
    }


def to_tinker(episode: Episode, advantages: npt.ArrayLike) -> list[dict[str, Any]]:
    """The contents of an episode's `tinker.Datum` objects: one for each segment, so mostly one.

    Args:
        episode: With behavior log-probs.
        advantages: (K,), one per turn.

    Returns:
        For each segment `model_input`, the ids but the last, and `loss_fn_inputs`: `target_tokens`, `logprobs`, `advantages`
        and `mask`, each shifted by one so that entry t is about the id after `model_input[t]`.
        `tinker.Datum(model_input=tinker.ModelInput.from_ints(d["model_input"]), loss_fn_inputs={...})` makes the
        real thing.

    Raises:
        InvalidEpisodeError: log-probs are missing, or there is no id to predict.
        InvalidValueError: advantages that do not fit the episode.
    """
    given = _checked_values(episode, advantages)
    data = []
    for stream in _streams(episode, "tinker"):
        ids = stream.all_ids
        # A Datum predicts each id from those before it: one id predicts nothing.
        if len(ids) < 2:
            raise InvalidEpisodeError(f"{_name(episode)} has {len(ids)} ids: none predicts another")
        data.append(
            {
                "model_input": ids[:-1].tolist(),
                "loss_fn_inputs": {
                    "target_tokens": ids[1:].copy(),
                    "logprobs": stream.over_all(stream.logprobs, 0)[1:],
                    "advantages": stream.over_all(stream.values(given), 0)[1:],
                    "mask": stream.over_all(stream.mask, 0)[1:].astype(np.float32),
                },
            }
        )
    return data


def to_datasets(episodes: Sequence[Episode]) -> Any:
    """A Hugging Face `datasets.Dataset` with a row per episode, in the columns of our Parquet files.

    Raises:
        MissingDependencyError: datasets (or pyarrow) is not installed.
        InvalidEpisodeError: an episode that a table cannot hold without loss.
    """
    try:
        from datasets import Dataset
    except ImportError as error:
        raise MissingDependencyError(f"to_datasets needs datasets: {install_extra('data')}") from error
    from mathturn_gym.episodes.trajectories.tables import episodes_to_table

    return Dataset(episodes_to_table(episodes))


@dataclass(frozen=True, slots=True)
class _Stream:
    """A segment: the context before its first completion, and from there to its last completion's end every id."""

    context: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]
    turns: npt.NDArray[np.int32]

    @property
    def all_ids(self) -> npt.NDArray[np.int64]:
        """Context and everything after it."""
        return np.concatenate([self.context, self.ids])

    def over_all(self, values: npt.NDArray[Any], fill: int) -> npt.NDArray[Any]:
        """Values of the ids after the context, with `fill` on the context."""
        return np.concatenate([np.full(len(self.context), fill, values.dtype), values])

    def values(self, per_turn: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """One value per turn of the episode, on every id of the turn's completion, 0 elsewhere."""
        return np.where(self.turns >= 0, np.append(per_turn, np.float32(0))[self.turns], np.float32(0))


def _streams(episode: Episode, needs_logprobs: str | None) -> list[_Stream]:
    """The segments of an episode in which something was said; its prompt alone where nothing was."""
    turns = np.full(len(episode.ids), -1, np.int32)
    for k, (start, end) in enumerate(episode.turn_spans.tolist()):
        turns[start:end] = k
    missing = np.flatnonzero(np.isnan(episode.logprobs))
    if missing.size and needs_logprobs is not None:
        raise InvalidEpisodeError(
            f"{_name(episode)}, turn {int(turns[missing[0]])}: behavior log-probs are missing (NaN), and "
            f"{needs_logprobs} needs them; sample with a policy that gives log-probs"
        )
    # A segment without a completion (a prompt re-rendered at the very end) teaches nothing.
    segments = episode.turn_segments
    bounds = []
    for segment, begin in enumerate(episode.segment_starts.tolist()):
        spans = episode.turn_spans[segments == segment]
        if len(spans):
            bounds.append((begin, int(spans[0, 0]), int(spans[-1, 1])))
    columns: tuple[Any, ...] = (episode.ids, episode.loss_mask, episode.logprobs, episode.versions, turns)
    return [
        _Stream(episode.ids[begin:start], *(column[start:end] for column in columns))
        for begin, start, end in bounds or [(0, episode.prompt_length, episode.prompt_length)]
    ]


def _checked_values(episode: Episode, given: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """One finite value per turn."""
    values = np.asarray(given, dtype=np.float32)
    if values.shape != (episode.num_turns,) or not np.all(np.isfinite(values)):
        raise InvalidValueError(
            f"advantages of {_name(episode)} must be {episode.num_turns} finite numbers, got {values.tolist()}"
        )
    return values


def _episode_return(episode: Episode, discount: float) -> float:
    gamma = check_float("discount", discount, low=0.0, high=1.0)
    return float(returns_to_go(episode.rewards, gamma)[0]) if episode.num_turns else 0.0


def _name(episode: Episode) -> str:
    return f"episode {episode.index} on {episode.problem_id!r}"
