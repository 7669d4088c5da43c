"""Checkpoints: a Hugging Face folder, beside the weights what training needs to go on, and checksums of all of it.

    CHECKPOINT/model.safetensors, config.json, tokenizer.json, …   load with transformers (LoRA: the adapter's files)
    CHECKPOINT/policy.json          how the policy is sampled; `load_policy` reads it
    CHECKPOINT/trainer.json         iteration, gradient steps, and the algorithm's own numbers
    CHECKPOINT/trainer.safetensors  the optimizers' state by parameter name; a critic
    CHECKPOINT/checksums.json       of every file above

No pickle anywhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mathturn_gym._files import sync
from mathturn_gym._json import parse_json
from mathturn_gym.errors import CheckpointError, StorageError

if TYPE_CHECKING:
    import torch

    from mathturn_gym.wrappers.policy import CausalLMPolicy

__all__ = [
    "TrainerState",
    "fingerprint",
    "iteration_of",
    "load_checkpoint",
    "verify_checkpoint",
    "write_checkpoint",
]

_CHECKSUMS: Final = "checksums.json"
_CHUNK: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class TrainerState:
    """What a trainer needs to go on, besides the weights.

    Args:
        iteration: Iterations done.
        steps: Gradient steps of the policy.
        numbers: JSON types, by name: tokens and CPU seconds used, and what the algorithm keeps.
        tensors: By name: the optimizers' state, and what the algorithm keeps.
    """

    iteration: int
    steps: int
    numbers: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]


def write_checkpoint(folder: Path, policy: CausalLMPolicy, state: TrainerState) -> None:
    """Writes a checkpoint into a new folder, down to the disk.

    Args:
        folder: It must not exist.
        policy: Is written with its tokenizer, and with how it is sampled.
        state: The trainer's.

    Raises:
        StorageError: the disk is full.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        policy.save_pretrained(folder)
        tensors = {name: tensor.contiguous() for name, tensor in state.tensors.items()}
        save_file(tensors, folder / "trainer.safetensors")
    except SafetensorError as error:  # what safetensors makes of a full disk
        raise StorageError(f"{folder} cannot be written: {error}") from error
    facts = {"iteration": state.iteration, "steps": state.steps, "numbers": dict(state.numbers)}
    (folder / "trainer.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
    sums = {file.name: _checksum(file) for file in sorted(folder.iterdir())}
    (folder / _CHECKSUMS).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")
    sync(folder)  # a power loss must not leave names whose content has not arrived


def verify_checkpoint(folder: Path) -> None:
    """Raises `CheckpointError` unless every file of a checkpoint is there as it was written."""
    try:
        sums = parse_json((folder / _CHECKSUMS).read_bytes())
        if not isinstance(sums, dict):
            raise TypeError(f"{_CHECKSUMS} must hold a JSON object")
        for name, expected in sums.items():
            if _checksum(folder / name) != expected:
                raise CheckpointError(f"{folder / name} is not as it was written: truncated, or changed since")
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{str(folder)!r} is no whole checkpoint: {error}") from error


def load_checkpoint(path: str | Path) -> TrainerState:
    """The trainer's state in a checkpoint's folder.

    Raises:
        CheckpointError: a file is missing or broken.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(path)
    try:
        facts = parse_json((folder / "trainer.json").read_bytes())
        tensors = load_file(folder / "trainer.safetensors")
        return TrainerState(int(facts["iteration"]), int(facts["steps"]), dict(facts["numbers"]), tensors)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, SafetensorError) as error:
        raise CheckpointError(f"{str(folder)!r} is no checkpoint that can be resumed: {error}") from error


def iteration_of(folder: Path) -> int:
    """After how many iterations a checkpoint was written; 0 where it does not say."""
    try:
        return int(parse_json((folder / "trainer.json").read_bytes())["iteration"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return 0


def fingerprint(path: Path) -> str | None:
    """A text that changes when the weights in a folder do; None where there are none.

    Args:
        path: A folder with weights: a checkpoint, or any Hugging Face folder.
    """
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else []
    files = [file for file in files if file.name != "trainer.safetensors"]
    return ",".join(f"{file.name}:{_checksum(file)}" for file in files) or None


def _checksum(file: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
