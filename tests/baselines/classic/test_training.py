"""Classic algorithms on the trainers' tasks: files, budgets, divergence, and the same figures from the same seed."""

from __future__ import annotations

import dataclasses
import json
import random
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import Shape
from warmup import CALCULATOR, warmup

from mathturn_gym.baselines import RunConfig, TrainResult, train
from mathturn_gym.baselines.algorithms import registered
from mathturn_gym.baselines.classic import PPO, load_classic, training
from mathturn_gym.baselines.run_folder import read_config, read_metrics
from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.baselines.training import SESSIONS
from mathturn_gym.env.dialogue import load_tokenizer
from mathturn_gym.errors import CheckpointError, InvalidValueError, MissingDependencyError
from mathturn_gym.wrappers import load_policy

CLASSIC = sorted(name for name, kind in registered().items() if kind.kind == "classic")
SMALL: Mapping[str, Any] = {
    "n_envs": 4,
    "layers": 1,
    "width": 16,
    "feedforward": 16,
    "iteration_tokens": 128,
    "evaluation.every": 2,
    "evaluation.episodes": 8,
    "evaluation.test_episodes": 24,
}
ON_POLICY: Mapping[str, Any] = {"n_steps": 32, "batch_size": 64}
OFF_POLICY: Mapping[str, Any] = {
    "learning_starts": 64,
    "exploration_steps": 200,
    "train_freq": 16,
    "batch_size": 16,
}
ROLLOUT: Mapping[str, Mapping[str, Any]] = {"sb3_a2c": {"n_steps": 8}, "sb3_dqn": OFF_POLICY, "qr_dqn": OFF_POLICY}


def config(name: str, task: str = "add1", settings: Mapping[str, Any] | None = None, **budget: Any) -> RunConfig:
    given = {**SMALL, **ROLLOUT.get(name, ON_POLICY), **(settings or {})}
    return load_task(task).config(name, given, budget=budget or {"tokens": 512})


def run(name: str, folder: Path, task: str = "add1", **more: Any) -> TrainResult:
    how = {key: more.pop(key) for key in ("on_progress", "overwrite", "resume") if key in more}
    return train(config(name, task, **more), run_dir=folder, **how)


def without_seconds(lines: Any) -> list[dict[str, float]]:
    return [{name: value for name, value in line.items() if name != "cpu_s"} for line in lines]


def test_all_tokens_are_those_of_prompts_too(tmp_path: Path) -> None:
    """In one turn without feedback, an episode is its prompt and what was sampled."""
    done = run("maskable_ppo", tmp_path / "run", settings={"env.num_turns": 1})
    env = config("maskable_ppo", settings={"env.num_turns": 1}).env.make("train", tokenizer=load_tokenizer("builtin"))
    try:
        prompts = {len(env.reset(seed=seed)[0]) for seed in range(20)}
    finally:
        env.close()
    (prompt,) = prompts
    last = done.history[-1]
    sampled = last["total_tokens"] - last["episodes"] * prompt
    unended = SMALL["n_envs"] * config("maskable_ppo").env.value("max_completion_tokens")
    assert last["tokens"] - unended <= sampled <= last["tokens"]
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written["total_tokens"] == last["total_tokens"]
    again = run("maskable_ppo", tmp_path / "run", settings={"env.num_turns": 1}, resume=True)
    assert json.loads((again.run_dir / "result.json").read_text()) == written
    short = run("maskable_ppo", tmp_path / "short", total_tokens=300)
    assert short.history[-1]["total_tokens"] >= 300 > short.history[-2]["total_tokens"]


@pytest.mark.parametrize("name", CLASSIC)
def test_a_run_of_each(name: str, tmp_path: Path) -> None:
    seen: list[Any] = []
    done = run(name, tmp_path / "run", on_progress=seen.append)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["algorithm"], result["task"], result["seed"], result["status"]) == (name, "add1", 0, "finished")
    assert (result["budget_tokens"], result["budget_cpu_s"]) == (512, None)
    assert 512 <= result["tokens"] < 512 + 128
    assert result["episodes"] > 0
    assert result["cpu_s"] > 0
    assert set(result["test"]) == {"acc@1", "acc@2", "acc@3", "acc@4", "episodes", "problems", "tokens_per_episode"}
    assert result["test"]["episodes"] == 24
    lines = read_metrics(tmp_path / "run")
    assert lines == seen == done.history
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
    results = [
        run("maskable_ppo", tmp_path / f"{i}", settings={"seed": seed}, tokens=256) for i, seed in enumerate((5, 5, 6))
    ]
    curves = [without_seconds(result.history) for result in results]
    assert curves[0] == curves[1] != curves[2]
    assert results[0].test == results[1].test
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])


@pytest.mark.usefixtures("draws")
def test_what_was_learned_is_what_is_loaded(tmp_path: Path) -> None:
    done = run("recurrent_ppo", tmp_path / "run", task="lins", tokens=256)
    policy = load_classic(tmp_path / "run")
    context = np.asarray(load_tokenizer("builtin").encode("Solve 3x+4=19 for x."), np.int64)
    drawn = [one.complete([context] * 3, max_tokens=[8] * 3, seeds=[1, 2, 3]) for one in (policy, done.policy)]
    assert [one.ids.tolist() for one in drawn[0]] == [one.ids.tolist() for one in drawn[1]]
    suffixes = {path.suffix for path in (tmp_path / "run").iterdir() if path.is_file()}
    assert suffixes == {".json", ".jsonl", ".safetensors", ".png", ""}  # nothing that unpickles
    with pytest.raises(CheckpointError, match="no run in"):
        load_classic(tmp_path)
    with pytest.raises(CheckpointError, match="holds a run of a classic algorithm"):
        load_policy(tmp_path / "run")
    (tmp_path / "run" / "policy.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="holds no run of a classic algorithm that loads"):
        load_classic(tmp_path / "run")


def test_the_warm_start_is_the_language_models(tmp_path: Path) -> None:
    """Before training it solves what the language model solves; from random weights it solves next to nothing."""
    found = []
    for init in ("pretrained", "random"):
        settings = {"evaluation.episodes": 100, "policy.init": init, "evaluation.test_episodes": 0}
        found.append(run("sb3_ppo", tmp_path / init, task="lins", settings=settings, tokens=1).history[0])
    warm, cold = (line["validation/acc@1"] for line in found)
    assert warm > 0.2
    assert cold < 0.05


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = dataclasses.replace(CALCULATOR, shape=Shape(32, 1, 2, 32))
    return warmup(tmp_path_factory.mktemp("warm") / "start", recipe, steps=2)


@pytest.mark.parametrize("name", ["maskable_ppo", "recurrent_ppo", "sb3_dqn", "trpo"])
def test_a_warm_start_of_ones_own_is_begun_with(name: str, folder: Path, tmp_path: Path) -> None:
    """Masks, memory, values or a trust region: vocabulary, shape and weights are those of the folder."""
    sizes = {"width": 32, "layers": 1, "heads": 2, "feedforward": 32, "answer_characters": "+="}
    begun = {"policy.model": str(folder), "policy.init": "pretrained"}  # the task begins with random weights
    settings = {**sizes, **begun, "env.feedback": "tool", "env.max_completion_tokens": 20}
    done = run(name, tmp_path / "run", task="add1", settings=settings, tokens=8)
    assert done.status == "finished"
    policy = load_classic(tmp_path / "run")
    assert policy.tokenizer.get_vocab() == load_tokenizer(str(folder)).get_vocab()
    assert policy.tokenizer.get_vocab() != load_tokenizer("builtin").get_vocab()
    session = training.ClassicSession(read_config(tmp_path / "run"))
    assert session._eval_env.get_attr("dialogue")[0].tokenizer.get_vocab() == policy.tokenizer.get_vocab()
    session.close()
    began, ended = load_file(folder / "model.safetensors"), policy.model.policy.state_dict()
    tables = [value for key, value in ended.items() if key.endswith("embed_tokens.weight")]
    assert tables
    for table in tables:
        assert table.shape == began["model.embed_tokens.weight"].shape
        assert (table - began["model.embed_tokens.weight"]).abs().max() < 0.05, "it began there"


def test_a_warm_start_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"policy\.model '.*/none' is no folder: sb3_ppo needs one"):
        run("sb3_ppo", tmp_path / "run", settings={"policy.model": str(tmp_path / "none")})


def test_cpu_seconds_and_episodes_end_a_run(tmp_path: Path) -> None:
    done = run("sb3_a2c", tmp_path / "run", cpu_seconds=0.3)
    assert done.status == "finished"
    assert done.cpu_s >= 0.3
    assert done.history[-2]["cpu_s"] < 0.3
    assert "validation/acc@1" in done.history[-1]
    by_episodes = run("sb3_a2c", tmp_path / "other", episodes=20)
    assert by_episodes.episodes >= 20
    assert by_episodes.history[-2]["episodes"] < 20


@pytest.mark.parametrize("name", ["sb3_ppo", "sb3_dqn"])
def test_divergence_is_a_result(name: str, tmp_path: Path) -> None:
    """A learning rate beyond reason makes weights that are no numbers: the run says so, and raises nothing."""
    done = run(name, tmp_path / "run", tokens=4096, settings={"learning_rate": 1e30})
    assert done.status == "diverged"
    assert done.test is None
    assert "after" in done.message
    assert 0 <= done.tokens < 4096
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


def test_an_interrupted_run_leaves_no_result_and_begins_again(tmp_path: Path) -> None:
    def interrupt(line: Any) -> None:
        if line["iteration"] == 1:
            signal.raise_signal(signal.SIGINT)

    folder = tmp_path / "run"
    part = run("sb3_a2c", folder, on_progress=interrupt)
    assert part.interrupted
    assert len(read_metrics(folder)) == 2
    assert not (folder / "result.json").exists()
    again = run("sb3_a2c", folder, resume=True)
    whole = run("sb3_a2c", tmp_path / "whole")
    assert without_seconds(again.history) == without_seconds(whole.history)
    done = run("sb3_a2c", folder, resume=True)
    assert (done.status, done.test) == ("finished", whole.test), "a finished run has nothing left to do"


def test_a_curriculum_is_told_how_its_episodes_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mathturn_gym.problems import Curriculum

    told: list[Any] = []
    monkeypatch.setattr(Curriculum, "record", lambda self, cell, *, solved: told.append((cell, solved)))
    done = run("sb3_a2c", tmp_path / "run", task="mixed", settings={"window": 32})
    assert len(told) == done.episodes > 0
    assert {cell.partition("@")[0] for cell, _ in told} <= {"integers", "linear", "division", "gcd-lcm"}


def test_folders(tmp_path: Path) -> None:
    run("sb3_a2c", tmp_path / "run", tokens=64)
    with pytest.raises(InvalidValueError, match="holds a run already"):
        run("sb3_a2c", tmp_path / "run", tokens=64)
    run("sb3_a2c", tmp_path / "run", tokens=64, overwrite=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rat": 1}, "did you mean 'learning_rate'"),
        ({"n_envs": 0}, "sb3_ppo: n_envs must be an integer >= 1"),
        ({"answer_characters": 3}, "sb3_ppo: answer_characters must be a text"),
        ({"share_trunk": 1}, "sb3_ppo: share_trunk must be true or false"),
        ({"algorithm.reward_bias": float("nan")}, "sb3_ppo: reward_bias must"),
        ({"seed": -1}, "seed must be an integer"),
        ({"patience": 2}, "sb3_ppo does not stop early"),
        ({"policy.model": "gpt2"}, "begins with the built-in model's weights or with random ones"),
        ({"temperature": 0.5}, "of the policy it reads init and grammar alone"),
        ({"optimization.epochs": 2}, r"sb3_ppo does not read optimization\.epochs"),
        ({"memory": 3}, "unknown setting 'memory'"),
    ],
)
def test_mistakes_in_a_config(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        config("sb3_ppo", settings=settings)


def test_options_and_arguments_are_plain_json() -> None:
    whole = config("qr_dqn", "lins", {"buffer_size": 500, "quantiles": 7})
    data = json.loads(json.dumps(whole.to_json()))
    assert (data["algorithm"]["buffer_size"], data["algorithm"]["quantiles"]) == (500, 7)
    assert RunConfig.from_json(data) == whole
    assert PPO(arguments={"n_steps": 8}) == PPO.from_options({"n_steps": 8})
    with pytest.raises(InvalidValueError, match="unknown option of sb3_ppo 'n_step': did you mean 'n_steps'"):
        PPO.from_options({"arguments": {"n_step": 8}})


def test_no_policy_can_be_given(tmp_path: Path) -> None:
    policy = load_policy("builtin", device="cpu")
    with pytest.raises(InvalidValueError, match="begins with the built-in model's weights"):
        train(config("sb3_ppo"), policy=policy, run_dir=tmp_path / "run")
    with pytest.raises(InvalidValueError, match="trains a policy of its own kind"):
        SESSIONS["classic"](config("sb3_ppo"), policy)


def test_sb3_contrib_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    assert PPO.library_class().__name__ == "PPO"
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[baselines\]'"):
        config("trpo")
