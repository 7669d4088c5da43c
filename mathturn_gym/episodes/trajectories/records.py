"""One episode as one record of JSON types, and back, every field checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mathturn_gym.errors import InvalidEpisodeError, MathTurnError
from mathturn_gym.types import Episode, Status, StopReason, Verdict

SCHEMA: Final = "mathturn_gym.episode"
SCHEMA_VERSION: Final = 1


def episode_to_record(episode: Episode) -> dict[str, Any]:
    """An episode as JSON types; `null` in `logprobs` is a log-prob that the policy did not give (NaN).

    Every float is written with as many digits as give the same float back.

    Raises:
        InvalidEpisodeError: metadata that JSON would change (keys that are no texts, tuples, NaN, objects).
    """
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "ids": episode.ids.tolist(),
        "loss_mask": episode.loss_mask.astype(np.int8).tolist(),
        "logprobs": _with_nulls(episode.logprobs),
        "versions": episode.versions.tolist(),
        **facts_to_record(episode),
    }


def facts_to_record(episode: Episode) -> dict[str, Any]:
    """What an episode has besides its tokens, as JSON types."""
    return {
        "problem_id": episode.problem_id,
        "turn_spans": episode.turn_spans.tolist(),
        "rewards": episode.rewards.tolist(),
        "verdicts": [verdict_to_record(verdict) for verdict in episode.verdicts],
        "feedbacks": list(episode.feedbacks),
        "turn_truncated": [bool(flag) for flag in episode.turn_truncated],
        "terminated": bool(episode.terminated),
        "truncated": bool(episode.truncated),
        "stop_reason": None if episode.stop_reason is None else str(episode.stop_reason),
        "returns": None if episode.returns is None else episode.returns.tolist(),
        "discount": episode.discount,
        "index": int(episode.index),
        "seed": None if episode.seed is None else int(episode.seed),
        "group": episode.group,
        "metadata": checked_metadata(episode),
        "prompt": episode.prompt,
        "responses": list(episode.responses),
        "gold": list(episode.gold),
        "budgets": [int(budget) for budget in episode.budgets],
        "token_values": {name: _with_nulls(values) for name, values in episode.token_values.items()},
        "segment_starts": episode.segment_starts.tolist(),
        "support": None if episode.support is None else [row[row >= 0].tolist() for row in episode.support],
    }


def _with_nulls(values: npt.NDArray[np.float32]) -> list[float | None]:
    """Numbers as JSON has them, which has no NaN."""
    return [None if value != value else value for value in values.tolist()]


def verdict_to_record(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON types."""
    return {
        "status": str(verdict.status),
        "reason": verdict.reason,
        "score": verdict.value,
        "answer": verdict.answer,
        "span": None if verdict.span is None else [int(end) for end in verdict.span],
        "gold": verdict.gold,
        "tier": verdict.tier,
        "rule": verdict.rule,
        "seconds": float(verdict.seconds),
    }


def checked_metadata(episode: Episode) -> dict[str, Any]:
    """The metadata as a dict, or an error where JSON would not give it back."""
    metadata = dict(episode.metadata)
    try:
        # Only a round trip shows what JSON changes: tuples, integer keys, NaN, True against 1.
        same = not metadata or _same(json.loads(json.dumps(metadata, allow_nan=False)), metadata)
    except (TypeError, ValueError):
        same = False
    if not same:
        raise InvalidEpisodeError(
            f"episode {episode.index} on {episode.problem_id!r}: metadata must be JSON types (text keys, lists, finite "
            f"numbers), got {metadata!r}"
        )
    return metadata


def episode_from_record(record: object) -> Episode:
    """The episode of a record.

    Args:
        record: What `json.loads` made of a line; any object is taken, and refused with a reason.

    Raises:
        InvalidEpisodeError: not a record of this schema, a field missing or of the wrong type, or an episode that
            breaks a law; the field is named.
    """
    if not isinstance(record, Mapping):
        raise InvalidEpisodeError(f"a record must be an object, got {type(record).__name__}")
    if record.get("schema") != SCHEMA or record.get("schema_version") != SCHEMA_VERSION:
        raise InvalidEpisodeError(
            f"schema must be {SCHEMA!r} version {SCHEMA_VERSION}, got {record.get('schema')!r} version "
            f"{record.get('schema_version')!r}"
        )
    return build_episode(record, **token_arrays(record))


def token_arrays(record: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a record that have one entry per token, by the names of `Episode`'s fields.

    Raises:
        InvalidEpisodeError: one is missing or of the wrong type.
    """
    return {
        "ids": _integers("ids", _field(record, "ids"), np.int64),
        "loss_mask": _flags("loss_mask", _field(record, "loss_mask")),
        "logprobs": _floats("logprobs", _with_nans(_field(record, "logprobs")), np.float32),
        "versions": _integers("versions", _field(record, "versions"), np.int32),
    }


def build_episode(record: Mapping[str, Any], **tokens: Any) -> Episode:
    """An episode from its token arrays and a record of its facts, every field checked.

    Raises:
        InvalidEpisodeError: a field is missing, of the wrong type, or breaks a law.
    """
    spans = _field(record, "turn_spans")
    if not isinstance(spans, list) or not all(isinstance(span, list) and len(span) == 2 for span in spans):
        raise InvalidEpisodeError(f"turn_spans must be a list of [start, end], got {spans!r}")
    returns = _field(record, "returns")
    stop_reason = _optional(record, "stop_reason", str)
    verdicts = _list(record, "verdicts", dict)
    try:
        return Episode(
            problem_id=_typed(record, "problem_id", str),
            turn_spans=_integers("turn_spans", [end for span in spans for end in span], np.int64).reshape(-1, 2),
            rewards=_floats("rewards", _field(record, "rewards"), np.float64),
            verdicts=tuple(verdict_from_record(verdict, k) for k, verdict in enumerate(verdicts)),
            feedbacks=tuple(_list(record, "feedbacks", str)),
            turn_truncated=tuple(_list(record, "turn_truncated", bool)),
            terminated=_typed(record, "terminated", bool),
            truncated=_typed(record, "truncated", bool),
            stop_reason=None if stop_reason is None else StopReason(stop_reason),
            returns=None if returns is None else _floats("returns", returns, np.float32),
            discount=_optional(record, "discount", float),
            index=_typed(record, "index", int),
            seed=_optional(record, "seed", int),
            group=_optional(record, "group", str),
            metadata=_typed(record, "metadata", dict),
            **_further(record),
            **tokens,
        )
    except MathTurnError:
        raise
    except (ValueError, TypeError, OverflowError) as error:  # an unknown stop reason, a number that overflows
        raise InvalidEpisodeError(f"not an episode: {error}") from error


def _further(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a record may lack: texts, budgets and other numbers, which learning does not need, and a single segment."""
    found: dict[str, Any] = {}
    if record.get("prompt") is not None:
        found["prompt"] = _typed(record, "prompt", str)
    for name, kind in (("responses", str), ("gold", str), ("budgets", int)):
        if record.get(name) is not None:
            found[name] = tuple(_list(record, name, kind))
    if record.get("token_values") is not None:
        values = _typed(record, "token_values", dict)
        found["token_values"] = {
            name: _floats(f"token_values[{name!r}]", _with_nans(row), np.float32) for name, row in values.items()
        }
    if record.get("segment_starts") is not None:
        found["segment_starts"] = _integers("segment_starts", record["segment_starts"], np.int64)
    if record.get("support"):
        rows = [_integers("support", row, np.int32) for row in _list(record, "support", list)]
        width = max(map(len, rows), default=0)
        support = np.full((len(rows), width), -1, np.int32)
        for held, row in zip(support, rows, strict=True):
            held[: len(row)] = row
        found["support"] = support
    return found


def _with_nans(values: Any) -> Any:
    """The numbers of a record; what is no list is refused later, by name."""
    return [math.nan if value is None else value for value in values] if isinstance(values, list) else values


def verdict_from_record(record: Mapping[str, Any], turn: int) -> Verdict:
    """The verdict of a record; errors name the turn."""
    try:
        span = _field(record, "span")
        if span is not None:
            start, end = _integers("span", span, np.int64).tolist()
            span = (start, end)
        return Verdict(
            status=Status(_typed(record, "status", str)),
            reason=_typed(record, "reason", str),
            score=_typed(record, "score", float),
            answer=_optional(record, "answer", str),
            span=span,
            gold=_optional(record, "gold", str),
            tier=_optional(record, "tier", str),
            rule=_optional(record, "rule", str),
            seconds=_typed(record, "seconds", float),
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidEpisodeError(f"verdict of turn {turn}: {error}") from error


def _field(record: Mapping[str, Any], name: str) -> Any:
    if name not in record:
        raise InvalidEpisodeError(f"field {name!r} is missing")
    return record[name]


def _typed(record: Mapping[str, Any], name: str, kind: type) -> Any:
    value = _field(record, name)
    # JSON writers of other languages write 1.0 as 1.
    if kind is float and type(value) is int:
        value = float(value)
    # By type and not isinstance: True is an int in Python, and "index": true is a mistake in a file.
    if type(value) is not kind:
        raise InvalidEpisodeError(f"{name} must be of type {kind.__name__}, got {value!r}")
    return value


def _optional(record: Mapping[str, Any], name: str, kind: type) -> Any:
    return None if _field(record, name) is None else _typed(record, name, kind)


def _list(record: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    value = _field(record, name)
    if not isinstance(value, list) or not all(type(item) is kind for item in value):
        raise InvalidEpisodeError(f"{name} must be a list of {kind.__name__}, got {_short(value)}")
    return value


def _integers(name: str, value: Any, dtype: type[np.integer[Any]]) -> npt.NDArray[Any]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise InvalidEpisodeError(f"{name} must be a list of integers, got {_short(value)}")
    try:
        return np.array(value, dtype=dtype)
    except OverflowError:
        raise InvalidEpisodeError(f"{name} has a number that does not fit in {np.dtype(dtype)}") from None


def _flags(name: str, value: Any) -> npt.NDArray[np.bool_]:
    array = _integers(name, value, np.int64)
    if np.any((array != 0) & (array != 1)):
        raise InvalidEpisodeError(f"{name} must be 0 or 1, got {_short(value)}")
    return array.astype(np.bool_)


def _floats(name: str, value: Any, dtype: type[np.floating[Any]]) -> npt.NDArray[Any]:
    if not isinstance(value, list) or not all(type(item) in (int, float) for item in value):
        raise InvalidEpisodeError(f"{name} must be a list of numbers, got {_short(value)}")
    try:
        with np.errstate(over="ignore"):  # a float32 that overflows becomes inf, which the episode's laws refuse
            return np.array(value, dtype=np.float64).astype(dtype)
    except OverflowError:
        raise InvalidEpisodeError(f"{name} has a number that does not fit in a float") from None


def _same(left: object, right: object) -> bool:
    """Equality that tells True from 1 and 1 from 1.0, which Python's does not."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        assert isinstance(right, dict)
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        assert isinstance(right, list)
        return len(left) == len(right) and all(map(_same, left, right))
    return left == right


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
