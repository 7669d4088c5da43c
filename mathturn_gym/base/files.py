"""Files: written atomically, locked, opened only where they are regular files; and JSON of unknown origin."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, Final, cast

from mathturn_gym.errors import LockedError, StorageError

_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT: Final = getattr(os, "O_NONBLOCK", 0)
_SPARSE_FROM: Final = 2**30
# What `replacing` calls the file that is written to.
_SCRATCH: Final = re.compile(r"\..+\.(\d+)-[0-9a-f]{8}\.new")


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes text (as UTF-8) or bytes: at any moment, and after a power loss, the old or the new content is there, whole.

    Raises:
        StorageError: it cannot be written: a full disk, a read-only or missing folder; the old file stands.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    with replacing(path) as scratch:
        scratch.write_bytes(data)


def write_json(path: str | os.PathLike[str], data: Any) -> None:
    """Writes JSON that people read, too, with `write_atomically`; in ASCII, which has a place for lone surrogates."""
    write_atomically(path, json.dumps(data, indent=2) + "\n")


def bounded_lines(stream: IO[bytes], most: int) -> Iterator[bytes | None]:
    """Yields the lines of a stream; None stands for one of more than `most` bytes, which is not kept in memory."""
    while raw := stream.readline(most + 1):
        if len(raw) <= most:
            yield raw
            continue
        yield None
        while raw and not raw.endswith(b"\n"):
            raw = stream.readline(most)


# ---- files of unknown origin: a link leads elsewhere, opening a pipe waits forever, a device never ends


def open_regular(path: str | os.PathLike[str], mode: str = "rb") -> IO[bytes]:
    """Opens a regular file for bytes; a pipe, a device or a folder is an error, and opening one does not wait.

    Raises:
        OSError: it cannot be opened, is no regular file, or is a link that was to be written to.
    """
    # A download cache is made of links; one in the place of a file that is written leads out of its folder.
    extra = _NO_WAIT | (0 if mode == "rb" else _NO_LINK)
    stream = open(path, mode, opener=lambda name, flags: os.open(name, flags | extra, 0o666))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise OSError(errno.EINVAL, "it is no regular file, but a pipe, a device or the like", str(path))
    return cast("IO[bytes]", stream)


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """The bytes of a regular file for this block; a file whose name ends in `.gz` is unpacked as it is read.

    Raises:
        OSError: see `open_regular`.
    """
    with open_regular(path) as raw:
        if not str(path).lower().endswith(".gz"):
            yield raw
            return
        with gzip.open(raw) as unpacked:
            yield cast("IO[bytes]", unpacked)


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a regular file of at most `most` bytes.

    Raises:
        OSError: it cannot be read, is no regular file, or has more bytes.
    """
    with open_regular(path) as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than the {most:,} bytes that are read of such a file", str(path))
    return data


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a regular file, as UTF-8.

    Raises:
        OSError: it cannot be read, is no regular file, or nearly all holes.
        UnicodeDecodeError: it is no UTF-8.
    """
    check_not_sparse(path)
    with open_regular(path) as stream:
        return stream.read().decode()


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Raises where a folder that is written to holds, at any depth, something else than regular files and folders.

    A folder from elsewhere may hold links: writing to a name in it would then write to a file outside of it.

    Raises:
        StorageError: a link, a pipe, a device or a socket, by its path.
    """
    with storage_errors(folder), os.scandir(folder) as entries:
        for one in entries:
            if one.is_dir(follow_symlinks=False):
                check_folder(one.path)
            elif not one.is_file(follow_symlinks=False):
                kind = "a link" if one.is_symlink() else "a pipe, a device or a socket"
                raise StorageError(
                    f"{one.path} is {kind}: only regular files are written to; delete it, or copy the file"
                )


def check_not_sparse(path: str | os.PathLike[str]) -> None:
    """Raises for a file whose size is almost all holes: it costs nothing to send, and minutes to read.

    Raises:
        OSError: it cannot be looked at, or is such a file.
    """
    found = Path(path).stat()
    blocks = getattr(found, "st_blocks", None)  # absent on Windows
    # A file system that compresses has fewer blocks, too; weights do not shrink to a sixteenth.
    if blocks is not None and found.st_size > _SPARSE_FROM and blocks * 512 * 16 < found.st_size:
        raise OSError(errno.EFBIG, f"it is a sparse file: {found.st_size:,} bytes, nearly all of them holes", str(path))


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a scratch file beside `path`, which replaces `path` when the block ends and is deleted if the block raises.

    Raises:
        StorageError: what the block raises as `OSError`; the old file stands.

    >>> with replacing("episodes.jsonl") as scratch:  # doctest: +SKIP
    ...     scratch.write_text("…")
    """
    target = Path(path)
    # The name is unique, so that two processes that write the same file do not share it.
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
    """True where a folder holds more than scratch files that killed processes have left."""
    return any(_SCRATCH.fullmatch(one.name) is None for one in Path(folder).iterdir())


def tidy(folder: str | os.PathLike[str]) -> None:
    """Deletes the scratch files that killed processes have left in a folder.

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
    """Flushes a file or folder to the disk.

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


@contextmanager
def locked(path: str | os.PathLike[str], *, wait: bool = False) -> Iterator[None]:
    """Holds a file for this block: others who ask for it, in this process or another one, are refused, or wait.

    The lock ends with its process, however that ends, and forked children do not keep it (`filelock` sees to both, on
    Windows too). The file is made where it is not there, and left there; for a folder, take a `.lock` file in it.

    Raises:
        LockedError: it is in use.
        StorageError: it cannot be made, or is a link.
    """
    from filelock import FileLock, Timeout

    with storage_errors(path):
        Path(path).parent.stat()  # filelock would make the folder
        try:
            held = FileLock(path).acquire(blocking=wait)
        except Timeout as error:
            raise LockedError(
                f"another process works in {str(Path(path).parent)!r}, or another part of this one does (it holds"
                f" {Path(path).name}): wait until it has ended"
            ) from error
    with held:
        yield


def append_block(path: Path, text: str) -> None:
    """Appends a text in one piece: other writers of the file wait, and a write that fails leaves no half of it.

    Raises:
        OSError: it cannot be written.
    """
    data = text.encode("utf-8", "backslashreplace")
    # Windows refuses writes to a file that is locked: there a file beside it is.
    lock = path.with_name(f".{path.name}.lock") if sys.platform == "win32" else path
    with locked(lock, wait=True):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK, 0o666)
        try:
            size, done = os.fstat(descriptor).st_size, 0
            while done < len(data):
                done += os.write(descriptor, data[done:])
        except OSError:
            os.ftruncate(descriptor, size)
            raise
        finally:
            os.close(descriptor)


@contextmanager
def storage_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns the operating system's errors in this block into a `StorageError` that names what was to be written."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error


# ---- JSON of unknown origin


def parse_json(data: str | bytes) -> Any:
    """Parses a JSON document; every kind of defect is a `ValueError`.

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
