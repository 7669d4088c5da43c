"""A run's folder under faults: broken and missing files, full disks, two processes."""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import logging
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from mathturn_gym.base.files import locked
from mathturn_gym.baselines import RunConfig, run_folder, train
from mathturn_gym.baselines._evaluation import drop_episodes
from mathturn_gym.baselines.run_folder import (
    RunFolder,
    TrainerState,
    are_numbers,
    fingerprint,
    iteration_of,
    load_checkpoint,
    read_config,
    read_metrics,
    verify_checkpoint,
)
from mathturn_gym.episodes.trajectories import episode_to_record, read_episodes
from mathturn_gym.errors import CheckpointError, InvalidEpisodeError, InvalidValueError, LockedError, StorageError
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.wrappers import load_policy

Small = Callable[..., RunConfig]


@pytest.fixture(scope="module")
def finished(short_run: Callable[..., Path]) -> Path:
    """A run of six iterations with its last two checkpoints; tests work on copies of it."""
    return short_run(episodes=24, batch_episodes=4, save_every=2, **{"evaluation.every": 0})


def resume(run: Path) -> Any:
    return train(read_config(run), run_dir=run, resume=True)


def test_the_last_checkpoints_are_kept(run: Path) -> None:
    assert {one.name for one in run.glob("checkpoint*")} == {"checkpoint", "checkpoint-4"}
    assert [iteration_of(one) for one in (run / "checkpoint", run / "checkpoint-4")] == [6, 4]
    for one in run.glob("checkpoint*"):
        verify_checkpoint(one)
        load_policy(one)


def test_as_many_checkpoints_are_kept_as_asked_for(tmp_path: Path, small: Small) -> None:
    for keep, names in ((1, {"checkpoint"}), (3, {"checkpoint", "checkpoint-2", "checkpoint-1"})):
        settings = {"save_every": 1, "keep": keep, "evaluation.episodes": 0}
        train(small(settings=settings), run_dir=tmp_path / str(keep))
        assert {one.name for one in (tmp_path / str(keep)).glob("checkpoint*")} == names


def damage_truncated(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def damage_empty(file: Path) -> None:
    file.write_bytes(b"")


def damage_zeros(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def damage_deleted(file: Path) -> None:
    file.unlink()


def damage_garbage(file: Path) -> None:
    file.write_bytes(b"\xff{[" + file.read_bytes()[3:])


DAMAGES = (damage_truncated, damage_empty, damage_zeros, damage_deleted, damage_garbage)
DEAD = ".config.json.4194305-0123abcd.new"
"""What a process that was killed while it wrote leaves; none has this number."""
FILES = ("model.safetensors", "trainer.safetensors", "trainer.json", "checksums.json", "config.json")


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", FILES)
def test_a_broken_checkpoint_falls_back_to_the_one_before(
    run: Path, name: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(run / "checkpoint" / name)
    folder = RunFolder(run, read_config(run), resume=True)
    try:
        with caplog.at_level(logging.WARNING, logger="mathturn_gym"):
            found = folder.whole_checkpoint()
    finally:
        folder.close()
    assert found == run / "checkpoint-4"
    assert "going on from checkpoint-4, the checkpoint before" in caplog.text


def test_a_run_goes_on_from_the_checkpoint_before_to_the_same_end(run: Path, finished: Path) -> None:
    damage_truncated(run / "checkpoint" / "model.safetensors")
    result = resume(run)
    assert result.status == "finished"
    drop = ("time/", "cpu_s")
    lines = [
        [{k: v for k, v in row.items() if not k.startswith(drop)} for row in read_metrics(one)]
        for one in (run, finished)
    ]
    assert lines[0] == lines[1]
    assert fingerprint(run / "checkpoint") == fingerprint(finished / "checkpoint")


def test_where_no_checkpoint_is_whole_every_one_is_named(run: Path) -> None:
    for one in run.glob("checkpoint*"):
        damage_empty(one / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no checkpoint of .*checkpoint/model.safetensors is not as it"):
        resume(run)


def test_a_deleted_checkpoint_is_no_reason_to_begin_again(run: Path) -> None:
    for one in run.glob("checkpoint*"):
        shutil.rmtree(one)
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match="has no checkpoint, but its metrics reach iteration 6"):
        resume(run)
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(("reached", "save_every"), [(2, 2), (2, 1), (1, 2)])
def test_a_run_that_died_before_its_first_checkpoint_begins_again(run: Path, reached: int, save_every: int) -> None:
    """Where the last line is that of the first checkpoint's iteration, and where checkpoints are asked for oftener now."""
    for one in run.glob("checkpoint*"):
        shutil.rmtree(one)
    (run / "result.json").unlink()
    whole = read_metrics(run)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[: reached + 1]))
    result = train(read_config(run), run_dir=run, save_every=save_every, resume=True)
    assert result.status == "finished"
    assert [row["tokens"] for row in result.history] == [row["tokens"] for row in whole]


def test_a_process_that_died_between_two_renames_has_lost_nothing(run: Path) -> None:
    (run / "checkpoint").rename(run / "checkpoint-6")
    assert resume(run).status == "finished"


def test_what_a_killed_process_has_left_is_tidied_away(run: Path) -> None:
    shutil.copytree(run / "checkpoint-4", run / "checkpoint-2")
    (run / "checkpoint-2" / "model.safetensors").unlink()  # it was being deleted
    shutil.copytree(run / "checkpoint", run / ".checkpoint.new")
    (run / ".metrics.jsonl.4194305-0123abcd.new").write_text("{")  # a number that no process has
    assert resume(run).status == "finished"
    assert {one.name for one in run.glob("checkpoint*")} == {"checkpoint", "checkpoint-4"}
    assert {one.name for one in run.glob(".*")} == {".lock"}


def test_a_broken_checkpoint_keeps_the_one_before_whatever_keep_says(run: Path) -> None:
    damage_truncated(run / "checkpoint" / "model.safetensors")
    folder = RunFolder(run, dataclasses.replace(read_config(run), keep=1), resume=True)
    try:
        assert folder.whole_checkpoint() == run / "checkpoint-4"
        assert (run / "checkpoint-4").is_dir()
    finally:
        folder.close()


def test_another_checkpoint_of_another_run_is_refused(run: Path, tmp_path: Path, small: Small) -> None:
    train(small("ppo", {"env.num_turns": 1}, episodes=8), run_dir=tmp_path / "other")
    for name in ("checkpoint", "checkpoint-4"):
        shutil.rmtree(run / name)
    shutil.copytree(tmp_path / "other" / "checkpoint", run / "checkpoint")
    with pytest.raises(CheckpointError, match="no checkpoint of this run"):
        resume(run)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "must hold a JSON object, got list"),
        ("{", "cannot be read"),
        ("\xff", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"env": {}}', "config lacks algorithm"),
        ('{"envi": {}}', "unknown config field 'envi': did you mean 'env'"),
    ],
)
def test_a_config_that_is_none_is_named(run: Path, text: str, message: str) -> None:
    config = read_config(run)
    (run / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=message):
        read_config(run)
    with pytest.raises(CheckpointError):
        train(config, run_dir=run, resume=True)
    assert train(config, run_dir=run, overwrite=True).status == "finished", "overwriting needs nothing of the old run"


@pytest.mark.parametrize(
    "line",
    [
        b"[1]",
        b"3",
        b'{"itera',
        b'{"tokens": 3}',
        b'{"iteration": "x"}',
        b"\xff\xfe",
        bytes(40),
        b'{"iteration": 1, "loss": [1]}',
        b'{"iteration": 1, "loss": 1' + b"0" * 400 + b"}",
    ],
)
def test_a_metrics_file_broken_in_the_middle_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"iteration": 0}\n' + line + b'\n{"iteration": 2}\n')
    with pytest.raises(CheckpointError, match="line 2 is not a JSON object with an iteration"):
        read_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").write_bytes(b'{"iteration": 0}\n' + line)
    assert read_metrics(tmp_path) == [{"iteration": 0}], "the last line may be cut off"
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_metrics(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("checkpoint/trainer.json", ("numbers", "tokens"), math.inf),
        ("checkpoint/trainer.json", ("numbers", "baselines"), [10**400]),
        ("checkpoint/trainer.json", ("numbers",), {}),
        ("result.json", ("test",), "x"),
        ("result.json", ("test",), {}),
        ("result.json", ("test", "acc@1"), "x"),
    ],
)
def test_a_number_that_is_none_is_an_error(run: Path, name: str, field: tuple[str, ...], value: Any) -> None:
    facts = json.loads((run / name).read_text())
    facts["test"] = {"acc@1": 0.5, "episodes": 2, "problems": 1}
    *parts, last = field
    functools.reduce(lambda table, part: table[part], parts, facts)[last] = value
    (run / name).write_text(json.dumps(facts))
    (run / "checkpoint" / "checksums.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"is no checkpoint|test must be null or numbers by name"):
        resume(run)


def test_kept_episodes_of_a_stranger_are_dropped_or_refused(run: Path) -> None:
    file = run / "episodes_train.jsonl"
    record = episode_to_record(synthetic_episode(0, 0, [1], prompt=3))
    record["metadata"]["iteration"] = "x"
    file.write_text(json.dumps(record) + "\n")
    drop_episodes(run, 0)
    assert len(list(read_episodes(file))) == 1
    record["reward"] = math.nan
    record["verdicts"][0]["seconds"] = math.nan
    file.write_text(json.dumps(record) + "\n")
    with pytest.raises(InvalidEpisodeError, match="has no place in JSON"):
        drop_episodes(run, 0)


def test_a_fingerprint_is_of_the_weights_alone(run: Path) -> None:
    before = fingerprint(run / "checkpoint")
    assert before is not None
    (run / "checkpoint" / "trainer.safetensors").unlink()
    assert fingerprint(run / "checkpoint") == before
    damage_truncated(run / "checkpoint" / "model.safetensors")
    assert fingerprint(run / "checkpoint") != before
    assert fingerprint(run) is None
    assert fingerprint(run / "nowhere") is None


@pytest.mark.parametrize(
    ("schedule", "episodes", "goes_on"),
    [("constant", 1_000, True), ("constant", 8, True), ("linear", 1_000, True), ("linear", 8, False)],
)
def test_another_budget_goes_on_where_the_steps_so_far_are_the_same(
    run: Path, schedule: Any, episodes: int, goes_on: bool
) -> None:
    config = read_config(run)
    options = dataclasses.replace(config.optimization, schedule=schedule, final_learning_rate=None, warmup=0)
    stored = dataclasses.replace(config, optimization=options)
    (run / "config.json").write_text(json.dumps(stored.to_json()))
    wanted = dataclasses.replace(stored, budget=dataclasses.replace(stored.budget, episodes=episodes))
    with nullcontext() if goes_on else pytest.raises(CheckpointError, match=r"budget\.episodes was 24, is 8"):
        RunFolder(run, wanted, resume=True).close()
    assert read_config(run) == (wanted if goes_on else stored)


def test_what_opens_a_folder_in_vain_holds_no_lock(run: Path) -> None:
    with pytest.raises(InvalidValueError, match="holds a run already") as caught:
        RunFolder(run, read_config(run))
    with locked(run / ".lock"):
        assert caught.value is not None  # its traceback keeps the folder that was not opened


def test_a_checkpoint_has_its_name_on_the_disk(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[Path, bool]] = []
    monkeypatch.setattr(run_folder, "sync", lambda path, **_: synced.append((path, (run / "checkpoint").exists())))
    shutil.rmtree(run / "checkpoint")
    folder = RunFolder(run, read_config(run), resume=True)
    folder.save(load_policy("builtin"), TrainerState(1, 1, {}, {}))
    folder.close()
    assert synced == [(run / ".checkpoint.new", False), (run, True)]


def test_what_is_in_the_way_of_a_checkpoint_is_replaced(run: Path) -> None:
    folder = RunFolder(run, read_config(run), resume=True)
    newest = iteration_of(folder.checkpoint_path)
    for in_the_way in (run / ".checkpoint.new", run / f"checkpoint-{newest}"):  # of a save that failed, of another run
        in_the_way.mkdir(exist_ok=True)
        (in_the_way / "stale").touch()
    folder.save(load_policy("builtin"), TrainerState(newest + 1, 1, {}, {}))
    folder.close()
    assert iteration_of(folder.checkpoint_path) == newest + 1
    assert list(run.rglob("stale")) == []


def test_how_a_run_ended_is_quoted_where_it_is_a_word(run: Path) -> None:
    for status, said in (("finished", "already (finished):"), ("\x1b[31mred", "already:"), (3, "already:")):
        (run / "result.json").write_text(json.dumps({"status": status}))
        with pytest.raises(InvalidValueError, match="holds a run") as caught:
            RunFolder(run, read_config(run))
        assert said in str(caught.value)


def test_a_number_of_a_file_fits_in_64_bits() -> None:
    assert are_numbers({"a": 2**63 - 1, "b": -1, "c": 0.5})
    assert not are_numbers({"a": 2**63})


def test_events_are_on_the_disk_after_each_iteration(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils import tensorboard

    purged: list[int] = []

    class Writer(tensorboard.SummaryWriter):
        def __init__(self, folder: str, purge_step: int) -> None:
            purged.append(purge_step)
            super().__init__(folder, purge_step=purge_step)

    monkeypatch.setattr(tensorboard, "SummaryWriter", Writer)
    folder = RunFolder(run, read_config(run), resume=True)
    folder.start_metrics(6)
    assert purged == [7], "what a killed process logged after the checkpoint is shown no more"
    size = sum(one.stat().st_size for one in (run / "tensorboard").iterdir())
    folder.log({"iteration": 7.0, "loss": 1.0})
    assert sum(one.stat().st_size for one in (run / "tensorboard").iterdir()) > size
    folder.close()


def test_a_folder_that_holds_no_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no run in .*: it has no config\.json"):
        read_config(tmp_path)


@pytest.mark.parametrize("left_over", [[".lock"], [".config.json.new"], [".config.json.new", ".lock"], [DEAD, ".lock"]])
def test_a_process_killed_before_its_first_config_leaves_a_folder_that_can_be_used(
    tmp_path: Path, small: Small, left_over: list[str]
) -> None:
    for choice in ({}, {"resume": True}, {"overwrite": True}):
        folder = tmp_path / "-".join(choice or ["new"])
        folder.mkdir()
        for name in left_over:
            (folder / name).write_text('{"env": ')
        made = RunFolder(folder, small(), **choice)
        made.close()
        assert read_config(folder) == small()
        assert not (folder / DEAD).exists()


def test_an_overwritten_run_is_recognizable_until_its_last_file_is_gone(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, gone = read_config(run), []

    def die(path: Any, **_: Any) -> None:
        gone.append(Path(path).name)
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", die)
    with pytest.raises(KeyboardInterrupt):
        RunFolder(run, config, overwrite=True)
    monkeypatch.undo()
    assert gone
    RunFolder(run, config, overwrite=True).close()
    assert {one.name for one in run.iterdir()} == {".lock", "config.json"}


def test_a_crash_while_saving_leaves_the_checkpoint_before(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors.torch

    from mathturn_gym.baselines.trainer import Trainer

    config = read_config(run)
    trainer = Trainer(config)
    folder = RunFolder(run, config, resume=True)
    try:
        trainer.load(run / "checkpoint")
        before = fingerprint(run / "checkpoint")

        def full_disk(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(safetensors.torch, "save_file", full_disk)
            with pytest.raises(StorageError, match=r"checkpoint.new cannot be written: No space left on device"):
                folder.save(trainer.policy, trainer.checkpoint())
        verify_checkpoint(run / "checkpoint")
        assert fingerprint(run / "checkpoint") == before
        folder.save(trainer.policy, trainer.checkpoint())
        assert load_checkpoint(run / "checkpoint").iteration == 6
    finally:
        folder.close()
        trainer.close()


def test_a_full_disk_under_the_metrics_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(run, read_config(run), resume=True)

    def full_disk(*_: Any, **__: Any) -> Iterator[Any]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_folder, "open_regular", full_disk)
    with pytest.raises(StorageError, match="cannot be written: No space left on device"):
        folder.log({"iteration": 7})
    monkeypatch.undo()
    folder.close()


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/sys").exists(), reason="root may write anywhere")
def test_a_folder_that_cannot_be_made_is_named(small: Small) -> None:
    with pytest.raises(StorageError, match=r"/proc/sys/run cannot be written"):
        RunFolder("/proc/sys/run", small())


def test_one_process_trains_in_a_folder_at_a_time(run: Path) -> None:
    code = (
        "import sys\n"
        "from mathturn_gym.baselines.run_folder import RunFolder, read_config\n"
        "folder = RunFolder(sys.argv[1], read_config(sys.argv[1]), resume=True)\n"
        "print('held', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        before = (run / "metrics.jsonl").read_bytes()
        for choice in ("resume", "overwrite"):
            with pytest.raises(LockedError, match="another process trains there"):
                train(read_config(run), run_dir=run, resume=choice == "resume", overwrite=choice == "overwrite")
        assert (run / "metrics.jsonl").read_bytes() == before
        other.communicate("\n")
    assert resume(run).status == "finished", "the lock ends with its process"


def test_an_existing_folder_of_others_is_left_alone(tmp_path: Path, small: Small) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InvalidValueError, match="is no run's folder"):
        RunFolder(tmp_path, small(), overwrite=True)
    assert [one.name for one in tmp_path.iterdir()] == ["mine.txt"]


def test_a_result_is_plain_json(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    assert set(result) == {
        "algorithm",
        "task",
        "seed",
        "status",
        "message",
        "episodes",
        "tokens",
        "total_tokens",
        "cpu_s",
        "budget_tokens",
        "budget_total_tokens",
        "budget_cpu_s",
        "test",
    }
