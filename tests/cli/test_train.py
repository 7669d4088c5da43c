"""`mathturn train` and `demo`: folders, and the commands that they print."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mathturn_gym.baselines.progress import TrainingDisplay
from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.cli.app import app
from mathturn_gym.episodes.trajectories import read_episodes
from mathturn_gym.errors import CheckpointError, InvalidValueError

RUNNER = CliRunner()
Commands = Callable[[str], list[list[str]]]
SMALL = [
    part
    for setting in (
        "batch_episodes=8",
        "minibatches=2",
        "epochs=1",
        "evaluation.episodes=4",
        "evaluation.test_episodes=8",
        "save_every=1",
    )
    for part in ("--set", setting)
]


def invoke(*args: str, **kwargs: Any) -> Any:
    return RUNNER.invoke(app, list(args), catch_exceptions=False, **kwargs)


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`interrupted(n)`: Ctrl-C once, in iteration n of the next training."""
    shown = TrainingDisplay.__call__

    def at(iteration: int) -> None:
        left = [iteration]

        def show(self: TrainingDisplay, metrics: Any) -> None:
            shown(self, metrics)
            if left and metrics["iteration"] == left[0]:
                left.clear()
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(TrainingDisplay, "__call__", show)

    return at


def timeless(run: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "cpu_s"))} for row in rows]


def test_training_says_how_to_evaluate_and_that_is_what_it_was_evaluated_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands_in: Commands
) -> None:
    """On add1 the policy's answers are masked, four tokens long and sampled at its temperature, and so they are here."""
    monkeypatch.chdir(tmp_path)
    run = "runs/my run"
    done = invoke("train", "add1", "--run-dir", run, *SMALL, "--episodes", "16", "--set", "temperature=0.9")
    assert done.exit_code == 0
    assert "test split, 8 episodes of " in done.output
    (command,) = commands_in(done.output)
    assert command[:3] == ["eval", "--policy", run]
    assert invoke(*command, "--episodes", "24").exit_code == 0
    settings = json.loads((tmp_path / run / "eval" / "settings.json").read_text())
    assert settings["env"] == load_task("add1").env.to_json()
    episodes = list(read_episodes(tmp_path / run / "eval" / "episodes.jsonl"))
    assert all(turn.verdict.status != "no_answer" for e in episodes for turn in e.turns if not turn.truncated)
    assert max(len(turn.ids) for e in episodes for turn in e.turns) <= 4


def test_an_interrupted_training_says_how_to_go_on(
    tmp_path: Path, interrupted: Callable[[int], None], commands_in: Commands
) -> None:
    whole, part = tmp_path / "whole", tmp_path / "a part"
    assert invoke("train", "lins", "--run-dir", str(whole), *SMALL, "--episodes", "24").exit_code == 0
    interrupted(1)
    done = invoke("train", "lins", "--run-dir", str(part), *SMALL, "--episodes", "24")
    assert done.exit_code == 130
    (command,) = commands_in(done.output)
    assert invoke(*command).exit_code == 0
    assert timeless(part) == timeless(whole)


def test_resuming_goes_on_in_the_folder_that_is_named(
    tmp_path: Path, interrupted: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    interrupted(1)
    assert invoke("train", "lins", *SMALL, "--episodes", "24").exit_code == 130
    shutil.copytree("runs/lins", "runs/copy")
    before = (tmp_path / "runs/lins/metrics.jsonl").read_bytes()
    assert invoke("train", "--run-dir", "runs/copy", "--resume").exit_code == 0
    assert (tmp_path / "runs/lins/metrics.jsonl").read_bytes() == before
    assert len(timeless(tmp_path / "runs/copy")) == 4
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert invoke("train", "--run-dir", "../runs/lins", "--resume").exit_code == 0
    assert timeless(tmp_path / "runs/lins") == timeless(tmp_path / "runs/copy")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_folders_in_use_and_changes_to_a_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    args = ["train", "lins", "--run-dir", str(run), *SMALL, "--episodes", "8"]
    assert invoke(*args, "--keep", "1").exit_code == 0
    with pytest.raises(InvalidValueError, match="holds a run already"):
        invoke(*args)
    for option in (["--seed", "3"], ["--num-turns", "2"], ["--algorithm", "ppo"], ["--keep", "3"]):
        with pytest.raises(InvalidValueError, match=r"leave out [\w.]+, or begin another run"):
            invoke("train", "--run-dir", str(run), "--resume", *option)
    with pytest.raises(CheckpointError, match="no run in"):
        invoke("train", "--run-dir", str(tmp_path / "nothing"), "--resume")
    lines = (run / "metrics.jsonl").read_text()
    done = invoke("train", "--run-dir", str(run), "--resume")
    assert done.exit_code == 0, "a finished run has nothing left to do"
    assert "nothing new: this run had used its budget up (8 episodes" in done.output
    assert (run / "metrics.jsonl").read_text() == lines
    assert invoke(*args, "--overwrite").exit_code == 0


def test_a_larger_budget_goes_on_with_a_finished_run(
    tmp_path: Path, commands_in: Commands, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 37: `train` on a finished run said nothing new, and refused more episodes."""
    run = tmp_path / "run"
    args = ["train", "lins", "--run-dir", str(run), *SMALL]
    assert invoke(*args, "--episodes", "8").exit_code == 0
    with pytest.raises(InvalidValueError, match=r"holds a run already .finished.: .*--resume --episodes N"):
        invoke(*args, "--episodes", "16")
    more, _ = commands_in(invoke("train", "--run-dir", str(run), "--resume").output)
    assert more[-2:] == ["--episodes", "16"]
    assert "learning rates follow it (schedule 'linear')" not in caplog.text
    assert invoke(*more).exit_code == 0
    assert "learning rates follow it (schedule 'linear')" in caplog.text
    assert [row["episodes"] for row in timeless(run)] == [0, 8, 16]
    assert json.loads((run / "config.json").read_text())["budget"]["episodes"] == 16
    for smaller in (["--episodes", "8"], ["--tokens", "9"]):
        with pytest.raises(CheckpointError, match="cannot be resumed with another config: budget"):
            invoke("train", "--run-dir", str(run), "--resume", *smaller)


def test_algorithms_and_tasks_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_algorithms.py").write_text(
        "from dataclasses import dataclass\n"
        "from mathturn_gym.baselines import GRPO\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(GRPO):\n"
        "    extra: float = 0.0\n"
    )
    text = load_task("lins").path.read_text().replace("num_turns = 4", "num_turns = 2")
    (tmp_path / "my_task.toml").write_text(text)
    args = ["train", "my_task.toml", "--algorithm", "my_algorithms:Mine", "--set", "group_size=4", *SMALL]
    done = invoke(*args, "--set", "extra=0.5", "--episodes", "8", "--max-completion-tokens", "6")
    assert done.exit_code == 0
    config = json.loads((tmp_path / "runs/my_task-my_algorithms-Mine/config.json").read_text())
    assert config["algorithm"]["name"] == "my_algorithms:Mine"
    assert (config["algorithm"]["group_size"], config["algorithm"]["extra"]) == (4, 0.5)
    assert (config["env"]["num_turns"], config["env"]["max_completion_tokens"]) == (2, 6)
    with pytest.raises(InvalidValueError, match="did you mean 'grpo'"):
        invoke("train", "mul2", "--algorithm", "gropo")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--seed", "-1"], "seed must be an integer in"),
        (["--episodes", "0"], "budget.episodes must be an integer >= 1"),
        (["--cpu-seconds", "-1"], "budget.cpu_seconds must be"),
        (["--keep", "0"], "keep must be"),
        (["--set", "run_dir=x"], "unknown setting 'run_dir'"),
        (["--set", "x"], "--set must be FIELD=VALUE"),
        (["--set", "policy.device=bogus"], "device 'bogus' cannot be used here"),
        (["--env", "nope"], "unknown environment 'nope'"),
        (["--algorithm", "reinforce", "--set", "clip=0.1"], "unknown setting 'clip'.*; options of reinforce"),
    ],
)
def test_mistakes_in_options_are_named(tmp_path: Path, args: list[str], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        invoke("train", "lins", "--run-dir", str(tmp_path / "run"), *args)
    assert not (tmp_path / "run").exists()


def test_demo_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands_in: Commands) -> None:
    monkeypatch.chdir(tmp_path)
    done = invoke("demo", "--run-dir", "demo", "--episodes", "128")
    assert done.exit_code == 0
    assert "512 episodes of the test split" in done.output
    made = {p.name for p in (tmp_path / "demo").iterdir()}
    assert {"metrics.jsonl", "tensorboard", "curve.png", "checkpoint", "transcripts.txt"} <= made
    assert "before" in (tmp_path / "demo" / "transcripts.txt").read_text()
    view, play, evaluate, train = commands_in(done.output[done.output.index("Next:") :])
    assert invoke(*view).exit_code == 0
    assert (tmp_path / "demo" / "view.html").is_file()
    assert invoke(*play, "--episodes", "1").exit_code == 0
    assert invoke(*evaluate, "--episodes", "4").exit_code == 0
    assert invoke(*train, *SMALL, "--episodes", "8").exit_code == 0
