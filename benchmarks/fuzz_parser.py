r"""Coverage-guided fuzzing of extraction and of the parser, with atheris; what it learned is kept, and replayed by the suite.

    make fuzz                                              a minute, from the kept corpus
    python benchmarks/fuzz_parser.py --seconds 3600 --keep an hour; the corpus is made small and written back

An input is a gold and a response (`GOLD U+001E RESPONSE`; the gold is 42 where there is none). `check` holds for each: no policy of
extraction and no tier raises, what was extracted stands where it says, and neither takes more than two seconds of processor time.
Prints and writes (runs/fuzz_parser.json) the inputs tried, the features covered, and every failure with its input. Exit code 1 on
failure. Needs atheris (`pip install --target .fuzz atheris`, and PYTHONPATH=.fuzz).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "tests" / "verifier" / "fuzz_corpus.jsonl"
SEPARATOR = "\x1e"
MAX_SECONDS = 2.0
MAX_LENGTH = 2048
MAX_KEPT = 200_000


class LawError(Exception):
    """A law that an input breaks."""


@functools.cache
def _tools() -> Any:
    """What is fuzzed, imported late so that atheris can instrument it."""
    from mathturn_gym.verifier import Verifier, extract
    from mathturn_gym.verifier.reading._extraction import POLICIES
    from mathturn_gym.verifier.reading._prepared import prepare

    verifiers = [Verifier(form=form, extract=policy) for form in ("evaluated", "equivalent") for policy in POLICIES]
    return extract, POLICIES, prepare, verifiers


def decoded(data: bytes) -> str:
    """Any bytes as a text: what is not UTF-8 becomes lone surrogates, which a model's text may hold as well."""
    return data.decode("utf-8", "surrogateescape")


def encoded(text: str) -> bytes:
    """The bytes that `decoded` makes into this text."""
    return text.encode("utf-8", "surrogateescape")


def check(data: bytes) -> None:
    """Holds the laws against one input.

    Raises:
        LawError: one is broken.
    """
    extract, policies, prepare, verifiers = _tools()
    gold, separator, response = decoded(data).partition(SEPARATOR)
    if not separator:
        gold, response = "42", gold
    start = time.process_time()
    for policy in policies:
        found = extract(response, policy)
        if found is None:
            continue
        if not 0 <= found.start < found.end <= len(response):
            raise LawError(f"{policy}: the place {found.start}:{found.end} is not in the response")
        if not found.text.strip():
            raise LawError(f"{policy}: an empty answer")
        # Boxes that are given together are joined; everything else stands in the response as it is.
        if found.rule != "box" and found.text != response[found.start : found.end]:
            raise LawError(f"{policy}: {found.text!r} does not stand at {found.start}:{found.end}")
    for text in (gold, response):
        read = prepare(text[:2000])
        _ = read.word, read.choice, read.readings
    for verifier in verifiers:
        if gold.strip():
            verifier.verify_at_once(response, gold)
            verifier.verify_at_once(response, gold, kind="answer")
    seconds = time.process_time() - start
    if seconds > MAX_SECONDS:
        raise LawError(f"{seconds:.1f} s of processor time")


def kept() -> list[bytes]:
    """The corpus in the repository."""
    lines = CORPUS.read_text(encoding="ascii").splitlines() if CORPUS.exists() else []
    return [encoded(json.loads(line)) for line in lines]


def keep(inputs: Iterable[bytes]) -> int:
    """Writes a corpus, the shortest inputs first, up to `MAX_KEPT` bytes; the number of them."""
    size, lines = 0, []
    for data in sorted(set(inputs), key=lambda data: (len(data), data)):
        line = json.dumps(decoded(data)) + "\n"
        if size + len(line) > MAX_KEPT:
            break
        size += len(line)
        lines.append(line)
    CORPUS.write_text("".join(lines), encoding="ascii")
    return len(lines)


def seeds() -> list[bytes]:
    """Cases of the verifier's suite, for a first run without a corpus."""
    from mathturn_gym.verifier.audit import load_cases

    cases = [case for case in load_cases() if len(case.response) + len(case.gold) < 400]
    return [encoded(f"{case.gold}{SEPARATOR}{case.response}") for case in cases[::4]]


def dictionary(path: Path) -> None:
    """The pieces of `fuzz_verifier.py`, as libFuzzer reads them."""
    import runpy

    pieces = runpy.run_path(str(ROOT / "benchmarks" / "fuzz_verifier.py"))["PIECES"]
    escaped = ("".join(f"\\x{byte:02x}" for byte in encoded(piece)) for piece in [*pieces, SEPARATOR])
    path.write_text("".join(f'"{piece}"\n' for piece in escaped), encoding="ascii")


def _child(arguments: list[str]) -> None:
    """The process that libFuzzer takes over."""
    import atheris

    with atheris.instrument_imports(include=["mathturn_gym.verifier.reading", "mathturn_gym.verifier.tiers"]):
        _tools()
    # The first argument is what libFuzzer starts again when it merges.
    atheris.Setup(arguments, check, enable_python_coverage=True)
    atheris.Fuzz()


def _starter(path: Path) -> Path:
    """A program that is this script's child, for libFuzzer, which starts programs by their path."""
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" --child "$0" "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def _libfuzzer(starter: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(starter), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")


def run(seconds: int, seed: int) -> tuple[dict[str, Any], list[bytes]]:
    """Fuzzes for a time; the report, and the smallest corpus that covers the same."""
    with tempfile.TemporaryDirectory(prefix="fuzz-parser-") as scratch:
        folders = {name: Path(scratch, name) for name in ("corpus", "small", "found")}
        for folder in folders.values():
            folder.mkdir()
        for number, data in enumerate([*kept(), *seeds()]):
            (folders["corpus"] / f"{number:06d}").write_bytes(data)
        dictionary(Path(scratch, "words"))
        starter = _starter(Path(scratch, "child"))
        failures: list[dict[str, Any]] = []
        executed, covered, end = 0, 0, time.monotonic() + seconds
        # libFuzzer stops at a failure; the rest of the time is used by another run, at most a hundred.
        while (left := int(end - time.monotonic())) > 0 and len(failures) < 100:
            before = {path.name for path in folders["found"].iterdir()}
            done = _libfuzzer(
                starter, str(folders["corpus"]), f"-dict={scratch}/words", f"-artifact_prefix={folders['found']}/", "-timeout=60",
                f"-max_total_time={left}", f"-max_len={MAX_LENGTH}", f"-seed={seed + len(failures) + 1}", "-rss_limit_mb=3000",
            )  # fmt: skip
            executed += max(map(int, re.findall(r"^#(\d+)", done.stdout, re.MULTILINE)), default=0)
            covered = max([covered, *map(int, re.findall(r" ft: (\d+)", done.stdout))])
            new = [path for path in folders["found"].iterdir() if path.name not in before]
            failures += [{"input": decoded(path.read_bytes()), "end": done.stdout[-1500:]} for path in new]
            if done.returncode and not new:
                failures.append({"input": None, "end": done.stdout[-3000:]})
                break
        merge = ("-merge=1", f"-max_len={MAX_LENGTH}", "-timeout=60", str(folders["small"]), str(folders["corpus"]))
        _libfuzzer(starter, *merge)
        small = [path.read_bytes() for path in folders["small"].iterdir()]
    report = {
        "seconds": seconds,
        "executed": executed,
        "features": covered,
        "failures": failures,
        "corpus": len(small),
        "load": os.getloadavg()[0],
    }
    return report, small


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="write the corpus back, made small")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz_parser.json"))
    arguments = parser.parse_args()
    report, small = run(arguments.seconds, arguments.seed)
    if arguments.keep and small:
        report["kept"] = keep(small)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))
    sys.exit(1 if report["failures"] else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(sys.argv[2:])
    else:
        main()
