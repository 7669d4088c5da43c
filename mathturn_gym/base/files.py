"""Files that are whole or as they were before, and files that one process uses at a time."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, Final

from mathturn_gym.errors import LockedError, StorageError

_SCRATCH: Final = re.compile(r"\..+\.(\d+)-[0-9a-f]{8}\.new")
"""What `replacing` calls the file that is written to."""


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a file: readers, and whoever looks after a crash or a power loss, find the old content or the new, whole.

    Args:
        path: The file; its folder must be there.
        content: Text (written as UTF-8) or bytes.

    Raises:
        StorageError: it cannot be written: a full disk, a read-only folder; the old file stands.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    with replacing(path) as scratch:
        scratch.write_bytes(data)


def write_json(path: str | os.PathLike[str], data: Any) -> None:
    """Writes JSON that people read, too, with `write_atomically`; in ASCII, which has a place for lone surrogates."""
    write_atomically(path, json.dumps(data, indent=2) + "\n")


def bounded_lines(stream: IO[bytes], most: int) -> Iterator[bytes | None]:
    """Lines, read one at a time; None stands for one that is too long, the rest of which is read past, not kept.

    Args:
        stream: Of bytes.
        most: Bytes that a line may have, its end included.
    """
    while raw := stream.readline(most + 1):
        if len(raw) <= most:
            yield raw
            continue
        yield None
        while raw and not raw.endswith(b"\n"):
            raw = stream.readline(most)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its place when the block ends, and is deleted where it raises.

    Raises:
        StorageError: what the block raises as `OSError`; the old file stands.

    >>> with replacing("episodes.jsonl") as scratch:  # doctest: +SKIP
    ...     scratch.write_text("…")
    """
    target = Path(path)
    # The name is nobody else's: two processes that write the same file do not meet in it.
    scratch = target.with_name(f".{target.name}.{os.getpid()}-{token_hex(4)}.new")
    with storage_errors(target):
        try:
            yield scratch
            with suppress(FileNotFoundError):
                shutil.copymode(target, scratch)
            sync(scratch)
            scratch.replace(target)
        except BaseException:
            with suppress(OSError):  # in a folder that is gone there is nothing to delete
                scratch.unlink()
            raise
        sync(target.parent, whole=False)


def holds_anything(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds more than what processes have left that were killed while they wrote a file there."""
    return any(_SCRATCH.fullmatch(one.name) is None for one in Path(folder).iterdir())


def tidy(folder: str | os.PathLike[str]) -> None:
    """Deletes what processes have left in a folder that were killed while they wrote a file there.

    Raises:
        StorageError: the folder cannot be written.
    """
    with storage_errors(folder):
        for one in Path(folder).glob(".*.new"):
            found = _SCRATCH.fullmatch(one.name)
            if found is not None and not _is_alive(int(found[1])):
                one.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    if sys.platform == "win32":
        return True  # there, signal 0 ends a process
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's
    return True


def sync(path: str | os.PathLike[str], *, whole: bool = True) -> None:
    """Returns when what was written is on the disk, and not only in memory.

    Args:
        path: A file or folder.
        whole: Of a folder: the files in it too, not only their names.
    """
    place = Path(path)
    if whole and place.is_dir():
        for inside in place.iterdir():
            sync(inside)
    if place.is_dir() and sys.platform == "win32":
        return  # there, a folder cannot be opened
    # Windows syncs what is open for writing only.
    descriptor = os.open(place, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_HELD: Final[set[int]] = set()
"""Descriptors of the locks that this process holds."""


@contextmanager
def locked(path: str | os.PathLike[str], *, wait: bool = False) -> Iterator[None]:
    """Keeps a file to this block: others who ask for it, in this process or another one, are refused or wait.

    The lock goes with its process, however that ends, and forked children do not keep it. On Windows nothing is locked.

    Args:
        path: The file; made where it is not there, and left there. For a folder, take a `.lock` file in it.
        wait: Wait until it is free, instead of raising.

    Raises:
        LockedError: it is in use.
        StorageError: it cannot be made.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with storage_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    _HELD.add(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise LockedError(
                f"another process works in {str(Path(path).parent)!r}, or another part of this one does (it holds"
                f" {Path(path).name}): wait until it has ended"
            ) from error
        yield
    finally:
        if descriptor in _HELD:  # not in a child that was forked inside the block
            _HELD.discard(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # whoever has a copy of the descriptor
            os.close(descriptor)


def append_block(path: Path, text: str) -> None:
    """Appends a text in one piece: other writers of the file wait, and a write that fails leaves no half of it.

    Raises:
        OSError: it cannot be written.
    """
    data = text.encode("utf-8", "backslashreplace")
    with locked(path, wait=True):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            size, done = os.fstat(descriptor).st_size, 0
            while done < len(data):
                done += os.write(descriptor, data[done:])
        except OSError:
            os.ftruncate(descriptor, size)
            raise
        finally:
            os.close(descriptor)


def _let_go() -> None:
    """In a forked child: its copies of the descriptors would keep the locks when the parent is gone."""
    for descriptor in _HELD:
        os.close(descriptor)
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


@contextmanager
def storage_errors(path: str | os.PathLike[str]) -> Iterator[None]:
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


# ---- jSON out of files and off the network, which anybody may have written


def parse_json(data: str | bytes) -> Any:
    """The value of a document; whatever is wrong with it is a `ValueError`.

    Python's own reader raises `RecursionError` for what is nested beyond its stack, which no `except ValueError` stops.

    Args:
        data: The document; bytes are UTF-8.

    Raises:
        ValueError: no JSON, no Unicode, nested too deeply, or an integer of more digits than Python reads.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
