"""`Episode` to `SequenceSample` and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from mathturn_gym.episodes.packing import pack
from mathturn_gym.episodes.trajectories.records import build_episode, facts_to_record
from mathturn_gym.errors import InvalidEpisodeError, check_float
from mathturn_gym.neighbors.areal.sample import (
    TRAJECTORY_DTYPES,
    SequenceSample,
    ValidationError,
    add_task,
    trajectory_sample,
)
from mathturn_gym.types import NO_VERSION, Episode, Status, StopReason, Verdict

# Key of a sample's metadata: what the tensors do not say of an episode.
_FACTS: Final = "mathturn_gym.episode"

# Key of an episode's metadata: what an episode has no field for.
_AREAL: Final = "areal"


def to_sequence_sample(
    episode: Episode, *, birth_time: int | None = None, task_id: int | None = None
) -> SequenceSample:
    """An episode as the original's sample: K sequences, one per turn, each with everything before it.

    Sequences and masks are those of `pack(layout="turns")`. What the format has no place for (verdicts, raw rewards,
    versions per id, what follows the last completion) travels in `metadata`, so that `to_episode` gives the same
    episode back, also after JSON.

    Args:
        episode: An episode with returns and log-probs.
        birth_time: Milliseconds since the epoch; None for the one the episode was imported with, or 0.
        task_id: Number of its task, or None for the one it was imported with, or none.

    Raises:
        InvalidEpisodeError: it has no returns, misses log-probs, begins without a prompt, or has several segments.
    """
    if episode.num_segments > 1:
        raise InvalidEpisodeError(
            f"episode {episode.index} on {episode.problem_id!r} has {episode.num_segments} segments, and the format has one"
            ' context that grows: play it with history="keep"'
        )
    if episode.returns is None:
        raise InvalidEpisodeError(
            f"episode {episode.index} on {episode.problem_id!r} has no returns, which the format calls rewards: record it"
            " with ReturnsWrapper or collect()"
        )
    # What an import put aside goes back to where it was.
    known = dict(episode.metadata.get(_AREAL, {}))
    spans = episode.turn_spans
    turns = len(spans)
    first, last = _turn_versions(episode)
    data: dict[str, Any] = {
        **_packed(episode),
        "seq_no_eos_mask": episode.turn_truncated,
        "packed_prompts": episode.prompt_ids,
        "version_start": known.get("version_start", first),
        "version_end": known.get("version_end", last),
        "rewards": episode.returns,
        "birth_time": [known.get("birth_time", 0) if birth_time is None else birth_time],
    }
    sample = trajectory_sample(
        episode.problem_id, data, spans[:, 1].tolist(), turns, metadata={_FACTS: [_facts(episode)]}
    )
    task = known.get("task_ids") if task_id is None else [task_id]
    if task is not None:
        add_task(sample, torch.tensor(task, dtype=torch.int64))
    return sample


def _packed(episode: Episode) -> dict[str, Any]:
    """The keys that have one entry per id (or per id but the first)."""
    if not episode.num_turns:
        return {key: [] for key in ("packed_input_ids", "prompt_mask", "packed_logprobs")}
    if not episode.turn_spans[0, 0]:
        raise InvalidEpisodeError(
            f"episode {episode.index} on {episode.problem_id!r} begins without a prompt: the format has no place for the"
            " log-prob of its first id"
        )
    batch = pack([episode], layout="turns", form="varlen", advantages=[np.zeros(episode.num_turns)])
    # The format has a log-prob for every id but the first of each sequence.
    follows = torch.ones(batch.num_tokens, dtype=torch.bool)
    follows[batch.cu_seqlens[:-1].long()] = False
    return {
        "packed_input_ids": batch.input_ids[0],
        "prompt_mask": ~batch.loss_mask[0],
        "packed_logprobs": batch.behavior_logprobs[0, follows],
    }


def _turn_versions(episode: Episode) -> tuple[list[int], list[int]]:
    """Each turn's versions at its first and last id; an empty completion has those of the turn before (or 0)."""
    first, last, version = [], [], 0
    for turn in episode.turns:
        own = turn.versions.tolist() or [version]
        first.append(own[0])
        last.append(own[-1])
        version = own[-1]
    return first, last


def _facts(episode: Episode) -> dict[str, Any]:
    end = int(episode.turn_spans[-1, 1]) if episode.num_turns else episode.prompt_length
    return {
        **facts_to_record(episode),
        "versions": episode.versions[episode.loss_mask].tolist(),
        "tail": episode.ids[end:].tolist(),
    }


def to_episode(
    sample: SequenceSample,
    *,
    rewards: Sequence[float] | None = None,
    verdicts: Sequence[Verdict] | None = None,
    feedbacks: Sequence[str] | None = None,
    discount: float = 1.0,
) -> Episode:
    """A trajectory's sample as an episode.

    A sample that `to_sequence_sample` made gives its episode back, and needs no more. One of the original's has
    returns, but no rewards and no verdicts; what is not given here is then filled in: rewards as
    `G[k] - discount * G[k+1]` (float32 returns: rounded), verdicts undecided, feedbacks "". Its ids' versions are
    `version_start` (an episode's versions cannot run backwards, and the original's `version_end` may be larger than
    the next turn's start); `version_end`, birth time and task go into the episode's metadata, and from there back.

    Args:
        sample: One item with the keys of a trajectory.
        rewards: K raw rewards.
        verdicts: K verdicts.
        feedbacks: K texts.
        discount: The discount of the sample's returns.

    Raises:
        ValidationError: more than one item, keys missing, or sequences that do not continue each other.
        InvalidEpisodeError: the episode breaks a law (versions that run backwards between turns, for example).
    """
    if sample.bs != 1 or sample.data is None or not set(TRAJECTORY_DTYPES) <= sample.keys:
        raise ValidationError(
            f"sample must be one item with the keys {', '.join(TRAJECTORY_DTYPES)}, got {sample.bs} items with"
            f" {', '.join(sorted(sample.keys))} (use unpack() for several)"
        )
    data = {key: value.cpu().numpy() for key, value in sample.data.items() if value is not None}
    facts = next(iter(sample.metadata.get(_FACTS, [])), None)
    ids, spans, logprobs = _join(sample, data)
    mask = np.zeros(len(ids), np.bool_)
    versions = np.full(len(ids), NO_VERSION, np.int32)
    for (start, end), version in zip(spans.tolist(), data["version_start"].tolist(), strict=True):
        mask[start:end], versions[start:end] = True, version
    if facts is not None:
        if len(facts["versions"]) != mask.sum():
            raise ValidationError(
                f"metadata[{_FACTS!r}] of sample {sample.ids[0]!r} has {len(facts['versions'])} versions for"
                f" {int(mask.sum())} ids of completions"
            )
        # The format has two versions a turn; the episode had one for each id.
        versions[mask] = facts["versions"]
        # Feedback after the last completion: the format ends with the completion.
        tail = np.array(facts["tail"], np.int64)
        ids = np.concatenate([ids, tail])
        mask = np.concatenate([mask, np.zeros(len(tail), np.bool_)])
        logprobs = np.concatenate([logprobs, np.zeros(len(tail), np.float32)])
        versions = np.concatenate([versions, np.full(len(tail), NO_VERSION, np.int32)])
        return build_episode(facts, ids=ids, loss_mask=mask, logprobs=logprobs, versions=versions)
    turns = len(spans)
    undecided = Verdict(Status.UNDECIDED, "not recorded in the sample")
    returns = data["rewards"]
    gamma = check_float("discount", discount, low=0.0, high=1.0)
    known: dict[str, Any] = {
        key: data[key].tolist() for key in ("version_start", "version_end", "task_ids") if key in data
    }
    known["birth_time"] = int(data["birth_time"][0])
    return Episode(
        problem_id=sample.ids[0],
        ids=ids,
        loss_mask=mask,
        logprobs=logprobs,
        versions=versions,
        turn_spans=spans,
        rewards=_raw_rewards(returns, gamma) if rewards is None else np.asarray(rewards, np.float64),
        verdicts=(undecided,) * turns if verdicts is None else tuple(verdicts),
        feedbacks=("",) * turns if feedbacks is None else tuple(feedbacks),
        turn_truncated=tuple(data["seq_no_eos_mask"].tolist()),
        terminated=True,
        truncated=False,
        stop_reason=StopReason.TURNS,
        returns=returns.copy(),
        discount=gamma,
        metadata={_AREAL: known},
    )


def _raw_rewards(returns: np.ndarray[Any, np.dtype[np.float32]], discount: float) -> np.ndarray[Any, Any]:
    # G[k] = r[k] + discount * G[k+1], solved for the reward.
    following = np.append(returns[1:], np.float32(0)).astype(np.float64)
    return returns.astype(np.float64) - discount * following


def _join(
    sample: SequenceSample, data: dict[str, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Ids of the longest sequence, spans of the completions, log-probs; every sequence must continue the one before."""
    (lengths,) = sample.seqlens["packed_input_ids"]
    ids = data["packed_prompts"]
    logprobs = np.zeros(len(ids), np.float32)
    spans = np.zeros((len(lengths), 2), np.int64)
    offset = 0
    for turn, length in enumerate(lengths):
        sequence = data["packed_input_ids"][offset : offset + length]
        prompt = data["prompt_mask"][offset : offset + length]
        # Log-probs have one entry fewer per sequence: nothing predicts its first id.
        own = np.append(np.float32(0), data["packed_logprobs"][offset - turn : offset - turn + length - 1])
        start = int(prompt.sum())
        if not np.array_equal(sequence[: len(ids)], ids) or not prompt[:start].all() or start < len(ids):
            raise ValidationError(
                f"sample {sample.ids[0]!r}, turn {turn}: its sequence must begin with the one before (the prompt, at"
                " turn 0), and its prompt_mask must be True up to the completion"
            )
        grown = np.zeros(length, np.float32)
        # A later sequence repeats the ids of earlier turns with log-prob 0: theirs are kept from where they were
        # sampled.
        grown[: len(logprobs)] = logprobs
        grown[start:] = own[start:]
        ids, logprobs, spans[turn] = sequence.copy(), grown, (start, length)
        offset += length
    return ids.astype(np.int64), spans, logprobs
