"""What a path holds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from mathturn_gym.episodes.trajectories import write_episodes
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.show.view import sources, write_view
from mathturn_gym.show.view._write import find_tokenizer, read_view
from mathturn_gym.show.view.sources import LineLog, read_curves, read_sets, run_names
from mathturn_gym.types import Episode


def write_lines(path: Path, *records: Any) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "parquet"])
def test_files_of_ours_are_read_whatever_their_form(tmp_path: Path, before: list[Episode], suffix: str) -> None:
    path = tmp_path / f"episodes.{suffix}"
    write_episodes(path, before)
    for place in (path, tmp_path):
        (found,) = read_sets(place, "run")
        assert (found.name, found.format, found.left_out) == ("run", "mathturn_gym", [])
        assert [e.problem_id for e in found.episodes] == [e.problem_id for e in before]
        assert "advantage" in found.episodes[0].values


def test_a_folder_shows_what_it_holds_before_and_after_in_order(tmp_path: Path, before: list[Episode]) -> None:
    for name in ("episodes_before", "episodes_after", "another"):
        write_episodes(tmp_path / f"{name}.jsonl", before[:2])
    write_lines(tmp_path / "metrics.jsonl", {"iteration": 1, "loss": 0.5})
    write_lines(tmp_path / "problems.jsonl", {"question": "1+1", "answer": "2"})
    assert [one.name for one in read_sets(tmp_path, "run")] == [
        "run: episodes_before",
        "run: episodes_after",
        "run: another",
    ]


def test_numbered_files_are_the_steps_of_one_set_in_their_order(tmp_path: Path) -> None:
    for step in (9, 10):
        record = {"input": "1+1?", "output": f"step {step}", "score": 1.0, "step": step}
        write_lines(tmp_path / f"{step}.jsonl", record)
    (found,) = read_sets(tmp_path, "run")
    assert [one.messages[-1].text for one in found.episodes] == ["step 9", "step 10"]


def test_texts_count_for_the_memory_of_a_page(before: list[Episode], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_MOST_SHOWN", 32 * len(before[0].ids) + len(before[0].prompt))
    with pytest.raises(InvalidValueError, match="which no page can show"):
        list(sources._at_most(before[:1], Path("episodes.parquet")))


def test_broken_rows_are_named_and_the_rest_is_shown(tmp_path: Path, before: list[Episode]) -> None:
    path = tmp_path / "episodes.jsonl"
    write_episodes(path, before[:2])
    with path.open("a") as stream:
        stream.write('[1]\n{"schema": "mathturn_gym.episode"}\n{"torn')
    (found,) = read_sets(path, "run")
    assert len(found.episodes) == 2
    assert [reason.split(":")[0] for reason in found.left_out] == [f"episodes.jsonl, line {n}" for n in (3, 4, 5)]
    whole = gzip.compress(path.read_bytes())
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (found,) = read_sets(tmp_path / "cut.jsonl.gz", "run")
    assert "end-of-stream" in found.left_out[-1]


def test_what_holds_no_episodes_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="is not there"):
        read_sets(tmp_path / "none", "x")
    with pytest.raises(InvalidValueError, match="holds no episodes: expected"):
        read_sets(tmp_path, "x")
    other = write_lines(tmp_path / "other.jsonl", {"question": "1+1", "answer": "2"})
    with pytest.raises(
        InvalidValueError, match="first line has the fields question, answer; known are mathturn_gym, veri"
    ):
        read_sets(other, "x")
    with pytest.raises(InvalidValueError, match=r"must end in .jsonl"):
        read_sets(write_lines(tmp_path / "x.txt", "hello"), "x")
    with pytest.raises(InvalidValueError, match="at least one run"):
        read_view([])


def test_a_growing_file_is_read_on(tmp_path: Path, before: list[Episode]) -> None:
    write_episodes(tmp_path / "all.jsonl", before[:4])
    lines = (tmp_path / "all.jsonl").read_bytes().splitlines(keepends=True)
    path = tmp_path / "run.jsonl"
    path.write_bytes(lines[0] + lines[1][:50])
    log = LineLog(path)
    assert [e.index for e in log.read(growing=True)] == [0]
    assert log.read(growing=True) == []
    with path.open("ab") as stream:
        stream.write(lines[1][50:] + b"nonsense\n" + lines[2])
    assert [e.index for e in log.read(growing=True)] == [1, 2]
    assert [reason.split(":")[0] for reason in log.left_out] == ["run.jsonl, line 3"]
    assert not log.shrunk
    path.write_bytes(lines[0])
    assert log.shrunk


def test_curves_of_ours_and_of_hugging_face_trainers(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 1, "loss": 0.5, "note": "x"}\n{"iteration": 2, "acc": 1}\n{"iterat')
    (curves,) = read_curves(tmp_path, "run")
    assert curves.columns == {"iteration": [1.0, 2.0], "loss": [0.5, None], "acc": [None, 1.0]}
    path.write_text('{"torn\n{"iteration": 2}\n')
    with pytest.raises(InvalidValueError, match="line 1 is not JSON"):
        read_curves(tmp_path, "run")
    path.unlink()
    for step in (10, 20):
        (tmp_path / f"checkpoint-{step}").mkdir()
        history = [{"step": s, "reward": s / 10} for s in range(10, step + 1, 10)]
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    (curves,) = read_curves(tmp_path, "run")
    assert curves.columns == {"step": [10.0, 20.0], "reward": [1.0, 2.0]}
    assert read_curves(tmp_path / "metrics.jsonl", "run") == []


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/x/one", "/x/two"], ["one", "two"]),
        (["/x/a/run", "/x/b/run"], ["a/run", "b/run"]),
        (["/x/grpo/lins/seed-0/run", "/x/ppo/lins/seed-0/run"], ["grpo/…/run", "ppo/…/run"]),
        (["/x/ppo/add1/seed-0/run", "/x/ppo/lins/seed-0/run"], ["add1/…/run", "lins/…/run"]),
        (["/x/run", "/x/run"], ["//x/run (1)", "//x/run (2)"]),
    ],
)
def test_runs_get_names_that_differ(paths: list[str], names: list[str]) -> None:
    """The runs of a comparison are all called `seed-0/run`."""
    assert run_names([Path(path) for path in paths]) == names


def test_the_tokenizer_is_the_one_that_the_run_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_tokenizer(tmp_path) is None
    (tmp_path / "settings.json").write_text('{"policy": "builtin", "tokenizer": null}')
    assert find_tokenizer(tmp_path) == "builtin"
    (tmp_path / "settings.json").write_text('{"policy": "org/name-on-a-hub"}')
    assert find_tokenizer(tmp_path) is None  # nobody is asked
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "tokenizer_config.json").write_text("{}")
    assert find_tokenizer(tmp_path) == str(tmp_path / "checkpoint")
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({"a": [1], "b": {"policy": str(tmp_path)}}))
    assert find_tokenizer(other) == str(tmp_path / "checkpoint")
    hub = tmp_path / "models--org--name" / "snapshots" / "abc"
    hub.mkdir(parents=True)
    (hub / "tokenizer_config.json").write_text("{}")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, file: str(hub / file))
    (other / "config.json").write_text('{"policy": "hf:org/name"}')
    assert find_tokenizer(other) == str(hub)
    monkeypatch.setenv("MATHTURN_MODELS", str(tmp_path))
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "tokenizer_config.json").write_text("{}")
    (other / "config.json").write_text('{"policy": "smollm2"}')
    assert find_tokenizer(other) == str(tmp_path / "smollm2")
    (other / "config.json").write_text("{")
    with pytest.raises(InvalidValueError, match="--tokenizer says which"):
        find_tokenizer(other)


def test_runs_of_one_name_are_told_apart(tmp_path: Path, before: list[Episode]) -> None:
    for name in ("a/run", "b/run"):
        (tmp_path / name).mkdir(parents=True)
        write_episodes(tmp_path / name / "episodes.jsonl", before[:1])
    view = read_view([tmp_path / "a/run", tmp_path / "b/run"])
    assert [one.name for one in view.sets] == ["a/run", "b/run"]


def test_mistakes_of_writing_are_named(tmp_path: Path, before: list[Episode]) -> None:
    with pytest.raises(InvalidValueError, match="folder that is there"):
        write_view(tmp_path / "no" / "v.html", {"x": before})
    with pytest.raises(InvalidValueError, match="got both"):
        write_view(tmp_path / "v.html", {"x": [before[0], read_view({"y": before}).sets[0].episodes[0]]})  # type: ignore[dict-item]
