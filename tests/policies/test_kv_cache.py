from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

from mathturn_gym.policies._kv_cache import Arena, KeyValues, PrefixStore, common_prefix, encode
from mathturn_gym.types import Ids
from mathturn_gym.wrappers import load_policy

HEADS, WIDTH = 2, 3


def states(ids: Ids, layer: int) -> torch.Tensor:
    """Keys that say which id they belong to, in which layer: (H, L, D)."""
    return torch.tensor(ids, dtype=torch.float32)[None, :, None].expand(HEADS, -1, WIDTH) + 1000 * layer


def kv(ids: Ids) -> KeyValues:
    return [(states(ids, layer), -states(ids, layer)) for layer in range(2)]


def ids(*values: int) -> Ids:
    return np.array(values, np.int64)


def held(arena: Arena, row: int) -> list[int]:
    """The ids that a row's keys say it holds, the same in every layer, keys and values."""
    taken = arena.take(row, arena.lengths[row])
    found = [pair[0][0, :, 0] - 1000 * layer for layer, pair in enumerate(taken) if pair is not None]
    assert all(
        pair is not None and torch.equal(-pair[1], states(found[0].long().numpy(), layer))
        for layer, pair in enumerate(taken)
    )
    return [int(i) for i in found[0]]


def feed(arena: Arena, rows: list[Ids]) -> None:
    """What a model does with an open chunk: right-aligned states for every layer, zeros where padded."""
    chunk = arena.chunk
    for layer in range(2):
        keys = torch.full((len(rows), HEADS, chunk, WIDTH), torch.nan)
        for row, new in enumerate(rows):
            keys[row, :, chunk - len(new) :] = states(new, layer)
        window, _ = arena.cache.update(keys, -keys, layer)
        assert window.shape[-2] == arena.end - arena.start


def test_a_chunk_follows_what_each_row_holds() -> None:
    arena = Arena(2)
    arena.open_chunk(torch.device("cpu"), [1, 3, 2], [kv(ids(1, 2, 3, 4)), None, kv(ids(5))])
    assert (arena.end - arena.start, arena.chunk, arena.cache.get_seq_length()) == (5, 3, 2)
    feed(arena, [ids(9), ids(6, 7, 8), ids(10, 11)])
    # A shorter row's states are not overwritten by the padding of the chunk.
    assert held(arena, 0) == [1, 2, 3, 4, 9]
    assert held(arena, 2) == [5, 10, 11]
    assert arena.mask(torch.device("cpu")).tolist() == [[1] * 5, [0, 0, 1, 1, 1], [0, 0, 1, 1, 1]]  # type: ignore[union-attr]
    assert arena.positions(torch.device("cpu")).tolist() == [[2, 3, 4], [0, 1, 2], [0, 1, 2]]


def test_rows_come_and_go() -> None:
    arena = Arena(2, rows=1, columns=4)
    arena.open_chunk(torch.device("cpu"), [2], [None])
    feed(arena, [ids(1, 2)])
    late = Arena(2)
    late.open_chunk(torch.device("cpu"), [1, 1], [kv(ids(20, 21, 22, 23, 24, 25)), kv(ids(30))])
    feed(late, [ids(26), ids(31)])
    arena.adopt(late, 0, 2)
    arena.adopt(late, 1, 3)
    assert [held(arena, row) for row in range(3)] == [[1, 2], [20, 21, 22, 23, 24, 25, 26], [30, 31]]
    for step in range(40):
        arena.open_step(5)
        feed(arena, [ids(100 + step), ids(200 + step), ids(300 + step)])
    assert held(arena, 1) == [*range(20, 27), *range(200, 240)]
    arena.remove(1)
    assert [held(arena, row) for row in range(2)] == [[1, 2, *range(100, 140)], [30, 31, *range(300, 340)]]
    # What was the longest row is gone, and its columns with it.
    assert arena.end - arena.start == 42
    assert arena.mask(torch.device("cpu")) is None


def test_common_prefixes_are_counted_in_ids() -> None:
    assert common_prefix(encode(ids(1, 2, 3)), encode(ids(1, 2, 259))) == 2
    assert common_prefix(encode(ids(1)), encode(ids(1, 2))) == 1
    assert common_prefix(encode(ids(7)), encode(ids(8))) == 0


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=12), st.lists(st.integers(0, 2)))
def test_the_store_is_a_list_that_forgets_prefixes(kept: list[list[int]], asked: list[int]) -> None:
    store, model = PrefixStore(2**30), list[list[int]]()
    for context in kept:
        store.put(np.array(context), kv(np.array(context)))
        if not any(other[: len(context)] == context for other in model):
            model = [other for other in model if context[: len(other)] != other] + [context]
    assert len(store) == len(model)
    entry, shared = store.find(np.array(asked, np.int64))
    best = max((shared_length(other, asked) for other in model), default=0)
    assert shared == best
    assert (entry is not None) == (best > 0)
    if entry is not None:
        assert np.frombuffer(entry.key, ">u4")[:shared].tolist() == asked[:shared]
    store.release(np.array(asked, np.int64))
    assert len(store) == len([other for other in model if asked[: len(other)] != other])


def shared_length(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_the_least_recently_used_leave_first() -> None:
    size = entry_bytes(ids(1, 1, 1))
    store = PrefixStore(2 * size)
    for first in (1, 2):
        store.put(ids(first, 1, 1), kv(ids(first, 1, 1)))
    store.find(ids(1, 1, 1, 5))
    store.put(ids(3, 1, 1), kv(ids(3, 1, 1)))
    assert [store.find(ids(first, 1, 1))[1] for first in (1, 2, 3)] == [3, 0, 3]
    assert (store.nbytes, store.evictions) == (2 * size, 1)
    store.clear()
    assert (store.nbytes, len(store)) == (0, 0)


def entry_bytes(context: Ids) -> int:
    store = PrefixStore(2**30)
    store.put(context, kv(context))
    return store.nbytes


@pytest.mark.parametrize("budget", [0, 10])
def test_what_is_larger_than_the_budget_is_not_kept(budget: int) -> None:
    store = PrefixStore(budget)
    store.put(ids(1, 2), kv(ids(1, 2)))
    assert (len(store), store.nbytes, store.evictions) == (0, 0, 0)


def test_a_layer_without_keys_of_its_own_is_left_out() -> None:
    arena = Arena(2)
    pair: tuple[torch.Tensor, torch.Tensor] = (states(ids(1, 2), 0), states(ids(1, 2), 0))
    arena.open_chunk(torch.device("cpu"), [1], [[pair, None]])
    zeros: npt.NDArray[np.float32] = np.zeros((1, HEADS, 1, WIDTH), np.float32)
    arena.cache.update(torch.from_numpy(zeros), torch.from_numpy(zeros), 0)
    taken = arena.take(0, 3)
    assert taken[0] is not None
    assert taken[0][0].shape == (HEADS, 3, WIDTH)
    assert taken[1] is None


def test_under_autocast_buffers_have_its_type() -> None:
    """Rotary positions make keys float32 there, which is twice the memory and a cast of all of them in every step."""
    policy = load_policy("builtin", device="cpu", dtype="float32", seed=1)
    asked = [np.arange(3, 20), np.arange(5, 12)]
    with torch.autocast("cpu", torch.bfloat16):
        first = policy.complete(asked, max_tokens=[6, 6], seeds=[0, 1])
        turns = [np.concatenate([a, c.ids]) for a, c in zip(asked, first, strict=True)]
        policy.complete(turns, max_tokens=[6, 6], seeds=[0, 1])  # from what rests between turns
    assert {tensor.dtype for layer in policy._loop._arena._layers for tensor in layer.buffers} == {torch.bfloat16}
    assert policy.stats.reused > 0
    policy.drop_caches()
    policy.complete(asked, max_tokens=[6, 6], seeds=[0, 1])
    assert {tensor.dtype for layer in policy._loop._arena._layers for tensor in layer.buffers} == {torch.float32}
