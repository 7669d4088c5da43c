"""The folder of a run: checkpoints, metrics and config, written so that an interrupt at any time leaves files that load.

    RUN/config.json       everything that decides the run (`RunConfig`)
    RUN/metrics.jsonl     one line per iteration, flushed
    RUN/episodes_*.jsonl  some episodes of each evaluation, as text beside the token ids (`_kept_episodes`)
    RUN/tensorboard/      event files, where tensorboard is installed
    RUN/checkpoint/       the newest checkpoint (`_checkpoints`)
    RUN/checkpoint-N/     those before it, after N iterations, as many as `keep` says
    RUN/result.json       how it ended, and its figures on the test split; its presence means that the run is done
    RUN/curve.png         where matplotlib is installed
    RUN/.lock             held by the process that trains here

A checkpoint is written beside the old one and takes its place by renaming.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mathturn_gym.base.files import (
    bounded_lines,
    check_folder,
    check_not_sparse,
    locked,
    open_regular,
    parse_json,
    read_regular,
    storage_errors,
    sync,
    tidy,
    write_atomically,
    write_json,
)
from mathturn_gym.base.import_paths import names_code
from mathturn_gym.baselines._evaluation import append_episodes, drop_episodes
from mathturn_gym.baselines.settings import RunConfig
from mathturn_gym.baselines.trackers import TensorBoard, Tracker, open_tracker
from mathturn_gym.env.config import code_of
from mathturn_gym.errors import (
    CheckpointError,
    InvalidValueError,
    LockedError,
    StorageError,
    install_extra,
)
from mathturn_gym.policies.config import MODEL_SCHEMES

if TYPE_CHECKING:
    import torch

    from mathturn_gym.types import Episode
    from mathturn_gym.wrappers.policy import CausalLMPolicy

_CHECKSUMS: Final = "checksums.json"
_CHUNK: Final = 1 << 22
_MOST_JSON: Final = 1 << 26
_MOST_METRICS: Final = 1 << 30
_MOST_LINE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TrainerState:
    """The state of a trainer in a checkpoint, besides the weights.

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
        sums = parse_json(read_regular(folder / _CHECKSUMS, _MOST_JSON))
        if not isinstance(sums, dict):
            raise TypeError(f"{_CHECKSUMS} must hold a JSON object")
        for name, expected in sums.items():
            # A path would have any file of the machine read, a device among them.
            if name in ("", ".", "..") or Path(name).name != name:
                raise ValueError(f"{_CHECKSUMS} must hold plain names of files, got {name[:80]!r}")
            if _checksum(folder / name) != expected:
                raise ValueError(f"{folder / name} is not as it was written: truncated, or changed since")
    except (OSError, ValueError, TypeError) as error:
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
        facts = parse_json(read_regular(folder / "trainer.json", _MOST_JSON))
        tensors = load_file(folder / "trainer.safetensors")
        return TrainerState(int(facts["iteration"]), int(facts["steps"]), dict(facts["numbers"]), tensors)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, SafetensorError) as error:
        raise CheckpointError(f"{str(folder)!r} is no checkpoint that can be resumed: {error}") from error


def iteration_of(folder: Path) -> int:
    """Returns the number of iterations before a checkpoint; 0 if it cannot be read."""
    try:
        return int(parse_json(read_regular(folder / "trainer.json", _MOST_JSON))["iteration"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return 0


def fingerprint(path: Path) -> str | None:
    """Returns a text that changes with the weights in a folder; None if there are no weights.

    Args:
        path: A folder with weights: a checkpoint, or any Hugging Face folder.

    Raises:
        CheckpointError: a file of weights is none.
    """
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else []
    files = [file for file in files if file.name != "trainer.safetensors"]
    try:
        return ",".join(f"{file.name}:{_checksum(file)}" for file in files) or None
    except OSError as error:
        raise CheckpointError(f"the weights in {str(path)!r} cannot be read: {error}") from error


def _checksum(file: Path) -> str:
    check_not_sparse(file)
    digest = hashlib.blake2b(digest_size=16)
    with open_regular(file) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


# ---- the folder of a run


_LOG = logging.getLogger(__name__)
_NEWEST: Final = "checkpoint"
_FRESH: Final = ".checkpoint.new"
_LIMITS: Final = ("budget.episodes", "budget.tokens", "budget.total_tokens")
"""Limits that a schedule of learning rates follows."""
_OLDER: Final = re.compile(r"checkpoint-(\d+)")
_OURS: Final = re.compile(r"\.lock|\..*\.new")
"""What a process that died before it wrote its config leaves behind."""


class RunFolder:
    """The folder of one run, open for writing by this process alone.

    Args:
        path: The folder.
        config: Is written there.
        resume: Go on from the folder's newest checkpoint; its config must be the same, but for a larger budget, a limit of
            CPU seconds, and how often and how much is kept.
        overwrite: Delete an earlier run in this folder. Only a folder with a `config.json` is taken for one.

    Raises:
        InvalidValueError: the folder holds something already, and neither `resume` nor `overwrite` was asked for.
        CheckpointError: `resume`, and the folder's config differs or cannot be read.
        LockedError: another process trains in this folder.
        StorageError: the folder cannot be written, or holds a link, a pipe or a device.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: str | Path, config: RunConfig, *, resume: bool = False, overwrite: bool = False) -> None:
        self.path = Path(path)
        self._config, self._config_file = config, self.path / "config.json"
        self._trackers: list[Tracker] = []
        self._save_every = config.save_every
        self._held = ExitStack()
        self._check_it_is_a_runs()
        with storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        check_folder(self.path)  # before the lock, which is a file in it
        try:
            self._held.enter_context(locked(self.path / ".lock"))
        except LockedError as error:
            raise LockedError(
                f"run_dir {str(self.path)!r}: another process trains there; choose another folder"
            ) from error
        try:
            self._open(resume, overwrite)
        except BaseException:
            self.close()
            raise

    def _check_it_is_a_runs(self) -> None:
        """Refuses a folder that is not a run's."""
        if not self.path.exists():
            return
        entries = [one.name for one in self.path.iterdir()] if self.path.is_dir() else ["(a file)"]
        if not self._config_file.is_file() and any(_OURS.fullmatch(name) is None for name in entries):
            raise InvalidValueError(f"run_dir {str(self.path)!r} exists and is no run's folder; choose another")

    def _open(self, resume: bool, overwrite: bool) -> None:
        if self._config_file.is_file():
            if resume:
                self._check_same()
            elif overwrite:
                self._empty()
            else:
                raise InvalidValueError(
                    f"run_dir {str(self.path)!r} holds a run already{self._ended()}: resume=True (--resume) goes on with it, with a"
                    " larger budget also where it is finished (--resume --episodes N); overwrite=True (--overwrite) deletes it;"
                    " or choose another run_dir (--run-dir)"
                )
        self._tidy()
        write_json(self._config_file, self._config.to_json())

    def _ended(self) -> str:
        """How the run in the folder ended, for a message."""
        file = self.path / "result.json"
        status = read_object(file).get("status") if file.is_file() else None
        return f" ({status})" if isinstance(status, str) and status.isidentifier() else ""

    def _tidy(self) -> None:
        """Deletes half-written files of a process that was killed."""
        tidy(self.path)
        shutil.rmtree(self.path / _FRESH, ignore_errors=True)

    def _drop_outdated(self) -> None:
        for outdated in self.checkpoints()[self._config.keep :]:
            shutil.rmtree(outdated, ignore_errors=True)

    def _empty(self) -> None:
        with storage_errors(self.path):
            # The config goes last: without it, a second Ctrl-C would leave a folder that is not recognized as a run's.
            for one in sorted(self.path.iterdir(), key=lambda one: one.name == "config.json"):
                if one.name != ".lock":
                    shutil.rmtree(one) if one.is_dir() else one.unlink()

    # ---- metrics

    def metrics(self) -> list[dict[str, float]]:
        """The lines of metrics.jsonl so far."""
        return read_metrics(self.path)

    def start_metrics(self, iteration: int) -> None:
        """Drops the lines of iterations after `iteration` (they will be written again), and opens the trackers."""
        file = self.path / "metrics.jsonl"
        kept = [line for line in self.metrics() if line["iteration"] <= iteration] if file.exists() else []
        write_atomically(file, "".join(json.dumps(line) + "\n" for line in kept))
        drop_episodes(self.path, iteration)
        if self._config.tracker is not None:
            self._trackers.append(open_tracker(self._config.tracker, self.path, self._config.to_json()))
        try:
            self._trackers.append(TensorBoard(self.path / "tensorboard", iteration))
        except ImportError:
            _LOG.warning(f"tensorboard is not installed: no event files ({install_extra('train')})")

    def log(self, metrics: Mapping[str, float]) -> None:
        """Appends one iteration's figures ("iteration" among them), flushed."""
        with storage_errors(self.path), open_regular(self.path / "metrics.jsonl", "ab") as file:
            file.write(json.dumps(dict(metrics)).encode() + b"\n")
        for tracker in self._trackers:
            tracker.log(metrics, int(metrics["iteration"]))

    def keep_episodes(self, name: str, episodes: Sequence[Episode], iteration: int) -> None:
        """Keeps episodes of an iteration, and shows some of them in the trackers.

        Args:
            name: "validation" or "train".
            episodes: Those to keep.
            iteration: Iterations that were done when they were played.
        """
        with storage_errors(self.path):
            append_episodes(self.path, name, episodes, iteration)
        for tracker in self._trackers if episodes else ():
            tracker.show(name, episodes, iteration)

    # ---- checkpoints

    @property
    def checkpoint_path(self) -> Path:
        """Folder of the newest checkpoint."""
        return self.path / _NEWEST

    def checkpoints(self) -> list[Path]:
        """Folders of checkpoints, the newest first."""
        older = [one for one in self.path.iterdir() if _OLDER.fullmatch(one.name) and one.is_dir()]
        newest = [self.checkpoint_path] if self.checkpoint_path.is_dir() else []
        return newest + sorted(older, key=lambda one: int(one.name.partition("-")[2]), reverse=True)

    def whole_checkpoint(self) -> Path | None:
        """Returns the newest checkpoint with correct checksums; None before the first one.

        Those before it that a process was about to delete when it was killed are deleted.

        Raises:
            CheckpointError: there are checkpoints and none of them is whole, or they were deleted.
        """
        problems = []
        for checkpoint in self.checkpoints():
            try:
                verify_checkpoint(checkpoint)
            except CheckpointError as error:
                problems.append(str(error))
                continue
            if not problems:  # of a broken one, what came before is needed until the next is written
                self._drop_outdated()
            for problem in problems:
                _LOG.warning("%s; going on from %s, the checkpoint before", problem, checkpoint.name)
            return checkpoint
        if problems:
            raise CheckpointError(f"no checkpoint of {str(self.path)!r} can be gone on from: {'; '.join(problems)}")
        self._check_none_was_deleted()
        return None

    def save(self, policy: CausalLMPolicy, state: TrainerState) -> None:
        """Writes a checkpoint in place of the one before, which is kept as `checkpoint-N` as long as `keep` says.

        Raises:
            StorageError: it cannot be written; the checkpoint before is still there.
        """
        fresh = self.path / _FRESH
        with storage_errors(fresh):
            shutil.rmtree(fresh, ignore_errors=True)
            write_checkpoint(fresh, policy, state)
            if self.checkpoint_path.exists():
                aside = self.path / f"{_NEWEST}-{iteration_of(self.checkpoint_path)}"
                shutil.rmtree(aside, ignore_errors=True)
                self.checkpoint_path.rename(aside)
            fresh.rename(self.checkpoint_path)
            sync(self.path, whole=False)
        self._drop_outdated()

    def close(self) -> None:
        """Closes the trackers, and lets other processes in."""
        while self._trackers:
            self._trackers.pop().close()
        self._held.close()

    # ---- resuming

    def _check_same(self) -> None:
        """Refuses to resume with another config, except for fields that leave the run the same."""
        before, now = read_object(self._config_file), self._config.to_json()
        was, wanted = flat(before), flat(now)
        if isinstance(every := was.get("save_every"), int):
            self._save_every = max(self._save_every, every)
        free = {"save_every", "keep", "budget.cpu_seconds", "evaluation.kept", "tracker"}
        schedule = self._config.optimization.schedule
        limits = {name for name in _LIMITS if was.get(name) != wanted.get(name)}
        if schedule == "constant":  # a longer run is the same run, only longer
            free |= limits
        elif limits and self._raises_budget(was, wanted):
            free |= limits
            _LOG.warning(
                "the budget of %s is raised, and learning rates follow it (schedule %r): they rise again from here on, so a"
                " run of this budget from its beginning would differ",
                self.path,
                schedule,
            )
        differ = sorted(
            name for name in wanted.keys() | was.keys() if name not in free and was.get(name) != wanted.get(name)
        )
        if differ:
            shown = ", ".join(f"{name} was {was.get(name)!r}, is {wanted.get(name)!r}" for name in differ)
            raise CheckpointError(f"{str(self.path)!r} cannot be resumed with another config: {shown}")

    @staticmethod
    def _raises_budget(was: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
        """True if no limit is lower than before, and none is new."""
        pairs = [(was.get(name), wanted.get(name)) for name in _LIMITS]
        return all(now is None or (isinstance(before, int) and now >= before) for before, now in pairs)

    def _check_none_was_deleted(self) -> None:
        """Refuses to start over a run that has passed its first checkpoint."""
        lines = self.metrics() if (self.path / "metrics.jsonl").exists() else []
        reached = int(lines[-1]["iteration"]) if lines else 0
        # At `save_every` itself it may have died between the line and the checkpoint.
        if reached > self._save_every or (self.path / "result.json").exists():
            raise CheckpointError(
                f"{str(self.path)!r} has no checkpoint, but its metrics reach iteration {reached}: put checkpoint/ back,"
                " or overwrite the run"
            )
        if lines:
            _LOG.warning("%s was interrupted before its first checkpoint: it begins again", self.path)


def read_config(
    run_dir: str | Path, *, own_code: bool = False, allowed: Collection[str] = (), resume: bool = False
) -> RunConfig:
    """The config that a run folder was begun with.

    This is the one gate between a folder that somebody else may have written and the code that its config names: it
    answers before anything is imported (issue 31).

    Args:
        run_dir: The run's folder.
        own_code: Import what the config names, because the run is the caller's own.
        allowed: Import paths that may be imported anyway, because the caller named them.
        resume: The run is to be continued, with the rollout engine that its config names.

    Raises:
        CheckpointError: the folder holds no run, its config cannot be read, or it names other code.
    """
    file, stored = _stored(run_dir)
    foreign = [] if own_code else [path for path in code_named_in(run_dir, resume=resume) if path not in allowed]
    if foreign:
        raise CheckpointError(
            f"the config of run {str(run_dir)!r} names code, which is not run unless you ask for it: {', '.join(foreign)};"
            " give the same options again, or --own-code (own_code=True) where the run is your own"
        )
    try:
        return RunConfig.from_json(stored)
    except InvalidValueError as error:
        raise CheckpointError(f"{file}: {error}") from error


def _stored(run_dir: str | Path) -> tuple[Path, dict[str, Any]]:
    """The file of a run's config, and what it holds."""
    file = Path(run_dir) / "config.json"
    if not file.is_file():
        raise CheckpointError(f"no run in {str(run_dir)!r}: it has no config.json")
    return file, read_object(file)


def code_named_in(run_dir: str | Path, *, resume: bool = False) -> list[str]:
    """The texts in a run's config that lead to code when the run is continued or its environment is played.

    Args:
        run_dir: The run's folder.
        resume: It is to be continued. A rollout engine then counts as code: a server is sent the user's key, and options name
            a folder for weights and whatever vLLM imports.

    Raises:
        CheckpointError: its config cannot be read.
    """
    _, config = _stored(run_dir)
    tables = {name: config.get(name) for name in ("env", "algorithm", "policy")}
    parts = {name: table if isinstance(table, Mapping) else {} for name, table in tables.items()}
    algorithm, model = parts["algorithm"].get("name"), parts["policy"].get("model")
    own = [(algorithm, names_code(algorithm)), (model, names_code(model, MODEL_SCHEMES))]
    if resume:
        rollout = parts["policy"].get("rollout")
        own.append((rollout, rollout not in (None, "continuous")))
    return [*code_of(parts["env"]), *(str(name) for name, is_code in own if is_code)]


def read_metrics(run_dir: str | Path) -> list[dict[str, float]]:
    """The lines of a run's metrics.jsonl; a last line that was cut off by a crash is left out.

    Raises:
        CheckpointError: the file is missing, or broken before its last line.
    """
    file = Path(run_dir) / "metrics.jsonl"
    rows: list[dict[str, float]] = []
    broken = None
    try:
        with open_regular(file) as stream:
            if (size := os.fstat(stream.fileno()).st_size) > _MOST_METRICS:
                raise CheckpointError(f"{file} cannot be read: it has {size:,} bytes, more than {_MOST_METRICS:,}")
            for number, line in enumerate(bounded_lines(stream, _MOST_LINE), 1):
                if broken is not None:
                    raise CheckpointError(f"{file}, line {broken} is not a JSON object with an iteration")
                row = None if line is None else _row(line)
                if row is None:
                    broken = number
                else:
                    rows.append(row)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    return rows


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        CheckpointError: the file cannot be read, or holds something else.
    """
    try:
        data = parse_json(read_regular(file, _MOST_JSON))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{file} must hold a JSON object, got {type(data).__name__}")
    return data


def _row(line: bytes) -> dict[str, float] | None:
    """Parses a line; None if a crash cut it off or filled it with zeros."""
    try:
        row = parse_json(line)
    except ValueError:
        return None
    figures = isinstance(row, dict) and isinstance(row.get("iteration"), int) and are_numbers(row)
    return row if figures else None


def are_numbers(figures: Mapping[str, Any]) -> bool:
    """True where every value is a number that fits into a float."""
    return all(isinstance(one, float) or (isinstance(one, int) and abs(one) < 2**63) for one in figures.values())


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested tables to dotted names."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        nested = isinstance(value, Mapping)
        found |= flat(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return found
