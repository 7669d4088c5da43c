"""A run's folder: what is in it, written so that an interrupt at any moment leaves files that load.

    RUN/config.json       the config
    RUN/metrics.jsonl     one line per iteration, flushed
    RUN/tensorboard/      event files, where tensorboard is installed
    RUN/checkpoint/       a Hugging Face folder (model.safetensors, tokenizer), and beside the model
        trainer.json          iteration, gradient steps, and the algorithm's own numbers
        trainer.safetensors   the optimizers' moments by parameter name; a critic
    RUN/result.json       where the run was part of a comparison (`mathturn_gym.baselines.algorithms`)
    RUN/curve.png         where matplotlib is installed

No pickle anywhere. A checkpoint is written beside the old one and takes its place by renaming.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mathturn_gym._files import write_atomically
from mathturn_gym.baselines.config import TrainConfig
from mathturn_gym.errors import CheckpointError, InvalidValueError, MissingDependencyError

if TYPE_CHECKING:
    from mathturn_gym.wrappers.policy import CausalLMPolicy

__all__ = ["RunFolder", "TrainerState", "load_checkpoint", "read_metrics"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainerState:
    """What a trainer needs to go on, besides the weights.

    Args:
        iteration: Iterations done.
        steps: Gradient steps of the policy.
        numbers: JSON types, by name: tokens and CPU seconds used, and what the algorithm keeps.
        tensors: By name: the optimizers' moments, and what the algorithm keeps.
    """

    iteration: int
    steps: int
    numbers: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]


class RunFolder:
    """The folder of one run, open for writing.

    Args:
        config: Says where, and is written there.
        resume: Go on from the folder's checkpoint; its config must be the same.
        overwrite: Delete an earlier run in this folder. Only a folder with a `config.json` is taken for one.

    Raises:
        InvalidValueError: the folder holds something already, and neither `resume` nor `overwrite` was asked for.
        CheckpointError: `resume`, and the folder's config differs.

    Attributes:
        path: The folder.
    """

    def __init__(self, config: TrainConfig, *, resume: bool = False, overwrite: bool = False) -> None:
        self.path = Path(config.run_dir)
        self._config_file = self.path / "config.json"
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            if not self._config_file.is_file():
                raise InvalidValueError(f"run_dir {str(self.path)!r} exists and is no run's folder; choose another")
            if resume:
                self._check_same(config)
            elif overwrite:
                shutil.rmtree(self.path)
            else:
                raise InvalidValueError(
                    f"run_dir {str(self.path)!r} holds a run already: resume it, overwrite it, or choose another"
                )
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self._config_file, json.dumps(config.to_json(), indent=2) + "\n")
        self._events: Any = None
        self._wandb: Any = None
        self._config = config

    @property
    def checkpoint_path(self) -> Path:
        """Folder of the latest checkpoint."""
        return self.path / "checkpoint"

    def has_checkpoint(self) -> bool:
        """True where there is something to resume from."""
        aside = self.path / ".checkpoint.old"
        if not self.checkpoint_path.exists() and aside.exists():  # the process died between two renames
            aside.rename(self.checkpoint_path)
        return self.checkpoint_path.exists()

    def start_metrics(self, iteration: int) -> None:
        """Drops the lines of iterations after `iteration` (they will be written again), and opens the event file."""
        file = self.path / "metrics.jsonl"
        kept = [line for line in read_metrics(self.path) if line["iteration"] <= iteration] if file.exists() else []
        write_atomically(file, "".join(json.dumps(line) + "\n" for line in kept))
        if self._config.wandb_project is not None:
            self._wandb = _start_wandb(self._config, self.path)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            _LOG.warning("tensorboard is not installed: no event files (pip install 'mathturn-gym[train]')")
            return
        self._events = SummaryWriter(str(self.path / "tensorboard"), purge_step=iteration + 1)

    def log(self, metrics: Mapping[str, float]) -> None:
        """Appends one iteration's figures ("iteration" among them), flushed."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(metrics)) + "\n")
        if self._wandb is not None:
            self._wandb.log(dict(metrics), step=int(metrics["iteration"]))
        if self._events is not None:
            for name, value in metrics.items():
                self._events.add_scalar(name, value, int(metrics["iteration"]))
            self._events.flush()

    def save(self, policy: CausalLMPolicy, state: TrainerState) -> None:
        """Writes a checkpoint in place of the one before."""
        from safetensors.torch import save_file

        fresh, aside = self.path / ".checkpoint.new", self.path / ".checkpoint.old"
        for left_over in (fresh, aside):
            shutil.rmtree(left_over, ignore_errors=True)
        policy.save_pretrained(fresh)
        save_file({name: tensor.contiguous() for name, tensor in state.tensors.items()}, fresh / "trainer.safetensors")
        facts = {"iteration": state.iteration, "steps": state.steps, "numbers": dict(state.numbers)}
        (fresh / "trainer.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
        if self.checkpoint_path.exists():
            self.checkpoint_path.rename(aside)
        fresh.rename(self.checkpoint_path)
        shutil.rmtree(aside, ignore_errors=True)

    def close(self) -> None:
        """Closes the event file and the Weights & Biases run."""
        if self._wandb is not None:
            self._wandb.finish()
            self._wandb = None
        if self._events is not None:
            self._events.close()
            self._events = None

    def _check_same(self, config: TrainConfig) -> None:
        """A run goes on as it began: another config is another run."""
        try:
            before = json.loads(self._config_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CheckpointError(f"{self._config_file} is not JSON: {error}") from error
        now = config.to_json()
        # Where the folder lies may change; a longer run is the same run where nothing depends on its length.
        length = {"episodes", "budget_tokens"} if config.final_learning_rate is None else set()
        free = {"run_dir", "save_every", "budget_cpu_s"} | length
        differ = sorted(name for name in now if name not in free and before.get(name) != now[name])
        if differ:
            was = ", ".join(f"{name} was {before.get(name)!r}, is {now[name]!r}" for name in differ)
            raise CheckpointError(f"{str(self.path)!r} cannot be resumed with another config: {was}")


def load_checkpoint(path: str | Path) -> TrainerState:
    """The trainer's state in a checkpoint's folder.

    Raises:
        CheckpointError: a file is missing or broken.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(path)
    try:
        facts = json.loads((folder / "trainer.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "trainer.safetensors")
        return TrainerState(int(facts["iteration"]), int(facts["steps"]), dict(facts["numbers"]), tensors)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"{str(folder)!r} is no checkpoint that can be resumed: {error}") from error


def read_metrics(run_dir: str | Path) -> list[dict[str, float]]:
    """The lines of a run's metrics.jsonl; a last line that was cut off by a crash is left out.

    Raises:
        CheckpointError: the file is missing, or broken before its last line.
    """
    file = Path(run_dir) / "metrics.jsonl"
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    rows: list[dict[str, float]] = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise CheckpointError(f"{file}, line {number} is not JSON: {error}") from error
    return rows


def _start_wandb(config: TrainConfig, path: Path) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise MissingDependencyError(
            "wandb_project needs Weights & Biases: pip install 'mathturn-gym[wandb]'"
        ) from error
    return wandb.init(project=config.wandb_project, name=path.name, dir=str(path), config=config.to_json())
