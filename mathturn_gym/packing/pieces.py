"""Which ids of which episode lie where in each layout: tables of spans and pieces, no tokens yet."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mathturn_gym.errors import InvalidEpisodeError
from mathturn_gym.packing.batch import FactsTable, Pieces
from mathturn_gym.returns import group_index
from mathturn_gym.types import Episode

__all__ = ["LAYOUT_PIECES", "Spans", "ranges", "runs"]

_Index = npt.NDArray[np.int64]

_COLUMNS: Final = ("ids", "loss_mask", "logprobs", "versions", "turn_spans", "rewards")


class Spans:
    """All completions of all episodes, end to end, in order of episode and turn (S of them, M ids)."""

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


def ranges(start: _Index, length: _Index) -> _Index:
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


def _episode_pieces(episodes: Sequence[Episode], spans: Spans) -> tuple[Pieces, _Index, FactsTable]:
    rows = np.arange(len(episodes))
    return _pieces(rows, rows, spans.sizes), spans.episode, FactsTable(episodes, spans.turns, spans.sizes)


def _turn_pieces(episodes: Sequence[Episode], spans: Spans) -> tuple[Pieces, _Index, FactsTable]:
    rows = np.arange(len(spans.start))
    tails = [e.ids[int(e.turn_spans[-1, 1]) if len(e.turn_spans) else 0 :].copy() for e in episodes]
    return (
        _pieces(rows, spans.episode, spans.end, turn=spans.turn),
        rows,
        FactsTable(episodes, spans.turns, spans.sizes, tails),
    )


def _tree_pieces(episodes: Sequence[Episode], spans: Spans) -> tuple[Pieces, _Index, FactsTable]:
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
    number = np.concatenate([blank, 1 + ranges(blank, sizes)])
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
    return pieces.take(sort), piece_of_episode[spans.episode], FactsTable(episodes, spans.turns, spans.sizes)


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
