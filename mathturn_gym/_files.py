"""Files that are whole or absent, and folders that one process writes at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mathturn_gym.errors import LockedError, StorageError

__all__ = ["locked", "storage_errors", "write_atomically"]


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Writes beside and renames: readers see the old content or the new, never half of one.

    Args:
        path: The file; its folder must exist.
        content: Text is written as UTF-8.

    Raises:
        StorageError: the disk is full, the folder is read-only, and the like; the old content is still there.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.new")
    with storage_errors(path):
        with beside.open("wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)


@contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Holds a lock file while the block runs; the lock ends with its process, however that ends.

    Args:
        path: The lock file; it stays behind, empty.

    Raises:
        LockedError: another process holds it.
        StorageError: it cannot be made.
    """
    path = Path(path)
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with storage_errors(path):
        file = path.open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockedError(f"another process works in {str(path.parent)!r} (it holds {path.name})") from error
        yield


@contextmanager
def storage_errors(path: str | Path) -> Iterator[None]:
    """Turns the operating system's errors into one that names the file or folder that was to be written.

    Args:
        path: What is written.

    Raises:
        StorageError: for any `OSError` in the block.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error
