"""`TokenIds`: the space of token-id sequences, as one NumPy array.

Gymnasium's `Sequence(Discrete(V), stack=True)` describes the same set, but checks one id at a time in Python and
has no bound on its length, so that it cannot live in shared memory. `TokenIds` is a subclass (Gymnasium's batching
and bridges to other libraries know it), checks with one comparison, and is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as PySequence
from ctypes import c_int64
from typing import Any, overload

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector.utils import (
    create_empty_array,
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)

from mathturn_gym.errors import EpisodeStateError, InvalidActionError, InvalidValueError, check_int
from mathturn_gym.types import Ids, StopReason


class TokenIds(spaces.Sequence):
    """Sequences of token ids: int64 arrays of shape (L,), 0 <= L <= max_length, ids in [0, vocab_size).

    Args:
        vocab_size: Number of ids, V >= 1.
        max_length: Longest sequence, >= 1.
        seed: Seeds `sample`.

    Raises:
        InvalidValueError: an argument is not an integer >= 1.

    >>> space = TokenIds(vocab_size=10, max_length=4)
    >>> np.array([1, 2, 3]) in space
    True
    >>> space.why_not(np.array([1, 2, 10]))
    'id 10 at position 2 is outside [0, 10)'
    """

    def __init__(self, vocab_size: int, max_length: int, seed: int | np.random.Generator | None = None) -> None:
        self.vocab_size = check_int("vocab_size", vocab_size, low=1)
        self.max_length = check_int("max_length", max_length, low=1)
        super().__init__(spaces.Discrete(self.vocab_size), seed=seed, stack=True)

    def why_not(self, x: Any) -> str | None:
        """The reason why `x` is not in the space, or None where it is."""
        if not isinstance(x, np.ndarray):
            return f"it is a {type(x).__name__}, not a NumPy array (np.asarray(ids, dtype=np.int64) makes one)"
        if x.ndim != 1:
            return f"its shape is {x.shape}, not (L,)"
        if x.dtype != np.int64 and (x.dtype.kind not in "iu" or not np.can_cast(x.dtype, np.int64)):
            return f"its dtype is {x.dtype}, not int64"
        if x.shape[0] > self.max_length:
            return f"its length {x.shape[0]} is over max_length={self.max_length}"
        if x.shape[0] and (x.min() < 0 or x.max() >= self.vocab_size):
            at = int(np.flatnonzero((x < 0) | (x >= self.vocab_size))[0])
            return f"id {int(x[at])} at position {at} is outside [0, {self.vocab_size})"
        return None

    def contains(self, x: Any) -> bool:
        """True where `x` is a 1-D integer array of at most `max_length` ids of the vocabulary."""
        return self.why_not(x) is None

    def sample(self, mask: Any = None, probability: Any = None) -> Ids:
        """A random sequence, int64 (L,).

        Args:
            mask: `(length_mask, id_mask)` as in `gymnasium.spaces.Sequence`: a length, an array of lengths to choose
                from, or None (geometric, mean 4, cut at `max_length`); and an int8 array (V,) of allowed ids, or None.
            probability: The same with a float array (V,) of probabilities in place of the id mask.

        Raises:
            InvalidValueError: both are given, or the drawn length is over `max_length`.
        """
        if mask is not None and probability is not None:
            raise InvalidValueError("give either mask or probability to sample(), not both")
        kind = "probability" if mask is None else "mask"
        length_mask, weights = (None, None) if mask is None and probability is None else (mask or probability)
        length = int(self.generate_sample_length(length_mask, kind))
        if length > self.max_length:
            if length_mask is not None:
                raise InvalidValueError(f"sample length must be in [0, {self.max_length}], got {length}")
            length = self.max_length
        if weights is None:
            return self.np_random.integers(self.vocab_size, size=length)
        chances = np.asarray(weights, dtype=np.float64)
        if chances.shape != (self.vocab_size,) or chances.min() < 0 or chances.sum() <= 0:
            raise InvalidValueError(f"{kind} must hold {self.vocab_size} weights >= 0, not all 0, got {chances.shape}")
        return self.np_random.choice(self.vocab_size, size=length, p=chances / chances.sum()).astype(np.int64)

    def to_jsonable(self, sample_n: Iterable[npt.NDArray[Any]]) -> list[list[int]]:  # type: ignore[override]
        """A list of samples as lists of ints."""
        return [sample.tolist() for sample in sample_n]

    def from_jsonable(self, sample_n: list[list[int]]) -> list[Ids]:  # type: ignore[override]
        """The inverse of `to_jsonable`."""
        return [np.asarray(sample, dtype=np.int64) for sample in sample_n]

    def __eq__(self, other: object) -> bool:
        """Equal where vocabulary and bound are."""
        return (
            isinstance(other, TokenIds) and self.vocab_size == other.vocab_size and self.max_length == other.max_length
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """The expression that makes it."""
        return f"TokenIds(vocab_size={self.vocab_size}, max_length={self.max_length})"


class _SharedRows(PySequence[Ids]):
    """The observations in a shared buffer, read when asked for.

    `AsyncVectorEnv` reads shared memory once and expects the result to follow later writes; arrays of changing
    length cannot be such views, so this is. Its copy (which `AsyncVectorEnv` hands out by default) is a plain tuple.
    """

    def __init__(self, rows_BL: npt.NDArray[np.int64]) -> None:
        self._rows_BL = rows_BL  # column 0 is the length

    @overload
    def __getitem__(self, index: int) -> Ids: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Ids, ...]: ...
    def __getitem__(self, index: int | slice) -> Ids | tuple[Ids, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        row: Ids = self._rows_BL[index]
        return row[1 : 1 + int(row[0])].copy()

    def __len__(self) -> int:
        return len(self._rows_BL)

    def __iter__(self) -> Iterator[Ids]:
        return (self[i] for i in range(len(self)))

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[Ids, ...]:
        return tuple(self)

    __copy__ = __deepcopy__


@create_empty_array.register(TokenIds)
def _create_empty_token_ids(space: TokenIds, n: int = 1, fn: Any = np.zeros) -> tuple[Ids, ...]:
    return tuple(np.zeros(0, np.int64) for _ in range(n))


@create_shared_memory.register(TokenIds)
def _create_shared_token_ids(space: TokenIds, n: int = 1, ctx: Any = None) -> Any:
    return ctx.Array(c_int64, n * (space.max_length + 1))


def _shared_rows(space: TokenIds, shared_memory: Any) -> npt.NDArray[np.int64]:
    rows = np.frombuffer(shared_memory.get_obj(), dtype=np.int64)
    return rows.reshape(-1, space.max_length + 1)


@read_from_shared_memory.register(TokenIds)
def _read_shared_token_ids(space: TokenIds, shared_memory: Any, n: int = 1) -> _SharedRows:
    return _SharedRows(_shared_rows(space, shared_memory))


@write_to_shared_memory.register(TokenIds)
def _write_shared_token_ids(space: TokenIds, index: int, value: Ids, shared_memory: Any) -> None:
    row = _shared_rows(space, shared_memory)[index]
    row[1 : 1 + value.shape[0]] = value
    # The length last: a reader never sees ids that are not there yet.
    row[0] = value.shape[0]


# ---- the check of a step: by the environment, and by a client before it sends


def check_step(action: Ids, space: TokenIds, *, begun: bool, ended: bool, stop_reason: StopReason | None) -> None:
    """Raises where `step(action)` cannot be played.

    Raises:
        EpisodeStateError: there is no episode, or it has ended.
        InvalidActionError: the action is not in the action space; the message says why.
    """
    if not begun:
        raise EpisodeStateError("step() before reset(): call reset() to begin an episode")
    if ended:
        why = "" if stop_reason is None else f" (stop reason: {stop_reason.value})"
        raise EpisodeStateError(f"step() after the episode's end{why}: call reset() to begin another")
    reason = space.why_not(action)
    if reason is not None:
        raise InvalidActionError(
            f"action is not in {space}: {reason}; actions are int64 arrays of at most {space.max_length} ids in"
            f" [0, {space.vocab_size})"
        )
