"""A cell's folder, and what its run has come to.

OUT/matrix.json                    every cell that belongs to the comparison
OUT/cells/LABEL/TASK/seed-N/
cell.json                      what was asked for
log.txt                        what the run printed
failed.json                    why it crashed, where it did
run/metrics.jsonl, result.json, ...   written by the run itself
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mathturn_gym.base.files import parse_json, read_regular, storage_errors, tidy, write_json
from mathturn_gym.baselines.run_folder import flat, read_metrics, read_object
from mathturn_gym.baselines.settings import RunConfig
from mathturn_gym.compare.matrix import Cell
from mathturn_gym.errors import CheckpointError

DONE: Final = ("finished", "stopped_early", "diverged")
"""What a run's result can say; every other status has no result: failed, unfinished, missing."""


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation on the validation split."""

    tokens: float  # environment tokens trained on before it
    cpu_s: float  # CPU seconds of training before it
    figures: Mapping[str, float]  # accuracies by name, "acc@1" and on
    # All tokens of the episodes trained on before it; None where the run did not count them.
    total_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a cell."""

    cell: Cell  # the cell
    # "finished", "stopped_early" or "diverged" (of a run that wrote its result), "failed" (the process crashed),
    # "unfinished" (interrupted; it can go on) or "missing" (never begun).
    status: str
    message: str = ""  # one line about a status other than "finished"
    tokens: float = 0.0  # environment tokens used so far
    cpu_s: float = 0.0  # CPU seconds used so far
    episodes: float = 0.0  # episodes trained on so far
    # The final policy's figures on the test split; None unless finished or stopped early.
    test: Mapping[str, float] | None = None
    curve: Sequence[Point] = field(default=())  # the evaluations on the validation split, in order
    # All tokens of the episodes so far, with prompts and feedback; None where the run did not count them.
    total_tokens: float | None = None

    @property
    def done(self) -> bool:
        """True where the run has its result and is not run again."""
        return self.status in DONE


class CellFolder:
    """The folder of one cell.

    Args:
        out: The comparison's folder.
        cell: The cell.
    """

    def __init__(self, out: str | Path, cell: Cell) -> None:
        self.cell = cell
        self.path = Path(out) / "cells" / cell.key
        self.run = self.path / "run"
        self.log = self.path / "log.txt"
        self._failed = self.path / "failed.json"

    def check(self, config: RunConfig | None = None) -> None:
        """Makes sure that what is in the folder, if anything, belongs to this very cell.

        Args:
            config: The cell's run as it would be now; one that was begun with another config is not the same run, even
                where the cell is (the task's file may have changed in between).

        Raises:
            CheckpointError: the folder holds a run with another budget, other settings or other defaults; they are
                named.
        """
        file = self.path / "cell.json"
        if file.exists():
            before, now = read_object(file), self.cell.to_json()
            differ = [name for name in now if before.get(name) != now[name]]
            self._refuse(differ, before, now)
        if config is not None and (self.run / "config.json").exists():
            before, now = flat(read_object(self.run / "config.json")), flat(config.to_json())
            differ = sorted(name for name in now.keys() | before.keys() if before.get(name) != now.get(name))
            self._refuse(differ, before, now)

    def prepare(self) -> None:
        """Makes the folder.

        Raises:
            CheckpointError: see `check`.
            StorageError: the folder cannot be made or written.
        """
        self.check()
        with storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / "cell.json", self.cell.to_json())

    def _refuse(self, differ: Sequence[str], before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        if differ:
            was = ", ".join(f"{name} was {before.get(name)!r}, is {now.get(name)!r}" for name in differ)
            raise CheckpointError(f"{self.path} holds another run: {was}; choose another --out, or delete that folder")

    def begin(self) -> bool:
        """Clears away what an earlier attempt cannot go on from; True where there is a checkpoint to go on from."""
        tidy(self.path)
        self._failed.unlink(missing_ok=True)
        if any(self.run.glob("checkpoint*")):
            return True
        if self.run.exists():
            shutil.rmtree(self.run)
        return False

    def fail(self, message: str) -> None:
        """Notes why there is no result."""
        write_json(self._failed, {"error": message})

    @property
    def has_failed(self) -> bool:
        """True where a reason is noted already."""
        return self._failed.exists()

    def outcome(self) -> Outcome:
        """What has become of the cell so far; a file that cannot be read makes it "failed", with the reason."""
        try:
            if (self.run / "result.json").exists():
                return self._done(read_object(self.run / "result.json"))
            curve, last = self._curve()
            if self._failed.exists():
                status, message = "failed", str(read_object(self._failed).get("error", ""))
            elif last or self.run.exists():
                status, message = "unfinished", "interrupted; run the comparison again to go on"
            else:
                status, message = "missing", "not run yet"
        except CheckpointError as error:
            return Outcome(self.cell, "failed", str(error))
        return Outcome(self.cell, status, message, *_used(last), curve=curve, total_tokens=_all_tokens(last))

    def progress(self) -> Mapping[str, Any]:
        """The latest line of the metrics, with the latest evaluation's figures in it; empty where there is none."""
        try:
            lines = read_regular(self.run / "metrics.jsonl", 1 << 30).splitlines()
        except OSError:
            return {}
        latest: dict[str, Any] = {}
        for line in lines[-200:]:  # asked for twice a second, and an evaluation is never further back
            with suppress(ValueError):  # a line that is being written
                row = parse_json(line)
                latest.update(row if isinstance(row, dict) else {})
        return latest

    def _done(self, result: Mapping[str, Any]) -> Outcome:
        # A result that was copied from another cell would be counted as this one's.
        for name, wanted in (("task", Path(self.cell.task).stem), ("seed", self.cell.seed)):
            if result.get(name) != wanted:
                raise CheckpointError(
                    f"result.json says {name} {result.get(name)!r}, the cell is {wanted!r}: delete {self.path}"
                )
        if result.get("status") not in DONE:
            raise CheckpointError(f"result.json has status {result.get('status')!r}, must be one of {', '.join(DONE)}")
        test = result.get("test")
        if test is not None:
            test = {name: float(value) for name, value in test.items() if is_number(value)}
            if not _accuracies(test):
                raise CheckpointError("result.json: test holds no acc@k")
            if wrong := [name for name, value in _accuracies(test).items() if not 0 <= value <= 1]:
                raise CheckpointError(f"result.json: test {wrong[0]} must be in [0, 1], got {test[wrong[0]]}")
        elif result["status"] != "diverged":
            raise CheckpointError(f"result.json: status {result['status']!r} without figures of the test split")
        curve, _ = self._curve()
        return Outcome(
            self.cell,
            str(result["status"]),
            str(result.get("message") or ""),
            *_used(result),
            test=None if result["status"] == "diverged" else test,
            curve=curve,
            total_tokens=_all_tokens(result),
        )

    def _curve(self) -> tuple[list[Point], Mapping[str, Any]]:
        """The evaluations, and the last line."""
        rows = read_metrics(self.run) if (self.run / "metrics.jsonl").exists() else []
        points = []
        for row in rows:
            named = {name.removeprefix("validation/"): row[name] for name in row if name.startswith("validation/acc@")}
            if named:
                # An accuracy that is not finite is none: the policy solved nothing that could be counted.
                figures = {name: float(v) if is_number(v) and 0 <= v <= 1 else 0.0 for name, v in named.items()}
                points.append(Point(_number(row, "tokens"), _number(row, "cpu_s"), figures, _all_tokens(row)))
        return points, rows[-1] if rows else {}


def _accuracies(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if name.startswith("acc@")}


def is_number(value: object) -> bool:
    """True for a finite number that a float can hold: what a file calls a figure may be anything."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of more than 308 digits
        return False


def _number(row: Mapping[str, Any], name: str) -> float:
    if not is_number(row.get(name)):
        raise CheckpointError(f"{name!r} must be a number in metrics and results, got {row.get(name)!r}")
    return float(row[name])


def _used(row: Mapping[str, Any]) -> tuple[float, float, float]:
    """Tokens, CPU seconds and episodes of a line, zeros where there is none."""
    if not row:
        return 0.0, 0.0, 0.0
    return _number(row, "tokens"), _number(row, "cpu_s"), _number(row, "episodes")


def _all_tokens(row: Mapping[str, Any]) -> float | None:
    """All tokens of a line; None where they were not counted, as by a trainer that does not see prompts."""
    return None if row.get("total_tokens") is None else _number(row, "total_tokens")
