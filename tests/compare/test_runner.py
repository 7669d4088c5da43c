"""Runs in processes: what ends, what crashes, what is interrupted, and what goes on afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mathturn_gym.base.files import locked
from mathturn_gym.compare import Matrix, open_matrix, run_matrix
from mathturn_gym.compare.cells import CellFolder, Outcome
from mathturn_gym.compare.matrix import Cell, config_of
from mathturn_gym.compare.runner import Observer, _note_failure, _Running, cores, read_cells
from mathturn_gym.errors import CheckpointError, InvalidValueError, LockedError

PRETEND = "pretend_runs:Pretend"


@pytest.fixture(autouse=True)
def pretend_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


class Watch(Observer):
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.begun: Sequence[Outcome] = ()
        self.jobs = 0
        self.ended: list[Outcome] = []
        self.most_at_once = 0
        self.seen: list[Mapping[str, Any]] = []
        self.stopped = 0

    def begin(self, outcomes: Sequence[Outcome], jobs: int) -> None:
        self.begun, self.jobs = outcomes, jobs

    def tick(self, running: Sequence[tuple[Cell, Mapping[str, Any]]]) -> None:
        self.most_at_once = max(self.most_at_once, len(running))
        self.seen += [row for _, row in running]

    def finished(self, outcome: Outcome) -> None:
        self.ended.append(outcome)

    def stopping(self, running: int) -> None:
        self.stopped += running


def matrix(out: Path, labels: Mapping[str, Mapping[str, Any]], **changes: Any) -> Matrix:
    algorithm = {label: {"run": PRETEND, "settings": settings} for label, settings in labels.items()}
    given: dict[str, Any] = {"tasks": ["lins"], "seeds": 1, "tokens": 1000, "cpu_seconds": 50.0, "out": str(out)}
    return Matrix(algorithms=list(labels), algorithm=algorithm, **{**given, **changes})


def go(wanted: Matrix, watch: Watch | None = None, **kwargs: Any) -> tuple[bool, Watch, dict[str, Outcome]]:
    open_matrix(wanted)
    watch = watch or Watch()
    done = run_matrix(wanted.out, jobs=2, observer=watch, **kwargs)
    outcomes = [CellFolder(wanted.out, cell).outcome() for cell in read_cells(wanted.out)]
    return done, watch, {one.cell.key: one for one in outcomes}


def test_what_crashes_does_not_stop_the_others(tmp_path: Path) -> None:
    labels: dict[str, dict[str, Any]] = {
        "good": {},
        "raises": {"fail": "no such luck <3"},
        "killed": {"kill": True},
        "exits": {"exit": True},
        "silent": {"no_result": True},
        "nan": {"diverge": True},
    }
    done, watch, outcomes = go(matrix(tmp_path / "out", labels))
    found = {one.cell.label: (one.status, one.message) for one in outcomes.values()}
    assert done
    assert found["good"] == ("finished", "")
    assert found["raises"] == ("failed", "InvalidValueError: no such luck <3")
    assert found["killed"][1].startswith("killed by SIGKILL (out of memory?); see ")
    assert found["exits"][1].startswith("the process ended with exit code 7; see ")
    assert found["silent"][1].startswith("the run ended without a result.json; see ")
    assert found["nan"] == ("diverged", "the loss is nan")
    assert {one.status for one in watch.ended} == {"finished", "failed", "diverged"}
    assert len(watch.ended) == 6
    log = (tmp_path / "out/cells/raises/lins/seed-0/log.txt").read_text()
    assert "Traceback" in log
    assert "begin at 0, threads 1" in log
    assert outcomes["killed/lins/seed-0"].tokens == 500, "as far as it came"
    assert watch.jobs == min(2, cores())


def test_finished_runs_are_not_run_again_and_failed_ones_go_on(tmp_path: Path) -> None:
    wanted = matrix(tmp_path / "out", {"good": {}, "killed": {"kill": True}})
    go(wanted)
    result = tmp_path / "out/cells/good/lins/seed-0/run/result.json"
    before = result.stat().st_mtime_ns
    _, watch, outcomes = go(wanted)
    assert result.stat().st_mtime_ns == before
    assert [one.status for one in watch.begun] == ["finished", "failed"]
    assert [one.cell.label for one in watch.ended] == ["killed"]
    assert outcomes["killed/lins/seed-0"].status == "finished", "it began after its checkpoint, behind what killed it"
    log = (tmp_path / "out/cells/killed/lins/seed-0/log.txt").read_text()
    assert "begin at 0" in log
    assert "begin at 6" in log


def test_a_run_without_a_checkpoint_begins_again_in_an_empty_folder(tmp_path: Path) -> None:
    wanted = matrix(tmp_path / "out", {"good": {}})
    (cell,) = open_matrix(wanted)
    folder = CellFolder(wanted.out, cell)
    folder.run.mkdir()
    (folder.run / "metrics.jsonl").write_text('{"iteration": 0, "episodes": 0, "tokens": 0, "cpu_s": 0}\n')
    assert folder.outcome().status == "unfinished"
    _, _, outcomes = go(wanted)
    assert "begin at 0, threads 1, kept []" in folder.log.read_text()
    assert len(outcomes["good/lins/seed-0"].curve) == 11


def test_another_budget_or_setting_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    open_matrix(matrix(tmp_path / "out", {"good": {}}))
    with pytest.raises(CheckpointError, match=r"good/lins/seed-0 holds another run: tokens was 1000, is 2000; choose"):
        open_matrix(matrix(tmp_path / "out", {"good": {}}, tokens=2000))
    with pytest.raises(CheckpointError, match=r"settings was \{\}, is \{'level': 0.5\}"):
        open_matrix(matrix(tmp_path / "out", {"good": {"level": 0.5}}))
    assert read_cells(tmp_path / "out")[0].tokens == 1000


@pytest.mark.parametrize(("algorithm", "name"), [("grpo", "group_size"), ("maskable_ppo", "n_steps")])
def test_a_run_under_other_defaults_is_refused(tmp_path: Path, algorithm: str, name: str) -> None:
    """The cell is the same, but the package that ran it was another one."""
    if algorithm == "maskable_ppo":
        pytest.importorskip("sb3_contrib")
    wanted = Matrix(algorithms=[algorithm], tasks=["lins"], seeds=1, tokens=1000, out=str(tmp_path / "out"))
    (cell,) = open_matrix(wanted)
    config = config_of(cell).to_json()
    file = CellFolder(wanted.out, cell).run / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(config))
    open_matrix(wanted)
    config["algorithm"][name] = 77
    file.write_text(json.dumps(config))
    message = rf"{algorithm}/lins/seed-0 holds another run: algorithm.{name} was 77, is \d+;"
    with pytest.raises(CheckpointError, match=message):
        open_matrix(wanted)


def test_algorithms_and_seeds_can_be_added(tmp_path: Path) -> None:
    go(matrix(tmp_path / "out", {"good": {}}))
    _, watch, outcomes = go(matrix(tmp_path / "out", {"other": {}}, seeds=[0, 5]))
    assert sorted(outcomes) == ["good/lins/seed-0", "other/lins/seed-0", "other/lins/seed-5"]
    assert all(one.done for one in outcomes.values())
    assert len(watch.ended) == 2


def test_runs_go_side_by_side(tmp_path: Path) -> None:
    if cores() < 2:
        pytest.skip("one core: one run at a time")
    watch, out = Watch(), tmp_path / "out"

    def both_were_seen_in_the_middle() -> bool:
        live = sum(row.get("tokens") == 500 for row in watch.seen)
        return live > 0 and len(list(out.glob("cells/*/*/*/run/waiting"))) == 2

    wanted = matrix(out, {"slow": {"wait": True}}, seeds=2)
    done, _, outcomes = go(wanted, watch, interrupted=both_were_seen_in_the_middle)
    assert not done
    assert watch.most_at_once == watch.stopped == 2
    assert {one.status for one in outcomes.values()} == {"unfinished"}, "they were asked to end, and did not wait"


def test_an_interrupt_loses_nothing_and_the_same_call_goes_on(tmp_path: Path) -> None:
    wanted = matrix(tmp_path / "out", {"quick": {}, "slow": {"wait": True}, "later": {}})
    waiting = tmp_path / "out/cells/slow/lins/seed-0/run/waiting"
    done, _, outcomes = go(wanted, interrupted=lambda: waiting.exists())
    assert not done
    assert outcomes["slow/lins/seed-0"].status == "unfinished"
    assert not CellFolder(wanted.out, outcomes["slow/lins/seed-0"].cell).has_failed
    done, _, outcomes = go(wanted)
    assert done
    assert {one.status for one in outcomes.values()} == {"finished"}
    assert "begin at 6" in (tmp_path / "out/cells/slow/lins/seed-0/log.txt").read_text()
    assert [p.tokens for p in outcomes["slow/lins/seed-0"].curve] == [100 * i for i in range(11)]


def test_an_error_in_the_observer_leaves_no_process_behind(tmp_path: Path) -> None:
    wanted = matrix(tmp_path / "out", {"slow": {"wait": True}})
    open_matrix(wanted)

    class Fails(Watch):
        def tick(self, running: Sequence[tuple[Cell, Mapping[str, Any]]]) -> None:
            if list(tmp_path.glob("out/cells/*/*/*/run/waiting")):
                raise RuntimeError("display is gone")

    with pytest.raises(RuntimeError, match="display is gone"):
        run_matrix(wanted.out, jobs=1, observer=Fails())
    (cell,) = read_cells(wanted.out)
    with locked(CellFolder(wanted.out, cell).path / ".lock"):
        pass  # nobody holds it: the process has ended
    assert go(wanted)[0], "the checkpoint is there"


def test_runs_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    wanted = matrix(tmp_path / "out", {"slow": {"wait": True}})
    open_matrix(wanted)
    script = f"from mathturn_gym.compare import run_matrix\nrun_matrix({wanted.out!r}, jobs=1)\n"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    parent = subprocess.Popen([sys.executable, "-c", script], env=environment)
    until((tmp_path / "out/cells/slow/lins/seed-0/run/waiting").exists)
    with pytest.raises(LockedError, match="another process works in"):
        run_matrix(wanted.out, jobs=1, observer=Watch())
    parent.kill()
    parent.wait()
    done, _, outcomes = go(wanted)  # it waits for the orphan, which holds the cell until it has noticed
    assert done
    assert outcomes["slow/lins/seed-0"].status == "finished"


def until(holds: Any, seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(InvalidValueError, match="exists and is no comparison's folder"):
        open_matrix(matrix(tmp_path, {"good": {}}))
    with pytest.raises(InvalidValueError, match="exists and is no comparison's folder"):
        open_matrix(matrix(tmp_path / "mine.txt", {"good": {}}))
    with pytest.raises(CheckpointError, match="holds no comparison: it has no matrix"):
        read_cells(tmp_path)
    (tmp_path / "matrix.json").write_text('{"cells": [{"label": 3}]}')
    with pytest.raises(CheckpointError, match="is no comparison's matrix: a cell lacks"):
        read_cells(tmp_path)


def test_a_folder_whose_making_was_killed_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = matrix(tmp_path / "out", {"good": {}, "other": {}})
    (tmp_path / "out").mkdir()
    (tmp_path / "out/.matrix.json.999999999-0123abcd.new").write_text("{")
    before, calls = CellFolder.prepare, []

    def killed(self: CellFolder) -> None:
        calls.append(self)
        if len(calls) == 2:
            raise KeyboardInterrupt
        before(self)

    with monkeypatch.context() as patch:
        patch.setattr(CellFolder, "prepare", killed)
        with pytest.raises(KeyboardInterrupt):
            open_matrix(wanted)
    done, _, outcomes = go(wanted)
    assert done
    assert [one.status for one in outcomes.values()] == ["finished", "finished"]
    assert not list((tmp_path / "out").glob(".*.new"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("reinforc", "unknown algorithm 'reinforc': did you mean 'reinforce'"),
        ("pretend_runs:Pretended", "algorithm 'pretend_runs:Pretended' cannot be imported"),
        ("no_such_module:run", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("pretend_runs:not_an_algorithm", "must be a subclass of mathturn_gym.baselines.Algorithm, got <function"),
        (":run", "must be an import path"),
    ],
)
def test_algorithms_are_looked_up_before_anything_runs(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        open_matrix(Matrix(algorithms=[name], tasks=["lins"], tokens=1, out=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("algorithm", "changes", "message"),
    [
        ("grpo", {"tasks": ["lin"]}, "grpo on lin, seed 0: unknown task 'lin': did you mean 'lins'"),
        ("grpo", {"settings": {"learning_rat": 1}}, "unknown setting 'learning_rat': did you mean 'learning_rate'"),
        ("grpo", {"settings": {"group_size": 1}}, "grpo on lins, seed 0: grpo centers rewards by their"),
        (
            "sb3_a2c",
            {"settings": {"learning_rat": 1}},
            "unknown setting 'learning_rat': did you mean 'learning_rate'",
        ),
    ],
)
def test_settings_are_checked_before_anything_runs(tmp_path: Path, algorithm: str, changes: Any, message: str) -> None:
    given: dict[str, Any] = {"tasks": ["lins"], "tokens": 1000, **changes}
    with pytest.raises(InvalidValueError, match=message):
        open_matrix(Matrix(algorithms=[algorithm], out=str(tmp_path / "out"), **given))
    assert not (tmp_path / "out").exists()


@pytest.fixture
def finished(tmp_path: Path) -> CellFolder:
    """A cell whose run is over."""
    wanted = matrix(tmp_path / "out", {"good": {}})
    (cell,) = open_matrix(wanted)
    folder = CellFolder(wanted.out, cell)
    folder.run.mkdir()
    metrics = {"iteration": 0, "episodes": 0, "tokens": 0, "cpu_s": 0.0, "validation/acc@1": 0.5}
    (folder.run / "metrics.jsonl").write_text(json.dumps(metrics) + "\n")
    result = {"task": "lins", "seed": 0, "status": "finished", "message": "", "episodes": 9, "tokens": 99, "cpu_s": 1.5}
    (folder.run / "result.json").write_text(json.dumps({**result, "test": {"acc@1": 0.75, "episodes": 8}}))
    return folder


def test_a_result_is_read(finished: CellFolder) -> None:
    found = finished.outcome()
    assert (found.status, found.tokens, found.cpu_s, found.episodes) == ("finished", 99, 1.5, 9)
    assert found.test == {"acc@1": 0.75, "episodes": 8}
    assert found.curve[0].figures == {"acc@1": 0.5}


def test_a_process_that_is_killed_after_its_result_has_not_failed(finished: CellFolder) -> None:
    process: Any = SimpleNamespace(returncode=-signal.SIGKILL)
    _note_failure(_Running(finished, process), stopping=False)
    assert not finished.has_failed
    (finished.run / "result.json").unlink()
    _note_failure(_Running(finished, process), stopping=False)
    assert finished.has_failed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 4}, "result.json says seed 4, the cell is 0"),
        ({"task": "u"}, "result.json says task 'u'"),
        ({"status": "great"}, "status 'great', must be one of finished, stopped_early, diverged"),
        ({"tokens": "many"}, "'tokens' must be a number"),
        ({"cpu_s": float("nan")}, "'cpu_s' must be a number"),
        ({"test": None}, "without figures of the test split"),
        ({"test": {"acc@1": 1.5}}, r"test acc@1 must be in \[0, 1\], got 1.5"),
        ({"test": {"acc@1": float("nan")}}, "test holds no acc@k"),
    ],
)
def test_a_result_that_cannot_be_right_is_a_failure(finished: CellFolder, change: Any, message: str) -> None:
    file = finished.run / "result.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    found = finished.outcome()
    assert found.status == "failed"
    assert re.search(message, found.message), found.message


def test_broken_files_are_failures_and_a_line_cut_off_is_not(finished: CellFolder) -> None:
    metrics = finished.run / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text(whole + '{"iteration": 1, "tok')
    assert finished.outcome().status == "finished"
    assert finished.progress()["validation/acc@1"] == 0.5
    metrics.write_text("nonsense\n" + whole)
    assert finished.outcome().status == "failed"
    assert "line 1 is not a JSON object" in finished.outcome().message
    metrics.write_text(whole)
    (finished.run / "result.json").write_text("[1]")
    assert "must hold a JSON object" in finished.outcome().message


def test_an_accuracy_that_is_no_number_counts_as_0(finished: CellFolder) -> None:
    line = {"iteration": 1, "episodes": 9, "tokens": 99, "cpu_s": 1.5, "validation/acc@1": float("nan")}
    with (finished.run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    assert [point.figures["acc@1"] for point in finished.outcome().curve] == [0.5, 0.0]
