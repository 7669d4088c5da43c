"""`train`: what a run leaves, how it ends, and that it goes on as if nothing had been."""

from __future__ import annotations

import json
import logging
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mathturn_gym.baselines import (
    Budget,
    ClippedREINFORCE,
    EnvConfig,
    Evaluation,
    Optimization,
    RunConfig,
    TrainResult,
    train,
)
from mathturn_gym.baselines.run_folder import load_checkpoint, read_config, read_metrics
from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.errors import CheckpointError, InvalidValueError
from mathturn_gym.policies import BUILTIN_PATH
from mathturn_gym.wrappers import load_policy
from mathturn_gym.wrappers.policy import CausalLMPolicy

Small = Callable[..., RunConfig]
Timeless = Callable[[Any], list[dict[str, float]]]


def same_weights(first: CausalLMPolicy, second: CausalLMPolicy) -> bool:
    pairs = zip(first.model.parameters(), second.model.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def interrupt_at(iteration: int) -> Callable[[Any], None]:
    def interrupt(metrics: dict[str, float]) -> None:
        if metrics["iteration"] == iteration:
            signal.raise_signal(signal.SIGINT)

    return interrupt


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, small: Small) -> TrainResult:
    """A run from its beginning to its end: what is interrupted, killed or copied has to go on like it."""
    return train(small(settings={"evaluation.test_episodes": 8}), run_dir=tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.usefixtures("draws")
def test_a_run_leaves_files_that_load(tmp_path: Path, small: Small) -> None:
    config = small(settings={"evaluation.every": 3, "evaluation.test_episodes": 16}, episodes=48)
    seen: list[dict[str, float]] = []
    threads = torch.get_num_threads()
    folder = tmp_path / "run"
    result = train(config, run_dir=folder, on_progress=seen.append)
    assert [row["iteration"] for row in result.history] == list(range(7))
    assert [row["iteration"] for row in result.history if "validation/acc@1" in row] == [0, 3, 6]
    assert read_metrics(folder) == result.history == seen
    assert read_config(folder) == config
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert any((folder / "tensorboard").iterdir())
    assert (result.policy.version, result.interrupted, torch.get_num_threads()) == (6, False, threads)
    assert (result.status, result.episodes, result.tokens) == ("finished", 48, result.history[-1]["tokens"])
    loaded = load_policy(folder)
    assert same_weights(loaded, result.policy)
    assert loaded.tokenizer is not None
    # No pickle, and nothing left over from writing.
    suffixes = {file.suffix for file in (folder / "checkpoint").iterdir()}
    assert suffixes == {".json", ".safetensors", ".jinja"}
    assert {file.name for file in folder.iterdir() if file.name.startswith(".")} == {".lock"}
    written = json.loads((folder / "result.json").read_text())
    assert (written["algorithm"], written["task"], written["status"]) == ("clipped_reinforce", "lins", "finished")
    assert result.test == written["test"]
    assert written["test"]["episodes"] == 16


def test_a_run_is_made_of_its_parts(tmp_path: Path) -> None:
    result = train(
        env=EnvConfig(problems="lins", num_turns=1, max_completion_tokens=4),
        algorithm=ClippedREINFORCE(discount=0.5),
        budget=Budget(episodes=4),
        optimization=Optimization(batch_episodes=4),
        evaluation=Evaluation(episodes=0),
        seed=3,
        run_dir=tmp_path / "run",
    )
    config = read_config(tmp_path / "run")
    assert (config.env.value("num_turns"), config.seed, config.task) == (1, 3, None)
    assert config.algorithm == ClippedREINFORCE(discount=0.5)
    assert result.episodes == 4
    with pytest.raises(InvalidValueError, match=r"train\(\) needs algorithm, budget"):
        train(env=EnvConfig(), run_dir=tmp_path / "other")


def test_parts_that_are_given_replace_a_configs(tmp_path: Path, small: Small) -> None:
    result = train(
        small(), run_dir=tmp_path / "run", budget=Budget(episodes=8), seed=5, evaluation=Evaluation(episodes=0)
    )
    assert result.episodes == 8
    assert read_config(tmp_path / "run").seed == 5


def test_a_policy_that_exists_is_trained_in_place(tmp_path: Path, small: Small) -> None:
    policy = load_policy("builtin", device="cpu", dtype="float32")
    before = load_policy("builtin", device="cpu", dtype="float32")
    result = train(small(episodes=8), policy=policy, run_dir=tmp_path / "run")
    assert result.policy is policy
    assert not same_weights(policy, before)
    by_config = train(small(episodes=8), run_dir=tmp_path / "other")
    assert same_weights(policy, by_config.policy), "the same weights as those that a config loads"
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["policy"]["model"] == "(a CausalLMPolicy of the program)"


def test_training_changes_the_weights_and_a_seed_repeats_it(tmp_path: Path, small: Small, timeless: Timeless) -> None:
    start = CausalLMPolicy.from_pretrained(BUILTIN_PATH)
    first, again, other = (
        train(small(settings={"seed": seed}, episodes=16), run_dir=tmp_path / name)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert timeless(first.history) == timeless(again.history) != timeless(other.history)
    assert same_weights(first.policy, again.policy)
    assert not same_weights(first.policy, other.policy)
    assert not same_weights(first.policy, start)


def test_an_interrupted_run_resumes_the_same_curve(
    tmp_path: Path, small: Small, timeless: Timeless, whole: TrainResult
) -> None:
    config = small(settings={"evaluation.test_episodes": 8})
    handler = signal.getsignal(signal.SIGINT)
    part = train(config, run_dir=tmp_path / "part", on_progress=interrupt_at(1))
    assert signal.getsignal(signal.SIGINT) is handler
    assert part.interrupted
    assert part.test is None
    assert len(part.history) == 2
    assert not (tmp_path / "part" / "result.json").exists()
    load_policy(tmp_path / "part")
    resumed = train(config, run_dir=tmp_path / "part", resume=True)
    assert not resumed.interrupted
    assert timeless(resumed.history) == timeless(whole.history)
    assert same_weights(resumed.policy, whole.policy)
    assert resumed.test == whole.test


def test_a_killed_run_resumes_from_its_last_checkpoint(
    tmp_path: Path, small: Small, timeless: Timeless, whole: TrainResult
) -> None:
    def die(metrics: dict[str, float]) -> None:
        if metrics["iteration"] == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(small(), run_dir=tmp_path / "part", on_progress=die)
    assert load_checkpoint(tmp_path / "part" / "checkpoint").iteration == 2
    assert [row["iteration"] for row in read_metrics(tmp_path / "part")] == [0, 1, 2, 3]
    # A line that the crash cut off is dropped, and iteration 3 is done again.
    with (tmp_path / "part" / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 4, "train/ac')
    resumed = train(small(), run_dir=tmp_path / "part", resume=True)
    assert timeless(resumed.history) == timeless(whole.history)
    assert same_weights(resumed.policy, whole.policy)


def test_a_run_killed_before_its_first_checkpoint_begins_again(
    tmp_path: Path, small: Small, timeless: Timeless, caplog: pytest.LogCaptureFixture, whole: TrainResult
) -> None:
    config = small(settings={"save_every": 3})

    def die(metrics: dict[str, float]) -> None:
        if metrics["iteration"] == 2:
            raise SystemExit(1)

    with pytest.raises(SystemExit):
        train(config, run_dir=tmp_path / "part", on_progress=die)
    with caplog.at_level(logging.WARNING, logger="mathturn_gym"):
        resumed = train(config, run_dir=tmp_path / "part", resume=True)
    assert timeless(resumed.history) == timeless(whole.history)
    assert "was interrupted before its first checkpoint: it begins again" in caplog.text


def test_resuming_trains_the_folder_that_was_named(
    tmp_path: Path, small: Small, timeless: Timeless, monkeypatch: pytest.MonkeyPatch, whole: TrainResult
) -> None:
    """Where a run lies is no part of its config: copies, moved folders and other working directories are their own."""
    monkeypatch.chdir(tmp_path)
    train(small(), run_dir="runs/x", on_progress=interrupt_at(1))
    shutil.copytree("runs/x", "runs/copy")
    before = {file: file.read_bytes() for file in Path("runs/x").rglob("*") if file.is_file()}
    resumed = train(read_config("runs/copy"), run_dir="runs/copy", resume=True)
    assert timeless(resumed.history) == timeless(whole.history)
    assert {file: file.read_bytes() for file in Path("runs/x").rglob("*") if file.is_file()} == before
    Path("runs/x").rename("moved")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    resumed = train(read_config("../moved"), run_dir="../moved", resume=True)
    assert timeless(resumed.history) == timeless(whole.history)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_finished_run_that_is_resumed_has_nothing_left_to_do(tmp_path: Path, small: Small) -> None:
    config = small(settings={"evaluation.test_episodes": 8}, episodes=8)
    first = train(config, run_dir=tmp_path / "run")
    lines, result = (tmp_path / "run" / "metrics.jsonl").read_text(), (tmp_path / "run" / "result.json").stat()
    again = train(config, run_dir=tmp_path / "run", resume=True)
    assert (again.status, again.test) == ("finished", first.test)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == lines
    assert (tmp_path / "run" / "result.json").stat().st_mtime_ns == result.st_mtime_ns


def test_a_run_can_be_made_longer(
    tmp_path: Path, small: Small, timeless: Timeless, caplog: pytest.LogCaptureFixture
) -> None:
    parts = small(settings={"evaluation.test_episodes": 8}).to_json()
    parts["optimization"] |= {"schedule": "constant", "final_learning_rate": None}
    config = RunConfig.from_json(parts)
    whole = train(config, run_dir=tmp_path / "whole")
    short = train(config, budget=Budget(episodes=16), run_dir=tmp_path / "part")
    longer = train(config, run_dir=tmp_path / "part", resume=True)
    assert timeless(longer.history)[-1] == {**timeless(whole.history)[-1]}
    assert longer.test == whole.test
    assert short.test is not None
    train(small(), run_dir=tmp_path / "falling", on_progress=interrupt_at(1))
    with pytest.raises(CheckpointError, match=r"budget.episodes was 24, is 16"):
        train(small(episodes=16), run_dir=tmp_path / "falling", resume=True)
    with pytest.raises(CheckpointError, match=r"budget.tokens was None, is 9"):
        train(small(tokens=9), run_dir=tmp_path / "falling", resume=True)
    assert "learning rates follow it" not in caplog.text, "a constant one does not"
    assert len(train(small(episodes=32), run_dir=tmp_path / "falling", resume=True).history) == 5
    assert "learning rates follow it (schedule 'linear')" in caplog.text


def test_a_folder_in_use_is_left_alone(tmp_path: Path, small: Small) -> None:
    config = small(episodes=8)
    train(config, run_dir=tmp_path / "run")
    with pytest.raises(InvalidValueError, match="holds a run already"):
        train(config, run_dir=tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"optimization.learning_rate was 0\.001, is 0\.5"):
        train(small(settings={"learning_rate": 0.5}, episodes=8), run_dir=tmp_path / "run", resume=True)
    with pytest.raises(CheckpointError, match=r"algorithm.name was 'clipped_reinforce', is 'ppo'"):
        train(small("ppo", episodes=8), run_dir=tmp_path / "run", resume=True)
    assert len(train(config, run_dir=tmp_path / "run", overwrite=True).history) == 2
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    for choice in ("", "overwrite", "resume"):
        with pytest.raises(InvalidValueError, match="no run's folder"):
            train(small(), run_dir=other, resume=choice == "resume", overwrite=choice == "overwrite")
    with pytest.raises(InvalidValueError, match="no run's folder"):
        train(small(), run_dir=other / "mine.txt", overwrite=True)
    assert (other / "mine.txt").read_text() == "mine"


def test_a_config_that_does_not_fit_leaves_no_folder(tmp_path: Path, small: Small) -> None:
    for settings, error, message in (
        ({"env.problems": "lns"}, InvalidValueError, "unknown problems 'lns"),
        ({"policy.model": str(tmp_path / "nowhere" / "x")}, InvalidValueError, "unknown policy .*nowhere"),
        ({"temperature": 0.0}, InvalidValueError, "temperature must be above 0 in training"),
        ({"top_p": 0.9}, InvalidValueError, "policy.top_p must be off in training"),
        (
            {"policy.model": "random"},
            InvalidValueError,
            "'random' cannot be trained: it has no weights in this process",
        ),
        ({"policy.model": "http://localhost:1/v1"}, InvalidValueError, "cannot be trained: it has no weights in this"),
    ):
        with pytest.raises(error, match=message):
            train(small(settings=settings), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_budgets_end_a_run(tmp_path: Path, small: Small) -> None:
    by_tokens = train(small(episodes=None, tokens=100), run_dir=tmp_path / "a")
    assert 100 <= by_tokens.tokens < 100 + 8 * 2 * 8
    assert json.loads((tmp_path / "a" / "result.json").read_text())["budget_tokens"] == 100
    done = train(small(episodes=None, cpu_seconds=1e-6), run_dir=tmp_path / "b")
    assert (done.status, done.episodes) == ("finished", 8)
    assert done.cpu_s > 1e-6


def test_a_schedule_that_nothing_drives_is_pointed_out(
    tmp_path: Path, small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="mathturn_gym"):
        train(small(episodes=None, cpu_seconds=1e-6), run_dir=tmp_path / "run")
    assert "the budget has CPU seconds alone: the learning rate stays constant" in caplog.text


def test_a_diverged_run_is_a_status_and_keeps_its_curve(tmp_path: Path, small: Small) -> None:
    settings = {"learning_rate": 1e30, "warmup": 0, "evaluation.test_episodes": 8}
    result = train(small(settings=settings), run_dir=tmp_path / "run")
    assert result.status == "diverged"
    assert "no longer finite" in result.message
    assert result.test is None
    assert json.loads((tmp_path / "run" / "result.json").read_text())["test"] is None
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") >= 1


def test_a_run_stops_early_where_nothing_improves(tmp_path: Path, small: Small) -> None:
    settings = {"learning_rate": 0.0, "evaluation.patience": 2, "evaluation.every": 1, "evaluation.test_episodes": 8}
    done = train(small(settings=settings, episodes=80), run_dir=tmp_path / "run")
    assert (done.status, done.episodes) == ("stopped_early", 16)
    assert "2 evaluations" in done.message
    assert done.test is not None


def test_without_tensorboard_and_matplotlib_it_says_what_it_leaves_out(
    tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, draws: None
) -> None:
    for name in ("torch.utils.tensorboard", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with caplog.at_level(logging.WARNING, logger="mathturn_gym"):
        train(small(episodes=8), run_dir=tmp_path / "run")
    assert [record.message.split()[0] for record in caplog.records] == ["tensorboard", "matplotlib"]
    assert not (tmp_path / "run" / "curve.png").exists()


def test_hints_are_learned_within_a_few_iterations(tmp_path: Path) -> None:
    settings = {"warmup": 4, "evaluation.every": 0, "evaluation.test_episodes": 0}
    config = load_task("guess8").config(settings=settings, budget={"episodes": 960})
    history = train(config, run_dir=tmp_path / "run").history
    # Blind guessing among ten digits solves 0.27; no policy that ignores the hints solves more than 0.375.
    assert history[0]["validation/acc@3"] < 0.34
    assert history[-1]["validation/acc@3"] > 0.42


def test_a_users_parts_are_trained_with(tmp_path: Path, small: Small) -> None:
    """A verifier, a reward and a feedback of one's own reach the episodes; config.json says what they were."""
    seen: list[str] = []

    def generous(response: str, gold: Any) -> bool:
        seen.append(response)
        return True

    env = EnvConfig(
        problems="lins",
        num_turns=2,
        max_completion_tokens=4,
        stop_on_success=False,
        verifier=generous,
        reward_terms={"bonus": lambda context: 0.5},
        feedback=lambda context: "Once more.",
        system_prompt="Be brief.",
    )
    result = train(small(episodes=8), env=env, run_dir=tmp_path / "run")
    assert len(seen) >= 16
    assert result.history[1]["train/acc@1"] == 1.0
    assert result.history[1]["train/reward"] == pytest.approx(2 * 1.5)
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["env"]
    assert stored["verifier"] == {"object": "builtins:function test_a_users_parts_are_trained_with.<locals>.generous"}
    assert stored["system_prompt"] == "Be brief."
    with pytest.raises(CheckpointError, match="verifier was an object of its program"):
        read_config(tmp_path / "run")
    again = train(small(episodes=8), env=env, run_dir=tmp_path / "run", resume=True)
    assert again.status == "finished"


def test_importing_and_configuring_loads_no_torch() -> None:
    code = (
        "import sys, mathturn_gym.baselines as b\n"
        "assert set(b.__all__) <= set(dir(b))\n"
        "b.RunConfig(env=b.EnvConfig(problems='lins'), algorithm=b.GRPO(), budget=b.Budget(tokens=1), policy=b.PolicyConfig())\n"
        "b.load_task('lins').config('rloo')\n"
        "assert not {'torch', 'transformers', 'stable_baselines3', 'sb3_contrib'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
