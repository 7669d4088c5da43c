"""Mutation testing of the files whose failure loses data or lets somebody in: does a test fail for every small change?

    python benchmarks/mutants.py [--only serve symbolic] [--sample 40] [--seed 0] [--out build/mutants]

A mutant is a copy of one file with one change: a comparison, `and`/`or`, a dropped `not`, True/False, an integer one larger,
or a statement left out (a call, a raise, an assignment to an attribute, `del`, `break`). The tests of its target that reach the
line run first, then, where few do, the target's other tests; quick ones before slow ones. A mutant that all of them pass has
survived, and is listed.

Left out: strings, annotations, what is logged, branches of other systems, and numbers that a module or class names
(they are tuned, and a test that repeated one would hold nothing), decorators, `zip(strict=)`, and how JSON is indented.

Results are lines of JSON in `--out`; a stopped call goes on from there, and `--again` retries what survived. Exit code 1
where more than one mutant of twenty has survived.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import coverage

ROOT: Final = Path(__file__).resolve().parents[1]
SERVE: Final = "tests/neighbors/serve"
FOLDERS: Final = "tests/robustness/test_folders_from_outside.py"
READERS: Final = "tests/problems/test_readers.py tests/problems/test_files.py tests/robustness/test_limits.py"
EPISODES: Final = f"tests/episodes/trajectories/test_files.py tests/show/view/test_sources.py {FOLDERS}"
TARGETS: Final[dict[str, list[tuple[str, str]]]] = {
    "run_folder": [
        (
            "baselines/run_folder.py",
            f"tests/baselines/test_run_folder.py tests/baselines/test_trackers.py {FOLDERS} tests/robustness/test_power_loss.py",
        )
    ],
    "files": [("base/files.py", f"tests/base/test_files.py tests/base/test_json.py {FOLDERS}")],
    "import_paths": [("base/import_paths.py", f"tests/base/test_import_paths.py {FOLDERS}")],
    "serve": [
        (f"neighbors/serve/{name}.py", SERVE)
        for name in ("_connections", "_middleware", "_protocol", "app", "environment", "limits")
    ],
    "symbolic": [
        (f"verifier/symbolic/{name}.py", "tests/verifier/symbolic tests/verifier/test_faults.py")
        for name in ("_pool", "_worker")
    ],
    "view": [("show/view/_server.py", "tests/show/view/test_server.py")],
    "readers": [
        ("problems/_readers.py", READERS),
        ("base/parquet.py", f"tests/problems/test_readers.py {FOLDERS}"),
        ("episodes/trajectories/files.py", EPISODES),
        ("show/view/sources.py", EPISODES),
    ],
}
PYTEST: Final = (
    *("-q", "-x", "-p", "no:cacheprovider", "-m", "not slow"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # hypothesis is loaded before pytest
)
NEAR: Final = 15
"""The tests nearest to the mutated line, at most this many, run before all others."""
SWAPS: Final[dict[type, type]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
NOT_MUTATED: Final = ("_LOG.", "logging.", "sys.platform", "TYPE_CHECKING", "pragma: no cover", "register_at_fork")


class Mutant(NamedTuple):
    """One change to one file."""

    file: str
    line: int
    start: int
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        """The file with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """Yields every mutant of a file, in the order of its lines."""
    lines = source.encode().splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    tree = ast.parse(source)
    bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    named = [one for body in bodies for one in body if isinstance(one, ast.Assign | ast.AnnAssign)]
    decorators = [one for node in ast.walk(tree) for one in getattr(node, "decorator_list", ())]
    skipped = {id(node) for top in named + decorators for node in ast.walk(top)}
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt) and any(
            word in lines[node.lineno - 1].decode() for word in NOT_MUTATED
        ):
            skipped |= {id(inner) for inner in ast.walk(node)}
        for name in ("annotation", "returns", "type_params"):
            if isinstance(annotation := getattr(node, name, None), ast.AST):
                skipped |= {id(inner) for inner in ast.walk(annotation)}
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg in ("strict", "indent")):
            skipped |= {id(inner) for inner in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped or not isinstance(node, ast.expr | ast.stmt):
            continue
        for text in _changes(node):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            found.append(Mutant(file, node.lineno, start, end, text))
    yield from sorted(found)


def _changes(node: ast.expr | ast.stmt) -> Iterator[str]:
    """The texts that take a node's place."""
    other: Any = copy.deepcopy(node)
    match node:
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                other.ops[place] = SWAPS[type(operator)]()
                yield f"({ast.unparse(other)})"
                other.ops[place] = operator
        case ast.BoolOp() | ast.BinOp() if type(node.op) in SWAPS and not _of_texts(node):
            other.op = SWAPS[type(node.op)]()
            yield f"({ast.unparse(other)})"
        case ast.UnaryOp(op=ast.Not()):
            yield f"bool({ast.unparse(node.operand)})"
        case ast.Constant(value=bool()):
            yield str(not node.value)
        case ast.Constant(value=int(value)):
            yield str(value + 1)
        case ast.Raise() | ast.Delete() | ast.AugAssign() | ast.Break() | ast.Continue():
            yield "pass"
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield "pass"
        case ast.Assign() if all(isinstance(one, ast.Attribute | ast.Subscript) for one in node.targets):
            yield "pass"


def _of_texts(node: ast.BoolOp | ast.BinOp) -> bool:
    """True where an operator joins texts: any other operator raises at once."""
    sides = [node.left, node.right] if isinstance(node, ast.BinOp) else []
    return any(isinstance(one, ast.JoinedStr) or isinstance(getattr(one, "value", None), str) for one in sides)


# ---- running tests


class Tree:
    """A copy of the repository, in which one file at a time is changed.

    Args:
        place: Folder of the copy.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
        )
        shutil.rmtree(place, ignore_errors=True)
        for name in listed.stdout.splitlines():
            if (ROOT / name).is_file() and not (ROOT / name).is_symlink():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, place / name)
        # Checked by content: a mutant can have the size of its file, in the same second.
        quiet = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "mathturn_gym"]
        subprocess.run(quiet, cwd=place, check=True)

    def run(self, tests: list[str], seconds: float, *options: str, plugin: object = None) -> str:
        """How the tests come out, in a fork in which libraries are loaded already: `passed`, `failed` or `late`."""
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.chdir(self.place)
            os.environ |= {"PYTHONPATH": str(self.place), "PYTHONDONTWRITEBYTECODE": "1"}
            sys.path[0], sys.dont_write_bytecode = str(self.place), True
            os.dup2(os.open(self.place / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            os.dup2(1, 2)
            import pytest

            command = [*PYTEST, f"--basetemp={self.place}/.tmp", *options, *tests]
            os._exit(int(pytest.main(command, [plugin] if plugin else None)))
        status, end = (0, 0), time.monotonic() + seconds
        while not status[0] and time.monotonic() < end:
            time.sleep(0.05)
            status = os.waitpid(pid, os.WNOHANG)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        if not status[0]:
            os.waitpid(pid, 0)
            return "late"
        return "passed" if status[1] == 0 else "failed"


class Timed:
    """Writes what each test takes, as a plugin of pytest."""

    def __init__(self, file: Path) -> None:
        self.file, self.seconds = file, Counter[str]()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Adds what one part of a test took."""
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Writes the sums."""
        self.file.write_text(json.dumps(self.seconds))


class Reached(NamedTuple):
    """What the tests of a file do without a mutation."""

    seconds: dict[str, float]
    """What each test takes."""
    lines: dict[str, list[str]]
    """The tests that reach a line in their own process."""

    def tests_of(self, line: int) -> Iterator[list[str]]:
        """Yields some tests that reach a line, and then the others; the quick ones first.

        Where that many reach it, those that do not are left out: a mutant that they alone would kill, through a child process,
        counts as a survivor.
        """
        ordered = sorted(self.seconds, key=lambda test: self.seconds[test])
        near = set(self.lines.get(str(line), []))
        nearest = [test for test in ordered if test in near][:NEAR]
        yield nearest
        yield [test for test in ordered if test not in nearest and (test in near or len(nearest) < NEAR)]


@functools.cache
def reached(tree: Tree, tests: str, out: Path) -> dict[str, Reached]:
    """Runs tests once under coverage and returns, for each target that has these tests, what they reach.

    Raises:
        RuntimeError: they fail as the files are.
    """
    kept = out / f"reached-{zlib.crc32(tests.encode()):08x}.json"
    if not kept.exists():
        data, timed = tree.place / ".coverage", Timed(tree.place / "seconds.json")
        data.unlink(missing_ok=True)
        os.environ["COVERAGE_FILE"] = str(data)
        files = [file for pairs in TARGETS.values() for file, of in pairs if of == tests]
        options = ("--cov", "mathturn_gym", "--cov-context=test", "--cov-report=", "--doctest-modules")
        if (
            tree.run([*tests.split(), *(f"mathturn_gym/{file}" for file in files)], 3600.0, *options, plugin=timed)
            != "passed"
        ):
            raise RuntimeError(f"without a mutation, {tests} fail: see {tree.place}/said.txt")
        seconds, found, lines = json.loads(timed.file.read_text()), coverage.CoverageData(str(data)), {}
        found.read()
        for file in files:
            contexts = found.contexts_by_lineno(str(tree.place / "mathturn_gym" / file))
            names = {line: sorted({one.partition("|")[0] for one in of if one}) for line, of in contexts.items()}
            lines[file] = (seconds, names)
        kept.write_text(json.dumps(lines))
    return {file: Reached(*found) for file, found in json.loads(kept.read_text()).items()}


def outcome_of(tree: Tree, mutant: Mutant, source: bytes, found: Reached) -> str:
    """Returns `survived`, `killed`, or `killed (late)` where tests take thrice as long as they should."""
    path = tree.place / "mathturn_gym" / mutant.file
    path.write_bytes(mutant.apply(source))
    try:
        for chosen in found.tests_of(mutant.line):
            limit = 20.0 + 3 * sum(found.seconds[test] for test in chosen)
            if chosen and (outcome := tree.run(chosen, limit, "--doctest-modules")) != "passed":
                return "killed" if outcome == "failed" else "killed (late)"
    finally:
        path.write_bytes(source)
    return "survived"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--sample", type=int, help="mutants of each file at most, drawn with --seed; all unless given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="retry the mutants that have survived")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutants")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    log = args.out / "results.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    known = {row["key"]: row for row in rows}
    for name in (
        "torch",
        "transformers",
        "safetensors.torch",
        "hypothesis",
        "math_verify",
        "fastapi",
        "uvicorn",
        "pyarrow",
    ):
        with suppress(ImportError):  # loaded once, before the forks; a test that needs it says so
            importlib.import_module(name)
    tree, drawn = Tree(args.out / "tree"), list[Any]()
    for name, (file, tests) in ((target, pair) for target in args.only for pair in TARGETS[target]):
        source = (tree.place / "mathturn_gym" / file).read_bytes()
        found: list[Any] = list(mutants(file, source.decode()))
        seen: Counter[str] = Counter()
        for number, mutant in enumerate(found):
            key = f"{file}: {source[mutant.start : mutant.end].decode()} -> {mutant.text}"
            seen[key] += 1
            found[number] = (f"{key} #{seen[key]}", name, tests, source, mutant)
        random.Random(args.seed).shuffle(found)  # a larger sample begins with the smaller one
        drawn += enumerate(found[: args.sample])
    drawn.sort(key=lambda pair: pair[0])  # each file gets its turn: a call that is stopped has looked at all of them
    for _, (key, name, tests, source, mutant) in drawn:
        if key in known and not (args.again and known[key]["outcome"] == "survived"):
            continue
        began = time.monotonic()
        outcome = outcome_of(tree, mutant, source, reached(tree, tests, args.out)[mutant.file])
        known[key] = {"key": key, "target": name, "line": mutant.line, "outcome": outcome}
        with log.open("a") as stream:
            stream.write(json.dumps({**known[key], "seconds": round(time.monotonic() - began, 1)}) + "\n")
    raise SystemExit(report([known[key] for _, (key, *_) in drawn]))


def report(rows: list[dict[str, Any]]) -> int:
    """Prints the survivors and the share of each target that was killed; returns the exit code."""
    survivors = [row for row in rows if row["outcome"] == "survived"]
    for row in sorted(survivors, key=lambda row: (row["key"].partition(":")[0], row["line"])):
        print(f"survived: line {row['line']} of {row['key']}")
    for name in TARGETS:
        if all_of := [row for row in rows if row["target"] == name]:
            print(f"{name}: {sum(row['outcome'] != 'survived' for row in all_of)} of {len(all_of)} killed")
    return int(20 * len(survivors) > len(rows))


if __name__ == "__main__":
    main()
