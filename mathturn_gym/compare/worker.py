"""The process that runs one cell: `python -m mathturn_gym.compare.worker FOLDER PARENT_PID`.

Each run has a process of its own: CPU seconds are counted per run, and a crash stops no other run.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Final

from mathturn_gym.base.files import locked
from mathturn_gym.baselines.run_folder import read_object
from mathturn_gym.baselines.training import train
from mathturn_gym.compare.cells import CellFolder
from mathturn_gym.compare.matrix import Cell, config_of

_LOOK_EVERY_S: Final = 1.0


def main(path: str, parent: int) -> int:
    """Runs the cell whose folder this is.

    Returns the exit code: 0 with a result, 1 after an exception, 3 without a result, 130 after Ctrl-C. The run stops,
    as by Ctrl-C, when the process `parent` is gone.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore Ctrl-C
    threading.Thread(target=_stop_without, args=(parent,), daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    cell = Cell.from_json(read_object(Path(path) / "cell.json"))
    folder = CellFolder(Path(path).parents[3], cell)
    try:
        # One whose parent was killed may still be saving.
        with locked(folder.path / ".lock", wait=True):
            train(config_of(cell), run_dir=folder.run, resume=folder.begin())
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # whatever it is, it is this cell's result: a row in the table, with its message
        traceback.print_exc()
        folder.fail(f"{type(error).__name__}: {error}")
        return 1
    return 0 if (folder.run / "result.json").exists() else 3


def _stop_without(parent: int) -> None:
    """Interrupts this process when its parent is gone, so that a killed comparison leaves no runs behind."""
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
