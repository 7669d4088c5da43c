"""What training borrows from its process - threads and Ctrl-C - and puts back."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["cpu_threads", "interrupt_flag"]

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
