from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from mathturn_gym.base.files import (
    append_block,
    bounded_lines,
    check_not_sparse,
    holds_anything,
    locked,
    read_regular,
    replacing,
    sync,
    tidy,
    write_atomically,
)
from mathturn_gym.errors import LockedError, StorageError

posix = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork on Windows")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- the writer


def interrupted(path: Path) -> None:
    with replacing(path) as scratch:
        scratch.write_text("half")
        raise KeyboardInterrupt


def test_text_and_bytes(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.txt", "é\n")
    write_atomically(tmp_path / "b.bin", b"\x00\xff")
    assert (tmp_path / "a.txt").read_bytes() == "é\n".encode()
    assert (tmp_path / "b.bin").read_bytes() == b"\x00\xff"
    assert names(tmp_path) == ["a.txt", "b.bin"], "nothing else is left"


def test_where_writing_fails_the_old_file_stands_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    with pytest.raises(KeyboardInterrupt):
        interrupted(path)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]
    with pytest.raises(StorageError, match=r"nowhere.a.txt cannot be written: No such file"):
        write_atomically(tmp_path / "nowhere" / "a.txt", "x")
    with pytest.raises(StorageError, match="cannot be written"), locked(tmp_path / "nowhere" / ".lock"):
        pass


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "a.txt"
    write_atomically(path, "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"a.txt cannot be written: No space left") as caught:
        write_atomically(path, "new")
    assert isinstance(caught.value, OSError)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_process_that_is_killed_while_it_writes_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_atomically(path, "old")
    code = (
        "import os, signal\nfrom pathlib import Path\nfrom mathturn_gym.base.files import replacing\n"
        f"with replacing(Path({str(path)!r})) as scratch:\n"
        "    scratch.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL if hasattr(signal, 'SIGKILL') else signal.SIGTERM)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode != 0
    assert path.read_text() == "old"
    write_atomically(path, "new")
    assert path.read_text() == "new"


def test_the_file_is_on_the_disk_before_it_takes_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss leaves the old content or the new: content is synced, renamed, and then its folder is synced."""
    done: list[str] = []
    real_sync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        where = Path(f"/proc/self/fd/{descriptor}").resolve() if sys.platform == "linux" else tmp_path
        done.append("sync folder" if where == tmp_path else "sync file")
        real_sync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        done.append("rename")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    write_atomically(tmp_path / "a.txt", "x")
    assert done == ["sync file", "rename", "sync folder"] or sys.platform != "linux"
    assert "rename" in done


def test_modes_are_those_of_any_new_file_or_of_the_old_one(tmp_path: Path) -> None:
    plain, path = tmp_path / "plain", tmp_path / "a.txt"
    plain.write_text("x")
    write_atomically(path, "x")
    assert path.stat().st_mode == plain.stat().st_mode
    path.chmod(0o640)
    write_atomically(path, "y")
    assert path.stat().st_mode & 0o777 == 0o640


def test_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, "[]")
    stop, broken = threading.Event(), []

    def write(mark: int) -> None:
        for _ in range(60):
            write_atomically(path, json.dumps([mark] * 5_000))

    def read() -> None:
        while not stop.is_set():
            found = json.loads(path.read_text())
            if len(set(found)) > 1 or len(found) not in (0, 5_000):
                broken.append(found)

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(mark,)) for mark in range(4)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert broken == []
    assert names(tmp_path) == ["a.json"]


def test_sync_takes_folders_with_the_files_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.txt").write_text("x")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    sync(tmp_path)
    assert synced == [one.stat().st_ino for one in (tmp_path / "inner" / "a.txt", tmp_path / "inner", tmp_path)]
    with pytest.raises(FileNotFoundError):
        sync(tmp_path / "nowhere")


# ---- the lock

HOLD = (
    "import sys, time\nfrom pathlib import Path\nfrom mathturn_gym.base.files import locked\n"
    "with locked(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(120)\n"
)


def holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_another_process_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    process = holder(path)
    message = rf"another process works in {str(tmp_path)!r}.*\(it holds .lock\)"
    with pytest.raises(LockedError, match=message), locked(path):
        pass
    process.kill()  # however it ends
    process.communicate()
    with locked(path):
        pass


def test_the_same_process_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with locked(path), pytest.raises(LockedError), locked(path):
        pass
    with pytest.raises(RuntimeError), locked(path):
        raise RuntimeError
    with locked(path):
        pass


def test_waiting_takes_the_lock_when_it_is_free(tmp_path: Path) -> None:
    path, order = tmp_path / ".lock", []

    def wait() -> None:
        with locked(path, wait=True):
            order.append("second")

    thread = threading.Thread(target=wait)
    with locked(path):
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]


def test_a_locked_file_keeps_its_content(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("kept")
    with locked(path):
        pass
    assert path.read_text() == "kept"


@posix
def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A worker process that outlives its killed parent must not make the folder unusable."""
    path = tmp_path / ".lock"
    # The parent says that it holds the lock once the child has come out of its fork.
    fork = "    ours, its = os.pipe()\n    child = os.fork()\n    if not child: os.write(its, b'.'); time.sleep(120)\n    os.read(ours, 1)\n"
    code = HOLD.replace("    print(", fork + "    print(child, ")
    command = [sys.executable, "-c", code.replace("import sys", "import os, sys"), str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline().split()[0])
    try:
        with pytest.raises(LockedError), locked(path):
            pass
        process.kill()
        process.wait()
        with locked(path):
            pass
        os.kill(child, 0)  # it lives
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


def test_what_killed_writers_left_is_tidied_away_and_nothing_else(tmp_path: Path) -> None:
    dead, alive = 4_194_305, os.getpid()  # Linux gives no process a number above 4,194,304
    names = [
        f".a.json.{dead}-0123abcd.new",
        f".a.json.{alive}-0123abcd.new",
        ".mine.new",
        ".new",
        "a.json",
        ".x.1-z.new",
    ]
    for name in names:
        (tmp_path / name).write_text("x")
    tidy(tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == set(names[1:])


def test_scratch_files_of_another_users_process_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    (tmp_path / ".a.json.123-0123abcd.new").touch()
    monkeypatch.setattr(os, "kill", refuse)
    tidy(tmp_path)
    assert names(tmp_path) == [".a.json.123-0123abcd.new"]


def test_any_thread_may_release_a_lock(tmp_path: Path) -> None:
    held, entered, ended = locked(tmp_path / ".lock"), threading.Event(), threading.Event()

    def hold() -> None:
        held.__enter__()
        entered.set()
        ended.wait(60.0)

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait(60.0)
    held.__exit__(None, None, None)
    with locked(tmp_path / ".lock"):
        ended.set()
    thread.join()


def test_a_block_that_cannot_be_appended_leaves_no_half_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, whole = tmp_path / "log.jsonl", os.write
    append_block(path, "one\n")

    def full(descriptor: int, data: bytes) -> int:
        if len(data) < 4:
            raise OSError(errno.ENOSPC, "no space")
        return whole(descriptor, data[:2])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="no space"):
        append_block(path, "two\n")
    monkeypatch.undo()
    append_block(path, "three\n")
    assert path.read_text() == "one\nthree\n"


def test_scratch_files_are_nothing(tmp_path: Path) -> None:
    (tmp_path / ".config.json.123-0123abcd.new").touch()
    assert not holds_anything(tmp_path)
    (tmp_path / "config.json").touch()
    assert holds_anything(tmp_path)


def test_a_file_may_have_as_many_bytes_as_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_regular(tmp_path / "a", 5) == b"12345"
    with pytest.raises(OSError, match="it has more than the 4 bytes"):
        read_regular(tmp_path / "a", 4)


@pytest.mark.parametrize(
    ("size", "blocks", "sparse"),
    [(2**30, 0, False), (2**30 + 1, 0, True), (2**31, 2**18, False), (2**31, 2**18 - 1, True)],
)
def test_a_file_with_a_sixteenth_of_its_size_on_the_disk_is_not_sparse(
    size: int, blocks: int, sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "stat", lambda path: SimpleNamespace(st_size=size, st_blocks=blocks))
    with pytest.raises(OSError, match="sparse") if sparse else nullcontext():
        check_not_sparse("model.safetensors")


def test_lines_after_one_that_is_too_long_are_read() -> None:
    lines = bounded_lines(io.BytesIO(b"ab\n" + b"x" * 25 + b"\ncd\n" + b"y" * 10 + b"\nef"), 10)
    assert list(lines) == [b"ab\n", None, b"cd\n", None, b"ef"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_syncing_and_appending_keep_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    sync(tmp_path)
    append_block(tmp_path / "file", "x")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_other_writers_of_a_file_wait(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    writer = threading.Thread(target=append_block, args=(path, "late\n"))
    with locked(path):
        writer.start()
        writer.join(0.1)
        assert writer.is_alive()
    writer.join()
    assert path.read_text() == "late\n"
