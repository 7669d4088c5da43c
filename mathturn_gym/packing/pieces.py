"""Which ids of which episode lie where in each layout: tables of spans and pieces, no tokens yet."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError
from mathturn_gym.packing.batch import FactsTable, Pieces
from mathturn_gym.returns import group_index
from mathturn_gym.types import Episode

__all__ = ["LAYOUT_PIECES", "Grid", "Spans", "ranges", "runs"]

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
    tails = [e.ids[int(e.turn_spans[-1, 1]) if len(e.turn_spans) else 0 :].copy() for e in episodes]
    return (
        _pieces(rows, spans.episode, spans.end - start, start=start, turn=spans.turn),
        rows,
        FactsTable(episodes, spans.turns, spans.sizes, tails),
    )


def _tree_pieces(episodes: Sequence[Episode], spans: Spans) -> tuple[Pieces, _Index, FactsTable]:
    """A tree per group and prompt; a segment that was written anew has a prompt, and so mostly a tree, of its own."""
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
    items[1::2] = values
    return np.repeat(items, counts).reshape(shape)


class Grid:
    """Where everything lies in the flattened tensors of a batch.

    Args:
        pieces: P pieces, in order of row and place.
        spans: S completions.
        piece_of_span: int64 (S,); the piece in which each is trained on.
        padded: (B, T) tensors; otherwise (1, N).

    Raises:
        InvalidValueError: more ids than `cu_seqlens` can count.
    """

    def __init__(self, pieces: Pieces, spans: Spans, piece_of_span: _Index, *, padded: bool) -> None:
        rows = int(pieces.row[-1]) + 1 if len(pieces.row) else 0
        lengths = np.bincount(pieces.row, pieces.length, minlength=rows).astype(np.int64)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        total = int(ends[-1])
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
