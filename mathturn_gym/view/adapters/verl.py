"""verl: the dumps of `trainer.rollout_data_dir` and `trainer.validation_data_dir`, and outputs of agent loops.

A dump (FOLDER/STEP.jsonl, verl 0.9) has `input`, `output`, `gts`, `score`, `step` and the reward function's extras, all
as text: it holds no tokens, and the viewer shows its dialogue. A line with the fields of `AgentLoopOutput` (`prompt_ids`,
`response_ids`, `response_mask`, `response_logprobs`, `reward_score`, `num_turns`, `extra_fields`; what `to_verl` makes)
has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from mathturn_gym.view._records import Message, ViewEpisode
from mathturn_gym.view.adapters._base import Adapter, as_text, floats, integers, number
from mathturn_gym.view.adapters._streams import Stream, episode_of
from mathturn_gym.view.adapters.trl import prompt_name

__all__ = ["VERL_DUMPS", "VERL_OUTPUTS"]

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
