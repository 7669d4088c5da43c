"""Runs the cells of a matrix, a few at a time, and keeps what is finished whatever happens to the rest."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mathturn_gym.base.files import holds_anything, locked, open_regular, storage_errors, tidy, write_json
from mathturn_gym.baselines.run_folder import read_object
from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.compare.cells import CellFolder, Outcome, is_number
from mathturn_gym.compare.matrix import Cell, Matrix, check_cells, config_of
from mathturn_gym.errors import CheckpointError, InvalidValueError, check_int, shown

_POLL_S: Final = 0.1
_TICK_S: Final = 0.5
_ONE_THREAD: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Observer:
    """Progress callbacks while cells run; these do nothing. Override what you want to see, and return quickly."""

    def begin(self, outcomes: Sequence[Outcome], jobs: int) -> None:
        """What there is of every cell before anything runs, and how many run at a time."""

    def tick(self, running: Sequence[tuple[Cell, Mapping[str, Any]]]) -> None:
        """Twice a second: the cells that run, with their latest metrics."""

    def finished(self, outcome: Outcome) -> None:
        """A cell's process has ended."""

    def stopping(self, running: int) -> None:
        """Called after an interrupt with the number of processes that were asked to stop."""


@dataclass(slots=True)
class _Running:
    folder: CellFolder
    process: subprocess.Popen[bytes]


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def open_matrix(matrix: Matrix, command: str = "", against: str | None = None) -> list[Cell]:
    """Makes the comparison's folder, or adds a matrix to the one that is there.

    Args:
        matrix: What is wanted; its `out` says where.
        command: What was typed, for the report.
        against: The row that reports compare the others with; None for the matrix's, or that of the folder.

    Returns:
        Every cell of the folder: those that it had, and the new ones.

    Raises:
        CheckpointError: a cell is there already with another budget or other settings, or was run
            under other defaults; cell and field are named.
        InvalidValueError: the folder holds something else, or an algorithm is unknown.
        StorageError: the folder cannot be made or written.
    """
    out = Path(matrix.out)
    if out.exists() and (not out.is_dir() or (holds_anything(out) and not (out / "matrix.json").exists())):
        raise InvalidValueError(f"out {matrix.out!r} exists and is no comparison's folder; choose another")
    before = read_cells(out) if (out / "matrix.json").exists() else []
    cells = {cell.key: cell for cell in before}
    for cell in matrix.cells():
        cells.setdefault(cell.key, cell)
    check_cells(matrix.cells())
    for cell in matrix.cells():
        CellFolder(out, cell).check(config_of(cell))
    # Kept with the runs: a task's file may be gone or another by the time of a report.
    scales = (read_scales(out) if before else {}) | {task: dict(load_task(task).scale) for task in matrix.tasks}
    against = against or matrix.against or (read_object(out / "matrix.json").get("against") if before else None)
    data = {"format": 1, "command": command, "jobs": matrix.jobs, "against": against, "scales": scales}
    data["cells"] = [cell.to_json() for cell in cells.values()]
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    # First of all: a folder is a comparison's, or empty, whenever a process is killed.
    write_json(out / "matrix.json", data)
    for cell in matrix.cells():
        CellFolder(out, cell).prepare()
    return list(cells.values())


def read_scales(out: str | Path) -> dict[str, Mapping[str, Sequence[float]]]:
    """The floors and ceilings of the tasks of a comparison's folder (see `Results`)."""
    file = Path(out) / "matrix.json"
    found = read_object(file).get("scales", {})
    if not isinstance(found, dict) or not all(isinstance(ends, dict) for ends in found.values()):
        raise CheckpointError(f"{file}: scales must be tables of figures by task, got {shown(found)}")
    for task, ends in found.items():
        for figure, pair in ends.items():
            if not (isinstance(pair, list) and len(pair) == 2 and all(is_number(end) for end in pair)):
                raise CheckpointError(
                    f"{file}: the scale of {shown(task)}, {shown(figure)} must be two numbers, floor and ceiling, got {shown(pair)}"
                )
    return found


def read_cells(out: str | Path) -> list[Cell]:
    """The cells of a comparison's folder."""
    file = Path(out) / "matrix.json"
    if not file.exists():
        raise CheckpointError(f"{str(out)!r} holds no comparison: it has no matrix.json")
    try:
        return [Cell.from_json(cell) for cell in read_object(file)["cells"]]
    except (KeyError, TypeError, AttributeError, InvalidValueError) as error:
        raise CheckpointError(f"{file} is no comparison's matrix: {error}") from error


def run_matrix(
    out: str | Path, *, jobs: int = 2, observer: Observer | None = None, interrupted: Callable[[], bool] = lambda: False
) -> bool:
    """Runs every cell of a folder that has no result yet, `jobs` at a time, each in a process with one thread.

    A cell with a checkpoint goes on from it. A cell that crashes is noted as failed, and the others go on.

    Args:
        out: The comparison's folder, made by `open_matrix`.
        jobs: Processes at a time, at most as many as there are cores.
        observer: Progress callbacks; None for none.
        interrupted: Asked often; once True, no cell is begun, and those that run are asked to save and end.

    Returns:
        True where every cell has been run to its end (failed ones too), False after an interrupt.

    Raises:
        CheckpointError: the folder holds no comparison.
        LockedError: another process runs cells in this folder.
    """
    folders = [CellFolder(out, cell) for cell in read_cells(out)]
    outcomes = [folder.outcome() for folder in folders]
    waiting = [folder for folder, outcome in zip(folders, outcomes, strict=True) if not outcome.done]
    jobs, observer = min(check_int("jobs", jobs, low=1), cores()), observer or Observer()
    with locked(Path(out) / ".lock"):  # two comparisons in one folder would run the same cells twice
        tidy(out)
        observer.begin(outcomes, jobs)
        return _run(waiting, jobs, observer, interrupted)


def _run(waiting: list[CellFolder], jobs: int, observer: Observer, interrupted: Callable[[], bool]) -> bool:
    running: list[_Running] = []
    stopping, ticked = False, 0.0
    try:
        while running or (waiting and not stopping):
            while waiting and len(running) < jobs and not stopping:
                running.append(_start(waiting.pop(0)))
            time.sleep(_POLL_S)
            if not stopping and interrupted():
                stopping = True
                observer.stopping(len(running))
                for one in running:
                    one.process.send_signal(signal.SIGINT)
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                _note_failure(one, stopping)
                observer.finished(one.folder.outcome())
            if time.monotonic() - ticked > _TICK_S:
                ticked = time.monotonic()
                observer.tick([(one.folder.cell, one.folder.progress()) for one in running])
    finally:
        for one in running:  # an exception, a second Ctrl-C: nothing is left running
            one.process.kill()
            one.process.wait()
    return not stopping


def _start(folder: CellFolder) -> _Running:
    folder.prepare()
    # One thread a run: its numbers depend neither on the machine's cores nor on what runs beside it.
    environment = {**os.environ, **dict.fromkeys(_ONE_THREAD, "1"), "TOKENIZERS_PARALLELISM": "false"}
    # The process sees the modules that this one sees, and those of the folder that it was started in.
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*filter(None, sys.path), str(Path.cwd())]))
    command = [sys.executable, "-m", "mathturn_gym.compare.worker", str(folder.path), str(os.getpid())]
    with open_regular(folder.log, "ab") as log:  # not through a link that leads out of the folder
        log.write(f"$ {shlex.join(command)}\n".encode())
        log.flush()
        # a session of its own: a terminal's Ctrl-C reaches it through us alone.
        process = subprocess.Popen(  # noqa: S603  our own module, no shell
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
    return _Running(folder, process)


def _note_failure(one: _Running, stopping: bool) -> None:
    """A process that ended without a result, unasked, has failed, even if it could not say why."""
    code = one.process.returncode
    if (
        one.folder.outcome().done
        or code == 0
        or one.folder.has_failed
        # Stopped on request: by our own exit codes, or by the signal before Python could handle it.
        or (stopping and code in (3, 130, -signal.SIGINT))
    ):
        return
    if code < 0:
        reason = f"killed by {signal.Signals(-code).name}" + (" (out of memory?)" if code == -9 else "")
    elif code == 3:
        reason = "the run ended without a result.json"
    else:
        reason = f"the process ended with exit code {code}"
    one.folder.fail(f"{reason}; see {one.folder.log}")
