"""verifiers: `traces.jsonl` and `results.jsonl`.

A line of traces (0.4) is an episode of theirs: graphs of messages with their tokens. A trace's branch (a path from a root to a leaf) is one episode here. Per node are read `message`, `sampled`, `token_ids`,
`mask`, and the numbers of its sampled tokens: `logprobs`, `advantages`, `entropies`, `trainer_logprobs`,
`reference_logprobs`. Where the trainer's log-probs are there, "mismatch" is theirs minus the sampler's. Traces of
evaluations through a relay hold no tokens; their dialogue is shown.

A line of results (0.3 and before) has `prompt`, `completion`, `answer`, `reward`, and tokens where the run kept its `trajectory`
(`state_columns=["trajectory"]`): each step's `tokens` with `prompt_ids`, `completion_ids`, `completion_logprobs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

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
    spread,
)
from mathturn_gym.show.view.adapters.trl import prompt_name
from mathturn_gym.show.view.records import Message, ViewEpisode
from mathturn_gym.types import NO_VERSION

# A node's numbers, and what they are called here.
_STREAMS: Final = {
    "logprobs": "logprob",
    "advantages": "advantage",
    "entropies": "entropy",
    "trainer_logprobs": "trainer_logprob",
    "reference_logprobs": "reference_logprob",
}


def _read_traces(record: Mapping[str, Any], row_number: int, _: str) -> list[ViewEpisode]:
    traces = record.get("traces", [record])
    if not isinstance(traces, list):
        raise InvalidValueError(f"traces must be a list, got {type(traces).__name__}")
    found: list[ViewEpisode] = []
    for trace in traces:
        nodes = trace.get("nodes") if isinstance(trace, dict) else None
        if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
            raise InvalidValueError("a trace must have nodes, a list of objects")
        found += [_branch(record, trace, path, row_number) for path in _paths(nodes)]
    return found


def _paths(nodes: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Every path from a root to a leaf; a parent comes before its children."""
    parents = [node.get("parent") for node in nodes]
    for at, parent in enumerate(parents):
        if parent is not None and not (type(parent) is int and 0 <= parent < at):
            raise InvalidValueError(f"node {at} has parent {parent!r}, which is no node before it")
    inner = set(parents)
    return [_path_to(leaf, nodes, parents) for leaf in range(len(nodes)) if leaf not in inner]


def _path_to(
    leaf: int | None, nodes: Sequence[Mapping[str, Any]], parents: Sequence[int | None]
) -> list[Mapping[str, Any]]:
    path: list[Mapping[str, Any]] = []
    while leaf is not None:
        path.insert(0, nodes[leaf])
        leaf = parents[leaf]
    return path


def _branch(
    record: Mapping[str, Any], trace: Mapping[str, Any], path: Sequence[Mapping[str, Any]], row_number: int
) -> ViewEpisode:
    masks = [_mask(node) for node in path]
    sizes = [len(mask) for mask in masks]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int).tolist()
    messages: list[Message] = []
    for node, mask, start, end in zip(path, masks, starts[:-1], starts[1:], strict=True):
        # a completion's node begins with the template's generation prompt: those tokens are shown with what was asked.
        first = start + int(np.argmax(mask)) if mask.any() else start
        if messages and first > start:
            messages[-1] = replace(messages[-1], end=first)
        found = messages_of([node.get("message")])[0]
        messages.append(Message(found.role, found.text, first if messages else start, end))
    chosen = np.concatenate([np.zeros(0, np.bool_), *masks])
    task = _mapping(_mapping(trace.get("task")) or _mapping(record.get("task")))
    data = _mapping(task.get("data"))
    rewards = {name: _reward(value) for name, value in _mapping(trace.get("rewards")).items()}
    scored = [value for value in rewards.values() if value is not None]
    version = _policy_version(record)
    answer = data.get("answer")
    facts = {f"reward {name}": value for name, value in rewards.items() if value is not None}
    facts |= {name: value for name, value in _mapping(trace.get("metrics")).items() if number(value) is not None}
    return ViewEpisode(
        problem_id=str(task.get("key") or task.get("hash") or prompt_name(messages[:1], None)),
        messages=tuple(messages),
        ids=np.concatenate([np.zeros(0, np.int64), *(integers("token_ids", n.get("token_ids") or []) for n in path)]),
        mask=chosen,
        values=_values(path, masks),
        versions=None if version is None else np.where(chosen, version, NO_VERSION).astype(np.int32),
        index=row_number,
        reward=sum(scored) if scored else None,
        stop_reason=as_text(trace.get("stop_condition")),
        group=as_text(_mapping(record.get("group")).get("id")),
        gold=() if answer is None else (str(answer),),
        facts=facts | {"agent": str(_mapping(trace.get("agent")).get("name") or "agent")},
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _mask(node: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
    ids = node.get("token_ids") or []
    mask = node.get("mask") or []
    if len(mask) not in (0, len(ids)) or not all(type(flag) in (bool, int) for flag in mask):
        raise InvalidValueError(f"mask must be {len(ids)} flags, as many as token_ids, got {len(mask)}")
    return np.array(mask or [False] * len(ids), np.bool_)


def _values(
    path: Sequence[Mapping[str, Any]], masks: Sequence[npt.NDArray[np.bool_]]
) -> dict[str, npt.NDArray[np.float32]]:
    values: dict[str, npt.NDArray[np.float32]] = {}
    for field, name in _STREAMS.items():
        rows = [_sampled(node, field, mask) for node, mask in zip(path, masks, strict=True)]
        if any(row is not None for row in rows):
            blanks = [np.full(len(mask), np.nan, np.float32) for mask in masks]
            values[name] = np.concatenate([b if r is None else r for r, b in zip(rows, blanks, strict=True)])
    if {"trainer_logprob", "logprob"} <= set(values):
        values["mismatch"] = values["trainer_logprob"] - values["logprob"]
    return values


def _sampled(node: Mapping[str, Any], field: str, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32] | None:
    """A node's numbers on its sampled tokens, None where it has none of them."""
    if not node.get(field):
        return None
    numbers = floats(field, node[field])
    if len(numbers) != int(mask.sum()):
        raise InvalidValueError(f"{field} has {len(numbers)} numbers for {int(mask.sum())} sampled tokens")
    return spread(numbers, mask)


def _reward(value: Any) -> float | None:
    if isinstance(value, dict):
        score, weight = number(value.get("score")), number(value.get("weight", 1.0))
        return None if score is None or weight is None else score * weight
    return number(value)


def _policy_version(record: Mapping[str, Any]) -> int | None:
    """The newest weights that sampled the episode."""
    policy = _mapping(_mapping(_mapping(record.get("run")).get("work")).get("policy"))
    return policy["end"] if type(policy.get("end")) is int else None


def _read_result(record: Mapping[str, Any], row_number: int, _: str) -> list[ViewEpisode]:
    prompt, completion = messages_of(record["prompt"]), messages_of(record["completion"])
    if isinstance(record["completion"], str):
        completion = [Message("assistant", record["completion"])]
    answer, example = record.get("answer"), record.get("example_id")
    task = as_text(record.get("task")) or "example"
    known = {"prompt", "completion", "answer", "reward", "trajectory", "example_id", "task", "stop_condition"}
    return [
        episode_of(
            _trajectory(record.get("trajectory")),
            problem_id=prompt_name(prompt, None) if example is None else f"{task}/{example}",
            prompt=prompt,
            answers=completion,
            index=row_number,
            reward=number(record.get("reward")),
            stop_reason=as_text(record.get("stop_condition")),
            gold=() if answer in (None, "") else (str(answer),),
            facts={name: value for name, value in record.items() if name not in known and value is not None},
        )
    ]


def _trajectory(steps: Any) -> Stream | None:
    """The tokens of a rollout's steps as one stream, None where they are none.

    A step without tokens, or one that does not go on where the one before ended (a history that was rewritten), breaks it.
    """
    tokens = [_mapping(_mapping(step).get("tokens")) for step in steps] if isinstance(steps, list) else []
    if not tokens or not all(tokens):
        return None
    prompts = [integers("prompt_ids", one.get("prompt_ids")) for one in tokens]
    answers = [integers("completion_ids", one.get("completion_ids")) for one in tokens]
    ids = np.concatenate([prompts[-1], answers[-1]])
    mask = np.zeros(len(ids), np.bool_)
    logprobs = np.full(len(ids), np.nan, np.float32)
    for one, prompt, answer in zip(tokens, prompts, answers, strict=True):
        start, end = len(prompt), len(prompt) + len(answer)
        # A history that was rewritten: its tokens are no part of one sequence.
        if not (np.array_equal(ids[:start], prompt) and np.array_equal(ids[start:end], answer)):
            return None
        mask[start:end] = True
        if one.get("completion_logprobs"):
            logprobs[start:end] = floats("completion_logprobs", one["completion_logprobs"])
    head = len(prompts[0])
    return Stream(ids[:head], ids[head:], mask[head:], {"logprob": logprobs[head:]})


def _is_trace(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("traces"), list) or isinstance(record.get("nodes"), list)


VERIFIERS_TRACES: Final = Adapter("verifiers", _is_trace, _read_traces)
"""Traces: graphs of messages with their tokens."""

VERIFIERS_RESULTS: Final = Adapter(
    "verifiers", lambda record: {"prompt", "completion", "reward"} <= set(record), _read_result
)
"""Results: prompts, completions and rewards."""
