"""Which session a context continues, told by its ids: those of an earlier context and its completion."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import Final

import numpy as np
import numpy.typing as npt

from mathturn_gym.types import Ids

__all__ = ["Sessions"]

_KEY: Final = 0x5E5510


class Sessions:
    """Names for contexts that continue one another.

    A context is found by hashes of its prefixes, h(n) = sum of w[i] * (id[i] + 1) over i < n, modulo 2^64, with fixed
    random odd weights: one cumulative sum gives all of them, so a look-up costs what the context's length costs,
    however many contexts are known. A collision would send a request to another replica, and no more.

    Args:
        room: Contexts to remember; the oldest are forgotten first.
    """

    def __init__(self, room: int = 65536) -> None:
        self._room = room
        self._known: OrderedDict[int, tuple[int, str]] = OrderedDict()  # hash -> (length, session)
        self._names = itertools.count()
        self._weights: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)

    def __len__(self) -> int:
        """Contexts that are known."""
        return len(self._known)

    def of(self, context: Ids) -> str:
        """The session of the longest context that `context`, int64 (L,), continues; or a new one."""
        hashes = self._hashes(context)
        for length in range(len(hashes), 0, -1):
            key = hashes[length - 1]
            if key in self._known and self._known[key][0] == length:
                self._known.move_to_end(key)
                return self._known[key][1]
        return str(next(self._names))

    def remember(self, ids: Ids, session: str) -> None:
        """Notes that what continues `ids`, int64 (L,), belongs to a session."""
        key = self._hashes(ids)[-1]
        self._known[key] = len(ids), session
        self._known.move_to_end(key)
        if len(self._known) > self._room:
            self._known.popitem(last=False)

    def release(self, ids: Ids) -> None:
        """Forgets every context that `ids` continues: the episode has ended."""
        for key in self._hashes(ids):
            self._known.pop(key, None)

    def _hashes(self, ids: Ids) -> list[int]:
        """Hash of every prefix, the shortest first."""
        if len(ids) > len(self._weights):
            size = max(1024, 2 * len(ids))
            # Of one generator the first numbers are the same however many are drawn: earlier hashes stay valid.
            drawn = np.random.Generator(np.random.Philox(key=_KEY)).integers(0, 2**64, size, np.uint64)
            self._weights = drawn | np.uint64(1)
        terms = self._weights[: len(ids)] * (np.asarray(ids).astype(np.uint64) + np.uint64(1))
        hashes: list[int] = np.cumsum(terms).tolist()
        return hashes
