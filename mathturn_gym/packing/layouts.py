"""`pack` and `unpack`: which ids go where in each layout, vectorised over all tokens of all episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError, check_int, raise_unknown_name
from mathturn_gym.packing.batch import FORMS, LAYOUTS, Facts, Form, Layout, PackedBatch, Pieces, episode_facts
from mathturn_gym.returns import advantages as default_advantages
from mathturn_gym.returns import episode_returns, group_index
from mathturn_gym.types import NO_VERSION, Episode

__all__ = ["pack", "unpack"]

_Index = npt.NDArray[np.int64]
_NO_IDS: Final = np.zeros(0, np.int64)


def pack(
    episodes: Sequence[Episode],
    layout: Layout = "episode",
    *,
    form: Form = "padded",
    advantages: Sequence[npt.ArrayLike] | None = None,
    discount: float | None = None,
    allow_missing_logprobs: bool = False,
    pad_id: int = 0,
    device: torch.device | str | None = None,
    pin_memory: bool = False,
) -> PackedBatch:
    """Packs episodes into tensors; no completion id is lost, none is trained on twice.

    * `"episode"`: one row per episode, its loss mask over all its completions. Tokens grow with an episode's length.
    * `"turns"`: one row per turn: everything before it again, and the completion; only the completion is in the loss
      mask (the original agent's layout). Tokens grow with the square of the number of turns.
    * `"tree"`: one row per group (`Episode.group`): their common prompt once, then each member as a branch. Needs the
      mask and position ids of `model_inputs`, `dense_mask` or `mask_mod`. Episodes of a group whose prompts differ,
      and episodes without a group, get a row of their own.

    All three give the same loss and gradient (`policy_loss` counts turns and episodes, not rows).

    Args:
        episodes: E episodes, at least one.
        layout: See above.
        form: `"padded"`: (B, T), padding on the right; `"varlen"`: (1, N), rows end to end.
        advantages: E arrays (K,), finite; None computes the default ones (`returns.advantages`).
        discount: For the returns (and default advantages). None keeps each episode's own returns and discount (1
            where it has none).
        allow_missing_logprobs: Accept NaN behaviour log-probs, for losses without ratios (supervised, on-policy).
        pad_id: The id of padding, >= 0.
        device: Where the tensors go; None leaves them on the CPU.
        pin_memory: Build them in page-locked memory; the copy to `device` is then non-blocking.

    Returns:
        The batch; `unpack` gives the episodes back to the bit.

    Raises:
        InvalidValueError: no episodes, an unknown name, advantages that do not fit.
        InvalidEpisodeError: log-probs missing (episode and turn are named), or a completion without any context.
    """
    if layout not in LAYOUTS:
        raise_unknown_name("layout", layout, LAYOUTS)
    if form not in FORMS:
        raise_unknown_name("form", form, FORMS)
    if len(episodes) == 0:
        raise InvalidValueError("episodes must hold at least one episode, got none")
    pad = check_int("pad_id", pad_id, low=0)
    spans = _Spans(episodes)
    pieces, piece_of_span, facts = _LAYOUT_PIECES[layout](episodes, spans)
    values = {
        "advantages": _advantage_values(episodes, spans, advantages, discount),
        "returns": episode_returns(episodes, discount),
        "rewards": np.concatenate([episode.rewards for episode in episodes]).astype(np.float32),
    }
    batch = _build(episodes, spans, pieces, piece_of_span, values, layout, form, pad, facts)
    if not allow_missing_logprobs:
        batch.require_logprobs("training by ratios (allow_missing_logprobs=False)")
    if pin_memory:
        batch = batch.pin_memory()
    return batch if device is None else batch.to(device, non_blocking=pin_memory)


class _Spans:
    """All completions of all episodes, end to end, in order of episode and turn (S of them, M ids)."""

    def __init__(self, episodes: Sequence[Episode]) -> None:
        count = len(episodes)
        self.turns = np.fromiter((len(e.rewards) for e in episodes), np.int64, count)
        self.sizes = np.fromiter((len(e.ids) for e in episodes), np.int64, count)
        bounds = np.concatenate([e.turn_spans for e in episodes])
        self.start, self.end = bounds[:, 0], bounds[:, 1]
        self.length = self.end - self.start
        self.episode = np.repeat(np.arange(count), self.turns)
        self.turn = _ranges(np.zeros(count, np.int64), self.turns)
        first = np.cumsum(self.turns) - self.turns
        self.prompt = self.sizes.copy()
        some = self.turns > 0
        self.prompt[some] = self.start[first[some]]
        bad = np.flatnonzero((self.start == 0) & (self.length > 0))
        if bad.size:
            at = int(bad[0])
            one = episodes[int(self.episode[at])]
            raise InvalidEpisodeError(
                f"episode {one.index} on {one.problem_id!r}, turn {int(self.turn[at])}: its completion begins at id 0, "
                f"so nothing predicts it; an episode must begin with a prompt"
            )


def _ranges(start: _Index, length: _Index) -> _Index:
    """The numbers start[0], start[0] + 1, … (length[0] of them), then start[1], and so on."""
    ends = np.cumsum(length)
    total = int(ends[-1]) if len(ends) else 0
    result = np.repeat(start - ends + length, length)
    result += np.arange(total)
    return result


def _pieces(row: _Index, episode: _Index, length: _Index, **others: _Index) -> Pieces:
    zeros = np.zeros(len(row), np.int64)
    columns = {"start": zeros, "offset": zeros, "turn": zeros - 1, "branch": zeros, **others}
    return Pieces(row=row, episode=episode, length=length, **columns)


def _episode_pieces(episodes: Sequence[Episode], spans: _Spans) -> tuple[Pieces, _Index, tuple[Facts, ...]]:
    rows = np.arange(len(episodes))
    return _pieces(rows, rows, spans.sizes), spans.episode, tuple([episode_facts(e, _NO_IDS) for e in episodes])


def _turn_pieces(episodes: Sequence[Episode], spans: _Spans) -> tuple[Pieces, _Index, tuple[Facts, ...]]:
    rows = np.arange(len(spans.start))
    facts = tuple(
        [episode_facts(e, e.ids[int(e.turn_spans[-1, 1]) if len(e.turn_spans) else 0 :].copy()) for e in episodes]
    )
    return _pieces(rows, spans.episode, spans.end, turn=spans.turn), rows, facts


def _tree_pieces(episodes: Sequence[Episode], spans: _Spans) -> tuple[Pieces, _Index, tuple[Facts, ...]]:
    groups = group_index(episodes).tolist()
    trees: dict[tuple[int, bytes], int] = {}
    keys = ((group, episode.prompt_ids.tobytes()) for group, episode in zip(groups, episodes, strict=True))
    tree = np.fromiter((trees.setdefault(key, len(trees)) for key in keys), np.int64, len(episodes))
    order = np.argsort(tree, kind="stable")
    sizes = np.bincount(tree, minlength=len(trees))
    heads = np.cumsum(sizes) - sizes  # position of each tree's first member in `order`
    branch = spans.sizes - spans.prompt
    before = np.cumsum(branch[order]) - branch[order]  # branch ids before each member, over all trees
    offset = spans.prompt[order] + before - np.repeat(before[heads], sizes)
    first = order[heads]
    blank = np.zeros(len(trees), np.int64)
    row = np.concatenate([np.arange(len(trees)), tree[order]])
    number = np.concatenate([blank, 1 + _ranges(blank, sizes)])
    pieces = _pieces(
        row,
        np.concatenate([first, order]),
        np.concatenate([spans.prompt[first], branch[order]]),
        start=np.concatenate([blank, spans.prompt[order]]),
        offset=np.concatenate([blank, offset]),
        branch=number,
    )
    sort = np.lexsort((number, row))
    rank = np.argsort(sort, kind="stable")  # where each piece went
    piece_of_episode = np.empty(len(episodes), np.int64)
    piece_of_episode[order] = rank[len(trees) :]
    return pieces.take(sort), piece_of_episode[spans.episode], tuple([episode_facts(e, _NO_IDS) for e in episodes])


_LAYOUT_PIECES: Final = {"episode": _episode_pieces, "turns": _turn_pieces, "tree": _tree_pieces}


def _advantage_values(
    episodes: Sequence[Episode], spans: _Spans, given: Sequence[npt.ArrayLike] | None, discount: float | None
) -> npt.NDArray[np.float32]:
    """One advantage per turn, end to end: float32 (S,)."""
    if given is None:
        if discount is None:
            own = {episode.discount for episode in episodes} - {None}
            if len(own) > 1:
                raise InvalidValueError(f"episodes have different discounts {sorted(own)}: give `discount`")  # type: ignore[type-var]
            discount = next(iter(own), 1.0)
        assert discount is not None
        return np.concatenate(default_advantages(episodes, discount=discount))
    if len(given) != len(episodes):
        raise InvalidValueError(f"advantages has {len(given)} entries for {len(episodes)} episodes")
    arrays = [np.asarray(array, dtype=np.float32) for array in given]
    for array, turns, episode in zip(arrays, spans.turns.tolist(), episodes, strict=True):
        if array.shape != (turns,):
            raise InvalidValueError(
                f"advantages of episode {episode.index} on {episode.problem_id!r} must have shape ({turns},), one per "
                f"turn, got {array.shape}"
            )
    flat = np.concatenate(arrays)
    bad = np.flatnonzero(~np.isfinite(flat))
    if bad.size:
        at = int(bad[0])
        one = episodes[int(spans.episode[at])]
        raise InvalidValueError(
            f"advantages of episode {one.index} on {one.problem_id!r}, turn {int(spans.turn[at])}, must be finite, got "
            f"{float(flat[at])!r}"
        )
    return flat


def _build(
    episodes: Sequence[Episode],
    spans: _Spans,
    pieces: Pieces,
    piece_of_span: _Index,
    values: dict[str, npt.NDArray[np.float32]],
    layout: Layout,
    form: Form,
    pad_id: int,
    facts: tuple[Facts, ...],
) -> PackedBatch:
    """Writes every tensor once, at its final place."""
    rows = int(pieces.row[-1]) + 1 if len(pieces.row) else 0
    lengths = np.bincount(pieces.row, pieces.length, minlength=rows).astype(np.int64)
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths)])
    if cu_seqlens[-1] >= 2**31:
        raise InvalidValueError(
            f"{int(cu_seqlens[-1])} ids do not fit in one batch (int32 cu_seqlens): pack fewer episodes"
        )
    longest = int(lengths.max(initial=0))
    shape = (1, int(cu_seqlens[-1])) if form == "varlen" else (rows, longest)
    row_start = cu_seqlens[:-1] if form == "varlen" else np.arange(rows) * longest
    place = row_start[pieces.row] + pieces.offset
    dense = form == "varlen"  # pieces then fill the tensors in order, without gaps
    filled: Any = slice(None) if dense else _ranges(place, pieces.length)

    def new(dtype: type[np.generic], fill: int, piece_values: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        array = np.full(shape, fill, dtype)
        if piece_values is not None:
            array.reshape(-1)[filled] = np.repeat(piece_values.astype(dtype), pieces.length)
        return array

    whole = len(pieces.start) == len(episodes) and layout == "episode"
    ids = (
        np.concatenate([episode.ids for episode in episodes])
        if whole
        else np.concatenate(
            [
                _NO_IDS,
                *(
                    episodes[e].ids[start : start + length]
                    for e, start, length in zip(
                        pieces.episode.tolist(), pieces.start.tolist(), pieces.length.tolist(), strict=True
                    )
                ),
            ]
        )
    )
    input_ids = new(np.int64, pad_id)
    input_ids.reshape(-1)[filled] = ids
    del ids
    positions = new(np.int64, 0)
    positions.reshape(-1)[filled] = _ranges(pieces.start, pieces.length)
    owner = np.where((pieces.branch == 0) & (layout == "tree"), -1, pieces.episode)
    episode_index, branch_index = new(np.int32, -1, owner), new(np.int32, -1, pieces.branch)

    trained = _ranges(place[piece_of_span] + spans.start - pieces.start[piece_of_span], spans.length)

    def scatter(dtype: type[np.generic], fill: int, token_values: npt.NDArray[Any] | bool) -> npt.NDArray[Any]:
        array = np.full(shape, fill, dtype)
        array.reshape(-1)[trained] = token_values
        return array

    own = np.concatenate([episode.loss_mask for episode in episodes])
    logprobs = np.concatenate([episode.logprobs for episode in episodes])[own]
    tensors: dict[str, npt.NDArray[Any]] = {
        "input_ids": input_ids,
        "position_ids": positions,
        "episode_index": episode_index,
        "branch_index": branch_index,
        "loss_mask": scatter(np.bool_, 0, True),
        "behaviour_logprobs": scatter(np.float32, 0, logprobs),
        "versions": scatter(np.int32, NO_VERSION, np.concatenate([e.versions for e in episodes])[own]),
        "turn_index": scatter(np.int32, -1, np.repeat(spans.turn.astype(np.int32), spans.length)),
        **{name: scatter(np.float32, 0, np.repeat(array, spans.length)) for name, array in values.items()},
        "cu_seqlens": cu_seqlens.astype(np.int32),
    }
    predictor = _predictors(pieces, place, shape, form) if layout == "tree" else None
    return PackedBatch(
        layout=layout,
        form=form,
        **{name: torch.from_numpy(array) for name, array in tensors.items()},
        predictor_index=predictor,
        max_seqlen=longest,
        has_logprobs=not bool(np.isnan(logprobs).any()),
        facts=facts,
        pieces=pieces,
    )


def _predictors(pieces: Pieces, place: _Index, shape: tuple[int, int], form: Form) -> torch.Tensor:
    """The column before each id; for a branch's first id, its prompt's last; for a row's first id, itself."""
    result = np.broadcast_to(np.maximum(np.arange(shape[1]) - 1, 0), shape).copy()
    row_place = place - pieces.offset  # where the piece's row begins
    held = pieces.length > 0
    fork = np.flatnonzero((pieces.branch > 0) & held)
    origin = row_place if form == "varlen" else np.zeros_like(row_place)  # column of the row's first id
    result.reshape(-1)[place[fork]] = np.maximum(origin[fork] + pieces.start[fork] - 1, origin[fork])
    result.reshape(-1)[row_place[held]] = origin[held]
    return torch.from_numpy(result)


def unpack(batch: PackedBatch) -> list[Episode]:
    """The episodes of a batch, equal to the bit to those that were packed, in their order.

    Args:
        batch: In any layout and form, on any device.

    Raises:
        InvalidValueError: a part of layout `"turns"` that holds only some turns of an episode.
    """
    split = batch.split_episodes
    if split:
        raise InvalidValueError(
            f"the batch holds only some turns of {batch.facts[split[0]].name}: unpack the whole batch, or make "
            f"micro-batches with keep_episodes=True"
        )
    arrays = {
        name: getattr(batch, name).cpu().numpy().reshape(-1) for name in ("input_ids", "behaviour_logprobs", "versions")
    }
    pieces = batch.pieces
    starts = batch.cu_seqlens.cpu().numpy()[:-1].astype(np.int64)
    if batch.form == "padded":
        starts = np.arange(batch.num_rows) * batch.input_ids.shape[1]
    place = (starts[pieces.row] + pieces.offset).tolist()
    row_head = np.searchsorted(pieces.row, pieces.row).tolist()
    held: list[list[int]] = [[] for _ in batch.facts]
    for p, (episode, branch) in enumerate(zip(pieces.episode.tolist(), pieces.branch.tolist(), strict=True)):
        if batch.layout != "tree":
            held[episode].append(p)
        elif branch > 0:
            held[episode] += [row_head[p], p]
    return [_restore(facts, held[e], pieces, place, arrays) for e, facts in enumerate(batch.facts)]


def _restore(
    facts: Facts, held: list[int], pieces: Pieces, place: list[int], arrays: dict[str, npt.NDArray[Any]]
) -> Episode:
    blank = facts.blank()
    ids, logprobs, versions = blank.ids, blank.logprobs, np.full(facts.size, NO_VERSION, np.int32)
    for p in held:
        low, size, turn = int(pieces.start[p]), int(pieces.length[p]), int(pieces.turn[p])
        ids[low : low + size] = arrays["input_ids"][place[p] : place[p] + size]
        begin, end = (low, low + size) if turn < 0 else facts.spans[turn].tolist()
        source = slice(place[p] + begin - low, place[p] + end - low)
        logprobs[begin:end] = arrays["behaviour_logprobs"][source]
        versions[begin:end] = arrays["versions"][source]
    ids[facts.size - len(facts.tail) :] = facts.tail
    return replace(blank, ids=ids, logprobs=logprobs, versions=versions)
