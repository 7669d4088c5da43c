from __future__ import annotations

import json
import logging
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mathturn_gym.baselines.config import TrainConfig, preset
from mathturn_gym.baselines.reinforce import TurnBaseline
from mathturn_gym.baselines.runs import load_checkpoint, read_metrics
from mathturn_gym.baselines.trainer import accuracy_by_turn
from mathturn_gym.baselines.training import make_trainer, train
from mathturn_gym.decoding import BUILTIN_PATH
from mathturn_gym.errors import CheckpointError, InvalidValueError
from mathturn_gym.synthetic import synthetic_episode
from mathturn_gym.types import Status, Verdict
from mathturn_gym.wrappers.policy import CausalLMPolicy


def small(run_dir: Path, **changes: Any) -> TrainConfig:
    settings = {
        "episodes": 48,
        "batch_episodes": 8,
        "minibatches": 2,
        "epochs": 1,
        "eval_every": 3,
        "eval_episodes": 8,
        "save_every": 2,
        "num_turns": 2,
    }
    return preset("lins", str(run_dir), **{**settings, **changes})


def timeless(history: Any) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if not name.startswith(("time/", "cpu_s"))} for row in history]


def same_weights(first: CausalLMPolicy, second: CausalLMPolicy) -> bool:
    pairs = zip(first.model.parameters(), second.model.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_run_leaves_files_that_load(tmp_path: Path) -> None:
    config = small(tmp_path / "run")
    seen: list[dict[str, float]] = []
    threads = torch.get_num_threads()
    result = train(config, on_progress=seen.append)
    folder = tmp_path / "run"
    assert [row["iteration"] for row in result.history] == list(range(7))
    assert [row["iteration"] for row in result.history if "validation/acc@1" in row] == [0, 3, 6]
    assert read_metrics(folder) == result.history == seen
    assert TrainConfig.from_json(json.loads((folder / "config.json").read_text())) == config
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert any((folder / "tensorboard").iterdir())
    assert (result.policy.version, result.interrupted, torch.get_num_threads()) == (6, False, threads)
    loaded = CausalLMPolicy.from_pretrained(folder / "checkpoint")
    assert same_weights(loaded, result.policy)
    assert loaded.tokenizer is not None
    # No pickle, and nothing left over from writing.
    suffixes = {file.suffix for file in (folder / "checkpoint").iterdir()}
    assert suffixes == {".json", ".safetensors", ".jinja"}
    assert not [file.name for file in folder.iterdir() if file.name.startswith(".")]


def test_training_changes_the_weights_and_a_seed_repeats_it(tmp_path: Path) -> None:
    start = CausalLMPolicy.from_pretrained(BUILTIN_PATH)
    first, again, other = (
        train(small(tmp_path / name, seed=seed, episodes=16)) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert timeless(first.history) == timeless(again.history) != timeless(other.history)
    assert same_weights(first.policy, again.policy)
    assert not same_weights(first.policy, other.policy)
    assert not same_weights(first.policy, start)


def test_an_interrupted_run_resumes_the_same_curve(tmp_path: Path) -> None:
    whole = train(small(tmp_path / "whole"))

    def interrupt(metrics: dict[str, float]) -> None:
        if metrics["iteration"] == 3:
            signal.raise_signal(signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    part = train(small(tmp_path / "part"), on_progress=interrupt)
    assert signal.getsignal(signal.SIGINT) is handler
    assert part.interrupted
    assert len(part.history) == 4
    CausalLMPolicy.from_pretrained(tmp_path / "part" / "checkpoint")
    resumed = train(small(tmp_path / "part"), resume=True)
    assert not resumed.interrupted
    assert timeless(resumed.history) == timeless(whole.history)
    assert same_weights(resumed.policy, whole.policy)


def test_a_killed_run_resumes_from_its_last_checkpoint(tmp_path: Path) -> None:
    whole = train(small(tmp_path / "whole"))

    def die(metrics: dict[str, float]) -> None:
        if metrics["iteration"] == 5:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(small(tmp_path / "part"), on_progress=die)
    assert load_checkpoint(tmp_path / "part" / "checkpoint").iteration == 4
    assert [row["iteration"] for row in read_metrics(tmp_path / "part")] == [0, 1, 2, 3, 4, 5]
    # A line that the crash cut off is dropped, and iteration 5 is done again.
    with (tmp_path / "part" / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 6, "train/ac')
    resumed = train(small(tmp_path / "part"), resume=True)
    assert timeless(resumed.history) == timeless(whole.history)
    assert same_weights(resumed.policy, whole.policy)


def test_resuming_without_a_checkpoint_begins_at_the_beginning(tmp_path: Path) -> None:
    whole = train(small(tmp_path / "whole", episodes=8))
    config = small(tmp_path / "part", episodes=8)
    train(config)
    shutil.rmtree(tmp_path / "part" / "checkpoint")
    assert timeless(train(config, resume=True).history) == timeless(whole.history)


def test_a_crash_while_saving_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors.torch

    from mathturn_gym.baselines import runs

    config = small(tmp_path / "run", episodes=16)
    result = train(config)
    folder = runs.RunFolder(config, resume=True)
    trainer = make_trainer(config)
    trainer.load(folder.checkpoint_path)

    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", full_disk)
        with pytest.raises(OSError, match="no space"):
            folder.save(trainer.policy, trainer.state())
    assert same_weights(CausalLMPolicy.from_pretrained(folder.checkpoint_path), result.policy)
    # Died between the two renames: the old one is taken back.
    folder.checkpoint_path.rename(folder.path / ".checkpoint.old")
    assert folder.has_checkpoint()
    assert load_checkpoint(folder.checkpoint_path).iteration == 2
    folder.save(trainer.policy, trainer.state())
    assert load_checkpoint(folder.checkpoint_path).steps == 4


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    config = small(tmp_path / "run", episodes=8)
    train(config)
    with pytest.raises(InvalidValueError, match="holds a run already"):
        train(config)
    with pytest.raises(CheckpointError, match=r"learning_rate was 0\.001, is 0\.5"):
        train(small(tmp_path / "run", episodes=8, learning_rate=0.5), resume=True)
    assert len(train(config, overwrite=True).history) == 2
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    for choice in ("", "overwrite", "resume"):
        with pytest.raises(InvalidValueError, match="no run's folder"):
            train(small(other), resume=choice == "resume", overwrite=choice == "overwrite")
    assert (other / "mine.txt").exists()


def test_a_config_that_does_not_fit_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="unknown problems 'lns"):
        train(small(tmp_path / "run", problems="lns"))
    with pytest.raises(InvalidValueError, match=r"unknown policy .*nowhere"):
        train(small(tmp_path / "run", model=str(tmp_path / "nowhere")))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("broken", ["trainer.json", "trainer.safetensors"])
def test_a_broken_checkpoint_is_named(tmp_path: Path, broken: str) -> None:
    config = small(tmp_path / "run", episodes=8)
    train(config)
    (tmp_path / "run" / "checkpoint" / broken).write_text("{")
    with pytest.raises(CheckpointError, match="checkpoint"):
        train(config, resume=True)


def test_a_metrics_file_broken_in_the_middle_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 0}\n{"itera\n{"iteration": 2}\n')
    with pytest.raises(CheckpointError, match="line 2"):
        read_metrics(tmp_path)


def test_without_tensorboard_and_matplotlib_it_says_what_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("torch.utils.tensorboard", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with caplog.at_level(logging.WARNING, logger="mathturn_gym"):
        train(small(tmp_path / "run", episodes=8))
    assert [record.message.split()[0] for record in caplog.records] == ["tensorboard", "matplotlib"]
    assert not (tmp_path / "run" / "curve.png").exists()


def test_advantages_are_returns_minus_a_running_mean_of_their_turn() -> None:
    baseline = TurnBaseline(3, decay=0.75)
    first = [np.array([1.0]), np.array([-1.0, 1.0]), np.array([-1.0, -1.0])]
    # The first batch is judged by its own means (-1/3 and 0) and divided by the deviation of what is left.
    centered = np.array([4 / 3, -2 / 3, 1.0, -2 / 3, -1.0])
    found = np.concatenate(baseline.advantages(first))
    np.testing.assert_allclose(found, centered / centered.std(), rtol=1e-5)
    assert baseline.means[1:] == (0.0, None)
    # The second batch is judged by the means before it; turn 3 is new.
    second = [np.array([1.0]), np.array([-1.0, -1.0, 1.0])]
    centered = np.array([4 / 3, -2 / 3, -1.0, 0.0])
    np.testing.assert_allclose(
        np.concatenate(baseline.advantages(second)), (centered - 0) / centered.std(), rtol=1e-5, atol=1e-7
    )
    assert [round(mean or 0.0, 6) for mean in baseline.means] == [-0.25, -0.25, 1.0]
    # A batch in which all is as expected has no advantages, and divides by nothing.
    assert TurnBaseline(1, decay=0.9).advantages([np.array([1.0])] * 3)[0].tolist() == [0.0]


def test_hints_are_learned_within_a_few_iterations(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"episodes": 1280, "warmup_iterations": 4, "eval_every": 0, "eval_episodes": 256}
    config = preset("guess8", str(tmp_path / "run"), **changes)
    history = train(config).history
    # Blind guessing among ten digits solves 0.27; no policy that ignores the hints solves more than 0.375.
    assert history[0]["validation/acc@3"] < 0.34
    assert history[-1]["validation/acc@3"] > 0.42


def test_accuracy_by_turn_counts_episodes_solved_by_then() -> None:
    right, wrong = Verdict(Status.RIGHT), Verdict(Status.WRONG)
    verdicts = [(right,), (wrong, right), (wrong, wrong), (wrong, wrong)]
    episodes = [synthetic_episode(0, i, [2] * len(v), verdicts=v) for i, v in enumerate(verdicts)]
    assert accuracy_by_turn(episodes, 3) == {"acc@1": 0.25, "acc@2": 0.5, "acc@3": 0.5}
