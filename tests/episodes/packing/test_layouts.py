from __future__ import annotations

import dataclasses
import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

from mathturn_gym.episodes.packing import PackedBatch, pack, unpack
from mathturn_gym.episodes.packing.batch import FORMS, LAYOUTS
from mathturn_gym.episodes.packing.selection import select_rows
from mathturn_gym.episodes.returns import advantages, returns_to_go
from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode, StopReason


def with_support(episode: Episode, width: int) -> Episode:
    """An episode whose ids were drawn from a few: each, and numbers after it, fewer in every other place."""
    ids = episode.ids[episode.loss_mask].astype(np.int32)
    if not len(ids):
        return episode
    support: npt.NDArray[np.int32] = np.add(ids[:, None], np.arange(width), dtype=np.int32)
    support[1::2, 1:] = -1
    return dataclasses.replace(episode, support=support)


@st.composite
def episode_lists(draw: st.DrawFn) -> list[Episode]:
    """Ragged episodes: empty completions, none at all, shared and unshared prompts, segments, ids after the last turn."""
    episodes, supported = [], draw(st.booleans())
    for index in range(draw(st.integers(1, 6))):
        group = draw(st.sampled_from([None, "a", "b"]))
        completions = draw(st.lists(st.integers(0, 4), max_size=4))
        episode = synthetic_episode(
            draw(st.integers(0, 3)),
            index,
            completions,
            prompt=draw(st.integers(1, 5)),
            feedback=draw(st.integers(0, 3)),
            anew=[turn for turn in range(1, len(completions)) if draw(st.booleans())],
            group=group,
            max_version=3,
            logprobs=draw(st.booleans()),
            discount=draw(st.sampled_from([None, 0.5])),
            metadata={"level": index},
        )
        if supported:
            episode = with_support(episode, draw(st.integers(1, 4)))
        if draw(st.booleans()) and completions:
            tail = draw(st.integers(1, 3))
            episode = dataclasses.replace(
                episode,
                ids=np.concatenate([episode.ids, np.arange(tail)]),
                loss_mask=np.concatenate([episode.loss_mask, np.zeros(tail, np.bool_)]),
                logprobs=np.concatenate([episode.logprobs, np.zeros(tail, np.float32)]),
                versions=np.concatenate([episode.versions, np.full(tail, -1, np.int32)]),
                returns=returns_to_go(episode.rewards, 0.9),
                terminated=False,
                truncated=True,
                stop_reason=StopReason.CONTEXT,
            )
        episodes.append(episode)
    return episodes


def assert_same(left: Episode, right: Episode) -> None:
    for field in dataclasses.fields(Episode):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype, field.name
            assert a.shape == b.shape, field.name
            assert a.tobytes() == b.tobytes(), field.name
        else:
            assert a == b, field.name


@settings(max_examples=examples(150), deadline=None)
@given(episode_lists(), st.sampled_from(LAYOUTS), st.sampled_from(FORMS))
def test_unpack_gives_back_every_bit(episodes: list[Episode], layout: Any, form: Any) -> None:
    batch = pack(episodes, layout, form=form, allow_missing_logprobs=True, discount=0.5)
    for before, after in zip(episodes, unpack(batch), strict=True):
        assert_same(before, after)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_could_be_drawn_lies_beside_what_was(layout: Any, form: Any) -> None:
    episodes = [with_support(synthetic_episode(0, i, [3, 1, 2], group="g"), width) for i, width in enumerate((2, 4, 1))]
    batch = pack(episodes, layout, form=form)
    assert batch.support is not None
    assert batch.support.shape == (*batch.input_ids.shape, 4)
    assert int(batch.support[~batch.loss_mask].max()) == -1
    ids, support = batch.input_ids[batch.loss_mask], batch.support[batch.loss_mask]
    assert torch.equal(support[:, 0].long(), ids)
    rows = batch.episode_index[batch.loss_mask].tolist()
    for row, own in zip(rows, (support >= 0).sum(dim=-1).tolist(), strict=True):
        assert own <= (2, 4, 1)[row]
    part = select_rows(batch, [batch.num_rows - 1])
    assert part.support is not None
    assert torch.equal(part.support[part.loss_mask][:, 0].long(), part.input_ids[part.loss_mask])


def test_what_could_be_drawn_is_known_of_all_or_none() -> None:
    some = [with_support(synthetic_episode(0, 0, [2]), 3), synthetic_episode(0, 1, [2])]
    with pytest.raises(InvalidEpisodeError, match=r"episode 1 .* has no support, and others have"):
        pack(some)
    silent = synthetic_episode(0, 1, [0])
    assert pack([some[0], silent]).support is not None, "who said nothing has cut nothing off"
    support = some[0].support
    assert support is not None
    for wide in (np.pad(support, ((0, 0), (0, 1)), constant_values=-1), np.zeros((2, 0), np.int32)):
        with pytest.raises(InvalidEpisodeError, match=r"not in its support|no wider than it needs to be"):
            dataclasses.replace(some[0], support=wide)
    with pytest.raises(InvalidEpisodeError, match=r"sampled id 0 is .*, which is not in its support"):
        dataclasses.replace(some[0], support=np.full((2, 3), -1, np.int32))
    with pytest.raises(InvalidEpisodeError, match=r"support must be int32 of shape \(2, S\), got int32 \(1, 3\)"):
        dataclasses.replace(some[0], support=np.zeros((1, 3), np.int32))


def tokens(batch: PackedBatch) -> dict[tuple[int, int], list[tuple[Any, ...]]]:
    """What the batch says of every trained id, by (episode, turn)."""
    found: dict[tuple[int, int], list[tuple[Any, ...]]] = {}
    arrays = batch.numpy()
    for row, column in np.argwhere(arrays["loss_mask"]).tolist():
        key = int(arrays["episode_index"][row, column]), int(arrays["turn_index"][row, column])
        names = ("input_ids", "behavior_logprobs", "versions", "advantages", "returns", "rewards", "position_ids")
        found.setdefault(key, []).append(tuple(arrays[name][row, column].item() for name in names))
    return found


@settings(max_examples=examples(100), deadline=None)
@given(episode_lists(), st.sampled_from(LAYOUTS), st.sampled_from(FORMS))
def test_every_completion_id_is_trained_on_once_with_its_turns_values(
    episodes: list[Episode], layout: Any, form: Any
) -> None:
    own = [np.arange(e.num_turns, dtype=np.float32) + 10 * i for i, e in enumerate(episodes)]
    batch = pack(episodes, layout, form=form, advantages=own, discount=0.5, allow_missing_logprobs=True)
    found = tokens(batch)
    expected = {}
    for e, episode in enumerate(episodes):
        go = returns_to_go(episode.rewards, 0.5)
        for turn in episode.turns:
            k, start = turn.index, len(turn.context)
            rows = [
                (i, lp, v, own[e][k].item(), go[k].item(), np.float32(turn.reward).item(), start + n)
                for n, (i, lp, v) in enumerate(
                    zip(turn.ids.tolist(), turn.logprobs.tolist(), turn.versions.tolist(), strict=True)
                )
            ]
            if rows:
                expected[e, k] = rows
    # As text, because NaN is unequal to itself.
    assert {key: repr(rows) for key, rows in found.items()} == {key: repr(rows) for key, rows in expected.items()}
    arrays = batch.numpy()
    off = ~arrays["loss_mask"]
    for name in ("behavior_logprobs", "advantages", "returns", "rewards"):
        assert not arrays[name][off].any()
    assert (arrays["versions"][off] == -1).all()
    assert (arrays["turn_index"][off] == -1).all()


def test_episode_layout_by_hand() -> None:
    episode = synthetic_episode(0, 0, [2, 0, 1], prompt=[5, 6], feedback=1)
    short = synthetic_episode(0, 1, [1], prompt=[7])
    batch = pack([episode, short], advantages=[[1.0, 2.0, 3.0], [4.0]], pad_id=99)
    assert batch.input_ids.tolist() == [episode.ids.tolist(), [*short.ids.tolist(), 99, 99, 99, 99, 99]]
    assert batch.loss_mask.int().tolist() == [[0, 0, 1, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0, 0]]
    assert batch.advantages.tolist() == [[0, 0, 1, 1, 0, 0, 3], [0, 4, 0, 0, 0, 0, 0]]
    assert batch.turn_index.tolist() == [[-1, -1, 0, 0, -1, -1, 2], [-1, 0, -1, -1, -1, -1, -1]]
    assert batch.attention_mask.tolist() == [[1] * 7, [1, 1, 0, 0, 0, 0, 0]]
    assert batch.position_ids.tolist() == [list(range(7)), [0, 1, 0, 0, 0, 0, 0]]
    assert batch.cu_seqlens.tolist() == [0, 7, 9]
    assert (batch.max_seqlen, batch.num_rows, batch.num_tokens, batch.predictor_index) == (7, 2, 9, None)


def test_segments_have_rows_of_their_own() -> None:
    episode = synthetic_episode(0, 0, [2, 1, 1], prompt=[5, 6], feedback=1, anew=[2])
    ids = episode.ids.tolist()
    assert episode.segment_starts.tolist() == [0, 6]
    batch = pack([episode], advantages=[[1.0, 2.0, 3.0]], pad_id=99)
    assert batch.input_ids.tolist() == [ids[:6], [*ids[6:], 99, 99]]
    assert batch.loss_mask.int().tolist() == [[0, 0, 1, 1, 0, 1], [0, 0, 0, 1, 0, 0]]
    assert batch.advantages.tolist() == [[0, 0, 1, 1, 0, 2], [0, 0, 0, 3, 0, 0]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 0, 0]]
    assert batch.episode_index.tolist() == [[0] * 6, [0, 0, 0, 0, -1, -1]]
    assert (batch.count("sequence"), batch.count("turn")) == (1, 3), "rows are no episodes"
    turns = pack([episode], "turns", form="varlen", advantages=[[1.0, 2.0, 3.0]])
    assert turns.input_ids.tolist() == [ids[:4] + ids[:6] + ids[6:]]
    assert turns.cu_seqlens.tolist() == [0, 4, 10, 14]
    assert turns.position_ids[0, 10:].tolist() == [0, 1, 2, 3]


def test_segments_with_one_context_share_it_in_a_tree() -> None:
    members = [synthetic_episode(0, i, [1, 2], prompt=[5, 6], feedback=1, anew=[1], group="g") for i in range(2)]
    ids = members[0].ids.copy()
    ids[3:6] = members[1].ids[3:6]  # both contexts were written anew as the same
    members[0] = dataclasses.replace(members[0], ids=ids)
    batch = pack(members, "tree", advantages=[[1.0, 2.0], [3.0, 4.0]])
    assert batch.lengths.tolist() == [2 + 1 + 1, 3 + 2 + 2]
    assert batch.position_ids[1].tolist() == [0, 1, 2, 3, 4, 3, 4]
    for before, after in zip(members, unpack(batch), strict=True):
        assert_same(before, after)


def test_turn_layout_repeats_the_history_and_trains_on_one_completion() -> None:
    episode = synthetic_episode(0, 0, [2, 1], prompt=[5, 6], feedback=1)
    ids = episode.ids.tolist()
    batch = pack([episode], "turns", form="varlen", advantages=[[1.0, 2.0]])
    assert batch.input_ids.tolist() == [ids[:4] + ids]
    assert batch.loss_mask.int().tolist() == [[0, 0, 1, 1, 0, 0, 0, 0, 0, 1]]
    assert batch.advantages.tolist() == [[0, 0, 1, 1, 0, 0, 0, 0, 0, 2]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]]
    assert batch.cu_seqlens.tolist() == [0, 4, 10]


def test_tree_layout_stores_a_shared_prompt_once() -> None:
    a = synthetic_episode(0, 0, [2], prompt=[5, 6, 7], group="g")
    other = synthetic_episode(0, 1, [1], prompt=[8], group="h")
    b = synthetic_episode(0, 2, [1, 1], prompt=[5, 6, 7], feedback=1, group="g")
    batch = pack([a, other, b], "tree", advantages=[[1.0], [2.0], [3.0, 4.0]])
    assert batch.input_ids[0].tolist() == [5, 6, 7, *a.ids[3:].tolist(), *b.ids[3:].tolist()]
    assert batch.branch_index.tolist() == [[0, 0, 0, 1, 1, 2, 2, 2], [0, 1, -1, -1, -1, -1, -1, -1]]
    assert batch.position_ids[0].tolist() == [0, 1, 2, 3, 4, 3, 4, 5]
    assert batch.episode_index[0].tolist() == [-1, -1, -1, 0, 0, 2, 2, 2]
    assert batch.predictor_index is not None
    assert batch.predictor_index[0].tolist() == [0, 0, 1, 2, 3, 2, 5, 6]
    flat = pack([a, other, b], "tree", form="varlen")
    assert flat.predictor_index is not None
    assert flat.predictor_index[0, 8:].tolist() == [8, 8]  # the second row begins at column 8


def test_prompts_that_differ_within_a_group_are_not_merged() -> None:
    episodes = [synthetic_episode(0, i, [1], prompt=[i], group="g") for i in range(2)]
    assert pack(episodes, "tree").num_rows == 2
    assert pack([dataclasses.replace(e, group=None) for e in episodes], "tree").num_rows == 2


def test_default_advantages_and_returns_use_the_episodes_discount() -> None:
    episodes = [synthetic_episode(0, i, [1, 1], group="g", discount=0.5) for i in range(3)]
    batch = pack(episodes)
    expected = advantages(episodes, discount=0.5)
    assert batch.advantages[1][batch.loss_mask[1]].tolist() == expected[1].tolist()
    mixed = [*episodes, synthetic_episode(0, 3, [1], discount=0.9)]
    with pytest.raises(InvalidValueError, match=r"different discounts \[0.5, 0.9\]"):
        pack(mixed)
    assert pack(mixed, discount=1.0).num_rows == 4


def test_all_completions_empty_packs_to_a_batch_without_loss() -> None:
    for layout in LAYOUTS:
        batch = pack([synthetic_episode(0, i, [0, 0], group="g") for i in range(2)], layout)
        assert not batch.loss_mask.any()
        assert not batch.advantages.isnan().any()
        assert batch.count("token") == batch.count("turn") == batch.count("sequence") == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_logprobs_name_episode_and_turn(layout: Any) -> None:
    episode = synthetic_episode(0, 7, [2, 2])
    broken = episode.logprobs.copy()
    broken[episode.turn_spans[1, 0]] = np.nan
    episodes = [synthetic_episode(0, 0, [1]), dataclasses.replace(episode, logprobs=broken)]
    with pytest.raises(InvalidEpisodeError, match=r"episode 7 on 'synthetic/7', turn 1: behavior log-probs are miss"):
        pack(episodes, layout)
    assert not pack(episodes, layout, allow_missing_logprobs=True).has_logprobs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "epsode"}, "did you mean 'episode'"),
        ({"form": "flat"}, "unknown form 'flat'"),
        ({"pad_id": -1}, "pad_id must be"),
        ({"discount": 2.0}, "discount must be"),
        ({"advantages": []}, "0 entries for 1 episodes"),
        ({"advantages": [[1.0]]}, r"advantages of episode 0 on 'synthetic/0' must have shape \(2,\)"),
        ({"advantages": [[1.0, float("nan")]]}, "advantages of episode 0 on 'synthetic/0', turn 1, must be finite"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        pack([synthetic_episode(0, 0, [1, 1])], **options)


def test_no_episodes_and_no_prompt_are_errors() -> None:
    with pytest.raises(InvalidValueError, match="at least one episode"):
        pack([])
    with pytest.raises(InvalidEpisodeError, match="episode 3 on 'synthetic/3', turn 1: its completion begins at id 0"):
        pack([synthetic_episode(0, 3, [0, 2], prompt=[], feedback=0)])


def test_numpy_and_moves_keep_everything() -> None:
    batch = pack([synthetic_episode(0, i, [2, 1], group="g") for i in range(3)], "tree")
    moved = batch.to("cpu", non_blocking=True)
    for name, array in batch.numpy().items():
        assert np.array_equal(array, moved.numpy()[name])
        assert np.shares_memory(array, getattr(batch, name).numpy())
    if torch.accelerator.is_available():
        assert batch.pin_memory().input_ids.is_pinned()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
def test_packing_takes_at_most_twice_the_memory_of_its_tensors(layout: Any, form: Any) -> None:
    episodes = [synthetic_episode(0, i, [60, 50, 40], prompt=50, group=str(i // 8)) for i in range(2_000)]
    given = [np.zeros(3, np.float32)] * len(episodes)
    pack(episodes[:2], layout, form=form, advantages=given[:2])
    tracemalloc.start()
    batch = pack(episodes, layout, form=form, advantages=given)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    made = sum(tensor.numel() * tensor.element_size() for tensor in batch.tensors().values())
    assert made > 10e6
    assert made <= peak <= 2 * made


def test_replace_tensors_checks_shapes() -> None:
    batch = pack([synthetic_episode(0, 0, [2])])
    doubled = batch.replace_tensors({"advantages": batch.advantages * 2})
    assert torch.equal(doubled.advantages, batch.advantages * 2)
    with pytest.raises(InvalidValueError, match=r"PackedBatch.advantages must be torch.float32"):
        batch.replace_tensors({"advantages": batch.advantages.double()})


def test_original_layout_row_by_row() -> None:
    """Layout "turns" has the original agent's sequences: prompt and answers so far, then the answer trained on."""
    episodes = [synthetic_episode(0, i, [2, 3, 1], group="g") for i in range(2)]
    batch = pack(episodes, "turns")
    rows = [(e, turn) for e in episodes for turn in e.turns]
    assert batch.num_rows == len(rows) == 6
    for row, (_, turn) in enumerate(rows):
        length = int(batch.lengths[row])
        assert batch.input_ids[row, :length].tolist() == [*turn.context.tolist(), *turn.ids.tolist()]
        assert batch.loss_mask[row, :length].tolist() == [False] * len(turn.context) + [True] * len(turn.ids)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logprobs": [0, 0, -1, 0, -1, 0.5]}, r"episode 2 on 'synthetic/2', turn 1: logprobs\[5\] must be .* got 0.5"),
        ({"logprobs": [0, 0, -np.inf, 0, -1, -1]}, r"turn 0: logprobs\[2\] must be a finite number <= 0, got -inf"),
        ({"logprobs": [0, 0, -1, 0]}, r"episode 2 on 'synthetic/2': logprobs must be float32 of shape \(6,\)"),
        ({"versions": [-1, -1, 3, -1, 3, 2]}, r"episode 2 on 'synthetic/2', turn 1: versions run backwards"),
        ({"versions": [-1, -1, -1, -1, 3, 3]}, r"turn 0: versions run backwards or are negative"),
    ],
)
def test_an_episode_that_breaks_a_law_is_refused_by_name_and_turn(change: dict[str, Any], message: str) -> None:
    episode = synthetic_episode(0, 2, [1, 2], prompt=2, feedback=1)
    arrays: dict[str, Any] = {name: np.array(row, getattr(episode, name).dtype) for name, row in change.items()}
    with pytest.raises(InvalidEpisodeError, match=message):
        dataclasses.replace(episode, **arrays)
