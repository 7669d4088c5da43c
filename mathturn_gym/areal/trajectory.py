"""A trajectory in the original's layout: every turn's whole sequence, end to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from mathturn_gym.areal.sample import SequenceSample

__all__ = ["TRAJECTORY_DTYPES", "Trajectory"]

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
        seqlens: dict[str, list[list[int]]] = {
            **{key: [[1] * num_turns] for key in ("seq_no_eos_mask", "rewards", "version_start", "version_end")},
            "packed_input_ids": [self.seqlens],
            "packed_logprobs": [[length - 1 for length in self.seqlens]],
            "prompt_mask": [self.seqlens],
            "packed_prompts": [[len(self.prompt_ids)]],
            "birth_time": [[1]],
        }
        sample = SequenceSample(
            keys=TRAJECTORY_DTYPES,
            ids=[self.qid],
            dtypes=TRAJECTORY_DTYPES,
            trailing_shapes=dict.fromkeys(TRAJECTORY_DTYPES, ()),
            seqlens=seqlens,
            data={key: torch.tensor(values[key], dtype=dtype) for key, dtype in TRAJECTORY_DTYPES.items()},
        )
        if task_ids is not None:
            sample.update_(
                SequenceSample(
                    keys=["task_ids"],
                    ids=[self.qid],
                    dtypes={"task_ids": torch.int64},
                    trailing_shapes={"task_ids": ()},
                    seqlens={"task_ids": [[1]]},
                    data={"task_ids": task_ids},
                )
            )
        return sample
