from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.cli.app import app
from mathturn_gym.compare import load_matrix, open_matrix
from mathturn_gym.errors import CheckpointError, InvalidValueError, StorageError

RUNNER = CliRunner()
PRETEND = Path(__file__).parents[1] / "compare"
CONFIG = """
algorithms = ["low", "high", "broken", "nan"]
tasks = ["lins", "add1"]
seeds = 2
tokens = 1000
cpu_seconds = 50
[task.add1]
tokens = 2000
[algorithm.low]
run = "pretend_runs:Pretend"
settings = { level = 0.5 }
[algorithm.high]
run = "pretend_runs:Pretend"
settings = { level = 0.7 }
[algorithm.high.task.add1]
settings = { level = 0.9 }
[algorithm.broken]
run = "pretend_runs:Pretend"
[algorithm.broken.task.add1]
settings = { fail = "<b>no</b> [luck]" }
[algorithm.nan]
run = "pretend_runs:Pretend"
settings = { diverge = true }
"""


@pytest.fixture(autouse=True)
def pretend_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PRETEND)
    monkeypatch.setenv("COLUMNS", "100")


def run(*args: str) -> Any:
    return RUNNER.invoke(app, ["compare", *args], catch_exceptions=False)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A comparison with everything in it that can go wrong, and what was printed."""
    folder = tmp_path_factory.mktemp("compare")
    (folder / "matrix.toml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PRETEND)
        patch.setenv("COLUMNS", "100")
        done = run(str(folder / "matrix.toml"), "--out", str(folder / "out"))
    assert done.exit_code == 1, "two runs failed"
    return folder / "out", done.output


def test_the_verdict_without_a_terminal(compared: tuple[Path, str]) -> None:
    out, shown = compared
    assert "16 runs, " in shown
    ended = re.findall(r"^ +(\d+)/16 (done|failed|diverged)", shown, re.MULTILINE)
    assert sum(status != "done" for _, status in ended) == 6, "what goes wrong is printed at once"
    assert 7 <= len(ended) <= 14, "of many runs, not all that go well"
    lines = shown.splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("high is ahead of nan by "))
    assert len(lines) - begin <= 25
    assert "With 2 seeds, differences below about 0.016 cannot be shown." in shown
    assert "Of 16 runs, 4 diverged, 2 failed" in shown
    assert "2 of 2 runs failed (seed 0, 1 at 1,000 tokens: InvalidValueError: <b>no</b> [luck]): not counted" in flat(
        shown
    )
    log = out / "cells/broken/add1/seed-1/log.txt"
    assert f"failed: broken on add1, seed 1: InvalidValueError: <b>no</b> [luck] (log: {log})" in shown
    assert "Traceback" in log.read_text()
    assert f"page: {out / 'report.html'}" in shown


def test_every_table_on_request(compared: tuple[Path, str]) -> None:
    shown = run("--report", str(compared[0]), "--full").output
    assert "high is ahead of nan" in flat(shown)
    assert "on lins (acc@4, 2 seeds)" in flat(shown), "a sentence for each task"
    assert "lins at 1,000 tokens" in shown
    assert "add1 at 2,000 tokens" in shown
    assert "add1 at 20.0 CPU seconds" in shown
    assert "no score on add1: not comparable over all tasks" in flat(shown)


def flat(text: str) -> str:
    return " ".join(text.split())


def test_raw_numbers_of_every_run(compared: tuple[Path, str]) -> None:
    out, _ = compared
    with (out / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16
    high = next(row for row in rows if (row["label"], row["task"], row["seed"]) == ("high", "add1", "1"))
    assert (high["algorithm"], high["status"], high["budget_tokens"], high["tokens"]) == (
        "pretend_runs:Pretend", "finished", "2000", "2000.0",
    )  # fmt: skip
    assert float(high["test/acc@4"]) == pytest.approx(float(high["tokens/acc@4"]))
    failed = next(row for row in rows if row["status"] == "failed")
    assert failed["message"] == "InvalidValueError: <b>no</b> [luck]"
    assert failed["test/acc@4"] == ""
    data = json.loads((out / "results.json").read_text())
    assert len(data["cells"]) == 16
    assert data["limits"]["add1"]["tokens"]["value"] == 2000
    assert len(data["cells"][0]["curve"]) == 11
    iqm = data["aggregates"]["test"]["high"]["IQM"]
    scores = [s for task in ("lins", "add1") for s in data["tasks"][task]["test"]["high"]["acc@4"]["scores"]]
    # Both tasks have the ends of a digit by chance: a linear map of the accuracies is one of their IQM.
    floor, ceiling = load_task("lins").scale["acc@4"]
    assert iqm["value"] == pytest.approx((sum(sorted(scores)[1:3]) / 2 - floor) / (ceiling - floor))
    assert "broken" not in data["aggregates"]["test"], "it has no score on one of the tasks"
    assert data["aggregates"]["test"]["nan"]["mean"]["value"] == pytest.approx(-floor / (ceiling - floor)), (
        "no policy is less than a digit by chance"
    )
    better = next(p for p in data["improvement"]["test"] if (p["x"], p["y"]) == ("high", "low"))
    assert better["value"] == 1.0


def test_the_page_holds_everything_and_needs_nothing(compared: tuple[Path, str]) -> None:
    out, _ = compared
    page = (out / "report.html").read_text()
    assert {path.stem.split("-")[0] for path in out.glob("*.svg")} == {"curves", "differences", "aggregates"}
    assert all(ElementTree.parse(path).getroot().tag.endswith("svg") for path in out.glob("*.svg"))
    assert page.count("<svg viewBox") >= 2 * 2 + 3 + 3, "curves by task and budget, differences, aggregates"
    assert "<img" not in page
    assert re.search(r"https?:", page) is None
    assert "<b>no</b>" not in page
    assert "&lt;b&gt;no&lt;/b&gt; [luck]" in page
    assert "mathturn" in page
    assert "Of 16 runs, 4 diverged, 2 failed" in page
    assert page.index('<p class="verdict">high is ahead of nan') < page.index("<table") < page.index("<details")
    assert page.index("<h3>What seeds share</h3>") < page.index("<h3>Every run</h3>")
    for few in ("Performance profiles", "Probability of improvement", "IQM over seeds"):
        assert few not in page, "two seeds are too few for it"


def test_the_report_is_made_again_from_what_is_there(compared: tuple[Path, str]) -> None:
    out, shown = compared
    before = (out / "report.md").read_text()
    assert "### lins at 1,000 tokens" in before
    again = run("--report", str(out))
    assert (out / "report.md").read_text() == before, "intervals are decided by a seed"
    assert again.exit_code == 0
    assert again.output == shown[shown.index("high is ahead of nan") :]


def test_a_part_of_it_can_be_reported(compared: tuple[Path, str]) -> None:
    part = run("--report", str(compared[0]), "--figure", "acc@1", "--algorithms", "high,low", "--tasks", "lins")
    assert "on lins (acc@1, 2 seeds)" in flat(part.output)
    assert "broken" not in part.output


def test_rows_are_held_against_the_one_that_is_named(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    (tmp_path / "matrix.toml").write_text('against = "low"\n' + CONFIG.replace("seeds = 2", "seeds = 1"))
    plain = ("--tasks", "lins", "--out", out)
    page = tmp_path / "out" / "report.html"
    run(str(tmp_path / "matrix.toml"), "--algorithms", "low,high", *plain)
    assert "Differences from low" in page.read_text()
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["against"] == "low"
    assert list(found["differences"]["lins"]) == ["high"]
    assert found["differences"]["lins"]["high"]["acc@4"]["value"] == pytest.approx(0.2)
    run(str(tmp_path / "matrix.toml"), "--algorithms", "nan", *plain)
    assert "Differences from low" in page.read_text(), "what the folder was begun with is kept"
    run(str(tmp_path / "matrix.toml"), "--algorithms", "nan", *plain, "--against", "high")
    assert "Differences from high" in page.read_text(), "a row of the folder, of which this call adds none"
    run("--report", out)
    assert "Differences from high" in page.read_text(), "a report keeps what the comparison was run with"
    assert json.loads((tmp_path / "out" / "results.json").read_text())["against"] == "high"
    run("--report", out, "--against", "low")
    assert "Differences from low" in page.read_text()
    run("--report", out, "--algorithms", "low,nan")
    assert "Differences from low" in page.read_text(), "the row is left out: the best takes its place"
    for arguments in (("--report", out), ("--out", out)):
        with pytest.raises(InvalidValueError, match="unknown against 'hig': did you mean 'high'"):
            run(*arguments, "--against", "hig")


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ([0.1], "scales must be tables of figures by task"),
        ({"lins": 3}, "scales must be tables of figures by task"),
        (
            {"lins": {"acc@4": [0.3]}},
            r"the scale of 'lins', 'acc@4' must be two numbers, floor and ceiling, got \[0.3\]",
        ),
        ({"lins": {"acc@4": [0.3, "1"]}}, "must be two numbers"),
        ({"lins": {"acc@4": [0, 10**400]}}, "must be two numbers"),
    ],
)
def test_a_folder_whose_scales_are_broken_is_said_to_be(tmp_path: Path, scales: Any, message: str) -> None:
    open_matrix(load_matrix(algorithms=["grpo"], tasks=["lins"], tokens=1000, out=str(tmp_path / "out")))
    file = tmp_path / "out" / "matrix.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "scales": scales}))
    with pytest.raises(CheckpointError, match=message) as caught:
        run("--report", str(tmp_path / "out"))
    assert str(file) in str(caught.value)
    with pytest.raises(CheckpointError, match=message):
        run("--out", str(tmp_path / "out"), "--algorithms", "grpo", "--tasks", "lins", "--tokens", "1000")


def test_mistakes_in_reporting(compared: tuple[Path, str], tmp_path: Path) -> None:
    out = str(compared[0])
    with pytest.raises(InvalidValueError, match="unknown algorithm 'hig': did you mean 'high'"):
        run("--report", out, "--algorithms", "hig")
    with pytest.raises(InvalidValueError, match="unknown task 'v'"):
        run("--report", out, "--tasks", "v")
    with pytest.raises(InvalidValueError, match="figure must be"):
        run("--report", out, "--figure", "loss")
    with pytest.raises(InvalidValueError, match="--report runs nothing"):
        run("--report", out, "--seeds", "3")
    with pytest.raises(CheckpointError, match="holds no comparison"):
        run("--report", str(tmp_path))


def test_a_folder_alone_goes_on_and_more_can_be_added(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    flags = ("--algorithms", "pretend_runs:Pretend", "--tasks", "lins", "--tokens", "500", "--out", out)
    first = run(*flags, "--seeds", "1")
    assert first.exit_code == 0
    assert "1/1 done" in first.output
    assert "1 runs, 1 done already" in run("--out", out).output
    more = run(*flags, "--seeds", "4,", "--jobs", "1")
    assert "2 runs, 1 done already, 1 at a time" in more.output
    assert "pretend_runs:Pretend on lins, seed 4" in more.output
    with pytest.raises(CheckpointError, match="tokens was 500, is 600"):
        run("--algorithms", "pretend_runs:Pretend", "--tasks", "lins", "--tokens", "600", "--seeds", "1", "--out", out)


def test_dry_run_lists_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "matrix.toml").write_text(CONFIG)
    done = run(str(tmp_path / "matrix.toml"), "--out", str(tmp_path / "out"), "--jobs", "1", "--dry-run")
    assert "high on add1, seed 1  2,000 tokens or 50 CPU s  level=0.9" in done.output
    assert "16 runs, 16 of them to be run, 1 at a time" in flat(done.output)
    assert "training ends within 13 min" in done.output
    assert not (tmp_path / "out").exists()
    flags = ("--algorithms", "grpo", "--tasks", "lins", "--tokens", "9", "--out", str(tmp_path / "out"))
    assert "without --cpu-seconds there is no estimate of the time" in run(*flags, "--dry-run").output
    with pytest.raises(InvalidValueError, match="did you mean 'group_size'"):
        run(*flags, "--dry-run", "--set", "groupsize=4")


def test_dry_run_imports_no_module_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing is safe with anybody's configuration file; what it names is imported when it is run."""
    (tmp_path / "dry_witness.py").write_text("from pathlib import Path\nPath('witness').touch()\n")
    (tmp_path / "matrix.toml").write_text(
        'algorithms = ["mine", "grpo"]\ntasks = ["lins"]\nseeds = 1\ntokens = 100\n'
        '[algorithm.mine]\nrun = "dry_witness:Mine"\n[settings]\nenv.verifier = "dry_witness:judge"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    parts = ("--feedback", "dry_witness:say", "--reward-term", "mine=dry_witness:bonus")
    done = run("matrix.toml", "--out", "out", "--dry-run", *parts)
    assert "2 runs, 2 of them to be run" in flat(done.output)
    assert not (tmp_path / "witness").exists()
    with pytest.raises(InvalidValueError, match="dry_witness"):  # which has none of them
        run("matrix.toml", "--out", "out")
    assert (tmp_path / "witness").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    flags = ("--algorithms", "grpo", "--tasks", "lins", "--tokens", "9", "--seeds", "1")
    with pytest.raises(StorageError, match=r"file/out.* cannot be written: Not a directory"):
        run(*flags, "--out", str(tmp_path / "file" / "out"))
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "algorithms must be given: in the configuration file, or as --algorithms"),
        (("--algorithms", "a", "--tasks", "lins", "--tokens", "1", "--seeds", "x"), "--seeds must be how many"),
        (("--algorithms", "a", "--tasks", "lins", "--tokens", "1", "--seeds", ""), "--seeds must be how many"),
        (("--algorithms", ",", "--tasks", "lins", "--tokens", "1"), "algorithms must be a list of at least one name"),
        (("--algorithms", "grpo", "--tasks", "lins"), "tokens or cpu_seconds must be given"),
        (("--algorithms", "grpo", "--tasks", "lins", "--tokens", "1", "--set", "x"), "--set must be FIELD=VALUE"),
        (("none.toml",), "config 'none.toml' cannot be read"),
    ],
)
def test_mistakes_in_flags(tmp_path: Path, args: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        run(*args, *(() if not args else ("--out", str(tmp_path / "out"))))


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, commands_in: Callable[[str], list[list[str]]]) -> None:
    out = tmp_path / "out"
    script = "from mathturn_gym.cli.app import main; main()"
    flags = [
        "--algorithms",
        "pretend_runs:Pretend",
        "--tasks",
        "lins",
        "--tokens",
        "500",
        "--seeds",
        "2",
        "--jobs",
        "1",
    ]
    waiting = "--set", "wait=true", "--set", "wait_only=0"
    command = [sys.executable, "-c", script, "compare", *flags, *waiting, "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PRETEND), *filter(None, sys.path)])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path)
    end = time.monotonic() + 600
    while not list(out.glob("cells/*/*/*/run/waiting")):
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "stopping: 1 run will save and end (Ctrl-C again kills them)" in shown
    assert "0/2 saved" in shown
    assert f"0 of 2 runs done. Go on: mathturn compare --out {out}" in shown
    assert f"mathturn compare --report {out}" in shown
    going_on, reporting = commands_in(shown)
    assert reporting[0] == "compare"
    report = RUNNER.invoke(app, [*reporting, "--full"], catch_exceptions=False).output
    assert "1 of 2 runs unfinished (seed 0 at 250 tokens: interrupted; run the comparison again to go on)" in flat(
        report
    )
    assert "not run: seed 1" in report
    done = RUNNER.invoke(app, going_on, catch_exceptions=False)
    assert done.exit_code == 0
    assert "2 runs, " in done.output


def test_a_built_in_algorithm(tmp_path: Path) -> None:
    """A real trainer in small: what it writes is what the comparison reads."""
    small = ("batch_episodes=16", "minibatches=2", "evaluation.episodes=16", "evaluation.every=1", "test_episodes=16")
    settings = [part for setting in small for part in ("--set", setting)]
    flags = (
        "--algorithms",
        "clipped_reinforce",
        "--tasks",
        "lins",
        "--seeds",
        "1",
        "--tokens",
        "200",
        "--cpu-seconds",
        "20",
    )
    done = run(*flags, *settings, "--out", str(tmp_path / "out"))
    assert done.exit_code == 0
    cells = json.loads((tmp_path / "out" / "results.json").read_text())["cells"]
    assert [(cell["label"], cell["status"]) for cell in cells] == [("clipped_reinforce", "finished")], done.output
    for cell in cells:
        assert cell["used_tokens"] >= 200
        assert 0 < cell["used_cpu_s"] < 20
        assert {"acc@1", "acc@4"} <= set(cell["test"])
        assert cell["curve"][0]["tokens"] == 0
        assert cell["curve"][-1]["tokens"] == cell["used_tokens"]
