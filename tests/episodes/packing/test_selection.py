from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mathturn_gym.episodes.packing import drop_stale, mask_stale, micro_batches, pack, unpack
from mathturn_gym.episodes.packing.batch import FORMS, LAYOUTS
from mathturn_gym.episodes.packing.selection import select_rows
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode


def episodes_of(lengths: list[int]) -> list[Episode]:
    return [
        synthetic_episode(0, i, [n, 1], prompt=2, feedback=1, group=f"g{i % 2}", max_version=2)
        for i, n in enumerate(lengths)
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=12),
    st.sampled_from(LAYOUTS),
    st.sampled_from(FORMS),
    st.integers(16, 60),
    st.booleans(),
)
def test_every_row_is_in_one_part_whole_and_in_order(
    lengths: list[int], layout: Any, form: Any, max_tokens: int, keep: bool
) -> None:
    episodes = episodes_of(lengths)
    batch = pack(episodes, layout, form=form)
    longest = int(batch.lengths.max())
    limit = max(max_tokens, 4 * longest if keep else longest)
    parts = micro_batches(batch, max_tokens=limit, keep_episodes=keep)
    again = micro_batches(batch, max_tokens=limit, keep_episodes=keep)
    assert [part.input_ids.tolist() for part in parts] == [part.input_ids.tolist() for part in again]
    seen = []
    for part in parts:
        assert part.input_ids.numel() <= limit
        assert int(part.cu_seqlens[-1]) == part.num_tokens == int(part.attention_mask.sum())
        assert part.max_seqlen == int(part.lengths.max())
        if layout != "turns" or keep:
            seen += [episode.index for episode in unpack(part)]
            for episode in unpack(part):
                assert episode.ids.tolist() == episodes[episode.index].ids.tolist()
    if layout != "turns" or keep:
        assert sorted(seen) == list(range(len(episodes)))
    if layout == "episode":
        order = [[episode.index for episode in unpack(part)] for part in parts]
        assert all(row == sorted(row) for row in order)
        assert [row[0] for row in order] == sorted(row[0] for row in order)
    assert sum(part.count("token") for part in parts) == batch.count("token")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
def test_selected_rows_equal_packing_those_episodes(layout: Any, form: Any) -> None:
    episodes = episodes_of([3, 5, 2, 4])
    advantages = [[float(i), 1.0] for i in range(4)]
    batch = pack(episodes, layout, form=form, advantages=advantages)
    rows = {"episode": [1, 3], "turns": [2, 3, 6, 7], "tree": [1]}[layout]
    part = select_rows(batch, rows)
    expected = pack([episodes[1], episodes[3]], layout, form=form, advantages=[advantages[1], advantages[3]])
    assert part.numpy().keys() == expected.numpy().keys()
    for name, array in expected.numpy().items():
        assert np.array_equal(part.numpy()[name], array), name
    assert [episode.index for episode in unpack(part)] == [1, 3]


def test_first_fit_decreasing_fills_bins() -> None:
    batch = pack(episodes_of([2, 6, 4, 8, 0, 6]), form="varlen")
    assert batch.lengths.tolist() == [6, 10, 8, 12, 4, 10]
    parts = micro_batches(batch, max_tokens=18)
    # By decreasing length: 12 | 10, 10 needs its own, 8 beside the first 10, 6 beside 12, 4 beside the second 10.
    assert [[e.index for e in unpack(part)] for part in parts] == [[0, 3], [1, 2], [4, 5]]


def test_padded_parts_count_their_padding() -> None:
    batch = pack(episodes_of([20, 0, 0, 0]))
    assert batch.lengths.tolist() == [24, 4, 4, 4]
    parts = micro_batches(batch, max_tokens=30)
    assert [part.input_ids.shape for part in parts] == [(1, 24), (3, 4)]


def test_a_sequence_that_is_too_long_names_its_episode() -> None:
    batch = pack(episodes_of([3, 30, 2]))
    with pytest.raises(InvalidValueError, match=r"episode 1 on 'synthetic/g1' needs 34 tokens .* max_tokens is 20"):
        micro_batches(batch, max_tokens=20)
    with pytest.raises(InvalidValueError, match="max_tokens must be"):
        micro_batches(batch, max_tokens=0)


def test_parts_of_an_episode_do_not_unpack_but_keeping_it_whole_does() -> None:
    batch = pack(episodes_of([5, 5]), "turns")
    parts = micro_batches(batch, max_tokens=10)
    assert any(part.split_episodes for part in parts)
    with pytest.raises(InvalidValueError, match="only a part of episode 0"):
        [unpack(part) for part in parts]
    kept = micro_batches(batch, max_tokens=20, keep_episodes=True)
    assert not any(part.split_episodes for part in kept)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
def test_segments_of_an_episode_stay_together_where_that_is_asked(layout: Any, form: Any) -> None:
    """In a tree, the members of a group share a row, and each has rows of its own: all of them are kept together."""
    episodes = [
        synthetic_episode(0, i, [2, 3, 2], prompt=3, feedback=1, anew=[1, 2], group=f"g{i % 2}") for i in range(4)
    ]
    batch = pack(episodes, layout, form=form)
    longest = int(batch.lengths.max())
    assert any(part.split_episodes for part in micro_batches(batch, max_tokens=longest))
    for part in micro_batches(batch, max_tokens=8 * longest, keep_episodes=True):
        assert not part.split_episodes
        for episode in unpack(part):
            assert episode.ids.tolist() == episodes[episode.index].ids.tolist()
            assert episode.segment_starts.tolist() == episodes[episode.index].segment_starts.tolist()


@pytest.mark.parametrize("rows", [[], [2, 1], [0, 0], [-1], [9]])
def test_rows_must_be_there_and_increasing(rows: list[int]) -> None:
    with pytest.raises(InvalidValueError, match=r"rows must be increasing numbers in \[0, 3\)"):
        select_rows(pack(episodes_of([1, 2, 3])), rows)


def versioned(index: int, versions: list[int]) -> Episode:
    episode = synthetic_episode(0, index, [len(versions)], prompt=1)
    return dataclasses.replace(episode, versions=np.array([-1, *versions], np.int32))


def test_stale_episodes_are_parted_by_their_oldest_id() -> None:
    episodes = [versioned(0, [3, 3]), versioned(1, [1, 3]), versioned(2, [2, 2]), versioned(3, [])]
    fresh, stale = drop_stale(episodes, current_version=3, max_staleness=1)
    assert [e.index for e in fresh] == [0, 2, 3]
    assert [e.index for e in stale] == [1]
    with pytest.raises(InvalidValueError, match="episode 0 on 'synthetic/0' has version 3, after current_version 2"):
        drop_stale(episodes, current_version=2, max_staleness=1)
    with pytest.raises(InvalidValueError, match="max_staleness must be"):
        drop_stale(episodes, current_version=3, max_staleness=-1)


def test_stale_ids_leave_the_loss_mask_and_nothing_else() -> None:
    episodes = [versioned(0, [0, 1, 3])]
    batch = mask_stale(pack(episodes), current_version=3, max_staleness=2)
    assert batch.loss_mask.tolist() == [[False, False, True, True]]
    assert unpack(batch)[0].loss_mask.tolist() == [False, True, True, True]
    with pytest.raises(InvalidValueError, match="has version 3, after current_version 2"):
        mask_stale(batch, current_version=2, max_staleness=2)
