"""`SequenceSample`: the original's container for sequences of different lengths, end to end in one tensor per key."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from mathturn_gym.errors import InvalidValueError, check_int


class ValidationError(InvalidValueError):
    """A `SequenceSample` whose parts do not fit each other; the message names key and shapes."""


class KeyMismatchError(ValidationError, KeyError):
    """A `SequenceSample` whose parts have different keys (a `KeyError`, as it was in the original)."""

    __str__ = ValueError.__str__  # KeyError would show the message in quotes


class _MicroBatches(Protocol):
    @property
    def n_mbs(self) -> int: ...

    @property
    def max_tokens_per_mb(self) -> int: ...


@dataclass(eq=False)
class SequenceSample:
    """A batch of `bs` items; under each key an item has one or more sequences, all of them end to end in one tensor.

    Args:
        keys: Names of the data.
        ids: bs ids, made texts; unique.
        dtypes: torch dtype of each key's tensor, or None.
        trailing_shapes: Shape of a tensor after its first dimension, or None.
        seqlens: For each key bs lists: the lengths of the item's sequences.
        data: For each key a tensor of shape (sum of its seqlens) followed by its trailing shape, or None; None for no data at all.
        metadata: Lists with one entry per item, or nothing.

    Raises:
        ValidationError: ids that come twice, lengths, shapes or dtypes that do not fit.
        KeyMismatchError: the parts have different keys.

    >>> sample = SequenceSample(
    ...     keys=["packed_prompts"], ids=["q"], dtypes={"packed_prompts": torch.int64},
    ...     trailing_shapes={"packed_prompts": ()}, seqlens={"packed_prompts": [[2]]},
    ...     data={"packed_prompts": torch.tensor([5, 6])},
    ... )
    >>> sample.bs, SequenceSample.from_json_compatible(sample.as_json_compatible()).data["packed_prompts"].tolist()
    (1, [5, 6])
    """

    keys: set[str]
    ids: list[str]
    dtypes: dict[str, torch.dtype | None]
    trailing_shapes: dict[str, tuple[int, ...] | None]
    seqlens: dict[str, list[list[int]]]
    data: dict[str, torch.Tensor | None] | None = None
    metadata: dict[str, list[Any]] = field(default_factory=dict)

    def __init__(
        self,
        keys: Iterable[str],
        ids: Sequence[Hashable],
        dtypes: Mapping[str, torch.dtype | None],
        trailing_shapes: Mapping[str, Sequence[int] | None],
        seqlens: Mapping[str, Sequence[Sequence[int]]],
        data: Mapping[str, torch.Tensor | None] | None = None,
        metadata: Mapping[str, list[Any]] | None = None,
    ) -> None:
        if isinstance(keys, str):
            raise ValidationError(f"keys must be several names, got the text {keys!r}")
        self.keys = set(keys)
        self.ids = [str(item) for item in ids]
        self.dtypes = dict(dtypes)
        self.trailing_shapes = {k: None if v is None else tuple(v) for k, v in trailing_shapes.items()}
        self.seqlens = {key: _lengths(key, lens) for key, lens in seqlens.items()}
        self.data = None if data is None else dict(data)
        self.metadata = dict(metadata or {})
        if len(set(self.ids)) != len(self.ids):
            raise ValidationError(f"ids must be unique, got {self.ids}")
        self._check()

    def _check(self) -> None:
        """Raises where the parts do not fit each other."""
        for name, part in (
            ("seqlens", self.seqlens),
            ("trailing_shapes", self.trailing_shapes),
            ("dtypes", self.dtypes),
            ("data", self.keys if self.data is None else self.data),
        ):
            if self.keys != set(part):
                raise KeyMismatchError(f"{name} must have the keys {sorted(self.keys)}, got {sorted(part)}")
        for key, lens in self.seqlens.items():
            if len(lens) != self.bs:
                raise ValidationError(f"seqlens[{key!r}] must have one list per id, {self.bs}, got {len(lens)}")
        for key, value in (self.data or {}).items():
            self._check_tensor(key, value)
        for name, values in self.metadata.items():
            if not isinstance(values, list):
                raise ValidationError(f"metadata[{name!r}] must be a list with one entry per id, got {values!r}")

    def _check_tensor(self, key: str, value: torch.Tensor | None) -> None:
        if value is None:
            return
        if not isinstance(value, torch.Tensor):
            raise ValidationError(f"data[{key!r}] must be a tensor or None, got {type(value).__name__}")
        shape = (self._total(key), *(self.trailing_shapes[key] or ()))
        if tuple(value.shape) != shape:
            raise ValidationError(f"data[{key!r}] must have the shape {shape} of its seqlens, got {tuple(value.shape)}")
        if value.dtype != self.dtypes[key]:
            raise ValidationError(f"data[{key!r}] must be {self.dtypes[key]}, got {value.dtype}")

    def _total(self, key: str) -> int:
        return sum(sum(lens) for lens in self.seqlens[key])

    @property
    def bs(self) -> int:
        """Number of items."""
        return len(self.ids)

    # ---- joining and splitting

    @classmethod
    def gather(cls, samples: Sequence[SequenceSample], keys: Iterable[str] | None = None) -> SequenceSample:
        """One batch of all items, in order. Ids may come twice here, as two episodes on one query do.

        Args:
            samples: At least one; all have the keys, dtypes and trailing shapes of the first.
            keys: Which keys to take; None for those of the first sample.

        Raises:
            ValidationError: no samples, or samples that differ.
        """
        if not samples:
            raise ValidationError("samples must hold at least one SequenceSample, got none")
        first = samples[0]
        chosen = first.keys if keys is None else set(keys)
        for sample in samples:
            if not chosen <= sample.keys or (sample.data is None) != (first.data is None):
                raise KeyMismatchError(f"sample {sample.ids} must have data for {sorted(chosen)}, as {first.ids} has")
            for key in chosen:
                if (sample.dtypes[key], sample.trailing_shapes[key]) != (first.dtypes[key], first.trailing_shapes[key]):
                    raise ValidationError(f"{key!r} of sample {sample.ids} differs in dtype or shape from {first.ids}")
        return cls._unique_or_not(
            keys=chosen,
            ids=[item for sample in samples for item in sample.ids],
            dtypes={key: first.dtypes[key] for key in chosen},
            trailing_shapes={key: first.trailing_shapes[key] for key in chosen},
            seqlens={key: [lens for sample in samples for lens in sample.seqlens[key]] for key in chosen},
            data=None if first.data is None else {key: _joined(key, samples) for key in chosen},
            metadata={
                name: [value for sample in samples for value in sample.metadata.get(name, [None] * sample.bs)]
                for name in first.metadata
            },
        )

    @classmethod
    def _unique_or_not(cls, **parts: Any) -> SequenceSample:
        """A sample whose ids may come twice; everything else is checked."""
        # Past __init__, which refuses ids that come twice: a batch of two epochs has them.
        sample = cls.__new__(cls)
        sample.__dict__.update(parts)
        sample._check()
        return sample

    def unpack(self) -> list[SequenceSample]:
        """The items one by one; their tensors are views."""
        return self._parts([(i, i + 1) for i in range(self.bs)])

    def _parts(self, bounds: Sequence[tuple[int, int]]) -> list[SequenceSample]:
        """Neighbouring items together, for bounds that cover 0 … bs in order."""
        parts, offsets = [], dict.fromkeys(self.keys, 0)
        for start, end in bounds:
            seqlens = {key: lens[start:end] for key, lens in self.seqlens.items()}
            data: dict[str, torch.Tensor | None] = {}
            for key, value in (self.data or {}).items():
                length = sum(sum(lens) for lens in seqlens[key])
                data[key] = None if value is None else value[offsets[key] : offsets[key] + length]
                # Views, not copies: micro-batches share the memory of the batch.
                offsets[key] += length
            parts.append(
                self._unique_or_not(
                    keys=set(self.keys),
                    ids=self.ids[start:end],
                    dtypes=dict(self.dtypes),
                    trailing_shapes=dict(self.trailing_shapes),
                    seqlens=seqlens,
                    data=None if self.data is None else data,
                    metadata={name: values[start:end] for name, values in self.metadata.items()},
                )
            )
        return parts

    def split(self, spec: _MicroBatches) -> tuple[list[SequenceSample], list[int], npt.NDArray[np.int64]]:
        """Divides the items into parts of about the same number of tokens, as the original did.

        Args:
            spec: Has `n_mbs` (the fewest parts) and `max_tokens_per_mb`.

        Returns:
            The parts; the item that stands at each place of them, end to end; and the place of each item, int64 (bs,).

        Raises:
            ValidationError: an item is longer than `max_tokens_per_mb`, or there are fewer items than parts.
        """
        # Rewards have one entry a turn, ids thousands: the longest key decides what fits a device.
        key = max(self.seqlens, key=self._total)
        lengths = [sum(lens) for lens in self.seqlens[key]]
        least = check_int("n_mbs", spec.n_mbs, low=1)
        capacity = check_int("max_tokens_per_mb", spec.max_tokens_per_mb, low=1)
        for item, length in zip(self.ids, lengths, strict=True):
            if length > capacity:
                raise ValidationError(f"item {item!r} has {length} tokens, but max_tokens_per_mb is {capacity}")
        if self.bs < least:
            raise ValidationError(f"n_mbs is {least}, but there are {self.bs} items")
        groups = sorted(sorted(group) for group in _allocate(lengths, capacity, least))
        forward = [index for group in groups for index in group]
        backward = np.zeros(self.bs, np.int64)
        # The inverse permutation, by which the trainer puts micro-batches' results back in order.
        backward[forward] = np.arange(self.bs)
        items = self.unpack()
        return [self.gather([items[index] for index in group]) for group in groups], forward, backward

    def update_(self, other: SequenceSample) -> None:
        """Adds another sample's keys (or replaces them) in place.

        Raises:
            ValidationError: it has other ids, or one of the two has no data; this sample is then unchanged.
        """
        if self.ids != other.ids:
            raise ValidationError(f"update_ needs the same ids in the same order, got {other.ids} for {self.ids}")
        if self.data is not None and other.data is None:
            raise ValidationError(f"update_ of sample {self.ids} needs data for {sorted(other.keys)}, got none")
        # A new set: samples made by `unpack` and `gather` may share the old one.
        self.keys = self.keys | other.keys
        self.trailing_shapes.update(other.trailing_shapes)
        self.dtypes.update(other.dtypes)
        self.seqlens.update(other.seqlens)
        self.metadata.update(other.metadata)
        if self.data is not None and other.data is not None:
            self.data.update(other.data)

    # ---- the wire

    def as_json_compatible(self) -> dict[str, Any]:
        """The sample as JSON types; `from_json_compatible` gives it back, every float to the bit."""
        return {
            "ids": self.ids,
            "keys": sorted(self.keys),
            "trailing_shapes": self.trailing_shapes,
            "dtypes": {key: None if dtype is None else str(dtype) for key, dtype in self.dtypes.items()},
            "seqlens": self.seqlens,
            "data": None
            if self.data is None
            else {key: None if value is None else value.tolist() for key, value in self.data.items()},
            "metadata": self.metadata,
        }

    @classmethod
    def from_json_compatible(cls, record: Mapping[str, Any]) -> SequenceSample:
        """The sample of a record, before or after it went through JSON.

        Raises:
            ValidationError: a field is missing, or does not fit the others.
        """
        missing = [name for name in _FIELDS if name not in record]
        if missing:
            raise ValidationError(
                f"the record must have the fields {', '.join(_FIELDS)}; missing: {', '.join(missing)}"
            )
        dtypes = {key: None if name is None else _dtype(key, name) for key, name in record["dtypes"].items()}
        data = record["data"]
        if data is not None:
            data = {
                key: None if values is None else _tensor(key, values, dtypes.get(key), record)
                for key, values in data.items()
            }
        return cls._unique_or_not(
            keys=set(record["keys"]),
            ids=[str(item) for item in record["ids"]],
            dtypes=dtypes,
            trailing_shapes={k: None if v is None else tuple(v) for k, v in record["trailing_shapes"].items()},
            seqlens={key: _lengths(key, lens) for key, lens in record["seqlens"].items()},
            data=data,
            metadata=dict(record["metadata"]),
        )


def prompt_sample(qid: Hashable, token_ids: Sequence[int], task_id: int | None = None) -> SequenceSample:
    """The prompt of one trajectory: `packed_prompts`, and `task_ids` where there is a task.

    Args:
        qid: The query id.
        token_ids: Ids of the first observation.
        task_id: Number of its task, or None.

    >>> prompt_sample("q8@idx:8-0", [5, 6]).seqlens
    {'packed_prompts': [[2]]}
    """
    values = {"packed_prompts": list(token_ids), **({} if task_id is None else {"task_ids": [task_id]})}
    return SequenceSample(
        keys=values,
        ids=[qid],
        dtypes=dict.fromkeys(values, torch.int64),
        trailing_shapes=dict.fromkeys(values, ()),
        seqlens={key: [[len(ids)]] for key, ids in values.items()},
        data={key: torch.tensor(ids, dtype=torch.int64) for key, ids in values.items()},
    )


_FIELDS = ("ids", "keys", "trailing_shapes", "dtypes", "seqlens", "data", "metadata")


def _lengths(key: str, lens: Sequence[Sequence[int]]) -> list[list[int]]:
    """A key's lengths as lists of ints, or an error that names it."""
    try:
        # operator.index takes NumPy's and torch's integers, and refuses 3.0, which a shape cannot be.
        result = [[operator.index(length) for length in inner] for inner in lens]
    except TypeError:
        result = [[-1]]
    if any(length < 0 for inner in result for length in inner):
        raise ValidationError(f"seqlens[{key!r}] must be lists of lists of non-negative integers, got {lens!r}")
    return result


def _dtype(key: str, name: object) -> torch.dtype:
    """A dtype by its name on the wire, "torch.int64"."""
    dtype = getattr(torch, str(name).removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ValidationError(f"dtypes[{key!r}] must be the name of a torch dtype such as 'torch.int64', got {name!r}")
    return dtype


def _tensor(key: str, values: Any, dtype: torch.dtype | None, record: Mapping[str, Any]) -> torch.Tensor:
    trailing = record["trailing_shapes"].get(key) or ()
    try:
        return torch.tensor(values, dtype=dtype).reshape(len(values), *trailing)  # lists of nothing have no shape
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValidationError(f"data[{key!r}] must be {dtype} of trailing shape {tuple(trailing)}: {error}") from error


def _joined(key: str, samples: Sequence[SequenceSample]) -> torch.Tensor | None:
    tensors = [value for sample in samples if sample.data is not None and (value := sample.data[key]) is not None]
    if tensors and len(tensors) != len(samples):
        raise ValidationError(
            f"{key!r} must have data in all samples or in none, got it in {len(tensors)} of {len(samples)}"
        )
    return torch.cat(tensors) if tensors else None


def _allocate(lengths: Sequence[int], capacity: int, least: int) -> list[list[int]]:
    """Longest first, into the group with room that has fewest members (of those, fewest tokens)."""
    groups: list[list[int]] = []
    totals: list[int] = []
    # Stable, as in the original: micro-batches of equal lengths keep their order, and a run can be repeated.
    for index in np.argsort([-length for length in lengths], kind="stable").tolist():
        length = lengths[index]
        room = [g for g, total in enumerate(totals) if total + length <= capacity]
        if len(groups) < least or not room:
            groups.append([index])
            totals.append(length)
            continue
        chosen = min(room, key=lambda g: (len(groups[g]), totals[g], g))
        groups[chosen].append(index)
        totals[chosen] += length
    return groups


# ---- a trajectory in the original's layout: every turn's whole sequence, end to end


TRAJECTORY_DTYPES: Final[dict[str, torch.dtype]] = {
    "packed_input_ids": torch.int64,
    "prompt_mask": torch.bool,
    "packed_logprobs": torch.float32,
    "seq_no_eos_mask": torch.bool,
    "packed_prompts": torch.int64,
    "version_start": torch.int32,
    "version_end": torch.int32,
    "rewards": torch.float32,
    "birth_time": torch.int64,
}
"""Keys and dtypes of a trajectory's `SequenceSample`, besides `task_ids` (int64)."""


class Trajectory:
    """Collects a policy's replies, turn by turn; nothing is checked until `sample`, as in the original."""

    def __init__(self, qid: str, prompt_ids: Sequence[int], birth_time: int) -> None:
        self.qid = qid
        self.prompt_ids = list(prompt_ids)
        self.birth_time = birth_time
        self.seqlens: list[int] = []
        self.version_start: list[int] = []
        self.version_end: list[int] = []
        self._input_ids: list[int] = []
        self._logprobs: list[float] = []
        self._prompt_mask: list[int] = []
        self._no_eos: list[bool] = []

    def add(self, reply: Any) -> None:
        """Adds the first completion of a reply (and the versions of all, of which the original asked for one)."""
        length = reply.seqlens[0]
        self._input_ids += list(reply.seqs[0])
        self._logprobs += list(reply.logprobs[0])
        self._no_eos.append(reply.no_eos[0])
        self._prompt_mask += [1] * reply.prompt_len + [0] * (length - reply.prompt_len)
        self.version_start += list(reply.version_start)
        self.version_end += list(reply.version_end)
        self.seqlens.append(length)

    def sample(self, returns: Sequence[float], num_turns: int, task_ids: torch.Tensor | None = None) -> SequenceSample:
        """The `SequenceSample`; K sequences in one item, with K discounted returns.

        Raises:
            ValidationError: the replies do not fit each other, a log-prob too many for example.
        """
        values: dict[str, Any] = {
            "packed_input_ids": self._input_ids,
            "prompt_mask": self._prompt_mask,
            "packed_logprobs": self._logprobs,
            "seq_no_eos_mask": self._no_eos,
            "packed_prompts": self.prompt_ids,
            "version_start": self.version_start,
            "version_end": self.version_end,
            "rewards": list(returns),
            "birth_time": [self.birth_time],
        }
        sample = trajectory_sample(self.qid, values, self.seqlens, num_turns)
        if task_ids is not None:
            add_task(sample, task_ids)
        return sample


def trajectory_sample(
    qid: str, values: Mapping[str, Any], lengths: Sequence[int], num_turns: int, metadata: dict[str, Any] | None = None
) -> SequenceSample:
    """A trajectory's `SequenceSample` from K lengths, and a list, array or tensor for each key of `TRAJECTORY_DTYPES`.

    Raises:
        ValidationError: the values do not fit the lengths.
    """
    seqlens: dict[str, Any] = {
        **{key: [[1] * num_turns] for key in ("seq_no_eos_mask", "rewards", "version_start", "version_end")},
        "packed_input_ids": [lengths],
        "packed_logprobs": [[length - 1 for length in lengths]],
        "prompt_mask": [lengths],
        "packed_prompts": [[len(values["packed_prompts"])]],
        "birth_time": [[1]],
    }
    return SequenceSample(
        keys=TRAJECTORY_DTYPES,
        ids=[qid],
        dtypes=TRAJECTORY_DTYPES,
        trailing_shapes=dict.fromkeys(TRAJECTORY_DTYPES, ()),
        seqlens=seqlens,
        data={key: torch.as_tensor(values[key], dtype=dtype).clone() for key, dtype in TRAJECTORY_DTYPES.items()},
        metadata=metadata,
    )


def add_task(sample: SequenceSample, task_ids: torch.Tensor) -> None:
    """Adds the key `task_ids` (int64, (1,)) to a trajectory's sample.

    Raises:
        ValidationError: it is something else.
    """
    sample.update_(
        SequenceSample(
            keys=["task_ids"],
            ids=sample.ids,
            dtypes={"task_ids": torch.int64},
            trailing_shapes={"task_ids": ()},
            seqlens={"task_ids": [[1]]},
            data={"task_ids": task_ids},
        )
    )
