"""Interfaces between `train` and what runs: `Session` (a trainer) and `Engine` (where it computes)."""

from __future__ import annotations

import logging
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from mathturn_gym.baselines.algorithms import Metrics
from mathturn_gym.errors import InvalidValueError

if TYPE_CHECKING:
    from pathlib import Path

    from mathturn_gym.baselines.run_folder import RunFolder
    from mathturn_gym.baselines.settings import RunConfig
    from mathturn_gym.types import Policy

_LOG = logging.getLogger(__name__)


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Sets torch's CPU threads, so that sums do not depend on the machine's number of cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def interrupt_flag() -> Iterator[Callable[[], bool]]:
    """Turns the first Ctrl-C or SIGTERM into a flag that the caller reads, and the second into a KeyboardInterrupt.

    Schedulers of clusters send SIGTERM some time before they kill a job.
    """
    if threading.current_thread() is not threading.main_thread():  # Python lets only the main thread handle signals
        yield lambda: False
        return
    asked = False

    def handle(_signal: int, _frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        _LOG.warning("interrupted: finishing this iteration and saving (Ctrl-C again stops at once)")

    before = {one: signal.signal(one, handle) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


Report: TypeAlias = Callable[[Metrics], None]
"""Receives the metrics of an iteration, for metrics.jsonl, TensorBoard and callbacks."""

RunStatus = Literal["finished", "stopped_early", "interrupted", "diverged"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a session's run ended."""

    # "finished"; "stopped_early" by `patience`; "interrupted" by Ctrl-C; "diverged": weights or loss are no longer
    # finite.
    status: RunStatus
    message: str  # more about a status other than "finished"
    episodes: int  # episodes trained on
    tokens: int  # tokens sampled in training
    cpu_s: float  # CPU seconds of training
    test: Mapping[str, float] | None = None  # metrics of the test split, if the session has played it itself
    # All tokens of the episodes trained on, with prompts and feedback; None if they are not counted.
    total_tokens: int | None = None


class Session(ABC):
    """A run that is loaded and checked, before anything is written."""

    @property
    @abstractmethod
    def policy(self) -> Policy:
        """Returns the current policy."""

    @abstractmethod
    def run(self, folder: RunFolder, *, resume: bool, report: Report, interrupted: Callable[[], bool]) -> Ended:
        """Trains until the budget is used up, or until something else ends the run.

        Args:
            folder: Holds the checkpoints.
            resume: Continue from the folder's checkpoint if there is one.
            report: Receives the metrics of each iteration, and of the evaluation before the first (iteration 0).
            interrupted: True once the user wants the run to end with a checkpoint.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes the environments and other resources of the session."""


def refuse_rollout(config: RunConfig, who: str) -> None:
    """Raises for a rollout engine where the episodes come from workers.

    Args:
        config: The run.
        who: The engine that has the workers, for the message.

    Raises:
        InvalidValueError: `policy.rollout` is set.
    """
    if config.policy.rollout is not None:
        raise InvalidValueError(
            f"policy.rollout {config.policy.rollout!r}: {who} plays episodes with workers of its own; leave one of them out"
        )


class Engine(Protocol):
    """Where a run plays and computes; implementations are in `mathturn_gym.neighbors.engines`."""

    def prepare(self, config: RunConfig, policy: Policy | None = None) -> Session:
        """Loads and checks a run.

        Args:
            config: The run.
            policy: Trained in place; None loads `config.policy`.
        """
        ...

    def run_dir(self, run_dir: Path) -> Path:
        """Returns the folder that this process writes: of several processes, one writes the run's folder.

        Args:
            run_dir: Folder of the run.
        """
        ...
