"""TRL: the tables that `GRPOConfig(log_completions=True)` writes, and rows of tokens.

OUTPUT/completions/completions_00010.parquet (TRL 1.x) has `step`, `prompt`, `completion` (texts, or lists of messages),
a column per reward function, `advantage`, and whatever a reward function logs with `log_extra`. A reward function that
logs these gives the token view its tokens:

    def keep_tokens(prompts, completion_ids, log_extra, **kwargs):
        log_extra("completion_ids", completion_ids)   # also read: prompt_ids, logprobs, env_mask
        return [0.0] * len(prompts)

Rows of JSON-lines have `prompt_ids` and `completion_ids`, with `logprobs` and `env_mask` beside them (what a
`rollout_func` returns and `to_trl` makes, one row per episode), or are asynchronous GRPO's `RolloutSample` (`input_ids`,
`completion_mask`, `old_log_probs`, `advantage`, `model_version`, `group_id`).

An episode's reward is the sum of its reward columns; each of them is among its facts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.show.view.adapters._base import (
    Adapter,
    Stream,
    as_text,
    episode_of,
    floats,
    integers,
    messages_of,
    number,
)
from mathturn_gym.show.view.records import Message, ViewEpisode

_TOKENS: Final = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "completion_mask")
_NO_REWARD: Final = ("step", "advantage", *_TOKENS)


def read_trl_table(table: Any, source: str) -> tuple[list[ViewEpisode], list[str]]:
    """The rows of a `pyarrow.Table` of completions as episodes, and what was no episode."""
    missing = {"prompt", "completion"} - set(table.column_names)
    if missing:
        raise InvalidValueError(
            f"{source} is no table of completions: it lacks {', '.join(sorted(missing))} and has"
            f" {', '.join(table.column_names[:12])}"
        )
    episodes, left_out = [], []
    for row_number, row in enumerate(table.to_pylist()):
        try:
            episodes += _read_row(row, row_number, source)
        except InvalidValueError as error:
            left_out.append(f"{source}, row {row_number}: {error}")
    return episodes, left_out


def _read_row(row: Mapping[str, Any], row_number: int, _: str) -> list[ViewEpisode]:
    prompt, completion = messages_of(row.get("prompt")), _answers(row.get("completion"))
    step = row.get("step")
    # Reward functions' columns are its numbers; everything else is shown as facts.
    rewards = {name: value for name, value in row.items() if name not in _NO_REWARD and number(value) is not None}
    known = {*_NO_REWARD, "prompt", "completion", *rewards}
    facts = {**rewards, **{name: value for name, value in row.items() if name not in known and value is not None}}
    advantage = number(row.get("advantage"))
    if advantage is not None:
        facts["advantage"] = advantage
    problem = prompt_name(prompt, row.get("prompt_ids"))
    return [
        episode_of(
            _stream(row),
            problem_id=problem,
            prompt=prompt,
            answers=completion,
            per_episode={"advantage": advantage},
            version=step if isinstance(step, int) else None,
            index=row_number,
            reward=sum(float(value) for value in rewards.values()) if rewards else None,
            group=None if step is None else f"{problem} at step {step}",
            facts=facts,
        )
    ]


def _stream(row: Mapping[str, Any]) -> Stream | None:
    """The tokens of a row, where it has them."""
    if row.get("completion_ids") is None:
        return None
    prompt_ids = integers("prompt_ids", row.get("prompt_ids") or [])
    ids = integers("completion_ids", row["completion_ids"])
    mask = row.get("env_mask") if row.get("env_mask") is not None else row.get("completion_mask")
    values = {} if row.get("logprobs") is None else {"logprob": floats("logprobs", row["logprobs"])}
    chosen = np.ones(len(ids), np.bool_) if mask is None else integers("env_mask", mask).astype(np.bool_)
    return Stream(prompt_ids, ids, chosen, values)


def _read_sample(record: Mapping[str, Any], row_number: int) -> list[ViewEpisode]:
    """One `RolloutSample` of asynchronous GRPO: a whole sequence and the mask of its completion."""
    ids = integers("input_ids", record["input_ids"])
    mask = integers("completion_mask", record["completion_mask"]).astype(np.bool_)
    if len(mask) != len(ids):
        raise InvalidValueError(f"completion_mask has {len(mask)} entries for {len(ids)} input_ids")
    first = int(np.argmax(mask)) if mask.any() else len(ids)
    values = {}
    if record.get("old_log_probs") is not None:
        values["logprob"] = floats("old_log_probs", record["old_log_probs"])[first:]
    prompt = messages_of(record.get("prompt"))
    version = record.get("model_version")
    return [
        episode_of(
            Stream(ids[:first], ids[first:], mask[first:], values),
            problem_id=prompt_name(prompt, ids[:first].tolist()),
            prompt=prompt,
            answers=_answers(record.get("completion")),
            per_episode={"advantage": number(record.get("advantage"))},
            version=version if isinstance(version, int) else None,
            index=row_number,
            group=as_text(record.get("group_id")),
            facts=dict(record.get("metrics") or {}),
        )
    ]


def _answers(completion: Any) -> list[Message]:
    """A completion, which is a text or a list of messages."""
    if isinstance(completion, str):
        return [Message("assistant", completion)]
    return messages_of(completion)


def prompt_name(prompt: Sequence[Message], prompt_ids: Any) -> str:
    """A name for a problem that has none: the same for equal prompts.

    >>> prompt_name([Message("user", "1+1?")], None)
    'prompt d08a0ea4'
    """
    said = [[message.role, message.text] for message in prompt] or prompt_ids
    return f"prompt {hashlib.sha256(json.dumps(said, default=str).encode()).hexdigest()[:8]}"


def _is_row(record: Mapping[str, Any]) -> bool:
    return "completion_ids" in record or {"input_ids", "completion_mask"} <= set(record)


def _read(record: Mapping[str, Any], row_number: int, source: str) -> list[ViewEpisode]:
    return _read_sample(record, row_number) if "input_ids" in record else _read_row(record, row_number, source)


TRL_ROWS: Final = Adapter("TRL", _is_row, _read)
"""Rows with `completion_ids`, or `input_ids` and `completion_mask`."""


# ---- verl: the dumps of `trainer.rollout_data_dir` and `trainer.validation_data_dir`, and outputs of agent loops


_DUMPED: Final = ("input", "output", "gts", "score", "step")


def _read_dump(record: Mapping[str, Any], row_number: int, _: str) -> list[ViewEpisode]:
    prompt = [Message("user", as_text(record["input"]))]
    gold = record.get("gts")
    score, step = number(record.get("score")), record.get("step")
    problem = prompt_name(prompt, None)
    return [
        episode_of(
            None,
            problem_id=problem,
            prompt=prompt,
            answers=[Message("assistant", as_text(record["output"]), reward=score)],
            index=row_number,
            reward=score,
            group=f"{problem} at step {step}",
            gold=() if gold is None else (str(gold),),
            facts={name: value for name, value in record.items() if name not in _DUMPED and value is not None}
            | ({} if step is None else {"step": step}),
        )
    ]


def _read_output(record: Mapping[str, Any], row_number: int, _: str) -> list[ViewEpisode]:
    prompt_ids = integers("prompt_ids", record["prompt_ids"])
    ids = integers("response_ids", record["response_ids"])
    mask = record.get("response_mask")
    logprobs = record.get("response_logprobs")
    extra = record.get("extra_fields") if isinstance(record.get("extra_fields"), dict) else {}
    stream = Stream(
        prompt_ids,
        ids,
        np.ones(len(ids), np.bool_) if mask is None else integers("response_mask", mask).astype(np.bool_),
        {} if logprobs is None else {"logprob": floats("response_logprobs", logprobs)},
    )
    episode = episode_of(
        stream,
        problem_id=prompt_name([], prompt_ids.tolist()),
        prompt=[],
        answers=[],
        index=row_number,
        reward=number(record.get("reward_score")),
        facts={name: value for name, value in (extra or {}).items() if value is not None},
    )
    return [replace(episode, messages=_rewarded(episode.messages, (extra or {}).get("turn_scores")))]


def _rewarded(messages: tuple[Message, ...], scores: Any) -> tuple[Message, ...]:
    """The answers with the rewards of their turns, where there is one for each."""
    answers = [at for at, message in enumerate(messages) if message.role == "assistant"]
    if not isinstance(scores, list) or len(scores) != len(answers):
        return messages
    rewards = dict(zip(answers, scores, strict=True))
    return tuple(
        replace(message, reward=number(rewards[at])) if at in rewards else message
        for at, message in enumerate(messages)
    )


VERL_DUMPS: Final = Adapter("verl", lambda record: {"input", "output", "score"} <= set(record), _read_dump)
"""Dumped generations: texts and scores."""

VERL_OUTPUTS: Final = Adapter("verl", lambda record: {"prompt_ids", "response_ids"} <= set(record), _read_output)
"""Outputs of agent loops: tokens."""
