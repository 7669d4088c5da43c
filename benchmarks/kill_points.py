"""SIGKILL at any line of what writes files, then the same call again: is the result that of an undisturbed run?

    python benchmarks/kill_points.py [--points 500] [--only train eval] [--out docs/benchmarks/kill_points.json]

train        `train`, at the lines that write its run folder
checkpoint   the same, at any line of anything (transformers, safetensors, …) while a checkpoint is written
eval         `mathturn eval`
collect      `collect` into a file that grows, then into a compressed file and a batch that are written whole
compare      `run_matrix`, in the comparing process
worker       the same, in the process of one of its runs

Each is run once undisturbed under a tracer, which notes every line that was reached, and how often. A kill point is a line
and the time that it is reached; points are spread over the lines. For each point a forked process does the same and is
killed there, and what it has left must be readable; another one then makes the same call, as a user would, and everything
that is in the folder must be as if nothing had happened: metrics, weights, optimizer, episodes, reports.

Exit code 1 where one point differs. Points that are in `--out` already are not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import logging
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
os.environ.update(ONE_THREAD)  # before torch is there: forked processes have no threads of their parent

import torch  # noqa: E402

from mathturn_gym import collect  # noqa: E402
from mathturn_gym.baselines import RunConfig, train  # noqa: E402
from mathturn_gym.baselines.run_folder import (  # noqa: E402  # noqa: E402
    RunFolder,
    fingerprint,
    load_checkpoint,
    read_config,
    read_metrics,
    verify_checkpoint,
)
from mathturn_gym.baselines.tasks import load_task  # noqa: E402
from mathturn_gym.cli.app import app  # noqa: E402
from mathturn_gym.cli.evaluate import missing_ranges  # noqa: E402
from mathturn_gym.compare import Matrix, open_matrix, run_matrix, worker  # noqa: E402
from mathturn_gym.compare.cells import CellFolder  # noqa: E402
from mathturn_gym.compare.runner import read_cells  # noqa: E402
from mathturn_gym.env.config import EnvConfig  # noqa: E402
from mathturn_gym.episodes.packing import pack, unpack  # noqa: E402
from mathturn_gym.episodes.trajectories import (  # noqa: E402
    EpisodeWriter,
    load_batch,
    read_episodes,
    save_batch,
    write_episodes,
)
from mathturn_gym.episodes.trajectories.records import episode_to_record  # noqa: E402
from mathturn_gym.wrappers import load_policy  # noqa: E402

FOLDER: Final = ("mathturn_gym.base.files", "mathturn_gym.baselines.run_folder", "mathturn_gym.baselines.run_folder")
EPISODES: Final = (
    "mathturn_gym.base.files",
    "mathturn_gym.episodes.trajectories.files",
    "mathturn_gym.episodes.trajectories.records",
)
RUN: Final = (
    *FOLDER,
    *EPISODES,
    "mathturn_gym.baselines._evaluation",
    "mathturn_gym.baselines.training",
    "mathturn_gym.wrappers.policy",
)
SMALL: Final[Mapping[str, Any]] = {
    "batch_episodes": 2,
    "minibatches": 1,
    "epochs": 1,
    "evaluation.every": 1,
    "evaluation.episodes": 2,
    "evaluation.kept": 1,
    "evaluation.test_episodes": 2,
    "save_every": 1,
    "env.num_turns": 1,
    "env.max_completion_tokens": 3,
}
POPEN: Final = subprocess.Popen
SECONDS: Final = 300.0
"""A process that has not ended by then hangs."""


class Point(NamedTuple):
    """The moment before a line is run.

    Args:
        file: The module's file, without its folders.
        line: From 1.
        time: How often it has been reached, this time included.
    """

    file: str
    line: int
    time: int


def _named(file: str) -> str:
    """A file without the folders that are this machine's."""
    parts = Path(file).parts
    roots = [at for at, part in enumerate(parts) if part in ("mathturn_gym", "site-packages")]
    return "/".join(parts[roots[-1] + (parts[roots[-1]] == "site-packages") :] if roots else parts[-2:])


class Tracer:
    """Counts the lines that are reached in some files (None: in all), and kills its process at one of them."""

    def __init__(self, files: frozenset[str] | None, at: Point | None = None) -> None:
        self.files, self.at = files, at
        self.seen: Counter[tuple[str, int]] = Counter()
        self._names: dict[str, str] = {}

    def start(self) -> None:
        """From the next call of a function on."""
        sys.settrace(self._enter)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        file = frame.f_code.co_filename
        return self._line if self.files is None or file in self.files else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            file = frame.f_code.co_filename
            key = self._names.setdefault(file, _named(file)), frame.f_lineno
            self.seen[key] += 1
            if self.at == (*key, self.seen[key]):
                os.kill(os.getpid(), signal.SIGKILL)
        return self._line


@dataclass(frozen=True)
class Scenario:
    """What is killed.

    Args:
        act: Does it in a folder, and goes on with it where it was begun.
        look: What is in the folder when it is done, to be compared.
        intact: Raises where something in the folder that was written before a kill cannot be read.
        modules: Whose lines are kill points; empty for all code.
        begin: Starts the tracer; None starts it with `act`.
    """

    act: Callable[[Path], None]
    look: Callable[[Path], Any]
    intact: Callable[[Path], None]
    modules: Sequence[str]
    begin: Callable[[Tracer], None] | None = None


# ---- train, and what it is made of


def config(**changes: Any) -> RunConfig:
    return load_task("lins").config("reinforce_pp", {**SMALL, **changes}, budget={"episodes": 6})


def do_train(folder: Path) -> None:
    train(config(), run_dir=folder / "run", resume=True)


def timeless(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Without what a clock said."""
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "cpu_s"))} for row in rows]


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def records(path: Path) -> list[dict[str, Any]]:
    """The episodes of a file, by their numbers; every line must be one."""
    found = [episode_to_record(episode) for episode in read_episodes(path, strict=True)]
    return sorted(found, key=lambda one: (one["metadata"].get("iteration", 0), one["index"]))


def apart(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What is equal to the bit, and the log-probs, whose last bits depend on who was sampled together with whom."""
    logprobs = [[float(value) for value in one.pop("logprobs")] for one in found]
    return {"episodes": digest(found), "logprobs": logprobs}


def same(found: Any, expected: Any) -> bool:
    """Equal; floats to 1e-5."""
    if isinstance(expected, Mapping):
        return found.keys() == expected.keys() and all(same(found[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return (
        math.isclose(found, expected, rel_tol=0.0, abs_tol=1e-5) if isinstance(expected, float) else found == expected
    )


def look_at_run(run: Path) -> dict[str, Any]:
    """Everything of a run but what a clock said."""
    newest = run / "checkpoint"
    for one in run.glob("checkpoint*"):
        verify_checkpoint(one)
    state = load_checkpoint(newest)
    result = json.loads((run / "result.json").read_text())
    return {
        "metrics": digest(timeless(read_metrics(run))),
        "weights": fingerprint(newest),
        "optimizer": {name: float(tensor.double().sum()) for name, tensor in sorted(state.tensors.items())},
        "numbers": {name: value for name, value in state.numbers.items() if name != "cpu_s"},
        "checkpoints": sorted(one.name for one in run.glob("checkpoint*")),
        "episodes": {one.name: digest(records(one)) for one in sorted(run.glob("episodes_*.jsonl"))},
        "result": {name: value for name, value in result.items() if name != "cpu_s"},
        "left_over": sorted(one.name for one in run.rglob(".*") if one.name != ".lock"),
    }


def run_intact(run: Path) -> None:
    """Whatever a killed run has left loads, or is not there yet."""
    if not (run / "config.json").exists():
        return
    read_config(run)
    if (run / "metrics.jsonl").exists():
        read_metrics(run)
    for one in run.glob("episodes_*.jsonl"):
        list(read_episodes(one))  # a last line that was cut off is left out
    if any(run.glob("checkpoint*")):
        folder = RunFolder(run, read_config(run), resume=True)
        try:
            whole = folder.whole_checkpoint()
        finally:
            folder.close()
        assert whole is not None
        load_checkpoint(whole)


def trace_saving(tracer: Tracer) -> None:
    """Traces nothing but `RunFolder.save`, and what it calls."""
    save = RunFolder.save

    def traced(self: RunFolder, policy: Any, state: Any) -> None:
        tracer.start()
        save(self, policy, state)
        sys.settrace(None)

    RunFolder.save = traced  # type: ignore[method-assign]


# ---- eval, and episodes in files


def command(*words: str) -> None:
    """A command as the terminal runs it, but for the exit code."""
    import typer

    typer.main.get_command(app)(list(words), standalone_mode=False)


def do_eval(folder: Path) -> None:
    command(
        *("eval", "--policy", "builtin", "--task", "lins", "--episodes", "6", "--num-envs", "2", "--resume"),
        *("--out", str(folder / "eval")),
    )


def look_at_eval(folder: Path) -> dict[str, Any]:
    place = folder / "eval"
    return {
        **apart(records(place / "episodes.jsonl")),
        "report": json.loads((place / "report.json").read_text()),
        "files": sorted(one.name for one in place.iterdir()),
    }


def eval_intact(folder: Path) -> None:
    file = folder / "eval" / "episodes.jsonl"
    if file.exists():
        list(read_episodes(file))
    for name in ("settings.json", "report.json"):
        if (folder / "eval" / name).exists():
            json.loads((folder / "eval" / name).read_text())


def do_collect(folder: Path) -> None:
    policy = load_policy("builtin", device="cpu", dtype="float32")
    env: Any = EnvConfig(problems="lins", num_turns=2, max_completion_tokens=3).make("train", 2, policy=policy)
    path = folder / "episodes.jsonl"
    with EpisodeWriter(path) as writer:
        for first, count in missing_ranges({one.index for one in read_episodes(path)}, 6):
            collect(env, policy, count, first_index=first, on_episode=writer.write)
    env.close()
    episodes = sorted(read_episodes(path, strict=True), key=lambda one: one.index)
    write_episodes(folder / "episodes.jsonl.gz", episodes)
    save_batch(folder / "batch.safetensors", pack(episodes, advantages=[one.rewards for one in episodes]))


def look_at_files(folder: Path) -> dict[str, Any]:
    found = {name: apart(records(folder / name)) for name in ("episodes.jsonl", "episodes.jsonl.gz")}
    batch = [episode_to_record(episode) for episode in unpack(load_batch(folder / "batch.safetensors"))]
    return {**found, "batch.safetensors": apart(batch)}


def files_intact(folder: Path) -> None:
    for name in ("episodes.jsonl", "episodes.jsonl.gz"):
        if (folder / name).exists():
            list(read_episodes(folder / name, strict=name.endswith(".gz")))
    if (folder / "batch.safetensors").exists():
        load_batch(folder / "batch.safetensors")


# ---- compare


WORKER_KILLED: Final = "worker-killed"
"""A file beside a comparison's folder: a process of one of its runs was killed."""


class Forked:
    """`subprocess.Popen` of a cell's process, without the seconds that a new interpreter takes."""

    tracer: Tracer | None = None
    """Traces the process."""

    def __init__(self, command: Sequence[str], **_: Any) -> None:
        self.returncode: int | None = None
        out = next(place for place in Path(command[3]).parents if place.name == "out")
        self.mark = out.with_name(WORKER_KILLED)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            sys.settrace(None)
            subprocess.Popen = POPEN  # type: ignore[misc]
            with contextlib.suppress(BaseException):
                if self.tracer is not None:
                    self.tracer.start()
                code = worker.main(command[3], parent)
            os._exit(code)

    def poll(self) -> int | None:
        """As of a real one."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
            if self.returncode == -signal.SIGKILL:
                self.mark.touch()
        return self.returncode

    def kill(self) -> None:
        """As of a real one."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """As of a real one."""
        while self.poll() is None:
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode


def do_compare(folder: Path) -> None:
    subprocess.Popen = Forked  # type: ignore[assignment,misc]  # in this process alone, which is forked for it
    matrix = Matrix(
        algorithms=["reinforce_pp"],
        tasks=["lins"],
        seeds=2,
        tokens=12,
        jobs=1,
        out=str(folder / "out"),
        settings={**SMALL, "evaluation.every": 0},
    )
    open_matrix(matrix, command="mathturn compare")
    assert run_matrix(matrix.out, jobs=1)


def look_at_cells(folder: Path) -> dict[str, Any]:
    out = folder / "out"
    cells = [CellFolder(out, cell) for cell in read_cells(out)]
    return {
        cell.cell.key: [cell.outcome().status, sorted(one.name for one in cell.path.iterdir()), look_at_run(cell.run)]
        for cell in cells
    }


def cells_intact(folder: Path) -> None:
    if (folder / "out" / "matrix.json").exists():
        for cell in read_cells(folder / "out"):
            CellFolder(folder / "out", cell).outcome()
            wait_for(cell_lock := CellFolder(folder / "out", cell).path / ".lock")
            assert cell_lock.parent.is_dir() or not cell_lock.exists()


def wait_for(lock: Path) -> None:
    """Waits until the lock is free: a run whose parent was killed ends by itself."""
    from mathturn_gym.base.files import locked

    if lock.exists():
        with locked(lock, wait=True):
            pass


def trace_worker(tracer: Tracer) -> None:
    Forked.tracer = tracer


COMPARE: Final = (
    "mathturn_gym.base.files",
    "mathturn_gym.compare.runner",
    "mathturn_gym.compare.cells",
)

SCENARIOS: Final[Mapping[str, Scenario]] = {
    "train": Scenario(do_train, lambda at: look_at_run(at / "run"), lambda at: run_intact(at / "run"), RUN),
    "checkpoint": Scenario(
        do_train, lambda at: look_at_run(at / "run"), lambda at: run_intact(at / "run"), (), trace_saving
    ),
    "eval": Scenario(
        do_eval, look_at_eval, eval_intact, (*EPISODES, "mathturn_gym.cli.evaluate", "mathturn_gym.show.view._write")
    ),
    "collect": Scenario(
        do_collect, look_at_files, files_intact, (*EPISODES, "mathturn_gym.episodes.trajectories.batches")
    ),
    "compare": Scenario(do_compare, look_at_cells, cells_intact, COMPARE),
    "worker": Scenario(
        do_compare,
        look_at_cells,
        cells_intact,
        (*FOLDER, "mathturn_gym.compare.cells", "mathturn_gym.compare.worker"),
        trace_worker,
    ),
}
SHARES: Final = {"train": 0.3, "checkpoint": 0.2, "eval": 0.16, "collect": 0.16, "compare": 0.08, "worker": 0.1}
"""Of the points; what costs more has fewer."""


# ---- processes


@dataclass(frozen=True)
class Ended:
    """How a forked process ended: its exit code (negative: the signal), what it returned, and what it printed."""

    code: int
    value: Any
    text: str


def in_process(work: Callable[[], Any]) -> Ended:
    """Does something in a forked process, which may be killed."""
    with tempfile.TemporaryDirectory() as place:
        answer, log = Path(place) / "answer.json", Path(place) / "log.txt"
        pid = os.fork()
        if pid == 0:
            _child(work, answer, log)
        deadline = time.monotonic() + SECONDS
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return Ended(-99, None, f"hung for {SECONDS:.0f} s\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.005)
        value = json.loads(answer.read_text()) if answer.exists() else None
        return Ended(os.waitstatus_to_exitcode(status), value, log.read_text(errors="replace")[-2000:])


def _child(work: Callable[[], Any], answer: Path, log: Path) -> None:
    code = 1
    try:
        with log.open("w") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        value = work()
        sys.settrace(None)
        answer.write_text(json.dumps(value))
        code = 0
    except BaseException:
        sys.settrace(None)
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def traced(scenario: Scenario, folder: Path, at: Point | None, counts: Path | None = None) -> None:
    """Does what a scenario does under a tracer; the counts go to a file, from whichever process they are of."""
    files = frozenset(str(importlib.import_module(name).__file__) for name in scenario.modules)
    tracer = Tracer(files or None, at)
    if scenario.begin is None:
        tracer.start()
    else:
        scenario.begin(tracer)
    if counts is not None and scenario.begin is trace_worker:
        run = worker.main

        def counted(path: str, parent: int) -> int:
            code = run(path, parent)
            sys.settrace(None)
            _write_counts(tracer, counts)
            return code

        worker.main = counted
    scenario.act(folder)
    sys.settrace(None)
    if counts is not None and scenario.begin is not trace_worker:
        _write_counts(tracer, counts)


def _write_counts(tracer: Tracer, counts: Path) -> None:
    counts.write_text(json.dumps([[*key, count] for key, count in tracer.seen.items()]))


class Kills:
    """The points of one scenario, and the undisturbed run that they are compared with.

    Args:
        name: Of the scenario.
        place: An empty folder.
    """

    def __init__(self, name: str, place: Path) -> None:
        self.name, self.scenario, self.place = name, SCENARIOS[name], place
        whole, counts = place / "whole", place / "counts.json"
        whole.mkdir(parents=True)
        done = in_process(lambda: traced(self.scenario, whole, None, counts))
        assert done.code == 0, done.text
        self.lines: list[tuple[str, int, int]] = [tuple(one) for one in json.loads(counts.read_text())]
        looked = in_process(lambda: self.scenario.look(whole))
        assert looked.code == 0, looked.text
        self.expected = looked.value

    def points(self, wanted: int, seed: int) -> list[Point]:
        """Different lines first, then again lines that are reached several times, at other times."""
        rng, found = random.Random(seed), dict[Point, None]()
        while len(found) < min(wanted, sum(count for _, _, count in self.lines)):
            for file, line, count in rng.sample(self.lines, len(self.lines)):
                found.setdefault(Point(file, line, rng.randint(1, count)))
                if len(found) == wanted:
                    break
        return list(found)

    def kill(self, point: Point) -> dict[str, Any]:
        """Kills, looks, goes on, and compares; "wrong" says what differs."""
        folder = self.place / "killed"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        ended = in_process(lambda: traced(self.scenario, folder, point))
        # Of a comparison, the process of a run is killed, and the one that waits for it goes on.
        killed = ended.code == -signal.SIGKILL or (folder / WORKER_KILLED).exists()
        wrong = "" if killed or ended.code == 0 else f"ended with {ended.code}: {ended.text}"
        steps = (
            ("cannot be read", lambda: self.scenario.intact(folder)),
            ("cannot go on", lambda: self.scenario.act(folder)),
            ("result cannot be read", lambda: self.scenario.look(folder)),
        )
        for what, step in steps:
            if not wrong:
                ended = in_process(step)
                wrong = "" if ended.code == 0 else f"{what}: {ended.text}"
        if not wrong and not same(ended.value, self.expected):
            names = [name for name in self.expected if not same(ended.value.get(name), self.expected[name])]
            wrong = f"differs in {', '.join(names)}: {ended.value} instead of {self.expected}"
        return {"point": list(point), "killed": killed, "wrong": wrong}


def warm_up() -> None:
    """What every process needs is imported before the first is forked; what draws and logs for people is left out."""
    for name in ("torch.utils.tensorboard", "matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        sys.modules[name] = None  # type: ignore[assignment]
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    load_policy("builtin", device="cpu", dtype="float32")
    for name in {name for scenario in SCENARIOS.values() for name in scenario.modules}:
        importlib.import_module(name)
    for name in (
        "mathturn_gym.baselines.trainer",
        "mathturn_gym.show.view",
        "mathturn_gym.episodes.metrics",
        "rich.progress",
    ):
        importlib.import_module(name)


def shares(names: Sequence[str], points: int) -> dict[str, int]:
    """How many points each scenario has, at least one."""
    whole = sum(SHARES[name] for name in names)
    return {name: max(1, round(points * SHARES[name] / whole)) for name in names}


def run(name: str, wanted: int, seed: int, found: dict[str, Any], keep: Callable[[], None]) -> None:
    """One scenario's points.

    Args:
        name: Of the scenario.
        wanted: Points.
        seed: Decides which.
        found: Takes the results; points that are in it already are left out.
        keep: Called after each point.
    """
    results = found.setdefault("points", [])
    have = {tuple(one["point"]) for one in results}
    with tempfile.TemporaryDirectory() as place:
        kills = Kills(name, Path(place) / name)
        found["lines"] = len(kills.lines)
        for point in kills.points(wanted, seed):
            if len(results) < wanted and point not in have:
                results.append(one := kills.kill(point))
                reached = "killed" if one["killed"] else "not reached"
                print(f"{name} {len(results)}: {reached} {one['point']} {one['wrong']}", flush=True)
                keep()


def main() -> int:
    """Kills, prints and writes; 1 where a point differs from the undisturbed run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=500)
    parser.add_argument("--only", nargs="*", choices=tuple(SCENARIOS), default=tuple(SCENARIOS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    warm_up()
    found: dict[str, Any] = {}
    if options.out is not None and options.out.exists():
        found = json.loads(options.out.read_text())["scenarios"]

    def keep() -> None:
        if options.out is not None:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(compact({"seed": options.seed, **totals(found), "scenarios": found}))

    for name, wanted in shares(options.only, options.points).items():
        if len(found.get(name, {}).get("points", ())) < wanted:
            run(name, wanted, options.seed, found.setdefault(name, {}), keep)
    print(json.dumps(totals(found)))
    return int(totals(found)["wrong"] > 0)


def totals(found: Mapping[str, Any]) -> dict[str, int]:
    """Points in all, those that were killed, and those that came out wrong."""
    points = [one for scenario in found.values() for one in scenario["points"]]
    return {
        "points": len(points),
        "killed": sum(one["killed"] for one in points),
        "wrong": sum(bool(one["wrong"]) for one in points),
    }


def compact(data: Mapping[str, Any]) -> str:
    """JSON with a point to a line."""
    text = json.dumps(data, indent=1)
    return re.sub(r"\{\s+\"point\"[^}]*\}", lambda found: re.sub(r"\s+", " ", found.group()), text) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
