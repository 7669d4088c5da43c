"""Ids of texts that were encoded before."""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any

from mathturn_gym.dialogue._tokenizers import LOCKS
from mathturn_gym.types import Ids

__all__ = ["IdCache"]


class IdCache:
    """Ids by number and text, the least recently used leaving first; bounded by bytes, safe in threads.

    Args:
        limit: Bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self.bytes = limit, 0
        self._kept: OrderedDict[tuple[int, str], Ids] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy begins empty: a cache is no part of what a dialogue is."""
        return IdCache, (self._limit,)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: tuple[int, str]) -> Ids | None:
        """The ids, read-only, or None."""
        with LOCKS.caches:
            ids = self._kept.get(key)
            if ids is not None:
                self._kept.move_to_end(key)
            return ids

    def put(self, key: tuple[int, str], ids: Ids) -> None:
        """Keeps ids, unless they alone would drive out most of what is kept."""
        ids.setflags(write=False)
        size = _size(key, ids)
        if size > self._limit // 8:
            return
        with LOCKS.caches:
            if key in self._kept:
                return
            self._kept[key] = ids
            self.bytes += size
            while self.bytes > self._limit:
                self.bytes -= _size(*self._kept.popitem(last=False))


def _size(key: tuple[int, str], ids: Ids) -> int:
    """Bytes of an entry, with about what Python needs around it."""
    return int(ids.nbytes) + sys.getsizeof(key[1]) + 400
