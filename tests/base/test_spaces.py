from __future__ import annotations

import copy
import json
import multiprocessing
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector.utils import (
    batch_space,
    concatenate,
    create_empty_array,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
    write_to_shared_memory,
)
from hypothesis import given
from hypothesis import strategies as st

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.spaces import TokenIds

SPACE = TokenIds(vocab_size=10, max_length=4)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.array([0, 9]), None),
        (np.zeros(0, np.int64), None),
        (np.array([1, 2], np.int32), None),
        (np.array([1, 2, 10]), "id 10 at position 2 is outside [0, 10)"),
        (np.array([-1]), "id -1 at position 0 is outside [0, 10)"),
        (np.array([1.0]), "its dtype is float64, not int64"),
        (np.array([True]), "its dtype is bool, not int64"),
        (np.array([1], np.uint64), "its dtype is uint64, not int64"),
        (np.array([1, 2, 3, 4, 5]), "its length 5 is over max_length=4"),
        (np.array([[1]]), "its shape is (1, 1), not (L,)"),
        (np.int64(3), "not a NumPy array"),
        ([1, 2], "it is a list, not a NumPy array"),
        (None, "it is a NoneType"),
        ("12", "it is a str"),
    ],
)
def test_contains_tells_why_not(value: Any, reason: str | None) -> None:
    assert (value in SPACE) is (reason is None)
    found = SPACE.why_not(value)
    assert found is None if reason is None else reason in str(found)


@given(st.lists(st.integers(-3, 12), max_size=8))
def test_contains_agrees_with_gymnasiums_own_space_within_the_length(ids: list[int]) -> None:
    stock = gym.spaces.Sequence(gym.spaces.Discrete(10), stack=True)
    array = np.array(ids, np.int64)
    assert (array in SPACE) == (array in stock and len(ids) <= 4)


@given(st.integers(0, 2**32 - 1), st.integers(1, 500), st.integers(1, 40))
def test_samples_are_contained_and_seeded(seed: int, vocab: int, length: int) -> None:
    first, second = TokenIds(vocab, length, seed=seed), TokenIds(vocab, length, seed=seed)
    for _ in range(3):
        sample = first.sample()
        assert sample in first
        assert sample.dtype == np.int64
        assert np.array_equal(sample, second.sample())


def test_sample_masks() -> None:
    only = np.zeros(10, np.int8)
    only[7] = 1
    assert SPACE.sample(mask=(3, only)).tolist() == [7, 7, 7]
    assert len(SPACE.sample(mask=(np.array([2]), None))) == 2
    assert SPACE.sample(probability=(2, np.eye(10)[4])).tolist() == [4, 4]
    assert len(SPACE.sample(mask=(0, None))) == 0
    with pytest.raises(InvalidValueError, match=r"sample length must be in \[0, 4\], got 5"):
        SPACE.sample(mask=(5, None))
    with pytest.raises(InvalidValueError, match="weights"):
        SPACE.sample(mask=(1, np.zeros(10)))
    with pytest.raises(InvalidValueError, match="either mask or probability"):
        SPACE.sample(mask=(1, None), probability=(1, None))


def test_equality_and_copies() -> None:
    assert TokenIds(10, 4) == SPACE
    assert TokenIds(10, 5) != SPACE
    assert TokenIds(11, 4) != SPACE
    assert gym.spaces.Sequence(gym.spaces.Discrete(10), stack=True) != SPACE
    assert isinstance(SPACE, gym.spaces.Sequence)
    for twin in (copy.deepcopy(SPACE), pickle.loads(pickle.dumps(SPACE)), eval(repr(SPACE))):
        assert twin == SPACE
        assert twin.max_length == 4


@pytest.mark.parametrize(("vocab", "length"), [(0, 4), (10, 0), (-1, 1), (2.5, 3), ("9", 1), (True, 3)])
def test_arguments_are_checked(vocab: Any, length: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"(vocab_size|max_length) must be an integer >= 1, got"):
        TokenIds(vocab, length)


def test_json_round_trip() -> None:
    samples = [np.array([1, 2, 3]), np.zeros(0, np.int64)]
    back = SPACE.from_jsonable(json.loads(json.dumps(SPACE.to_jsonable(samples))))
    assert all(a.dtype == np.int64 and np.array_equal(a, b) for a, b in zip(back, samples, strict=True))


def test_batching() -> None:
    batched = batch_space(SPACE, 3)
    assert batched == gym.spaces.Tuple([SPACE] * 3)
    rows = (np.array([1]), np.array([2, 3]), np.zeros(0, np.int64))
    empty: Any = create_empty_array(SPACE, 3)
    joined = concatenate(SPACE, rows, empty)
    assert joined in batched
    assert [row.tolist() for row in iterate(batched, joined)] == [[1], [2, 3], []]
    assert create_empty_array(SPACE, 2) in batch_space(SPACE, 2)


def test_shared_memory_follows_later_writes_and_copies_are_plain() -> None:
    context: Any = multiprocessing.get_context("fork")
    memory = create_shared_memory(SPACE, n=2, ctx=context)
    live: Any = read_from_shared_memory(SPACE, memory, n=2)
    write_to_shared_memory(SPACE, 1, np.array([5, 6, 7]), memory)
    assert [row.tolist() for row in live] == [[], [5, 6, 7]]
    kept = copy.deepcopy(live)
    write_to_shared_memory(SPACE, 1, np.array([8]), memory)
    assert live[1].tolist() == [8]
    assert len(live) == 2
    assert [row.tolist() for row in live[0:2]] == [[], [8]]
    assert isinstance(kept, tuple)
    assert kept[1].tolist() == [5, 6, 7]
    assert kept in batch_space(SPACE, 2)
