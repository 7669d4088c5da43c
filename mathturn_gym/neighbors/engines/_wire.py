"""How episodes and weights travel: as arrays that an object store can share without a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mathturn_gym.types import Episode

if TYPE_CHECKING:
    import torch

    from mathturn_gym.episodes.packing.batch import FactsTable, Pieces


@dataclass(frozen=True, slots=True, eq=False)
class PackedEpisodes:
    """A packed batch of form "varlen" (no padding), its tensors as arrays.

    Args:
        arrays: The batch's tensors by name; none where there are no episodes.
        facts: See `PackedBatch`.
        pieces: See `PackedBatch`.
        max_seqlen: See `PackedBatch`.
        has_logprobs: See `PackedBatch`.
        seconds: How long its worker played.
    """

    arrays: Mapping[str, npt.NDArray[Any]]
    facts: FactsTable
    pieces: Pieces
    max_seqlen: int
    has_logprobs: bool
    seconds: float = 0.0

    @classmethod
    def of(cls, episodes: Sequence[Episode], seconds: float = 0.0) -> PackedEpisodes:
        """Packs episodes (one at least).

        Args:
            episodes: What was played.
            seconds: In how long.
        """
        from mathturn_gym.episodes.packing import pack

        # Advantages are the learner's affair; zeros spare their computation, and groups that are not whole here.
        zeros = [np.zeros(episode.num_turns, np.float32) for episode in episodes]
        batch = pack(episodes, form="varlen", advantages=zeros, allow_missing_logprobs=True)
        return cls(batch.numpy(), batch.facts, batch.pieces, batch.max_seqlen, batch.has_logprobs, seconds)

    def episodes(self) -> list[Episode]:
        """The episodes again, to the bit."""
        import torch

        from mathturn_gym.episodes.packing import PackedBatch, unpack

        # Copies: what lies in the object store is read-only, and is freed when it is no longer referenced.
        tensors: dict[str, Any] = {name: torch.from_numpy(array.copy()) for name, array in self.arrays.items()}
        return unpack(
            PackedBatch(
                layout="episode",
                form="varlen",
                max_seqlen=self.max_seqlen,
                has_logprobs=self.has_logprobs,
                facts=self.facts,
                pieces=self.pieces,
                **{"predictor_index": None, **tensors},
            )
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeights:
    """A state dict as bytes: NumPy has no bfloat16.

    Args:
        tensors: By name: bytes, name of the dtype, shape.
    """

    tensors: Mapping[str, tuple[npt.NDArray[np.uint8], str, tuple[int, ...]]]

    @classmethod
    def of(cls, weights: Mapping[str, torch.Tensor]) -> PackedWeights:
        """Takes weights from any device."""
        import torch

        def packed(tensor: torch.Tensor) -> tuple[npt.NDArray[np.uint8], str, tuple[int, ...]]:
            whole = tensor.detach().cpu().contiguous()
            data = whole.reshape(-1).view(torch.uint8).numpy()
            return data, str(whole.dtype).removeprefix("torch."), tuple(whole.shape)

        return cls({name: packed(tensor) for name, tensor in weights.items()})

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The weights, as tensors of their own."""
        import torch

        def unpacked(data: npt.NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
            kind = getattr(torch, dtype)
            if not data.size:  # whose bytes cannot be viewed as anything
                return torch.zeros(shape, dtype=kind)
            return torch.from_numpy(data.copy()).view(kind).reshape(shape)

        return {name: unpacked(*one) for name, one in self.tensors.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return sum(data.nbytes for data, _, _ in self.tensors.values())
