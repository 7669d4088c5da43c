"""The logs of trajectories: the original's files as they were, and ours.

FOLDER/VERSION/QUERY.txt      for people: every turn's prompt and answer
FOLDER/VERSION/QUERY.jsonl    for programs: one JSON object per turn
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from mathturn_gym.base.files import append_block

_YELLOW_DIM: Final = "\x1b[33m\x1b[2m"
_RESET: Final = "\x1b[0m"
_LONGEST_STEM: Final = 200
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def write_original_logs(
    folder: str | os.PathLike[str],
    *,
    qid: str,
    prompt: str,
    prompt_len: int,
    answers: Sequence[str],
    seqlens: Sequence[int],
    rewards: Sequence[float],
    success: Sequence[object],
    version_starts: Sequence[int],
    version_ends: Sequence[int],
) -> None:
    """Writes what the original wrote, byte for byte, defects included.

    A query id with ".." or an absolute path leaves the folder, `success` is true for every turn (the whole list's
    truth), every turn shows the last turn's prompt, and an answer's length counts the turns before it.

    Raises:
        IndexError: there are more answers than rewards, lengths or versions (the files of earlier turns are written).
    """
    for turn, answer in enumerate(answers):
        head, tail = version_starts[turn], version_ends[turn]
        stem = os.path.join(folder, str(head), qid)  # noqa: PTH118 - pathlib would tidy "..", the original did not
        _append(
            f"{stem}.txt",
            f"idx: {turn + 1} / {len(answers)}, seqlen: {seqlens[turn]}, "
            f"head version: {head}, tail version: {tail}.\n"
            f"reward is {rewards[turn]}, prompt is {_YELLOW_DIM}{prompt}{_RESET}\n"
            f"sequence is: {_YELLOW_DIM}{answer}{_RESET}.\n",
        )
        record = {
            "version_start": int(head),
            "version_end": int(tail),
            "success": bool(success),
            "prompt_len": prompt_len,
            "answer_len": seqlens[turn] - prompt_len,
        }
        _append(f"{stem}.jsonl", json.dumps(record, ensure_ascii=False) + "\n")


# Opened for each line, without a lock, as the original did: compat=True is to the byte.
def _append(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
    with open(path, "a", encoding="utf-8", newline="") as file:  # noqa: PTH123
        file.write(text)


@dataclass(frozen=True, slots=True)
class LoggedTurn:
    """What `TrajectoryLog` writes of a turn: two texts and the facts of its record.

    Lengths count ids, `no_eos` says that the completion was cut off, `error` is what the verification raised, or "".
    """

    prompt: str
    answer: str
    prompt_len: int
    answer_len: int
    no_eos: bool
    success: bool
    score: float
    reward: float
    discounted_return: float
    version_start: int
    version_end: int
    error: str = ""


class TrajectoryLog:
    """Writes the logs of whole trajectories: one block per file, appended at once and under a lock.

    Every record has the run and the attempt (which trajectory of this run on this query it is), so that epochs and
    runs in one file stay apart. A query id is made a file name from which the id can be read back, and that cannot
    leave the folder; control characters in a model's text are written as escapes.

    Args:
        folder: Where the version folders are made.
        run: Name of the run; by default a new one.
    """

    def __init__(self, folder: str | os.PathLike[str], run: str | None = None) -> None:
        self.folder = Path(folder)
        self.run = run or uuid.uuid4().hex[:12]
        self._attempts: dict[str, int] = {}

    def write(self, qid: str, turns: Sequence[LoggedTurn]) -> None:
        """Appends one trajectory; turns of different versions go to different files.

        Raises:
            OSError: a file cannot be written; what was written of the block is taken back.
        """
        attempt = self._attempts[qid] = self._attempts.get(qid, 0) + 1
        blocks: dict[int, tuple[list[str], list[str]]] = {}
        for k, turn in enumerate(turns):
            texts, lines = blocks.setdefault(turn.version_start, ([], []))
            place = {"run": self.run, "attempt": attempt, "qid": qid, "turn": k + 1, "num_turns": len(turns)}
            texts.append(_text_block(place, turn))
            lines.append(json.dumps({**place, **_record(turn)}, ensure_ascii=False, allow_nan=False) + "\n")
        for version, (texts, lines) in blocks.items():
            # A folder per version of the weights: the original's readers look there.
            stem = self.folder / str(int(version)) / file_stem(qid)
            stem.parent.mkdir(parents=True, exist_ok=True)
            append_block(stem.with_name(stem.name + ".txt"), "".join(texts))
            append_block(stem.with_name(stem.name + ".jsonl"), "".join(lines))


def file_stem(qid: str) -> str:
    """A file name for a query id: another one for every id, and never a path.

    >>> file_stem("q8@idx:8-0"), file_stem("math/17"), file_stem("../up"), file_stem("..")
    ('q8@idx:8-0', 'math%2F17', '%2E.%2Fup', '%2E.')
    """
    # Percent-encoding: a different name for every id, readable, and never a path that leaves the folder (defect 13).
    name = quote(qid, safe="@:+=,~ ()")
    # "..", hidden files, and the empty id: quote() leaves dots alone.
    if name.startswith(".") or not name:
        name = "%2E" + name[1:] if name else "%"
    if len(name) <= _LONGEST_STEM:
        return name
    digest = hashlib.blake2b(qid.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{name[: _LONGEST_STEM - 40]}%~{digest}"


def _record(turn: LoggedTurn) -> dict[str, Any]:
    return {
        "version_start": int(turn.version_start),
        "version_end": int(turn.version_end),
        "success": bool(turn.success),
        "score": float(turn.score),
        "reward": float(turn.reward),
        "return": float(turn.discounted_return),
        "prompt_len": int(turn.prompt_len),
        "answer_len": int(turn.answer_len),
        "no_eos": bool(turn.no_eos),
        "error": turn.error,
    }


def _text_block(place: Mapping[str, Any], turn: LoggedTurn) -> str:
    verdict = "right" if turn.success else f"not right (score {turn.score:g})"
    return (
        f"run {place['run']}, attempt {place['attempt']}, turn {place['turn']} of {place['num_turns']},"
        f" versions {turn.version_start} to {turn.version_end}: {verdict}, reward {turn.reward!r},"
        f" return {turn.discounted_return!r}\n"
        f"prompt ({turn.prompt_len} ids): {_visible(turn.prompt)}\n"
        f"answer ({turn.answer_len} ids): {_visible(turn.answer)}\n"
    )


def _visible(text: str) -> str:
    """A model's text with its control characters shown, so that printing the file does nothing else."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
