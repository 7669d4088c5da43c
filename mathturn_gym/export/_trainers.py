"""Episodes for TRL, verl, AReaL, tinker and Hugging Face datasets: plain lists, arrays and tensors.

Every format has one stream per episode, `prompt ++ everything after it`, with a mask of the policy's own ids; nothing
is decoded or encoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError, MissingDependencyError, check_float, check_int
from mathturn_gym.returns import returns_to_go
from mathturn_gym.types import Episode

if TYPE_CHECKING:
    import torch

__all__ = [
    "to_areal",
    "to_datasets",
    "to_tinker",
    "to_trl",
    "to_verl",
    "trl_advantages",
    "trl_episode_return",
]


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
        InvalidEpisodeError: log-probs missing, or nothing after the prompt; the episode (and turn) is named.
        InvalidValueError: a discount outside [0, 1], or a negative `empty_id`.
    """
    filler = None if empty_id is None else check_int("empty_id", empty_id, low=0)
    columns: dict[str, Any] = {
        name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "episode_return")
    }
    known = False
    for episode in episodes:
        stream = _Stream.of(episode, None if missing_logprobs else "TRL")
        ids, mask = stream.ids.tolist(), stream.mask.astype(int).tolist()
        known |= bool(np.any(stream.mask & ~np.isnan(stream.logprobs)))
        logprobs = [None if value != value else value for value in stream.logprobs.tolist()]
        if not ids:
            if filler is None:
                raise InvalidEpisodeError(
                    f"{_name(episode)} has no id after its prompt, which TRL cannot take: leave it out, or give "
                    f"`empty_id` (the tokenizer's pad id, say) to stand for it, masked"
                )
            ids, logprobs, mask = [filler], [0.0], [0]
        row = (episode.prompt_ids.tolist(), ids, logprobs, mask, _episode_return(episode, discount))
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
        values = _turn_values(episode, given)
        if len(values) > len(row):
            raise InvalidValueError(f"width must be at least {len(values)} for {_name(episode)}, got {width}")
        row[: len(values)] = values
    return result


def to_verl(episodes: Sequence[Episode], *, discount: float = 1.0) -> list[dict[str, Any]]:
    """Keyword arguments for verl's `AgentLoopOutput`, one dict per episode (`metrics` is the caller's to add).

    Args:
        episodes: Any number.
        discount: Of `reward_score`, the return of the whole episode (verl puts it on the last id).

    Returns:
        `prompt_ids`, `response_ids`, `response_mask`, `response_logprobs` (None where the policy gave none),
        `reward_score`, `num_turns` (messages after the system prompt, the user's counted in, as verl counts), and
        `extra_fields["turn_scores"]`, the rewards per turn.
    """
    rows = []
    for episode in episodes:
        stream = _Stream.of(episode, None)
        known = not bool(np.isnan(stream.logprobs).any())
        rows.append(
            {
                "prompt_ids": episode.prompt_ids.tolist(),
                "response_ids": stream.ids.tolist(),
                "response_mask": stream.mask.astype(int).tolist(),
                "response_logprobs": stream.logprobs.tolist() if known else None,
                "reward_score": _episode_return(episode, discount),
                "num_turns": 2 * episode.num_turns,
                "extra_fields": {"turn_scores": episode.rewards.tolist()},
            }
        )
    return rows


def to_areal(episode: Episode, *, discount: float = 1.0) -> dict[str, torch.Tensor]:
    """What `RolloutWorkflow.arun_episode` of AReaL returns: one row of tensors.

    Args:
        episode: With behavior log-probs.
        discount: Of `rewards`, the return of the whole episode.

    Returns:
        (1, T) `input_ids` int32, `attention_mask` bool, `loss_mask` int32, `logprobs` float32, `versions` int32 and
        `turn_ids` int32 (both -1 on prompt and feedback), and (1,) `rewards` float32. T ends with the last completion.

    Raises:
        InvalidEpisodeError: log-probs are missing; episode and turn are named.
    """
    import torch

    stream = _Stream.of(episode, "AReaL", prompt=True)
    rows: dict[str, npt.NDArray[Any]] = {
        "input_ids": stream.ids.astype(np.int32),
        "attention_mask": np.ones(len(stream.ids), np.bool_),
        "loss_mask": stream.mask.astype(np.int32),
        "logprobs": stream.logprobs.copy(),
        "versions": stream.versions.copy(),
        "turn_ids": stream.turns,
    }
    tensors = {name: torch.from_numpy(row)[None] for name, row in rows.items()}
    return {**tensors, "rewards": torch.tensor([_episode_return(episode, discount)], dtype=torch.float32)}


def to_tinker(episode: Episode, advantages: npt.ArrayLike) -> dict[str, Any]:
    """The content of one `tinker.Datum`: an episode only ever grows at its end, so it is always one.

    Args:
        episode: With behavior log-probs.
        advantages: (K,), one per turn.

    Returns:
        `model_input`, the ids but the last, and `loss_fn_inputs`: `target_tokens`, `logprobs`, `advantages` and
        `mask`, each shifted by one so that entry t is about the id after `model_input[t]`.
        `tinker.Datum(model_input=tinker.ModelInput.from_ints(d["model_input"]), loss_fn_inputs={...})` makes the
        real thing.

    Raises:
        InvalidEpisodeError: log-probs are missing, or there is no id to predict.
        InvalidValueError: advantages that do not fit the episode.
    """
    stream = _Stream.of(episode, "tinker", prompt=True)
    if len(stream.ids) < 2:
        raise InvalidEpisodeError(f"{_name(episode)} has {len(stream.ids)} ids: none predicts another")
    values = np.zeros(len(stream.ids), np.float32)
    values[episode.prompt_length :] = _turn_values(episode, advantages)
    return {
        "model_input": stream.ids[:-1].tolist(),
        "loss_fn_inputs": {
            "target_tokens": stream.ids[1:].copy(),
            "logprobs": stream.logprobs[1:].copy(),
            "advantages": values[1:],
            "mask": stream.mask[1:].astype(np.float32),
        },
    }


def to_datasets(episodes: Sequence[Episode]) -> Any:
    """A Hugging Face `datasets.Dataset` with a row per episode, in the columns of our Parquet files.

    Raises:
        MissingDependencyError: datasets (or pyarrow) is not installed.
        InvalidEpisodeError: an episode that a table cannot hold without loss.
    """
    try:
        from datasets import Dataset
    except ImportError as error:
        raise MissingDependencyError("to_datasets needs datasets: pip install 'mathturn-gym[data]'") from error
    from mathturn_gym.trajectories import episodes_to_table

    return Dataset(episodes_to_table(episodes))


@dataclass(frozen=True, slots=True)
class _Stream:
    """An episode's ids up to its last completion's end, with or without its prompt, and what goes with each."""

    ids: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]
    turns: npt.NDArray[np.int32]

    @classmethod
    def of(cls, episode: Episode, needs_logprobs: str | None, *, prompt: bool = False) -> _Stream:
        turns = np.full(len(episode.ids), -1, np.int32)
        for k, (start, end) in enumerate(episode.turn_spans.tolist()):
            turns[start:end] = k
        missing = np.flatnonzero(np.isnan(episode.logprobs))
        if missing.size and needs_logprobs is not None:
            raise InvalidEpisodeError(
                f"{_name(episode)}, turn {int(turns[missing[0]])}: behavior log-probs are missing (NaN), and "
                f"{needs_logprobs} needs them; sample with a policy that gives log-probs"
            )
        end = int(episode.turn_spans[-1, 1]) if episode.num_turns else episode.prompt_length
        part = slice(0 if prompt else episode.prompt_length, end)
        return cls(
            episode.ids[part], episode.loss_mask[part], episode.logprobs[part], episode.versions[part], turns[part]
        )


def _turn_values(episode: Episode, given: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """One value per turn, on every id of the turn's completion, 0 elsewhere, from the prompt's end on."""
    values = np.asarray(given, dtype=np.float32)
    if values.shape != (episode.num_turns,) or not np.all(np.isfinite(values)):
        raise InvalidValueError(
            f"advantages of {_name(episode)} must be {episode.num_turns} finite numbers, got {values.tolist()}"
        )
    turns = _Stream.of(episode, None).turns
    return np.where(turns >= 0, np.append(values, np.float32(0))[turns], np.float32(0))


def _episode_return(episode: Episode, discount: float) -> float:
    gamma = check_float("discount", discount, low=0.0, high=1.0)
    return float(returns_to_go(episode.rewards, gamma)[0]) if episode.num_turns else 0.0


def _name(episode: Episode) -> str:
    return f"episode {episode.index} on {episode.problem_id!r}"
