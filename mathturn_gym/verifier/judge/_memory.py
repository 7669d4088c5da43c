"""Answers of judges that are remembered: in memory, and in a file that survives a run."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Final

from mathturn_gym.base.files import append_block, storage_errors
from mathturn_gym.verifier.judge._question import JudgeQuestion, Opinion

__all__ = ["Memory"]

_LOG = logging.getLogger(__name__)
_KEPT: Final = ("right", "wrong")


class Memory:
    """Opinions by the key of their question.

    The file has a JSON object a line: `key`, `judge`, `opinion`, and for readers `prompt`, `gold` and `answer`. Several processes
    may write to it at once. A line that cannot be read is left out, with a warning: it
    costs a question.

    Args:
        path: The file, made where it is not there; None keeps opinions in memory alone.

    Raises:
        StorageError: the file cannot be read or made.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._known: dict[str, Opinion] = {}
        if path is None:
            return
        with storage_errors(path):
            path.touch()
            data = path.read_bytes()
            # What a crash left of a line must not spoil the next one.
            if data and not data.endswith(b"\n"):
                append_block(path, "\n")
        lines = [line for line in data.splitlines() if line.strip()]
        bad = sum(not self._learn(line) for line in lines)
        if bad:
            _LOG.warning("%s: %d of %d lines hold no remembered answer, and are left out", path, bad, len(lines))

    def _learn(self, line: bytes) -> bool:
        try:
            row = json.loads(line)
            key, opinion = row["key"], row["opinion"]
        except (ValueError, RecursionError, TypeError, KeyError):
            return False
        if not isinstance(key, str) or opinion not in _KEPT:
            return False
        self._known[key] = opinion
        return True

    def get(self, key: str) -> Opinion | None:
        """What is remembered."""
        return self._known.get(key)

    def __len__(self) -> int:
        """Opinions that are known."""
        return len(self._known)

    def add(self, key: str, judge: str, question: JudgeQuestion, opinion: Opinion) -> None:
        """Remembers an opinion, in the file as well where it is right or wrong.

        Raises:
            StorageError: the file cannot be written.
        """
        self._known[key] = opinion
        if self.path is None or opinion not in _KEPT:
            return
        told = {"prompt": question.prompt, "gold": question.gold, "answer": question.answer}
        row = {"key": key, "judge": judge, "opinion": opinion, **told}
        with storage_errors(self.path):
            append_block(self.path, json.dumps(row) + "\n")
