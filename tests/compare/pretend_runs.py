"""Runs that train nothing: what the comparison sees of a run, in milliseconds. Loaded by name in the runs' processes."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mathturn_gym.baselines.algorithms import BaseAlgorithm
from mathturn_gym.baselines.run_folder import RunFolder
from mathturn_gym.baselines.session import Ended, Report, Session
from mathturn_gym.baselines.settings import RunConfig
from mathturn_gym.baselines.training import SESSIONS
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.types import Policy


@dataclass(frozen=True, kw_only=True)
class Pretend(BaseAlgorithm):
    """Climbs from 0.2 to `level`, an evaluation every tenth of the tokens, or does what an option says."""

    kind = "pretend"

    level: float = 0.8
    use_tokens: int | None = None
    no_result: bool = False
    diverge: bool = False
    fail: str = ""
    kill: bool = False
    exit: bool = False
    wait: bool = False
    wait_only: int | None = None
    """The one seed whose run waits (None: every run does)."""


class PretendSession(Session):
    """A run of `Pretend`."""

    def __init__(self, options: Pretend, config: RunConfig) -> None:
        self.options, self.config = options, config

    @property
    def policy(self) -> Any:
        return None

    def close(self) -> None:
        pass

    def run(self, folder: RunFolder, *, resume: bool, report: Report, interrupted: Callable[[], bool]) -> Ended:
        options, budget = self.options, self.config.budget
        level = options.level + 0.02 * float(np.random.default_rng(self.config.seed).random())
        total = options.use_tokens or budget.tokens or 1000
        state = folder.path / "checkpoint" / "state.json"
        begin = json.loads(state.read_text())["iteration"] + 1 if resume else 0
        kept = sorted(one.name for one in folder.path.iterdir() if one.name not in (".lock", "config.json"))
        print(f"begin at {begin}, threads {os.environ['OMP_NUM_THREADS']}, kept {kept}", flush=True)
        for iteration in range(begin, 11):
            used = total * iteration // 10
            accuracy = 0.2 + (level - 0.2) * iteration / 10
            metrics: dict[str, float] = {
                "iteration": iteration,
                "episodes": used // 10,
                "tokens": used,
                "cpu_s": used / 100,
                "validation/acc@1": accuracy / 2,
                "validation/acc@4": accuracy,
            }
            report(metrics)
            if iteration == 5:
                self.halfway(folder, resume, interrupted)
            if interrupted():
                return Ended("interrupted", "", used // 10, used, used / 100)
        used_up = total // 10, total, total / 100
        if options.no_result:
            return Ended("interrupted", "", *used_up)
        if options.diverge:
            return Ended("diverged", "the loss is nan", *used_up)
        test = {"acc@1": level / 2, "acc@4": level, "episodes": 64.0}
        return Ended("finished", "", *used_up, test=test)

    def halfway(self, folder: RunFolder, resume: bool, interrupted: Callable[[], bool]) -> None:
        """What may go wrong in the middle."""
        (folder.path / "checkpoint").mkdir(exist_ok=True)
        (folder.path / "checkpoint" / "state.json").write_text(json.dumps({"iteration": 5}))
        if self.options.fail:
            raise InvalidValueError(self.options.fail)
        if self.options.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.options.exit:
            raise SystemExit(7)
        if self.options.wait and self.options.wait_only in (None, self.config.seed) and not resume:
            (folder.path / "waiting").touch()
            end = time.monotonic() + 600
            while not interrupted() and time.monotonic() < end:
                time.sleep(0.02)


def not_an_algorithm(*_: Any) -> None: ...


def pretend(config: RunConfig, policy: Policy | None) -> Session:
    """A session that writes what a run writes."""
    assert isinstance(config.algorithm, Pretend)
    return PretendSession(config.algorithm, config)


SESSIONS["pretend"] = pretend

if Path(sys.argv[0]).name == "worker.py":
    # The tests look at a run's numbers: its process need not load what draws them, which is half of its time.
    sys.modules |= {"matplotlib": None, "torch.utils.tensorboard": None}  # type: ignore[dict-item]
