"""Comparing what we made with what was recorded, down to the last bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mathturn_gym.areal.sample import SequenceSample

__all__ = ["comparable", "described", "differences_at"]


def described(sample: SequenceSample) -> dict[str, Any]:
    """A sample as recordings have it."""
    data = sample.data or {}
    return {
        "ids": sample.ids,
        "keys": sorted(sample.keys),
        "dtypes": {key: str(dtype) for key, dtype in sample.dtypes.items()},
        "trailing_shapes": {key: list(shape or ()) for key, shape in sample.trailing_shapes.items()},
        "seqlens": sample.seqlens,
        "data": {key: None if value is None else value.tolist() for key, value in data.items()},
        "tensor_dtypes": {key: str(value.dtype) for key, value in data.items() if value is not None},
        "tensor_shapes": {key: list(value.shape) for key, value in data.items() if value is not None},
        "metadata": sample.metadata,
    }


def comparable(episode: Mapping[str, Any]) -> dict[str, Any]:
    """An episode's outputs, without the message of a ValidationError (it has the validating library's version)."""
    kept = {key: episode[key] for key in ("obs", "env_calls", "exception", "samples")}
    if kept["exception"] is not None and kept["exception"]["type"] == "ValidationError":
        kept["exception"] = {"type": "ValidationError"}
    return kept


def differences_at(place: str, ours: Any, theirs: Any) -> list[str]:
    """Where two trees of JSON types differ; numbers are compared with ==, and True is not 1."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        keys = [*theirs, *(key for key in ours if key not in theirs and not place.endswith(".exception"))]
        found = []
        for key in keys:
            if key in theirs and key in ours:
                found += differences_at(f"{place}.{key}", ours[key], theirs[key])
            else:
                found.append(f"{place}.{key}: only {'ours' if key in ours else 'theirs'} has it")
        return found
    if isinstance(theirs, list) and isinstance(ours, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [line for k, pair in pairs if pair[0] is not pair[1] for line in differences_at(f"{place}[{k}]", *pair)]
    if ours == theirs and isinstance(ours, bool) == isinstance(theirs, bool):
        return []
    return [f"{place}: ours {_short(ours)}, theirs {_short(theirs)}"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
