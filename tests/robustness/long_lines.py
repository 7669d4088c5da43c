"""Reads lines of 50 MiB where a line is expected, and prints what came of each and the peak of memory that it took.

    python tests/robustness/long_lines.py FOLDER

A process of its own, whose peak (in MiB above that before the first) never falls: each is the peak of all before it, too.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from mathturn_gym.episodes.trajectories import read_episodes, write_episodes
from mathturn_gym.errors import ProblemFileError
from mathturn_gym.problems import load_problems
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.verifier import Verifier
from mathturn_gym.verifier._verifier import TextKind
from mathturn_gym.verifier.reading._extraction import ExtractionPolicy

MB, SIZE = 1 << 20, 50


def peak() -> int:
    """MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def write(path: Path, head: bytes, fill: bytes, tail: bytes) -> None:
    """A line of 50 MiB, a piece at a time."""
    with path.open("wb") as stream:
        stream.write(head)
        for _ in range(SIZE):
            stream.write(fill * MB)
        stream.write(tail)


def main(path: Path) -> None:
    """A line of a problem file, a completion, and two lines of files of episodes."""
    logging.disable(logging.CRITICAL)
    found: dict[str, list[Any]] = {}
    write(path, b'{"question": "1+1?", "answer": "2"}\n{"question": "', b"a", b'", "answer": "2"}\n')
    before = peak()
    try:
        load_problems(path)
    except ProblemFileError as error:
        found["problems"] = [str(error), load_problems(path, skip_bad_rows=True).size, peak() - before]

    text = "so \\boxed{2}" * (SIZE * MB // 12)
    extracts: tuple[ExtractionPolicy, ...] = ("boxed", "marked", "lenient")
    kinds: tuple[TextKind, ...] = ("response", "answer")
    for extract in extracts:
        for kind in kinds:
            verdict = Verifier(extract=extract).verify(text, "2", kind=kind)
            found[f"{extract} {kind}"] = [verdict.status.value, peak() - before]
    del text

    write_episodes(path, [replace(synthetic_episode(0, 0, [2]), prompt="@")])
    head, _, tail = path.read_bytes().partition(b"@")
    write(path, head, b"a", tail)
    (episode,) = read_episodes(path)
    found["episodes"] = [len(episode.prompt), peak() - before]
    del episode

    write(path, b"", b"\xff", b"\n")
    reader = read_episodes(path)
    loaded = len(list(reader))
    found["garbage"] = [loaded, len(reader.bad_rows[0].content or ""), peak() - before]
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1], "f.jsonl"))
