"""A trajectory in the original's layout: every turn's whole sequence, end to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from mathturn_gym.areal.sample import SequenceSample

__all__ = ["TRAJECTORY_DTYPES", "Trajectory", "add_task", "trajectory_sample"]

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
    """Collects a policy's replies, turn by turn; nothing is checked until `sample`.

    Args:
        qid: The query id.
        prompt_ids: Ids of the first observation.
        birth_time: Milliseconds since the epoch.
    """

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
        """The `SequenceSample`; K sequences in one item.

        Args:
            returns: K discounted returns.
            num_turns: K.
            task_ids: int64 (1,), or None.

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
    """A trajectory's `SequenceSample` from what stands under each key.

    Args:
        qid: The query id.
        values: Lists, arrays or tensors, one for each key of `TRAJECTORY_DTYPES`; copied.
        lengths: K lengths of the sequences.
        num_turns: K.
        metadata: Of the sample.

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
