"""`pack` and `unpack`: which ids go where in each layout, vectorized over all tokens of all episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from mathturn_gym.episodes.packing.batch import FORMS, LAYOUTS, Facts, FactsTable, Form, Layout, PackedBatch, Pieces
from mathturn_gym.episodes.returns import advantages as default_advantages
from mathturn_gym.episodes.returns import episode_returns, group_index
from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError, check_int, raise_unknown_name
from mathturn_gym.types import NO_VERSION, Episode

_Index = npt.NDArray[np.int64]

_COLUMNS: Final = ("ids", "loss_mask", "logprobs", "versions", "turn_spans", "rewards", "segment_starts")


class Segments:
    """All segments of all episodes, end to end: the sequences that a policy saw (most episodes have one).

    Args:
        starts: Per episode, where its segments begin.
        sizes: int64 (E,), ids of each episode.

    Attributes:
        episode: int64 (G,); the episode of each.
        start: int64 (G,); where it begins in its episode.
        length: int64 (G,).
        first: int64 (E,); the number of each episode's first segment.
    """

    def __init__(self, starts: Sequence[_Index], sizes: _Index) -> None:
        counts = np.fromiter(map(len, starts), np.int64, len(starts))
        self.episode = np.repeat(np.arange(len(starts)), counts)
        self.first = np.cumsum(counts) - counts
        self.start = np.concatenate(starts)
        end = np.append(self.start[1:], 0)
        # The last segment of each episode ends with it, every other one where the next begins.
        end[self.first + counts - 1] = sizes
        self.length = end - self.start


class Spans:
    """All completions of all episodes, end to end, in order of episode and turn (S of them, M ids).

    Attributes:
        segments: The sequences that they are in.
        segment: int64 (S,); the segment of each completion.
    """

    def __init__(self, episodes: Sequence[Episode]) -> None:
        count = len(episodes)
        # One pass over the episodes per field, in C: with many episodes it is their objects that are slow to reach.
        self.columns = {name: list(map(attrgetter(name), episodes)) for name in _COLUMNS}
        self.turns = np.fromiter(map(len, self.columns["turn_spans"]), np.int64, count)
        self.sizes = np.fromiter(map(len, self.columns["ids"]), np.int64, count)
        bounds = np.concatenate(self.columns["turn_spans"])
        self.start, self.end = bounds[:, 0], bounds[:, 1]
        self.length = self.end - self.start
        self.episode = np.repeat(np.arange(count), self.turns)
        self.turn = ranges(np.zeros(count, np.int64), self.turns)
        self.segments = Segments(self.columns["segment_starts"], self.sizes)
        self.segment = self._segment_of_each()
        bad = np.flatnonzero((self.start == self.segments.start[self.segment]) & (self.length > 0))
        if bad.size:
            at = int(bad[0])
            one = episodes[int(self.episode[at])]
            raise InvalidEpisodeError(
                f"episode {one.index} on {one.problem_id!r}, turn {int(self.turn[at])}: its completion begins at id 0, "
                f"so nothing predicts it; an episode must begin with a prompt"
            )

    def _segment_of_each(self) -> _Index:
        """The number of each completion's segment, over all episodes."""
        if len(self.segments.start) == len(self.turns):
            return self.episode
        # End to end, all episodes are one line of ids, on which both segments and completions are in order.
        origin = np.cumsum(self.sizes) - self.sizes
        begins = self.segments.start + origin[self.segments.episode]
        found = np.searchsorted(begins, self.start + origin[self.episode]) - 1
        # One without an id may lie on the boundary, and belongs to the segment that ends there, but to no other episode's.
        first: _Index = np.maximum(found, self.segments.first[self.episode])
        return first

    def prompts(self) -> _Index:
        """Ids of each segment before its first completion, int64 (G,); all of them where it has none."""
        prompt = self.segments.length.copy()
        held, first = np.unique(self.segment, return_index=True)
        prompt[held] = self.start[first] - self.segments.start[held]
        return prompt


def ranges(start: _Index, length: _Index) -> _Index:
    """The numbers start[0], start[0] + 1, … (length[0] of them), then start[1], and so on."""
    ends = np.cumsum(length)
    total = int(ends[-1]) if len(ends) else 0
    result = np.repeat(start - ends + length, length)
    result += np.arange(total)
    return result


def _pieces(row: _Index, episode: _Index, length: _Index, **others: _Index) -> Pieces:
    zeros = np.zeros(len(row), np.int64)
    columns = {"start": zeros, "offset": zeros, "position": zeros, "turn": zeros - 1, "branch": zeros, **others}
    return Pieces(row=row, episode=episode, length=length, **columns)


def _episode_pieces(episodes: Sequence[Episode], spans: Spans) -> tuple[Pieces, _Index, FactsTable]:
    segments = spans.segments
    pieces = _pieces(np.arange(len(segments.start)), segments.episode, segments.length, start=segments.start)
    return pieces, spans.segment, FactsTable(episodes, spans.turns, spans.sizes)


def _turn_pieces(episodes: Sequence[Episode], spans: Spans) -> tuple[Pieces, _Index, FactsTable]:
    rows, start = np.arange(len(spans.start)), spans.segments.start[spans.segment]
    # Layout "turns" ends with the last completion; the feedback behind it is kept aside, so that unpack gives it back.
    tails = [e.ids[int(e.turn_spans[-1, 1]) if len(e.turn_spans) else 0 :].copy() for e in episodes]
    return (
        _pieces(rows, spans.episode, spans.end - start, start=start, turn=spans.turn),
        rows,
        FactsTable(episodes, spans.turns, spans.sizes, tails),
    )


def _tree_pieces(episodes: Sequence[Episode], spans: Spans) -> tuple[Pieces, _Index, FactsTable]:
    """A tree per group and prompt; a re-rendered segment has its own prompt, and so mostly its own tree."""
    segments, prompt, groups = spans.segments, spans.prompts(), group_index(episodes)
    owners, begins = segments.episode.tolist(), segments.start.tolist()
    trees: dict[tuple[int, bytes], int] = {}
    keys = (
        (int(groups[owner]), episodes[owner].ids[begin : begin + size].tobytes())
        for owner, begin, size in zip(owners, begins, prompt.tolist(), strict=True)
    )
    tree = np.fromiter((trees.setdefault(key, len(trees)) for key in keys), np.int64, len(owners))
    order = np.argsort(tree, kind="stable")
    sizes = np.bincount(tree, minlength=len(trees))
    heads = np.cumsum(sizes) - sizes  # position of each tree's first member in `order`
    branch = segments.length - prompt
    before = np.cumsum(branch[order]) - branch[order]  # branch ids before each member, over all trees
    offset = prompt[order] + before - np.repeat(before[heads], sizes)
    first = order[heads]
    blank = np.zeros(len(trees), np.int64)
    row = np.concatenate([np.arange(len(trees)), tree[order]])
    number = np.concatenate([blank, 1 + ranges(blank, sizes)])
    pieces = _pieces(
        row,
        np.concatenate([segments.episode[first], segments.episode[order]]),
        np.concatenate([prompt[first], branch[order]]),
        start=np.concatenate([segments.start[first], segments.start[order] + prompt[order]]),
        offset=np.concatenate([blank, offset]),
        position=np.concatenate([blank, prompt[order]]),
        branch=number,
    )
    # `runs` writes front to back: pieces must be in the order of rows and places.
    sort = np.lexsort((number, row))
    rank = np.argsort(sort, kind="stable")  # where each piece went
    piece_of_segment = np.empty(len(owners), np.int64)
    piece_of_segment[order] = rank[len(trees) :]
    return pieces.take(sort), piece_of_segment[spans.segment], FactsTable(episodes, spans.turns, spans.sizes)


LAYOUT_PIECES: Final = {"episode": _episode_pieces, "turns": _turn_pieces, "tree": _tree_pieces}
"""Per layout: its pieces, the piece in which each completion is trained on, and the episodes' facts."""


def runs(
    shape: tuple[int, int], start: _Index, length: _Index, values: npt.NDArray[Any], fill: int
) -> npt.NDArray[Any]:
    """An array with values[i] on the flat range [start[i], start[i] + length[i]) and `fill` elsewhere.

    Written in one sequential pass, without an index per token. Ranges are in order and do not overlap.
    """
    counts = np.empty(2 * len(start) + 1, np.int64)
    ends = start + length
    counts[1::2] = length
    counts[0] = start[0] if len(start) else shape[0] * shape[1]
    counts[2:-1:2] = start[1:] - ends[:-1]
    if len(start):
        counts[-1] = shape[0] * shape[1] - ends[-1]
    items = np.full(len(counts), fill, values.dtype)
    # Gap, value, gap, value …: one np.repeat writes the tensor in the order of memory.
    items[1::2] = values
    return np.repeat(items, counts).reshape(shape)


class Grid:
    """Offsets of rows, P pieces (in order of row and place) and S completions in the flattened tensors of a batch.

    `piece_of_span`, int64 (S,), is the piece in which each completion is trained on. Tensors are (B, T) where `padded`,
    otherwise (1, N).
    """

    def __init__(self, pieces: Pieces, spans: Spans, piece_of_span: _Index, *, padded: bool) -> None:
        rows = int(pieces.row[-1]) + 1 if len(pieces.row) else 0
        lengths = np.bincount(pieces.row, pieces.length, minlength=rows).astype(np.int64)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        total = int(ends[-1])
        # FlashAttention and its like take row lengths as int32.
        if total >= 2**31:
            raise InvalidValueError(f"{total} ids do not fit in one batch (int32 cu_seqlens): pack fewer episodes")
        self.cu_seqlens = ends.astype(np.int32)
        self.longest = int(lengths.max(initial=0))
        self.shape = (rows, self.longest) if padded else (1, total)
        self.full = self.shape[0] * self.shape[1] == total  # no padding
        self.row_start = np.arange(rows) * self.longest if padded else ends[:-1]
        self.place = self.row_start[pieces.row] + pieces.offset
        self.pieces = pieces
        begin = self.place[piece_of_span] + spans.start - pieces.start[piece_of_span]
        self._order = np.argsort(begin, kind="stable")  # as they are, but for trees
        self._begin, self._length = begin[self._order], spans.length[self._order]

    def per_piece(self, column: npt.NDArray[Any], fill: int) -> npt.NDArray[Any]:
        """A tensor with a piece's value on all its ids."""
        return runs(self.shape, self.place, self.pieces.length, column, fill)

    def per_turn(self, column: npt.NDArray[Any], fill: int) -> npt.NDArray[Any]:
        """A tensor with a turn's value on the ids of its completion."""
        return runs(self.shape, self._begin, self._length, column[self._order], fill)

    def positions(self) -> npt.NDArray[np.int64]:
        """Each id's place in its own context, 0 on padding: steps of one, and a jump where a piece begins."""
        flat = np.ones(self.shape[0] * self.shape[1], np.int64)
        held = self.pieces.length > 0
        at, value = self.place[held], self.pieces.position[held]
        if len(at):
            flat[at[0]] = value[0]
            # A cumulative sum of ones with a jump at each piece: no index per id is made.
            flat[at[1:]] = value[1:] - (value[:-1] + np.diff(at) - 1)
        return np.cumsum(flat, out=flat).reshape(self.shape)

    def predictors(self) -> npt.NDArray[np.int64]:
        """The column before each id; for a branch's first id, its prompt's last; for a row's first id, itself."""
        result = np.broadcast_to(np.maximum(np.arange(self.shape[1]) - 1, 0), self.shape).copy()
        pieces, held = self.pieces, self.pieces.length > 0
        fork = np.flatnonzero((pieces.branch > 0) & held)
        row_place = self.place - pieces.offset  # where the piece's row begins
        origin = row_place % max(self.shape[1], 1)  # in its row's columns
        result.reshape(-1)[self.place[fork]] = np.maximum(origin[fork] + pieces.position[fork] - 1, origin[fork])
        result.reshape(-1)[row_place[held]] = origin[held]
        return result


# ---- `pack` and `unpack`


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

    * `"episode"`: one row per episode, its loss mask over all its completions. Tokens grow with an episode's length. An
      episode whose context was re-rendered has a row per segment.
    * `"turns"`: one row per turn: everything that it saw again, and the completion; only the completion is in the loss
      mask (the original agent's layout). Tokens grow with the square of the number of turns.
    * `"tree"`: one row per group (`Episode.group`): their common prompt once, then each member as a branch. Needs the
      mask and position ids of `model_inputs`, `dense_mask` or `mask_mod`. Episodes of a group whose prompts differ,
      and episodes without a group, get a row of their own; so do re-rendered segments.

    All three give the same loss and gradient (`policy_loss` counts turns and episodes, not rows).

    Args:
        episodes: E episodes, at least one.
        layout: See above.
        form: `"padded"`: (B, T), padding on the right; `"varlen"`: (1, N), rows end to end.
        advantages: E arrays (K,), finite; None computes the default ones (`returns.advantages`).
        discount: For the returns (and default advantages). None keeps each episode's own returns and discount (1
            where it has none).
        allow_missing_logprobs: Accept NaN behavior log-probs, for losses without ratios (supervised, on-policy).
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
    spans = Spans(episodes)
    values = {
        "advantages": _advantage_values(episodes, spans, advantages, discount),
        "returns": episode_returns(episodes, discount),
        "rewards": np.concatenate(spans.columns["rewards"]).astype(np.float32),
    }
    batch = _build(episodes, spans, values, layout, form, pad)
    if not allow_missing_logprobs:
        batch.require_logprobs("training by ratios (allow_missing_logprobs=False)")
    if pin_memory:
        batch = batch.pin_memory()
    return batch if device is None else batch.to(device, non_blocking=pin_memory)


def _advantage_values(
    episodes: Sequence[Episode], spans: Spans, given: Sequence[npt.ArrayLike] | None, discount: float | None
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
    lengths = [len(array) if array.ndim == 1 else -1 for array in arrays]
    if lengths != spans.turns.tolist():
        at = int(np.flatnonzero(np.array(lengths) != spans.turns)[0])
        raise InvalidValueError(
            f"advantages of episode {episodes[at].index} on {episodes[at].problem_id!r} must have shape "
            f"({int(spans.turns[at])},), one per turn, got {arrays[at].shape}"
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
    spans: Spans,
    values: dict[str, npt.NDArray[np.float32]],
    layout: Layout,
    form: Form,
    pad_id: int,
) -> PackedBatch:
    """Writes every tensor once, in one sequential pass each: packing is bound by memory, not by Python."""
    pieces, piece_of_span, facts = LAYOUT_PIECES[layout](episodes, spans)
    grid = Grid(pieces, spans, piece_of_span, padded=form == "padded")
    branch_index = grid.per_piece(pieces.branch.astype(np.int32), -1)
    loss_mask = grid.per_turn(np.ones(len(spans.start), np.bool_), 0)
    position_ids = grid.positions()
    if not grid.full:
        position_ids[branch_index < 0] = 0
    # A shared prompt is held once, by the first of its group; only branches have trained ids.
    branches = pieces.take(pieces.branch > 0) if layout == "tree" else None

    def in_order(name: str) -> npt.NDArray[Any]:
        column = spans.columns[name]
        return np.concatenate(column if branches is None else _cut(column, branches))

    def per_id(name: str, fill: int) -> npt.NDArray[Any]:
        flat = in_order(name)
        shape = (*grid.shape, *flat.shape[1:])
        if layout == "episode" and grid.full:  # the episodes' own arrays, end to end, are the tensor
            return flat.reshape(shape)
        result = np.full(shape, fill, flat.dtype)
        result[loss_mask] = flat[in_order("loss_mask")]
        return result

    logprobs = per_id("logprobs", 0)
    tensors: dict[str, npt.NDArray[Any]] = {
        "input_ids": _input_ids(spans.columns["ids"], pieces, branch_index, pad_id, layout=layout, full=grid.full),
        "loss_mask": loss_mask,
        "behavior_logprobs": logprobs,
        "versions": per_id("versions", NO_VERSION),
        "turn_index": grid.per_turn(spans.turn.astype(np.int32), -1),
        "episode_index": grid.per_piece(_owners(pieces, layout), -1),
        "position_ids": position_ids,
        "branch_index": branch_index,
        **{name: grid.per_turn(column, 0) for name, column in values.items()},
        "cu_seqlens": grid.cu_seqlens,
    }
    if any(episode.support is not None for episode in episodes):
        spans.columns["support"] = _supports(episodes)
        tensors["support"] = per_id("support", -1)
    return PackedBatch(
        layout=layout,
        form=form,
        **{name: torch.from_numpy(array) for name, array in tensors.items()},
        predictor_index=torch.from_numpy(grid.predictors()) if layout == "tree" else None,
        max_seqlen=grid.longest,
        has_logprobs=not np.isnan(logprobs.min(initial=0.0)),  # the minimum is NaN where any is
        facts=facts,
        pieces=pieces,
    )


def _supports(episodes: Sequence[Episode]) -> list[npt.NDArray[np.int32]]:
    """The ids that could be drawn at each place of each episode, int32 (T, S), S the same for all."""
    width = 0
    for episode in episodes:
        if episode.support is None and episode.loss_mask.any():
            raise InvalidEpisodeError(
                f"episode {episode.index} on {episode.problem_id!r} has no support, and others have: what was cut off in"
                " sampling must be known of all, or of none"
            )
        width = max(width, 0 if episode.support is None else episode.support.shape[1])
    found = []
    for episode in episodes:
        full = np.full((len(episode.ids), width), -1, np.int32)
        if episode.support is not None:
            full[episode.loss_mask, : episode.support.shape[1]] = episode.support
        found.append(full)
    return found


def _input_ids(
    ids: Sequence[_Index],
    pieces: Pieces,
    branch_index: npt.NDArray[np.int32],
    pad_id: int,
    *,
    layout: Layout,
    full: bool,
) -> npt.NDArray[np.int64]:
    parts = ids if layout == "episode" else _cut(ids, pieces)
    flat = np.concatenate(parts) if len(parts) else np.zeros(0, np.int64)
    if full:
        return flat.reshape(branch_index.shape)
    result = np.full(branch_index.shape, pad_id, np.int64)
    result[branch_index >= 0] = flat
    return result


def _cut(column: Sequence[npt.NDArray[Any]], pieces: Pieces) -> list[npt.NDArray[Any]]:
    """The values of the episodes' arrays at the pieces."""
    bounds = (pieces.episode.tolist(), pieces.start.tolist(), (pieces.start + pieces.length).tolist())
    return [column[e][start:end] for e, start, end in zip(*bounds, strict=True)]


def _owners(pieces: Pieces, layout: Layout) -> npt.NDArray[np.int32]:
    """The episode of each piece; a tree's shared prompt belongs to none."""
    shared = (pieces.branch == 0) & (layout == "tree")
    return np.where(shared, -1, pieces.episode).astype(np.int32)


def unpack(batch: PackedBatch) -> list[Episode]:
    """The episodes of a batch, equal to the bit to those that were packed, in their order.

    Args:
        batch: In any layout and form, on any device.

    Raises:
        InvalidValueError: a micro-batch that holds only some turns or segments of an episode.
    """
    split = batch.split_episodes
    if split:
        raise InvalidValueError(
            f"the batch holds only a part of {batch.facts[split[0]].name}: unpack the whole batch, or make "
            f"micro-batches with keep_episodes=True"
        )
    arrays = {
        name: getattr(batch, name).cpu().numpy().reshape(-1) for name in ("input_ids", "behavior_logprobs", "versions")
    }
    pieces = batch.pieces
    starts = batch.cu_seqlens.cpu().numpy()[:-1].astype(np.int64)
    if batch.form == "padded":
        starts = np.arange(batch.num_rows) * batch.input_ids.shape[1]
    place = (starts[pieces.row] + pieces.offset).tolist()
    row_head = np.searchsorted(pieces.row, pieces.row).tolist()
    held: list[list[tuple[int, int]]] = [[] for _ in batch.facts]  # pieces, and where they go in their episode
    begin, position = pieces.start.tolist(), pieces.position.tolist()
    for p, (episode, branch) in enumerate(zip(pieces.episode.tolist(), pieces.branch.tolist(), strict=True)):
        if batch.layout != "tree":
            held[episode].append((p, begin[p]))
        elif branch > 0:
            # A branch does not hold its prompt: the first piece of its row does.
            held[episode] += [(row_head[p], begin[p] - position[p]), (p, begin[p])]
    if batch.support is not None:
        arrays["support"] = batch.support.cpu().numpy().reshape(batch.input_ids.numel(), batch.support.shape[-1])
    return [_restore(facts, held[e], pieces, place, arrays) for e, facts in enumerate(batch.facts)]


def _restore(
    facts: Facts, held: list[tuple[int, int]], pieces: Pieces, place: list[int], arrays: dict[str, npt.NDArray[Any]]
) -> Episode:
    blank = facts.blank()
    ids, logprobs, versions = blank.ids, blank.logprobs, np.full(facts.size, NO_VERSION, np.int32)
    support = np.full((facts.size, arrays["support"].shape[-1]), -1, np.int32) if "support" in arrays else None
    for p, low in held:
        size, turn = int(pieces.length[p]), int(pieces.turn[p])
        ids[low : low + size] = arrays["input_ids"][place[p] : place[p] + size]
        begin, end = (low, low + size) if turn < 0 else facts.spans[turn].tolist()
        source = slice(place[p] + begin - low, place[p] + end - low)
        logprobs[begin:end] = arrays["behavior_logprobs"][source]
        versions[begin:end] = arrays["versions"][source]
        if support is not None:
            support[begin:end] = arrays["support"][source]
    ids[facts.size - len(facts.tail) :] = facts.tail
    if support is not None and not blank.loss_mask.any():
        support = None
    elif support is not None:
        support = support[blank.loss_mask]
        # As narrow as the episode was: the batch padded it to the widest of all.
        support = support[:, : int((support >= 0).sum(axis=1).max(initial=0))]
    return replace(blank, ids=ids, logprobs=logprobs, versions=versions, support=support)
