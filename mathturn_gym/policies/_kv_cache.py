"""Keys and values of contexts, while they are decoded and between their turns.

    PrefixStore: contexts between their turns          Arena: rows that are decoded, right-aligned, grown in place

    "prompt a1 f1"  ─┐                                      start                     end
    "prompt a2"      ├─ load ─►  row 0    0 0 0 0 0 0 0 [p p p p p a a f f f]
    "prompt"         │           row 1    0 0 0 0 0 0 0 0 0 [p p p p a f f f]   capacity ─►
                    ◄┴─ take ─   row 2    0 0 0 0 0 0 0 0 0 0 0 0 [p p p p p]

All rows of an arena end in the same column. So a decoding step writes one column and copies nothing (a `DynamicCache`
of transformers copies every key and value at every step). And neighbors in a row are neighbors in position, so the masks
that a model makes of an ordinary left-padded attention mask are right, sliding windows included.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from mathturn_gym.types import Ids

KeyValues: TypeAlias = "list[tuple[torch.Tensor, torch.Tensor] | None]"
"""Keys and values of one context, (H, L, D) each, per layer; None for a layer that keeps none of its own."""


class _ArenaLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer's buffers, (rows, H, columns, D), of which a model sees the arena's window."""

    is_sliding = False

    def __init__(self, arena: Arena) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arena = arena

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Makes the buffers; zeros, because a masked NaN would still be a NaN.

        Under autocast they have its type: rotary positions make keys float32 there, and attention would cast all of them back
        in every layer of every step.
        """
        rows, columns = self._arena.rows, self._arena.columns
        kind = key_states.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        self.keys, self.values = (
            states.new_zeros(rows, states.shape[-3], columns, states.shape[-1], dtype=dtype)
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the chunk's last columns and returns the window."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        arena, used = self._arena, key_states.shape[0]
        window, chunk = slice(arena.start, arena.end), slice(arena.end - key_states.shape[-2], arena.end)
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            place = buffer[:used, :, chunk]
            # The chunk is as wide as its longest row. In a shorter row its first columns hold ids that were cached
            # before, and what the model computes there (from padding) must not overwrite them.
            new = states.to(buffer.dtype)
            place.copy_(new if arena.fresh_BL is None else torch.where(arena.fresh_BL, new, place))
        return self.keys[:used, :, window], self.values[:used, :, window]

    @property
    def buffers(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Keys and values, (rows, H, columns, D), or None where the layer has kept nothing yet."""
        return None if self.keys is None or self.values is None else (self.keys, self.values)

    def write(self, row: int, span: slice, states: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Puts keys and values, (H, L, D) each, into a row's columns."""
        if not self.is_initialized:
            self.lazy_initialization(*states)
        assert self.keys is not None
        assert self.values is not None
        self.keys[row, :, span], self.values[row, :, span] = states

    def get_seq_length(self) -> int:
        """Columns of the window before the chunk that is being fed."""
        return self._arena.end - self._arena.start - self._arena.chunk

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of what attention sees."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """-1: it grows."""
        return -1

    get_max_cache_shape = get_max_length  # its name before transformers 5.20, where it is abstract


class Arena:
    """The keys and values of the rows that are decoded together, in buffers that a step does not copy.

    Args:
        num_layers: Layers of the model.
        rows: Rows that it has room for.
        columns: Columns that it has room for.

    Attributes:
        cache: To be given to the model as `past_key_values`.
        lengths: Ids in each row's cache (those of the chunk being fed included).
        start: First column of the window; everything before is no row's.
        end: One past its last column.
        chunk: Columns of the chunk that is being fed.
        fresh_BL: bool (B, 1, chunk, 1); False where a chunk's column holds an id that was cached before. None: all new.
    """

    def __init__(self, num_layers: int, rows: int = 0, columns: int = 0) -> None:
        self._layers = [_ArenaLayer(self) for _ in range(num_layers)]
        self.cache = Cache(layers=list(self._layers))
        self.rows, self.columns = rows, columns
        self.lengths: list[int] = []
        self.start = self.end = self.chunk = 0
        self.fresh_BL: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(tensor.nbytes for layer in self._layers for tensor in layer.buffers or ())

    def fits(self, rows: int, columns: int) -> bool:
        """True where its buffers take that many rows and columns, and are not many times larger than that."""
        # Far too large is no fit either: the memory would stay taken by a batch that was large once.
        return self.rows >= rows and self.columns >= columns and self.rows * self.columns <= 4 * rows * columns

    def open_chunk(self, device: torch.device, new: Sequence[int], cached: Sequence[KeyValues | None]) -> None:
        """Makes an arena without rows ready to be fed a chunk: row b's last `new[b]` columns, after what is cached.

        Buffers that are there are used again: what earlier rows left in them is finite, and masked.

        Args:
            device: Of the model.
            new: Ids to feed, per row, >= 1.
            cached: Keys and values of what precedes them, per row, or None.
        """
        held = [_length(kv) for kv in cached]
        self.lengths = [a + b for a, b in zip(held, new, strict=True)]
        self.start, self.end, self.chunk = 0, max(self.lengths), max(new)
        self.rows, self.columns = max(self.rows, len(new)), max(self.columns, self.end)
        for row, kv in enumerate(cached):
            if kv is not None:  # directly before its row's new ids, so that neighbors in position stay neighbors
                self._write(row, kv, self.end - new[row])
        self.fresh_BL = None
        if any(held[row] and new[row] < self.chunk for row in range(len(new))):
            column = torch.arange(self.chunk, device=device)
            self.fresh_BL = (column >= self.chunk - torch.tensor(new, device=device)[:, None])[:, None, :, None]

    def open_step(self, room: int) -> None:
        """Opens one new column for every row; where it must grow, it makes room for `room` more."""
        if self.end == self.columns:
            width = self.end - self.start
            # At most doubled: moves then cost a constant number of copies per id, and never more memory than needed.
            self._relocate(self.rows, width + max(1, min(room, max(width, 64))), width)
        self.end, self.chunk, self.fresh_BL = self.end + 1, 1, None
        self.lengths = [length + 1 for length in self.lengths]
        self.start = self.end - max(self.lengths)  # columns that only rows that have left needed fall out of view

    def adopt(self, other: Arena, row: int, rows: int) -> None:
        """Copies a row of another arena behind its own rows; makes room for `rows` rows where it must grow."""
        self._make_room(other.lengths[row], rows)
        own, end = len(self.lengths), other.end  # read after room was made: `other` may be this arena
        size = other.lengths[row]
        for layer, source in zip(self._layers, other._layers, strict=True):
            if source.buffers is not None:
                keys, values = (buffer[row, :, end - size : end] for buffer in source.buffers)
                layer.write(own, slice(self.end - size, self.end), (keys, values))
        self.lengths.append(other.lengths[row])
        self.start = self.end - max(self.lengths)

    def take(self, row: int, length: int) -> KeyValues:
        """A copy of the first `length` ids of a row."""
        first = self.end - self.lengths[row]
        span = slice(first, first + length)
        return [
            None if pair is None else (pair[0][row, :, span].clone(), pair[1][row, :, span].clone())
            for pair in (layer.buffers for layer in self._layers)
        ]

    def remove(self, row: int) -> None:
        """Takes a row out; the last row moves to its place."""
        last = len(self.lengths) - 1
        if row != last:
            span = slice(self.end - self.lengths[last], self.end)
            for layer in self._layers:
                for buffer in layer.buffers or ():
                    buffer[row, :, span] = buffer[last, :, span]
            self.lengths[row] = self.lengths[last]
        self.lengths.pop()
        self.start = self.end - max(self.lengths, default=0)

    def mask(self, device: torch.device) -> torch.Tensor | None:
        """Attention mask, int64 (B, end - start); None where no row is padded."""
        width = self.end - self.start
        if min(self.lengths) == width:
            return None
        column = torch.arange(width, device=device)
        return (column >= width - torch.tensor(self.lengths, device=device)[:, None]).long()

    def positions(self, device: torch.device) -> torch.Tensor:
        """Positions of the chunk's ids, int64 (B, chunk); padding has 0."""
        column = torch.arange(-self.chunk, 0, device=device)
        return (column + torch.tensor(self.lengths, device=device)[:, None]).clamp_min(0)

    def _write(self, row: int, kv: KeyValues, end: int) -> None:
        for layer, states in zip(self._layers, kv, strict=True):
            if states is not None:
                layer.write(row, slice(end - states[0].shape[-2], end), states)

    def _make_room(self, length: int, rows: int) -> None:
        """Room for one more row of `length` ids ending in column `end`."""
        if not self.lengths:
            self.start = self.end = length
        rows = max(rows, 2 * self.rows) if len(self.lengths) == self.rows else self.rows
        if rows > self.rows or length > self.end or self.end > self.columns:
            end = max(length, self.end - self.start)
            self._relocate(rows, max(self.columns, end + 64), end)

    def _relocate(self, rows: int, columns: int, end: int) -> None:
        """Moves the window to end in column `end` of new buffers."""
        width, used = self.end - self.start, len(self.lengths)
        for layer in self._layers:
            for name in ("keys", "values"):
                old = getattr(layer, name)
                if old is not None:
                    new = old.new_zeros(rows, old.shape[1], columns, old.shape[3])
                    new[:used, :, end - width : end] = old[:used, :, self.end - width : self.end]
                    setattr(layer, name, new)
        self.rows, self.columns, self.start, self.end = rows, columns, end - width, end


@dataclass(slots=True, eq=False)
class Entry:
    """A context between its turns."""

    key: bytes  # its ids as bytes, big-endian, so that bytes sort as ids do
    kv: KeyValues  # keys and values of every id of it
    used: int = 0  # when it was last used (a counter)
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        """Adds up the bytes."""
        self.nbytes = len(self.key) + sum(pair[0].nbytes + pair[1].nbytes for pair in self.kv if pair is not None)

    def __len__(self) -> int:
        """Its ids."""
        return len(self.key) // 4


class PrefixStore:
    """Contexts between their turns, found by their ids, within a budget of bytes; the least recently used leave first.

    A context finds the entry with which it shares the longest prefix. In sorted order that entry is next to the place
    where the context itself would stand, so a search is one bisection, however many entries there are.

    Args:
        budget: Bytes; 0 keeps nothing.

    Attributes:
        nbytes: Bytes of all entries.
        evictions: Entries that the budget has driven out.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.nbytes = self.evictions = self._clock = 0
        self._keys: list[bytes] = []
        self._entries: dict[bytes, Entry] = {}

    def __len__(self) -> int:
        """Number of entries."""
        return len(self._keys)

    def find(self, ids: Ids) -> tuple[Entry | None, int]:
        """The entry that shares the longest prefix with `ids`, and the prefix's length (None, 0 where none does)."""
        key = encode(ids)
        place = bisect_left(self._keys, key)
        found: tuple[Entry | None, int] = None, 0
        for other in self._keys[max(0, place - 1) : place + 1]:
            shared = common_prefix(key, other)
            if shared > found[1]:
                found = self._entries[other], shared
        if found[0] is not None:
            self._clock += 1
            found[0].used = self._clock
        return found

    def put(self, ids: Ids, kv: KeyValues) -> None:
        """Keeps a context; what is a prefix of it is no longer needed, and the oldest leave until the budget holds."""
        entry = Entry(encode(ids), kv)
        if entry.nbytes > self.budget:
            return
        # Whatever continues a prefix of this context finds the same keys and values in it.
        for shorter in self._prefixes(entry.key):
            self.pop(self._entries[shorter])
        place = bisect_left(self._keys, entry.key)
        if place < len(self._keys) and self._keys[place].startswith(entry.key):
            return
        self._clock += 1
        entry.used = self._clock
        insort(self._keys, entry.key)
        self._entries[entry.key] = entry
        self.nbytes += entry.nbytes
        while self.nbytes > self.budget:
            self.pop(min(self._entries.values(), key=lambda other: other.used))
            self.evictions += 1

    def pop(self, entry: Entry) -> None:
        """Drops an entry."""
        del self._entries[entry.key]
        del self._keys[bisect_left(self._keys, entry.key)]
        self.nbytes -= entry.nbytes

    def release(self, ids: Ids) -> None:
        """Drops every entry that is a prefix of `ids`: the context has ended."""
        for shorter in self._prefixes(encode(ids)):
            self.pop(self._entries[shorter])

    def clear(self) -> None:
        """Drops everything."""
        self._keys.clear()
        self._entries.clear()
        self.nbytes = 0

    def _prefixes(self, key: bytes) -> list[bytes]:
        """The keys that are prefixes of `key`, longest first.

        What sorts between a prefix and the whole begins with the prefix, so the greatest key that is not above a probe
        either is a prefix or says how long a prefix can still be.
        """
        found, probe = [], key
        while probe:
            place = bisect_right(self._keys, probe) - 1
            if place < 0:
                break
            other = self._keys[place]
            if key.startswith(other):
                found.append(other)
                probe = other[:-4]
            else:
                probe = key[: 4 * common_prefix(key, other)]
        return found


def encode(ids: Ids) -> bytes:
    """Ids as bytes that sort as they do."""
    return np.asarray(ids).astype(">u4").tobytes()


def common_prefix(a: bytes, b: bytes) -> int:
    """Number of ids that two encoded contexts begin with in common."""
    size = min(len(a), len(b))
    if a[:size] == b[:size]:
        return size // 4
    # Four bytes an id: the first byte that differs says which id does.
    left, right = (np.frombuffer(key, np.uint8, size) for key in (a, b))
    return int(np.argmax(left != right)) // 4


def truncate(kv: KeyValues, length: int) -> KeyValues:
    """A view of the first `length` ids."""
    return [None if pair is None else (pair[0][:, :length], pair[1][:, :length]) for pair in kv]


def _length(kv: KeyValues | None) -> int:
    return 0 if kv is None else next(pair[0].shape[-2] for pair in kv if pair is not None)
