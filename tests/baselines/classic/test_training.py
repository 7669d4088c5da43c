"""Classic algorithms on the trainers' tasks: files, budgets, divergence, and the same figures from the same seed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mathturn_gym.baselines import algorithms
from mathturn_gym.baselines.classic import load_classic, run_classic, training
from mathturn_gym.baselines.classic.settings import CLASSIC, ClassicConfig, algorithm_class
from mathturn_gym.baselines.runs import read_metrics
from mathturn_gym.dialogue import load_tokenizer
from mathturn_gym.errors import CheckpointError, InvalidValueError, MissingDependencyError

SMALL: dict[str, Any] = {
    "n_envs": 4,
    "layers": 1,
    "width": 16,
    "feedforward": 16,
    "iteration_tokens": 128,
    "eval_every": 2,
    "eval_episodes": 8,
}
ON_POLICY: dict[str, Any] = {"n_steps": 32, "batch_size": 64}
OFF_POLICY: dict[str, Any] = {"learning_starts": 64, "exploration_steps": 200, "train_freq": 16, "batch_size": 16}
ROLLOUT: dict[str, Any] = {"sb3_a2c": {"n_steps": 8}, "sb3_dqn": OFF_POLICY, "qr_dqn": OFF_POLICY}


@pytest.fixture(autouse=True)
def _few_test_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithms, "TEST_EPISODES", 24)


def run(name: str, folder: Path, task: str = "add1", tokens: int | None = 512, **more: Any) -> dict[str, Any]:
    settings = {**SMALL, **ROLLOUT.get(name, ON_POLICY), **more.pop("settings", {})}
    result = run_classic(name, task, folder, tokens=tokens, settings=settings, **more)
    assert result is not None
    return result


def without_seconds(lines: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in line.items() if name != "cpu_s"} for line in lines]


@pytest.mark.parametrize("name", sorted(CLASSIC))
def test_a_run_of_each(name: str, tmp_path: Path) -> None:
    seen: list[Any] = []
    result = run(name, tmp_path / "run", on_progress=seen.append)
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert (result["algorithm"], result["task"], result["seed"], result["status"]) == (name, "add1", 0, "finished")
    assert (result["budget_tokens"], result["budget_cpu_s"]) == (512, None)
    assert 512 <= result["tokens"] < 512 + 128
    assert result["episodes"] > 0
    assert result["cpu_s"] > 0
    assert set(result["test"]) == {"acc@1", "acc@2", "acc@3", "acc@4", "episodes", "tokens_per_episode"}
    assert result["test"]["episodes"] == 24
    lines = read_metrics(tmp_path / "run")
    assert lines == seen
    assert [line["iteration"] for line in lines] == list(range(len(lines)))
    assert lines[0]["tokens"] == lines[0]["episodes"] == lines[0]["cpu_s"] == 0
    assert (lines[-1]["tokens"], lines[-1]["episodes"]) == (result["tokens"], result["episodes"])
    evaluated = [line["iteration"] for line in lines if "validation/acc@1" in line]
    assert evaluated == sorted({*range(0, len(lines), 2), len(lines) - 1})
    assert all(f"validation/acc@{turn}" in lines[-1] for turn in (1, 2, 3, 4))
    assert any(
        "train/loss" in line or "train/policy_loss" in line or "train/policy_objective" in line for line in lines
    )


def test_the_same_seed_gives_the_same_curve_to_the_bit(tmp_path: Path) -> None:
    state = random.getstate(), torch.get_rng_state()
    results = [run("maskable_ppo", tmp_path / f"{i}", seed=seed) for i, seed in enumerate((5, 5, 6))]
    curves = [without_seconds(read_metrics(tmp_path / f"{i}")) for i in range(3)]
    assert curves[0] == curves[1] != curves[2]
    assert results[0]["test"] == results[1]["test"]
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])


def test_what_was_learned_is_what_is_loaded(tmp_path: Path) -> None:
    run("recurrent_ppo", tmp_path / "run", task="lins")
    policy = load_classic(tmp_path / "run")
    again = load_classic(tmp_path / "run")
    context = np.asarray(load_tokenizer("builtin").encode("Solve 3x+4=19 for x."), np.int64)
    drawn = [one.complete([context] * 3, max_tokens=[8] * 3, seeds=[1, 2, 3]) for one in (policy, again)]
    assert [one.ids.tolist() for one in drawn[0]] == [one.ids.tolist() for one in drawn[1]]
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"config.json", "metrics.jsonl", "policy.safetensors", "result.json"}  # nothing that unpickles
    with pytest.raises(CheckpointError, match="no run of a classic algorithm"):
        load_classic(tmp_path)


def test_the_warm_start_is_the_language_models(tmp_path: Path) -> None:
    """Before training it solves what the language model solves; from random weights it solves next to nothing."""
    run("sb3_ppo", tmp_path / "warm", task="lins", tokens=1, settings={"eval_episodes": 200})
    run("sb3_ppo", tmp_path / "cold", task="lins", tokens=1, settings={"eval_episodes": 200, "warm_start": False})
    warm, cold = (read_metrics(tmp_path / name)[0]["validation/acc@1"] for name in ("warm", "cold"))
    assert warm > 0.2
    assert cold < 0.05


def test_cpu_seconds_end_a_run(tmp_path: Path) -> None:
    result = run("sb3_a2c", tmp_path / "run", tokens=None, cpu_seconds=0.3)
    assert result["status"] == "finished"
    assert result["cpu_s"] >= 0.3
    assert read_metrics(tmp_path / "run")[-2]["cpu_s"] < 0.3
    assert result["budget_tokens"] is None
    assert "validation/acc@1" in read_metrics(tmp_path / "run")[-1]


@pytest.mark.parametrize("name", ["sb3_ppo", "sb3_dqn"])
def test_divergence_is_a_result(name: str, tmp_path: Path) -> None:
    """A learning rate beyond reason makes weights that are no numbers: the run says so, and raises nothing."""
    result = run(name, tmp_path / "run", tokens=4096, settings={"learning_rate": 1e30})
    assert result["status"] == "diverged"
    assert result["test"] is None
    assert "after" in result["message"]
    assert 0 <= result["tokens"] < 4096
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text


def test_an_error_that_is_no_divergence_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(training, "accuracy_by_turn", broken)
    with pytest.raises(ValueError, match="a mistake of ours"):
        run("sb3_a2c", tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()


def test_an_interrupt_leaves_no_result(tmp_path: Path) -> None:
    def interrupt(line: Any) -> None:
        if line["iteration"] == 1:
            signal.raise_signal(signal.SIGINT)

    settings = {**SMALL, **ROLLOUT["sb3_a2c"]}
    folder = tmp_path / "run"
    assert run_classic("sb3_a2c", "add1", folder, tokens=10**6, settings=settings, on_progress=interrupt) is None
    assert len(read_metrics(folder)) == 2
    assert {path.name for path in folder.iterdir()} == {"config.json", "metrics.jsonl"}
    run("sb3_a2c", folder, tokens=64, overwrite=True)


def test_a_curriculum_is_told_how_its_episodes_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mathturn_gym.problems import Curriculum

    told: list[Any] = []
    monkeypatch.setattr(Curriculum, "record", lambda self, cell, *, solved: told.append((cell, solved)))
    result = run("sb3_a2c", tmp_path / "run", task="mixed", settings={"window": 32})
    assert len(told) == result["episodes"] > 0
    assert {cell.partition("@")[0] for cell, _ in told} <= {"integers", "linear", "division", "gcd-lcm"}


def test_folders(tmp_path: Path) -> None:
    run("sb3_a2c", tmp_path / "run", tokens=64)
    with pytest.raises(InvalidValueError, match="holds a run already"):
        run("sb3_a2c", tmp_path / "run", tokens=64)
    run("sb3_a2c", tmp_path / "run", tokens=64, overwrite=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "sb3_pppo"}, "did you mean 'sb3_ppo'"),
        ({"task": "add2"}, "did you mean 'add1'"),
        ({"tokens": 0}, "tokens must be an integer >= 1"),
        ({"tokens": None}, "the run would never end"),
        ({"cpu_seconds": 0.0}, "cpu_seconds must be above 0"),
        ({"settings": {"learning_rat": 1}}, "did you mean 'learning_rate'"),
        ({"settings": {"n_envs": 0}}, "n_envs must be an integer >= 1"),
        ({"settings": {"warm_start": 1}}, "warm_start must be true or false"),
        ({"seed": -1}, "seed must be an integer >= 0"),
    ],
)
def test_mistakes_in_a_config(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        ClassicConfig(**{"algorithm": "sb3_ppo", "task": "add1", "run_dir": "x", "tokens": 100, **changes})


def test_a_config_is_plain_json() -> None:
    config = ClassicConfig("qr_dqn", "lins", "x", tokens=100, settings={"buffer_size": 500})
    assert ClassicConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert config.settings["buffer_size"] == config.arguments["buffer_size"] == 500
    assert "window" not in config.arguments


def test_sb3_contrib_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    assert algorithm_class("sb3_ppo").__name__ == "PPO"
    with pytest.raises(MissingDependencyError, match=r"mathturn-gym\[baselines\]"):
        algorithm_class("trpo")


def test_the_baselines_are_light_to_import() -> None:
    code = (
        "import sys, mathturn_gym.wrappers, mathturn_gym.baselines.algorithms\n"
        "import mathturn_gym.baselines.classic.settings\n"
        "assert not {'stable_baselines3', 'sb3_contrib', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
