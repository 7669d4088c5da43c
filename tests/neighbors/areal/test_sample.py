"""`SequenceSample`: validation, the wire, joining and splitting."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mathturn_gym.errors import InvalidValueError, MathTurnError
from mathturn_gym.neighbors.areal import SequenceSample, ValidationError
from mathturn_gym.neighbors.areal.protocol import MicroBatchSpec
from mathturn_gym.neighbors.areal.sample import KeyMismatchError


def make(lengths: list[list[int]], prefix: str = "q", **changes: Any) -> SequenceSample:
    """Items with sequences of these lengths, and one float per item; ids count up, floats are their thirds."""
    total = sum(sum(inner) for inner in lengths)
    parts: dict[str, Any] = {
        "keys": ["ids", "score"],
        "ids": [f"{prefix}{i}" for i in range(len(lengths))],
        "dtypes": {"ids": torch.int64, "score": torch.float32},
        "trailing_shapes": {"ids": (), "score": (2,)},
        "seqlens": {"ids": lengths, "score": [[1] for _ in lengths]},
        "data": {"ids": torch.arange(total), "score": torch.arange(2.0 * len(lengths)).reshape(-1, 2) / 3},
        "metadata": {"note": [f"note {i}" for i in range(len(lengths))]},
    }
    return SequenceSample(**{**parts, **changes})


def equal(left: SequenceSample, right: SequenceSample) -> bool:
    same = left.as_json_compatible() == right.as_json_compatible()
    return same and left.dtypes == right.dtypes and left.trailing_shapes == right.trailing_shapes


def test_attributes_are_the_originals() -> None:
    sample = make([[2, 1], [3]])
    assert sample.bs == 2
    assert sample.keys == {"ids", "score"}
    assert sample.ids == ["q0", "q1"]
    assert sample.seqlens["ids"] == [[2, 1], [3]]
    assert sample.trailing_shapes == {"ids": (), "score": (2,)}
    assert SequenceSample(**{**vars(make([[1]])), "metadata": None}).metadata == {}
    assert make([[1]], ids=[7]).ids == ["7"]  # ids of any kind become texts


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": ["a", "a"]}, "ids must be unique"),
        ({"keys": "ids"}, "keys must be several names"),
        ({"seqlens": {"ids": [[2]], "score": [[1], [1]]}}, r"seqlens\['ids'\] must have one list per id, 2, got 1"),
        ({"seqlens": {"ids": [[2, 1], [4]], "score": [[1], [1]]}}, r"shape \(7,\) of its seqlens, got \(6,\)"),
        ({"seqlens": {"ids": [[2, 1], [-3]], "score": [[1], [1]]}}, "non-negative integers"),
        ({"seqlens": {"ids": [[2, 1], [3.0]], "score": [[1], [1]]}}, "non-negative integers"),
        ({"seqlens": {"ids": 3, "score": [[1], [1]]}}, "non-negative integers"),
        ({"dtypes": {"ids": torch.int32, "score": torch.float32}}, "must be torch.int32, got torch.int64"),
        ({"trailing_shapes": {"ids": (1,), "score": (2,)}}, r"shape \(6, 1\)"),
        ({"data": {"ids": [1, 2, 3, 4, 5, 6], "score": None}}, "must be a tensor or None, got list"),
        ({"metadata": {"note": "x"}}, "must be a list with one entry per id"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        make([[2, 1], [3]], **changes)
    assert issubclass(ValidationError, (InvalidValueError, ValueError, MathTurnError))


@pytest.mark.parametrize("part", ["dtypes", "trailing_shapes", "seqlens", "data"])
def test_other_keys_are_a_key_error_as_they_were(part: str) -> None:
    wrong: Any = {**vars(make([[2]]))[part], "more": None if part != "seqlens" else [[1]]}
    with pytest.raises(KeyMismatchError, match=rf"{part} must have the keys \['ids', 'score'\], got \['ids', 'more'"):
        make([[2]], "q", **{part: wrong})
    assert issubclass(KeyMismatchError, (ValidationError, KeyError))


def test_data_may_be_absent() -> None:
    sample = make([[2], [1]], data=None)
    assert sample.data is None
    assert [part.data for part in sample.unpack()] == [None, None]
    assert equal(SequenceSample.from_json_compatible(json.loads(json.dumps(sample.as_json_compatible()))), sample)
    partly = make([[2], [1]], data={"ids": None, "score": torch.zeros(2, 2)})
    assert [part.data is not None and part.data["ids"] for part in partly.unpack()] == [None, None]


DTYPES = [torch.int64, torch.int32, torch.bool, torch.float32, torch.float64, torch.bfloat16, torch.float16]


@given(
    dtype=st.sampled_from(DTYPES),
    lengths=st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=4),
    trailing=st.lists(st.integers(0, 3), max_size=2),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_wire_is_lossless(dtype: torch.dtype, lengths: list[list[int]], trailing: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (sum(map(sum, lengths)), *trailing)
    tensor = torch.from_numpy(rng.standard_normal(shape) * 100).to(dtype)
    sample = SequenceSample(
        keys=["x"],
        ids=list(range(len(lengths))),
        dtypes={"x": dtype},
        trailing_shapes={"x": trailing},
        seqlens={"x": lengths},
        data={"x": tensor},
        metadata={"m": [{"a": [i]} for i in range(len(lengths))]},
    )
    back = SequenceSample.from_json_compatible(json.loads(json.dumps(sample.as_json_compatible())))
    assert equal(back, sample)
    assert back.data is not None
    assert back.data["x"] is not None
    assert back.data["x"].shape == tensor.shape
    assert torch.equal(back.data["x"], tensor)


def test_the_wire_keeps_what_is_no_number() -> None:
    sample = make([[1]], data={"ids": torch.zeros(1, dtype=torch.int64), "score": torch.tensor([[np.nan, -np.inf]])})
    back = SequenceSample.from_json_compatible(json.loads(json.dumps(sample.as_json_compatible())))
    assert back.data is not None
    assert repr(back.data["score"]) == repr(torch.tensor([[np.nan, -np.inf]]))


def test_the_wire_format_is_the_originals() -> None:
    """Field for field what a v0.3 process sends."""
    record = make([[2, 1], [3]]).as_json_compatible()
    assert sorted(record) == ["data", "dtypes", "ids", "keys", "metadata", "seqlens", "trailing_shapes"]
    assert record["dtypes"] == {"ids": "torch.int64", "score": "torch.float32"}
    assert record["data"]["ids"] == [0, 1, 2, 3, 4, 5]
    assert record["trailing_shapes"] == {"ids": (), "score": (2,)}
    assert record["keys"] == ["ids", "score"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtypes": {"ids": "torch.load", "score": "torch.float32"}}, "must be the name of a torch dtype"),
        ({"dtypes": {"ids": "os.system", "score": "torch.float32"}}, "must be the name of a torch dtype"),
        ({"data": {"ids": ["a"], "score": None}}, r"data\['ids'\] must be torch.int64"),
        ({"data": {"ids": [[1, 2], [3]], "score": None}}, r"data\['ids'\] must be torch.int64"),
        ({"data": {"ids": [1], "score": None}}, r"shape \(2,\) of its seqlens"),
    ],
)
def test_bad_records_are_refused(changes: dict[str, Any], message: str) -> None:
    record = {**make([[2]]).as_json_compatible(), **changes}
    with pytest.raises(ValidationError, match=message):
        SequenceSample.from_json_compatible(record)
    with pytest.raises(ValidationError, match=r"missing: ids, metadata"):
        SequenceSample.from_json_compatible({k: v for k, v in record.items() if k not in ("ids", "metadata")})


def test_unpack_and_gather_are_inverse() -> None:
    sample = make([[2, 1], [3], [], [0, 4]])
    items = sample.unpack()
    assert [item.ids for item in items] == [["q0"], ["q1"], ["q2"], ["q3"]]
    assert [item.seqlens["ids"] for item in items] == [[[2, 1]], [[3]], [[]], [[0, 4]]]
    assert [item.metadata for item in items] == [{"note": [f"note {i}"]} for i in range(4)]
    assert items[1].data is not None
    assert items[1].data["ids"] is not None
    assert items[1].data["ids"].tolist() == [3, 4, 5]
    assert equal(SequenceSample.gather(items), sample)


def test_gather_takes_some_keys_and_ids_twice() -> None:
    both = SequenceSample.gather([make([[1]]), make([[2]])], keys=["ids"])
    assert both.keys == {"ids"}
    assert both.ids == ["q0", "q0"]  # two episodes on one query
    assert [item.ids for item in both.unpack()] == [["q0"], ["q0"]]
    assert equal(SequenceSample.from_json_compatible(both.as_json_compatible()), both)


def test_gather_refuses_what_differs() -> None:
    other = make([[1]], dtypes={"ids": torch.int32, "score": torch.float32}, data=None)
    with pytest.raises(ValidationError, match="at least one"):
        SequenceSample.gather([])
    with pytest.raises(KeyMismatchError, match="must have data for"):
        SequenceSample.gather([make([[1]]), other])
    with pytest.raises(ValidationError, match=r"'ids' of sample .* differs in dtype or shape"):
        SequenceSample.gather([make([[1]], data=None), other])
    with pytest.raises(KeyMismatchError, match=r"must have data for \['nope'\]"):
        SequenceSample.gather([make([[1]])], keys=["nope"])
    half = make([[1]], data={"ids": None, "score": torch.zeros(1, 2)})
    with pytest.raises(ValidationError, match="in all samples or in none, got it in 1 of 2"):
        SequenceSample.gather([make([[1]]), half])


def test_update_adds_and_replaces() -> None:
    sample = make([[2], [1]])
    more = SequenceSample(
        keys=["task_ids"],
        ids=["q0", "q1"],
        dtypes={"task_ids": torch.int64},
        trailing_shapes={"task_ids": ()},
        seqlens={"task_ids": [[1], [1]]},
        data={"task_ids": torch.tensor([4, 5])},
        metadata={"more": [1, 2]},
    )
    sample.update_(more)
    assert sample.keys == {"ids", "score", "task_ids"}
    assert sample.metadata["more"] == [1, 2]
    assert [item.data is not None and item.data["task_ids"] for item in sample.unpack()] == [
        torch.tensor([4]),
        torch.tensor([5]),
    ]
    before = sample.as_json_compatible()
    with pytest.raises(ValidationError, match="same ids in the same order"):
        sample.update_(make([[2], [1]], prefix="r"))
    with pytest.raises(ValidationError, match="needs data"):
        sample.update_(make([[2], [1]], data=None))
    assert sample.as_json_compatible() == before


def parts(lengths: list[int], n: int, most: int = 10**6) -> list[list[int]]:
    """Which items each part of a split has."""
    sample = make([[length] for length in lengths])
    split, forward, backward = sample.split(MicroBatchSpec(n, most))
    assert [forward[place] for place in backward.tolist()] == list(range(len(lengths)))
    assert [item for part in split for item in part.ids] == [f"q{i}" for i in forward]
    assert equal(SequenceSample.gather([SequenceSample.gather(split).unpack()[place] for place in backward]), sample)
    return [[int(item[1:]) for item in part.ids] for part in split]


def test_split_is_the_originals_allocation() -> None:
    """Longest first, into the group with room that has fewest members; worked out by hand."""
    # 9 and 7 open two groups; 6 joins the lighter of the two (7); 3 the one with fewest members (9).
    assert parts([6, 3, 9, 7], 2) == [[0, 3], [1, 2]]
    # Capacity 10: 9 | 7 | 6 no longer fits with 7 (13): a third group; 3 fits with 7 or 6, fewest members, lightest: 6.
    assert parts([6, 3, 9, 7], 2, 10) == [[0, 1], [2], [3]]
    # Members come before tokens: 10 | 3, 3 to the lighter group, and 2 to the 10, which is alone.
    assert parts([10, 3, 3, 2], 2) == [[0, 3], [1, 2]]
    assert parts([5, 5, 5], 1) == [[0, 1, 2]]
    assert parts([5, 5, 5], 3) == [[0], [1], [2]]
    assert parts([4], 1) == [[0]]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.integers(1, 5), st.integers(30, 60))
def test_split_keeps_its_limits(lengths: list[int], n: int, most: int) -> None:
    if n > len(lengths):
        n = len(lengths)
    found = parts(lengths, n, most)
    assert len(found) >= n
    assert all(sum(lengths[item] for item in part) <= most for part in found)
    assert sorted(item for part in found for item in part) == list(range(len(lengths)))


def test_split_refuses_what_cannot_be() -> None:
    with pytest.raises(ValidationError, match="item 'q1' has 9 tokens, but max_tokens_per_mb is 8"):
        parts([3, 9], 1, 8)
    with pytest.raises(ValidationError, match="n_mbs is 3, but there are 2 items"):
        parts([3, 9], 3)
    with pytest.raises(InvalidValueError, match="n_mbs must be an integer >= 1"):
        parts([3, 9], 0)
