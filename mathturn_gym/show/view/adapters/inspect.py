"""Inspect: `.eval` and `.json` logs, read with inspect_ai itself (`pip install '.[inspect]'`).

A sample is one episode. Logs that `to_inspect` made give their episodes back whole. Of others are read the messages, the
scores (the sample's, and intermediate ones for the turns), and as tokens the log-probs of the model's outputs
(`GenerateConfig(logprobs=True)`): their texts and log-probs, for such logs hold no ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError
from mathturn_gym.neighbors.export import from_inspect
from mathturn_gym.neighbors.export.inspect import read_log
from mathturn_gym.show.view.adapters._base import content_text, number
from mathturn_gym.show.view.records import Message, ViewEpisode, from_episodes
from mathturn_gym.types import Status, Verdict

_NO_ID: Final = -1
_ROLES: Final = ("system", "user", "assistant", "tool")
# Inspect's letters for correct, incorrect, partial and no answer.
_GRADES: Final = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}


def read_inspect(path: Path) -> tuple[list[ViewEpisode], list[str]]:
    """The samples of a log as episodes, and what was no episode."""
    log = read_log(path)
    try:
        return from_episodes(from_inspect(log)), []
    except (InvalidValueError, InvalidEpisodeError):  # not of ours, or edited since: shown as any other log
        return [_episode(sample, at) for at, sample in enumerate(log.samples or [])], []


def _episode(sample: Any, at: int) -> ViewEpisode:
    spoken = _logprobs_by_message(sample)
    texts: list[str] = []
    logprobs: list[float] = []
    mask: list[bool] = []
    messages: list[Message] = []
    scores = [event.score for event in sample.events if event.event == "score" and event.intermediate]
    answers = [m for m in sample.messages if m.role == "assistant"]
    # A score has no message of its own: they belong together in order, if there are as many.
    judged = dict(zip(map(id, answers), scores, strict=False)) if len(scores) == len(answers) else {}
    for message in sample.messages:
        tokens = spoken.get(message.id, []) if message.role == "assistant" else []
        start = len(texts)
        texts += [token.token for token in tokens]
        logprobs += [token.logprob for token in tokens]
        mask += [True] * len(tokens)
        verdict = _verdict(judged.get(id(message)))
        role = message.role if message.role in _ROLES else "user"
        text = content_text(
            [_part(part) for part in message.content] if isinstance(message.content, list) else message.content
        )
        messages.append(Message(role, text, start, len(texts), verdict=verdict))
    final = _final_scores(sample.scores)
    reward = next(iter(final.values()), None)
    target = [sample.target] if isinstance(sample.target, str) else list(sample.target)
    return ViewEpisode(
        problem_id=str(sample.id),
        messages=tuple(messages),
        ids=np.full(len(texts), _NO_ID, np.int64),
        mask=np.array(mask, np.bool_),
        token_texts=tuple(texts),
        values={"logprob": np.array(logprobs, np.float32)},
        index=at,
        reward=reward,
        solved=None if reward is None else reward >= 1.0,
        group=str(sample.id),
        gold=tuple(one for one in target if one),
        facts={"epoch": sample.epoch, **{f"score {name}": value for name, value in final.items()}},
    )


def _part(part: Any) -> Any:
    """A part of a message's content as JSON types: its text, or what it thought."""
    return {"text": getattr(part, "text", None) or getattr(part, "reasoning", None)}


def _logprobs_by_message(sample: Any) -> Mapping[str, Sequence[Any]]:
    """The log-probs of each message that a model wrote, by the message's id."""
    found = {}
    for event in sample.events:
        if event.event != "model" or not event.output.choices:
            continue
        choice = event.output.choices[0]
        if choice.logprobs is not None and choice.message.id is not None:
            found[choice.message.id] = choice.logprobs.content
    return found


def _final_scores(scores: Any) -> dict[str, float]:
    """The sample's scores that are numbers, or letters that stand for some."""
    values = {name: _value(score.value) for name, score in (scores or {}).items()}
    return {name: value for name, value in values.items() if value is not None}


def _value(value: Any) -> float | None:
    if isinstance(value, str):
        return _GRADES.get(value)
    found = float(value) if isinstance(value, bool) else number(value)
    return None if found is None or found != found else found


def _verdict(score: Any) -> Verdict | None:
    """What an intermediate score says of its turn."""
    value = None if score is None else _value(score.value)
    if value is None:
        return None
    status = Status.RIGHT if value >= 1.0 else Status.WRONG
    return Verdict(status, score.explanation or "", score=min(1.0, max(0.0, value)), answer=score.answer)
