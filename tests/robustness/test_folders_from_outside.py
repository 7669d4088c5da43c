"""Run folders that somebody else made: they import nothing, write nothing outside themselves, and nothing in them hangs."""

from __future__ import annotations

import datetime
import functools
import gzip
import io
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mathturn_gym.base import parquet
from mathturn_gym.base.import_paths import is_import_path, names_code
from mathturn_gym.base.model_folders import check_adapter
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
from mathturn_gym.episodes.trajectories import EpisodeWriter, episode_to_record, read_episodes, write_episodes
from mathturn_gym.episodes.trajectories import files as trajectory_files
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


@pytest.mark.parametrize("name", ["num_turns", "max_completion_tokens"])
def test_sizes_of_an_environment_are_checked_with_the_config(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"env.{name} must be an integer"):
        read_config(run_of(tmp_path, "env", name, "x"))


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


@pytest.mark.parametrize("rollout", ["http://127.0.0.1:1", "sglang:http://127.0.0.1:1", "vllm:", "HTTP://host", ["x"]])
def test_a_stranger_names_no_rollout_engine(here: Path, rollout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that a folder named got the user's key, and the weights went to a folder of its choice."""
    run = run_of(here, "policy", "rollout", rollout)
    with pytest.raises(CheckpointError, match="names code, which is not run"):
        RUNNER.invoke(app, ["train", "--run-dir", str(run), "--resume"], catch_exceptions=False)
    if isinstance(rollout, str):
        assert read_config(run, own_code=True, resume=True).policy.rollout == rollout
        assert read_config(run).policy.rollout == rollout  # to be played, it needs no engine
    assert read_config(run_of(here, "policy", "rollout", "continuous"), resume=True).policy.rollout == "continuous"


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
        {"num_labels": 10**9},
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("r", 10**6),
        ("rank_pattern", {"q_proj": 10**6}),
        ("rank_pattern", {"([a-z.0-9]+)+!": 3}),
        ("target_modules", "(a+|[a-z.0-9]+)+!"),
        ("target_modules", "(.*.*.*.*.*.*.*)X"),
        ("exclude_modules", "([a-z.0-9]+){2,}!"),
        ("layer_replication", [[0, 1]] * 3000),
        ("init_lora_weights", "pissa_niter_100000000"),
    ],
)
def test_an_adapters_settings_have_an_end(name: str, value: Any) -> None:
    """peft matched names against such patterns, or factorised weights, for ever."""
    with pytest.raises(InvalidValueError, match=f"^{name} must|^r must|^{name} copies"):
        check_adapter({"peft_type": "LORA", name: value})
    check_adapter({"target_modules": r".*\.(q|k|v)_proj", "rank_pattern": {"^model.layers.0": 4}, "r": 8})


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
READ_BY_VIEW = ("config.json", "metrics.jsonl", "episodes_train.jsonl", "checkpoint/policy.json", "10.jsonl")


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


def test_links_that_lead_in_a_circle_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").symlink_to("a.jsonl")
    assert "is not there" in str(in_time(lambda: write_view(tmp_path / "page.html", tmp_path / "a.jsonl")))


@pytest.mark.parametrize("name", ["/dev/zero", "../config.json", "..", ".", "sub/x", ""])
def test_checksums_hold_plain_names(name: str, tmp_path: Path) -> None:
    (tmp_path / "checksums.json").write_text(json.dumps({name: "0"}))
    error = in_time(lambda: verify_checkpoint(tmp_path))
    assert "must hold plain names of files" in str(error)


# ---- totals


def test_a_parquet_file_of_kilobytes_does_not_become_gigabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    monkeypatch.setattr(parquet, "_FREE_VALUES", 10**6)
    count = 2_000_000
    ids = pa.ListArray.from_arrays([0, count], pa.array(np.full(count, 7, np.int8)))
    table = pa.table(
        {"prompt": ["p"], "completion": ["c"], "completion_ids": ids, "question": ["1+1?"], "answer": ["2"]}
    )
    pq.write_table(table, tmp_path / "completions.parquet")
    del table, ids
    assert (tmp_path / "completions.parquet").stat().st_size < 30_000
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
    batch = next(
        parquet.bounded_batches(tmp_path / "completions.parquet", batch_size=2, most=10**6, columns=["prompt"])
    )
    assert pa.types.is_dictionary(batch.column(0).type)  # each text is held once
    assert "holds more than 10,000,000 bytes" in str(
        in_time(lambda: write_view(tmp_path / "p.html", tmp_path / "completions.parquet"))
    )


def test_a_wide_value_that_all_rows_share_counts_once_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 1 kB whose dictionary held 8 MB took 4 GB: values of a fixed width leave their dictionary."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    text = ["1"] * 256
    wide = pa.array([bytes(20_000)] * 256, pa.binary(20_000))
    table = pa.table({"prompt": text, "completion": text, "question": text, "answer": text, "wide": wide})
    path = tmp_path / "completions.parquet"
    pq.write_table(table, path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 4_000
    assert load_problems(path).size == 1
    monkeypatch.setattr(parquet, "_FREE_BYTES", 4_000_000)
    for read in (lambda: write_view(tmp_path / "page.html", path), lambda: load_problems(path)):
        assert "would unpack to 5,1" in str(in_time(read))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
def test_the_sizes_of_a_parquet_file_are_those_of_its_pages(version: str, compression: str, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    rows = [{"a": [number], "b": {"c": str(number % 7)}} for number in range(3_000)]
    more = {"data_page_version": version, "compression": compression, "write_page_checksum": True}
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a", data_page_size=1_000, write_page_index=True, **more)
    group = pq.ParquetFile(tmp_path / "a").metadata.row_group(0)
    with (tmp_path / "a").open("rb") as stream:
        for column in map(group.column, range(group.num_columns)):
            # The metadata count headers too.
            assert 0.7 < parquet._pages_of(column, stream) / column.total_uncompressed_size < 1


def test_a_parquet_file_that_lies_about_its_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """19 kB said that they were 100 bytes, and took 3.5 GB."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    monkeypatch.setattr(parquet, "_FREE_BYTES", 10**5)
    path = tmp_path / "a.parquet"
    texts = {name: ["x" * 600_000] for name in ("prompt", "completion")}
    pq.write_table(pa.table(texts), path, compression="zstd", use_dictionary=False, write_statistics=False)
    size = pq.ParquetFile(path).metadata.row_group(0).column(0).total_uncompressed_size

    def varint(number: int) -> bytes:
        """Three bytes of Thrift's compact encoding."""
        return bytes([number << 1 & 127 | 128, number >> 6 & 127 | 128, number >> 13])

    data = path.read_bytes()
    assert data.count(varint(size)) == 2
    path.write_bytes(data.replace(varint(size), varint(100)))
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).total_uncompressed_size == 100
    with pytest.raises(InvalidValueError, match="would unpack to 1,200,"):
        write_view(tmp_path / "page.html", path)


@pytest.mark.parametrize(
    "broken", [b"", b"\x00", b"\x15\x00\x15", b"\x19", b"\x1c" * 10**5, b"\x15\x00\x15\x02\x15\x02\x00"]
)
def test_what_is_no_page_is_an_error(broken: bytes) -> None:
    chunk = SimpleNamespace(data_page_offset=0, dictionary_page_offset=None, total_compressed_size=10)
    with pytest.raises(ValueError, match=r"is none|no field of kind 9"):
        parquet._pages_of(chunk, io.BytesIO(broken))


def test_a_page_has_a_most_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """45 kB of Parquet had eight million rows, of which each took a kilobyte."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    monkeypatch.setattr(sources, "_MOST_EPISODES", 3)
    pq.write_table(pa.table({"prompt": ["p"] * 4, "completion": ["c"] * 4}), tmp_path / "a.parquet")
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as stream:
        stream.write('{"prompt": "p", "completion_ids": [1], "completion": "c"}\n' * 4)
    for name in ("a.parquet", "a.jsonl.gz"):
        with pytest.raises(InvalidValueError, match="has more than 3 rows"):
            write_view(tmp_path / "p.html", tmp_path / name)


@pytest.mark.parametrize("place", ["reward", "prompt_ids"])
@pytest.mark.parametrize("value", [b"\xff", Decimal("9" * 70), datetime.time(1), datetime.datetime(2026, 1, 1)])
def test_values_that_json_has_not_are_shown_as_text(place: str, value: Any, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table({"prompt": pa.array([None], pa.string()), "completion": ["c"], place: [value]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert in_time(lambda: write_view(tmp_path / "p.html", tmp_path / "a.parquet")) is None


def test_dates_that_python_has_not_are_an_error(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    for kind in (pa.duration("s"), pa.date64()):
        far = pa.array([2**62], kind)
        pq.write_table(pa.table({"prompt": ["p"], "completion": ["c"], "x": far}), tmp_path / "a.parquet")
        assert "cannot be read to its end" in str(
            in_time(lambda: write_view(tmp_path / "p.html", tmp_path / "a.parquet"))
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


@pytest.mark.parametrize(("good", "bad", "given_up"), [(8, 10, True), (10, 9, False)])
def test_a_file_of_more_bad_rows_than_episodes_is_given_up(
    good: int, bad: int, given_up: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_SHOWN", 2), ("_MOST_BAD", 5)):
        monkeypatch.setattr(trajectory_files, name, value)
    path = tmp_path / "episodes.jsonl"
    write_episodes(path, [synthetic_episode(0, 0, [1], prompt=3)] * good)
    with path.open("a") as stream:
        stream.write("{}\n" * bad)
    with pytest.raises(InvalidEpisodeError, match="is no file of episodes") if given_up else nullcontext():
        assert len(list(read_episodes(path))) == good


def test_batches_are_cut_at_what_may_be_held_and_lose_no_row(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path, rows = tmp_path / "a.parquet", list(range(10))
    pq.write_table(pa.table({"a": rows}), path)
    (whole,) = parquet.bounded_batches(path, batch_size=10, most=10**6)
    size = parquet._unpacked_rows(whole)
    assert len(list(parquet.bounded_batches(path, batch_size=10, most=size, total=size))) == 1
    parts = list(parquet.bounded_batches(path, batch_size=10, most=size - 1))
    assert [len(part) for part in parts] == [5, 5]
    assert [row for part in parts for row in part.column(0).to_pylist()] == rows
    with pytest.raises(ValueError, match="holds more than"):
        list(parquet.bounded_batches(path, batch_size=10, most=size, total=size - 1))


def test_a_file_of_half_a_line_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "episodes.jsonl").write_text('{"half')
    with EpisodeWriter(tmp_path / "episodes.jsonl") as writer:
        writer.write(synthetic_episode(0, 0, [1], prompt=3))
    assert len(list(read_episodes(tmp_path / "episodes.jsonl", strict=True))) == 1
