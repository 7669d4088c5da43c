from __future__ import annotations

import dataclasses
import gzip
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mathturn_gym.episodes.returns import returns_to_go
from mathturn_gym.episodes.trajectories import EpisodeWriter, read_episodes, write_episodes
from mathturn_gym.episodes.trajectories.records import SCHEMA_VERSION, episode_from_record, episode_to_record
from mathturn_gym.episodes.trajectories.tables import episodes_to_table
from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode, Status, StopReason, Verdict

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SUFFIXES = ("jsonl", "jsonl.gz", "parquet")

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
METADATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    return Verdict(
        draw(st.sampled_from(Status)),
        draw(TEXTS),
        draw(st.none() | st.floats(0, 1)),
        draw(st.none() | TEXTS),
        draw(st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9))),
        draw(st.none() | TEXTS),
        draw(st.none() | TEXTS),
        draw(st.none() | TEXTS),
        draw(st.floats(0, 9)),
    )


@st.composite
def any_episode(draw: st.DrawFn) -> Episode:
    lengths, prompt = draw(st.lists(st.integers(0, 3), max_size=3)), draw(st.integers(0, 3))
    base = synthetic_episode(
        0,
        draw(st.integers(0, 5)),
        lengths,
        prompt=prompt,
        feedback=draw(st.integers(0, 2)),
        anew=[turn for turn in range(1, len(lengths)) if prompt and draw(st.booleans())],
        logprobs=draw(st.booleans()),
        max_version=5,
    )
    turns = len(lengths)
    rewards = np.array(draw(st.lists(FLOATS, min_size=turns, max_size=turns)), np.float64)
    logprobs = base.logprobs.copy()
    # Values whose decimal text is long, tiny or signed: -0.0, subnormals, the largest.
    special = st.sampled_from([-0.0, -1e-45, -1.1754944e-38, -3.4028235e38, -0.1, float("nan")])
    for at in np.flatnonzero(base.loss_mask):
        logprobs[at] = draw(special)
    said = base.ids[base.loss_mask].astype(np.int32)
    drawn: npt.NDArray[np.int32] = np.add(said[:, None], np.arange(2), dtype=np.int32)
    drawn[1:, 1:] = draw(st.sampled_from([-1, 7]))
    return dataclasses.replace(
        base,
        problem_id=draw(TEXTS),
        logprobs=logprobs,
        rewards=rewards,
        verdicts=tuple(draw(verdicts()) for _ in lengths),
        feedbacks=tuple(draw(TEXTS) for _ in lengths),
        turn_truncated=tuple(draw(st.booleans()) for _ in lengths),
        terminated=draw(st.booleans()),
        truncated=draw(st.booleans()),
        stop_reason=draw(st.none() | st.sampled_from(StopReason)),
        returns=draw(st.sampled_from([None, np.linspace(0, 1, turns, dtype=np.float32)])),
        discount=draw(st.none() | st.floats(0, 1)),
        index=draw(st.integers(0, 2**63 - 1)),
        seed=draw(st.none() | st.integers(0, 2**63 - 1)),
        group=draw(st.none() | TEXTS),
        metadata=draw(st.dictionaries(TEXTS, METADATA, max_size=2)),
        prompt=draw(TEXTS),
        responses=draw(st.sampled_from([(), tuple(draw(TEXTS) for _ in lengths)])),
        gold=tuple(draw(st.lists(TEXTS, max_size=2))),
        budgets=draw(st.sampled_from([(), tuple(range(turns))])),
        token_values={
            name: np.array([draw(special | st.just(1.5)) for _ in base.ids], np.float32)
            for name in draw(st.sets(TEXTS, max_size=2))
        },
        support=draw(st.sampled_from([None, drawn if len(said) else None])),
    )


def assert_same(left: Episode, right: Episode) -> None:
    for field in dataclasses.fields(Episode):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if isinstance(a, np.ndarray):
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), field.name
        elif field.name == "token_values":
            assert {name: (v.dtype, v.tobytes()) for name, v in a.items()} == {
                name: (v.dtype, v.tobytes()) for name, v in b.items()
            }
        elif field.name == "verdicts":  # their clocks too, which equality leaves out
            assert [repr(dataclasses.astuple(v)) for v in a] == [repr(dataclasses.astuple(v)) for v in b]
        else:
            assert repr(a) == repr(b), field.name  # tells -0.0 from 0.0 and True from 1
            assert a == b, field.name


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(episodes=st.lists(any_episode(), max_size=4), size=st.integers(1, 3))
def test_round_trips_keep_every_bit(tmp_path: Path, suffix: str, episodes: list[Episode], size: int) -> None:
    path = tmp_path / f"episodes.{suffix}"
    assert write_episodes(path, iter(episodes), row_group_size=size) == len(episodes)
    reader = read_episodes(path, batch_size=size)
    for _ in range(2):  # a second reading begins anew
        found = list(reader)
        assert reader.bad_rows == []
        for before, after in zip(episodes, found, strict=True):
            assert_same(before, after)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def sample(count: int = 3) -> list[Episode]:
    return [
        synthetic_episode(0, i, [2, 1], group="g", returns=returns_to_go([1.0, 2.0], 0.5), discount=0.5)
        for i in range(count)
    ]


def spoil(**changes: Any) -> dict[str, Any]:
    record = episode_to_record(sample(1)[0])
    record.update(changes)
    return {name: value for name, value in record.items() if value is not ...}


BAD = [
    ("[]", "a record must be an object, got list"),
    ("{", "Expecting property name"),
    ("\xff", "decode"),
    ("NaN", "a record must be an object"),
    (spoil(schema="other"), "schema must be 'mathturn_gym.episode'"),
    (spoil(schema_version=SCHEMA_VERSION + 1), "version 1, got 'mathturn_gym.episode' version 2"),
    (spoil(ids=...), "field 'ids' is missing"),
    (spoil(ids=[1.0, 2.0]), "ids must be a list of integers"),
    (spoil(ids=[2**70]), "does not fit in int64"),
    (spoil(ids=[1, 2, 3]), "episode 0 on 'synthetic/g'"),
    (spoil(loss_mask=[7] * 15), "loss_mask must be 0 or 1"),
    (spoil(logprobs=["x"]), "logprobs must be a list of numbers"),
    (spoil(logprobs=[0.5] * 15), "log-probs must be 0"),
    (spoil(logprobs=[0] * 8 + [0.5, 0] + [0] * 5), "logprobs.* must be a finite number <= 0, got 0.5"),
    (spoil(logprobs=[0] * 8 + [-1e300, 0] + [0] * 5), "must be a finite number <= 0, got -inf"),
    (spoil(logprobs=[0] * 8 + [-(10**400), 0] + [0] * 5), "does not fit in a float"),
    (spoil(versions=[-1] * 8 + [2, 1] + [-1] * 4 + [1]), "versions run backwards"),
    (spoil(turn_spans=[[8, 10]]), "rewards"),
    (spoil(turn_spans=[8, 10]), "turn_spans must be a list of"),
    (spoil(rewards=[1.0, 1e999]), "rewards must be finite"),
    (spoil(verdicts=[{}, {}]), "verdict of turn 0: field 'span' is missing"),
    (spoil(feedbacks=["a"]), "feedbacks has 1 entries for 2 turns"),
    (spoil(turn_truncated=[0, 1]), "turn_truncated must be a list of bool"),
    (spoil(terminated=1), "terminated must be of type bool"),
    (spoil(stop_reason="tired"), "'tired' is not a valid StopReason"),
    (spoil(returns=[1.0]), "returns must be float32"),
    (spoil(seed="1"), "seed must be of type int"),
    (spoil(group=3), "group must be of type str"),
    (spoil(metadata=[]), "metadata must be of type dict"),
    (spoil(prompt=3), "prompt must be of type str"),
    (spoil(responses=["a"]), "responses has 1 entries for 2 turns"),
    (spoil(gold="4"), "gold must be a list of str"),
    (spoil(budgets=[1, 2.0]), "budgets must be a list of int"),
    (spoil(token_values=[1.0]), "token_values must be of type dict"),
    (spoil(token_values={"entropy": [0.5]}), r"token_values\['entropy'\] must be float32 of shape"),
    (spoil(token_values={"entropy": 0.5}), r"token_values\['entropy'\] must be a list of numbers"),
    (spoil(support=[[1]]), r"support must be int32 of shape"),
    (spoil(support=[1]), "support must be a list of list"),
    (spoil(support=[["a"]]), "support must be a list of integers"),
]


def test_bad_rows_are_named_kept_apart_and_the_rest_loads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = [json.dumps(episode_to_record(e)).encode() for e in sample(2)]
    bad = [(row if isinstance(row, str) else json.dumps(row)).encode("latin-1") for row, _ in BAD]
    nested = b"[" * 100_000
    torn = good[1][: len(good[1]) // 2]  # a writer that was killed
    path = tmp_path / "mixed.jsonl"
    path.write_bytes(b"\n".join([good[0], *bad, nested, good[1], torn]))
    with caplog.at_level(logging.WARNING):
        reader = read_episodes(path)
        assert [e.index for e in reader] == [0, 1]
    assert [row.row for row in reader.bad_rows] == [*range(1, len(bad) + 2), len(bad) + 3]
    import re

    for (_, reason), found in zip(BAD, reader.bad_rows, strict=False):
        assert re.search(reason, found.reason), (reason, found.reason)
        assert f"mixed.jsonl, row {found.row}: " in str(found)
        assert str(found) in caplog.text
    assert reader.bad_rows[2].content == "\\xff"
    assert reader.bad_rows[-1].content == torn.decode()
    with pytest.raises(InvalidEpisodeError, match=r"mixed.jsonl, row 1: a record must be an object"):
        list(read_episodes(path, strict=True))


def test_parquet_rows_that_fail_are_named_and_the_rest_loads(tmp_path: Path) -> None:
    table = episodes_to_table(sample(5))
    rows = table.to_pylist()
    rows[1]["logprobs"] = None
    rows[2]["ids"][0] = None
    rows[3]["metadata_json"] = "{"
    rows[4]["turn_starts"] = rows[4]["turn_starts"][:1]
    path = tmp_path / "mixed.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    reader = read_episodes(path, batch_size=2)
    assert [e.index for e in reader] == [0]
    assert [row.row for row in reader.bad_rows] == [1, 2, 3, 4]
    reasons = [row.reason for row in reader.bad_rows]
    assert reasons[0] == "logprobs must hold numbers, has null"
    assert reasons[1] == "ids must hold numbers, has null"
    assert "metadata_json is not JSON" in reasons[2]
    assert reasons[3] == "turn_starts has 1 entries, turn_ends 2"


def test_parquet_written_by_others_loads(tmp_path: Path) -> None:
    """Large lists and strings, another column order, a column more: what other writers make of the schema."""
    table = episodes_to_table(sample(3))
    large = pa.schema(
        [
            pa.field(f.name, pa.large_list(f.type.value_type) if f.name == "ids" else f.type)
            if f.name != "problem_id"
            else pa.field(f.name, pa.large_string())
            for f in reversed(table.schema)
        ],
        metadata=table.schema.metadata,
    )
    other = table.select(large.names).cast(large).append_column("extra", pa.array([1, 2, 3]))
    path = tmp_path / "other.parquet"
    pq.write_table(other, path)
    for before, after in zip(sample(3), read_episodes(path, strict=True), strict=True):
        assert_same(before, after)


LATER = ("prompt", "responses", "gold", "budgets", "token_values", "support")


def test_files_from_before_texts_were_kept_load(tmp_path: Path) -> None:
    """Records and tables without the fields that came later give episodes without texts."""
    record = episode_to_record(sample(1)[0])
    plain = episode_from_record({name: value for name, value in record.items() if name not in LATER})
    assert_same(plain, sample(1)[0])
    table = episodes_to_table(sample(2)).drop_columns(list(LATER))
    pq.write_table(table, tmp_path / "old.parquet")
    for before, after in zip(sample(2), read_episodes(tmp_path / "old.parquet", strict=True), strict=True):
        assert_same(before, after)
    assert (plain.prompt, plain.responses, plain.turns[0].response, plain.turns[0].budget) == ("", (), None, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.replace_schema_metadata({"schema": "other"}),
            "schema must be 'mathturn_gym.episode' version 1, got 'other' version None",
        ),
        (
            lambda t: t.replace_schema_metadata({"schema": "mathturn_gym.episode", "schema_version": "9"}),
            "version '9'",
        ),
        (lambda t: t.drop_columns(["versions"]), "column 'versions' is missing"),
        (
            lambda t: t.set_column(1, "ids", pa.array([[1.0]] * t.num_rows)),
            r"column 'ids' must be list<.*int64>, is list<.*double>",
        ),
    ],
)
def test_parquet_of_another_schema_is_refused_whole(tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "other.parquet"
    pq.write_table(change(episodes_to_table(sample())), path)
    with pytest.raises(InvalidValueError, match=message):
        list(read_episodes(path))


def test_damaged_files_say_so(tmp_path: Path) -> None:
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 not really")
    with pytest.raises(InvalidValueError, match=r"broken.parquet is not a Parquet file"):
        list(read_episodes(broken))
    write_episodes(tmp_path / "whole.jsonl.gz", sample(50))
    packed = (tmp_path / "whole.jsonl.gz").read_bytes()
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    reader = read_episodes(tmp_path / "cut.jsonl.gz")
    assert 0 < len(list(reader)) < 50
    assert "ended before the end-of-stream" in reader.bad_rows[-1].reason


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_reading_and_writing_stream(tmp_path: Path, suffix: str) -> None:
    """The writer takes episodes as they come, and the reader gives the first before it has read the last."""
    taken: list[int] = []

    def source() -> Iterator[Episode]:
        for episode in sample(40):
            taken.append(episode.index)
            yield episode

    path = tmp_path / f"many.{suffix}"
    assert write_episodes(path, source(), row_group_size=8) == len(taken) == 40
    if suffix == "parquet":
        assert pq.ParquetFile(path).num_row_groups == 5
    reader = iter(read_episodes(path, batch_size=4))
    assert next(reader).index == 0


def test_a_writer_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    write_episodes(path, sample(2))
    before = path.read_bytes()

    def source() -> Iterator[Episode]:
        yield from sample(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_episodes(path, source())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("left", ["", "{", '{"ids"' + " " * 200_000])
def test_a_growing_file_always_loads_and_is_continued_after_a_crash(tmp_path: Path, left: str) -> None:
    path = tmp_path / "run.jsonl"
    with EpisodeWriter(path) as writer:
        for number, episode in enumerate(sample(2)):
            writer.write(episode)
            assert len(list(read_episodes(path, strict=True))) == number + 1  # before it is closed
    with path.open("a") as stream:
        stream.write(left)  # a process that was killed while it wrote
    with EpisodeWriter(path) as writer:
        writer.write(sample(3)[2])
    assert [episode.index for episode in read_episodes(path, strict=True)] == [0, 1, 2]
    for name, message in (("run.parquet", "must end in .jsonl"), ("no/run.jsonl", "folder that is there")):
        with pytest.raises(InvalidValueError, match=message):
            EpisodeWriter(tmp_path / name)


def test_equal_episodes_give_equal_files(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        for name in ("a", "b"):
            write_episodes(tmp_path / f"{name}.{suffix}", sample())
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
    assert b"NaN" not in gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes())


@pytest.mark.parametrize("metadata", [{1: "a"}, {"a": (1, 2)}, {"a": float("nan")}, {"a": object()}, {"a": {2: 3}}])
def test_metadata_that_json_would_change_is_refused(tmp_path: Path, metadata: Any) -> None:
    episode = synthetic_episode(0, 4, [1], metadata=metadata)
    for suffix in SUFFIXES:
        with pytest.raises(InvalidEpisodeError, match="episode 4 on 'synthetic/4': metadata must be JSON types"):
            write_episodes(tmp_path / f"x.{suffix}", [episode])


def test_what_a_table_cannot_hold_is_refused(tmp_path: Path) -> None:
    for fields, message in (
        ({"seed": 2**64}, "episode 0 on 'synthetic/0': seed must fit in int64"),
        ({"feedbacks": ("\ud800",)}, "a table holds Unicode texts only"),
    ):
        episode = dataclasses.replace(synthetic_episode(0, 0, [1]), **fields)
        with pytest.raises(InvalidEpisodeError, match=message):
            write_episodes(tmp_path / "x.parquet", [episode])
        write_episodes(tmp_path / "x.jsonl", [episode])
        assert_same(next(iter(read_episodes(tmp_path / "x.jsonl"))), episode)


@pytest.mark.parametrize(
    ("path", "message"), [("x.txt", r"path must end in .jsonl, .jsonl.gz, .parquet"), ("no/x.jsonl", "folder")]
)
def test_paths_are_checked(tmp_path: Path, path: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        write_episodes(tmp_path / path, [])
    with pytest.raises(InvalidValueError, match=r"not there|must end in"):
        read_episodes(tmp_path / path)


def test_a_record_is_documented_field_by_field() -> None:
    page = (Path(__file__).parents[3] / "docs" / "trajectories.md").read_text()
    record = episode_to_record(sample(1)[0])
    for name in (*record, *record["verdicts"][0], *episodes_to_table(sample(1)).schema.names):
        assert f"`{name}`" in page, name
    assert episode_from_record(json.loads(json.dumps(record))).index == 0
