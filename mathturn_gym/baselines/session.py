"""What `train` asks of a run in progress, whatever trains in it."""

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

if TYPE_CHECKING:
    from pathlib import Path

    from mathturn_gym.baselines.run_folder import RunFolder
    from mathturn_gym.baselines.settings import RunConfig
    from mathturn_gym.types import Policy

_LOG = logging.getLogger(__name__)


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Sets torch's CPU threads: sums come out the same whatever the machine's number of cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def interrupt_flag() -> Iterator[Callable[[], bool]]:
    """Makes the first Ctrl-C a flag to be asked for, and the second a KeyboardInterrupt."""
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

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


# ---- what `train` asks of a run in progress, whatever trains in it


Report: TypeAlias = Callable[[Metrics], None]
"""Takes an iteration's figures: into metrics.jsonl, TensorBoard, and to whoever watches."""

RunStatus = Literal["finished", "stopped_early", "interrupted", "diverged"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a session's run ended.

    Args:
        status: "finished"; "stopped_early" by `patience`; "interrupted" by Ctrl-C; "diverged": weights or loss are no
            longer finite.
        message: More about a status other than "finished".
        episodes: Episodes trained on.
        tokens: Tokens sampled in training.
        cpu_s: CPU seconds of training.
        test: Figures of the test split, where the session has played it itself.
        total_tokens: All tokens of the episodes trained on, with prompts and feedback; None where nobody counted.
    """

    status: RunStatus
    message: str
    episodes: int
    tokens: int
    cpu_s: float
    test: Mapping[str, float] | None = None
    total_tokens: int | None = None


class Session(ABC):
    """A run that is ready to begin: everything is loaded and checked, and nothing is written yet."""

    @property
    @abstractmethod
    def policy(self) -> Policy:
        """The policy as it is now."""

    @abstractmethod
    def run(self, folder: RunFolder, *, resume: bool, report: Report, interrupted: Callable[[], bool]) -> Ended:
        """Trains until the budget is used up, or until something else ends the run.

        Args:
            folder: Where checkpoints go, and come from.
            resume: Go on from the folder's checkpoint, where there is one.
            report: Takes each iteration's figures, those before the first one (iteration 0) included.
            interrupted: True once the user wants the run to end with a checkpoint.
        """

    @abstractmethod
    def close(self) -> None:
        """Gives back what the session holds (environments, mostly)."""


class Engine(Protocol):
    """Who plays and computes in a run; `mathturn_gym.neighbors.engines` has some."""

    def prepare(self, config: RunConfig, policy: Policy | None = None) -> Session:
        """See `BaseAlgorithm.prepare`."""
        ...

    def run_dir(self, run_dir: Path) -> Path:
        """The folder that this process writes: of several that compute together, one writes the run's.

        Args:
            run_dir: The run's.
        """
        ...
