"""Run folders that somebody else made: they import nothing, write nothing outside themselves, and nothing in them hangs."""

from __future__ import annotations

import functools
import gzip
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mathturn_gym.base.import_paths import is_import_path, names_code
from mathturn_gym.base.plots import new_figure, save_figure
from mathturn_gym.baselines.run_folder import (
    RunFolder,
    fingerprint,
    load_checkpoint,
    read_config,
    read_metrics,
    verify_checkpoint,
)
from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.cli.app import app
from mathturn_gym.episodes.trajectories import EpisodeWriter, read_episodes, write_episodes
from mathturn_gym.episodes.trajectories.records import episode_to_record
from mathturn_gym.errors import CheckpointError, InvalidEpisodeError, InvalidValueError, MathTurnError, StorageError
from mathturn_gym.policies import BUILTIN_PATH
from mathturn_gym.policies.config import MODEL_SCHEMES
from mathturn_gym.problems import load_problems
from mathturn_gym.show.view import sources, write_view
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.verifier.audit import load_cases
from mathturn_gym.wrappers import load_policy

RUNNER = CliRunner()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with a module and a package that leave a file when they are imported."""
    code = f"from pathlib import Path\nPath({str(tmp_path / 'witness')!r}).touch()\nx = print\n"
    (tmp_path / "evilmod.py").write_text(code)
    (tmp_path / "evilpkg").mkdir()
    (tmp_path / "evilpkg" / "__init__.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("evilmod", "evilpkg"):
        sys.modules.pop(name, None)


SENT = ("this.:x", "evilmod..a:x", "evilpkg.1:x", "evilmod:x.", "evilmod:x.1", "evilmod.é:x", "evilmod:x", "evilmod::x")
"""What strangers' folders named: all but the last two got their module imported once."""


def near_misses() -> list[str]:
    """Texts that are nearly import paths: a lax reader would import the module before it sees that they are none."""
    found, whole = list(SENT), "evilmod.a:x.y"
    for extra in (".", ":", "1", "é", " ", "\n", "-", "/", "\u200b", "ｘ"):
        found += [whole[:at] + extra + whole[at:] for at in range(len(whole) + 1)]
    return found


@functools.cache
def lins_config() -> str:
    return json.dumps(load_task("lins").config("reinforce").to_json())


def run_of(folder: Path, part: str, field: str, value: Any) -> Path:
    run = folder / "run"
    run.mkdir(exist_ok=True)
    config = json.loads(lins_config())
    config[part][field] = value
    (run / "config.json").write_text(json.dumps(config))
    return run


@pytest.mark.parametrize(
    ("part", "field"), [("policy", "model"), ("algorithm", "name"), ("env", "verifier"), ("env", "id")]
)
def test_near_misses_of_import_paths_are_code_before_anything_is_resolved(here: Path, part: str, field: str) -> None:
    for text in near_misses():
        run = run_of(here, part, field, text)
        with pytest.raises(CheckpointError, match="names code, which is not run"):
            read_config(run)
        if text in SENT:  # the command reads by the same function, and takes ten times as long
            with pytest.raises(CheckpointError, match="names code, which is not run"):
                RUNNER.invoke(app, ["train", "--run-dir", str(run), "--resume"], catch_exceptions=False)
        assert not (here / "witness").exists(), text


def well_formed(text: str) -> bool:
    """What the parser should say, by Python's own rules."""
    module, colon, names = text.partition(":")
    return bool(colon) and all(
        part.isascii() and part.isidentifier() for half in (module, names) for part in half.split(".")
    )


def test_what_is_no_import_path_is_never_imported(here: Path) -> None:
    """The readers behind the gate take nothing that is no import path."""
    assert well_formed("evilmod.a:x.y")
    for text in near_misses():
        assert is_import_path(text) == well_formed(text), text
        if not well_formed(text):
            with pytest.raises((InvalidValueError, CheckpointError)):
                load_policy(text)
            assert not (here / "witness").exists(), text


@pytest.mark.parametrize(
    "text", ["https://host:8000/v1", "hf:org/name", "vllm:folder", "builtin", "org/name", "runs/a"]
)
def test_urls_and_known_schemes_name_no_code(text: str, here: Path) -> None:
    assert not names_code(text, MODEL_SCHEMES)
    assert read_config(run_of(here, "policy", "model", text)).policy.model == text


def test_what_is_asked_for_may_run(here: Path) -> None:
    run = run_of(here, "env", "verifier", "evilmod:x")
    with pytest.raises(CheckpointError, match="names code"):
        read_config(run, allowed=["evilmod:y"])
    assert read_config(run, allowed=["evilmod:x"]) == read_config(run, own_code=True)


# ---- what transformers and peft would resolve


def model_folder(folder: Path, **changes: Any) -> Path:
    shutil.copytree(BUILTIN_PATH, folder / "model")
    file = folder / "model" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return folder / "model"


@pytest.mark.parametrize(
    "name", ["evil/kernel", "evil/kernel:f", "paged|evil/kernel", "evilmod:x", "kernels-community/flash-attn2"]
)
def test_an_attention_implementation_is_one_of_a_list(name: str, tmp_path: Path) -> None:
    """transformers fetches "ORG/NAME" from the hub and imports it."""
    with pytest.raises((InvalidValueError, CheckpointError), match="must be one of eager, sdpa"):
        load_policy("builtin", attention=name)
    for key, value in (("attn_implementation", name), ("_attn_implementation", {"": "sdpa", "text_config": name})):
        (tmp_path / key).mkdir()
        folder = model_folder(tmp_path / key, **{key: value})
        with pytest.raises(CheckpointError, match=f"{key} must be one of eager, sdpa"):
            load_policy(str(folder))
    (tmp_path / "nested").mkdir()
    folder = model_folder(tmp_path / "nested", text_config={"attn_implementation": name})
    with pytest.raises(CheckpointError, match="attn_implementation must be one of eager, sdpa"):
        load_policy(str(folder), init="random")


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 10**7},
        {"hidden_size": 10**9},
        {"text_config": {"num_layers": 10**7}},
        {"vocab_size": 2**31},
    ],
)
def test_sizes_that_no_model_has_are_refused_before_a_layer_is_made(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="must be at most"):
        load_policy(str(model_folder(tmp_path, **changes)), init="random")


@pytest.mark.parametrize(
    "settings",
    [
        {"peft_type": "PROMPT_TUNING", "tokenizer_name_or_path": "evil/name"},
        {"peft_type": "LORA", "megatron_config": {"a": 1}, "megatron_core": "evilmod.core"},
        {"peft_type": ["LORA"]},
    ],
)
def test_an_adapter_is_weights_and_nothing_else(settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({**settings, "base_model_name_or_path": "x/y"}))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    pytest.importorskip("peft")
    with pytest.raises(CheckpointError, match=r"peft_type must be one of|megatron_config would have peft import"):
        load_policy("builtin", adapter=str(tmp_path))


# ---- links, pipes, devices, holes


NAMES = (".lock", ".checkpoint.new", "curve.png", "tensorboard", "metrics.jsonl", "result.json", "episodes_train.jsonl")


@pytest.mark.parametrize("kind", ["file", "folder", "dangling", "pipe"])
@pytest.mark.parametrize("name", [*NAMES, "checkpoint/model.safetensors", "tensorboard/x"])
def test_nothing_is_written_through_what_is_no_regular_file(name: str, kind: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, "policy", "model", "builtin")
    victim = tmp_path / "victim"
    if kind == "file":
        victim.write_text("mine")
    elif kind == "folder":
        victim.mkdir()
        (victim / "mine").write_text("mine")
    place = run / name
    place.parent.mkdir(exist_ok=True)
    os.mkfifo(place) if kind == "pipe" else place.symlink_to(victim)
    # metrics.jsonl is read before the folder is opened for writing.
    with pytest.raises((StorageError, CheckpointError), match=re.escape(str(place))):
        RUNNER.invoke(app, ["train", "--run-dir", str(run), "--resume"], catch_exceptions=False)
    with pytest.raises(
        StorageError, match=f"{re.escape(str(place))} is a (link|pipe).*only regular files are written to"
    ):
        RunFolder(run, read_config(run), overwrite=True)
    assert victim.exists() == (kind in ("file", "folder"))
    if kind != "dangling" and kind != "pipe":
        assert (victim if kind == "file" else victim / "mine").read_text() == "mine"
    assert (run / "config.json").exists()


def test_an_evaluation_does_not_cut_or_append_a_linked_file(tmp_path: Path) -> None:
    asked = ["eval", "--policy", "random", "--episodes", "2", "--num-turns", "1", "--out", str(tmp_path / "e")]
    assert RUNNER.invoke(app, asked).exit_code == 0
    file, victim = tmp_path / "e" / "episodes.jsonl", tmp_path / "victim.jsonl"
    victim.write_text(file.read_text() + '{"half')
    file.unlink()
    file.symlink_to(victim)
    before = victim.read_bytes()
    with pytest.raises(StorageError, match="cannot be written"):
        RUNNER.invoke(app, [*asked, "--resume"], catch_exceptions=False)
    with pytest.raises(StorageError, match="cannot be written"):
        EpisodeWriter(file)
    assert victim.read_bytes() == before


def test_a_picture_takes_the_place_of_a_link(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "curve.png").symlink_to(tmp_path / "victim")
    save_figure(new_figure(1, 1), tmp_path / "curve.png")
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


READERS: dict[str, Callable[[Path], object]] = {
    "config.json": lambda run: read_config(run),
    "metrics.jsonl": lambda run: read_metrics(run),
    "checkpoint/checksums.json": lambda run: verify_checkpoint(run / "checkpoint"),
    "checkpoint/trainer.json": lambda run: load_checkpoint(run / "checkpoint"),
    "checkpoint/config.json": lambda run: load_policy(str(run / "checkpoint")),
    "checkpoint/tokenizer.json": lambda run: load_policy(str(run / "checkpoint")),
    "checkpoint/policy.json": lambda run: load_policy(str(run / "checkpoint")),
    "checkpoint/model.safetensors": lambda run: fingerprint(run / "checkpoint"),
    "episodes_train.jsonl": lambda run: list(read_episodes(run / "episodes_train.jsonl", strict=True)),
    "episodes_train.parquet": lambda run: list(read_episodes(run / "episodes_train.parquet", strict=True)),
    "answers.jsonl": lambda run: RUNNER.invoke(
        app, ["verify", "--file", str(run / "answers.jsonl")], catch_exceptions=False
    ),
    "cases.jsonl": lambda run: load_cases(run / "cases.jsonl"),
    "problems.jsonl": lambda run: load_problems(run / "problems.jsonl"),
    "problems.json.gz": lambda run: load_problems(run / "problems.json.gz"),
    "problems.parquet": lambda run: load_problems(run / "problems.parquet"),
}
READ_BY_VIEW = ("config.json", "metrics.jsonl", "episodes_train.jsonl", "checkpoint/policy.json")


def in_time(function: Callable[[], object]) -> BaseException | None:
    """What a function raises; a hang is an error of its own."""
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(AssertionError("it hangs")))
    signal.alarm(600)
    try:
        function()
    except (MathTurnError, SystemExit) as error:
        return error
    finally:
        signal.alarm(0)
    return None


@pytest.mark.parametrize("kind", ["pipe", "device", "holes"])
@pytest.mark.parametrize("name", READERS)
def test_a_reader_ends_at_what_never_ends(name: str, kind: str, tmp_path: Path) -> None:
    """Pipes without a writer, /dev/zero, and 100 GB that take no room on the disk."""
    run = run_of(tmp_path, "policy", "model", "builtin")
    shutil.copytree(BUILTIN_PATH, run / "checkpoint")
    place = run / name
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "device":
        place.symlink_to("/dev/zero")
    else:
        with place.open("wb") as stream:
            stream.truncate(100 * 10**9)
    error = in_time(lambda: READERS[name](run))
    assert error is not None
    assert "Traceback" not in str(error)


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", READ_BY_VIEW)
def test_the_viewer_ends_at_what_never_ends(name: str, kind: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, "policy", "model", "builtin")
    (run / "checkpoint").mkdir()
    write_episodes(run / "episodes_test.jsonl", [synthetic_episode(0, 0, [1], prompt=3)])
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name) if kind == "pipe" else (run / name).symlink_to("/dev/zero")
    in_time(lambda: write_view(tmp_path / "page.html", run))


@pytest.mark.parametrize("name", ["/dev/zero", "../config.json", "..", ".", "sub/x", ""])
def test_checksums_hold_plain_names(name: str, tmp_path: Path) -> None:
    (tmp_path / "checksums.json").write_text(json.dumps({name: "0"}))
    error = in_time(lambda: verify_checkpoint(tmp_path))
    assert "must hold plain names of files" in str(error)


# ---- totals


def test_a_parquet_file_of_kilobytes_does_not_become_gigabytes(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    count = 40_000_000
    ids = pa.ListArray.from_arrays([0, count], pa.array(np.full(count, 7, np.int8)))
    table = pa.table(
        {"prompt": ["p"], "completion": ["c"], "completion_ids": ids, "question": ["1+1?"], "answer": ["2"]}
    )
    pq.write_table(table, tmp_path / "completions.parquet")
    del table, ids
    assert (tmp_path / "completions.parquet").stat().st_size < 100_000
    for read in (
        lambda: write_view(tmp_path / "page.html", tmp_path / "completions.parquet"),
        lambda: load_problems(tmp_path / "completions.parquet"),
    ):
        assert "would unpack to" in str(in_time(read))


def test_a_long_text_that_many_rows_refer_to_is_refused_by_the_viewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    monkeypatch.setattr(sources, "_MOST_SHOWN", 10**7)
    table = pa.table({"prompt": ["p" * 10**4] * 10_000, "completion": ["c"] * 10_000})
    pq.write_table(table, tmp_path / "completions.parquet")
    assert "holds more than 10,000,000 bytes" in str(
        in_time(lambda: write_view(tmp_path / "p.html", tmp_path / "completions.parquet"))
    )


def test_twenty_million_bad_rows_end_early(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for _ in range(20):
            stream.write(b"{}\n" * 10**6)
    with pytest.raises(InvalidEpisodeError, match="is no file of episodes: 10,001 of its first 10,001 rows"):
        list(read_episodes(path))
    good = json.dumps(episode_to_record(synthetic_episode(0, 0, [1], prompt=3))).encode()
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(good + b"\n" + b"{}\n" * 10**6)
    with pytest.raises(InvalidValueError, match="holds no episodes: 10,000 of its first 10,002 lines"):
        write_view(tmp_path / "page.html", path)
