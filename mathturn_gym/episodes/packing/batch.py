"""`PackedBatch`: the tensors of many episodes, and what is needed to get the episodes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias, get_args, overload

import numpy as np
import numpy.typing as npt
import torch

from mathturn_gym.base.display import displayed
from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError, raise_unknown_name
from mathturn_gym.types import NO_VERSION, Episode

Layout: TypeAlias = Literal["episode", "turns", "tree"]
Form: TypeAlias = Literal["padded", "varlen"]
Unit: TypeAlias = Literal["token", "turn", "sequence"]

LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)
FORMS: Final[tuple[Form, ...]] = get_args(Form)

_TOKEN_DTYPES: dict[str, torch.dtype] = {
    "input_ids": torch.int64,
    "loss_mask": torch.bool,
    "behavior_logprobs": torch.float32,
    "advantages": torch.float32,
    "returns": torch.float32,
    "rewards": torch.float32,
    "versions": torch.int32,
    "turn_index": torch.int32,
    "episode_index": torch.int32,
    "position_ids": torch.int64,
    "branch_index": torch.int32,
}


FACT_FIELDS: tuple[str, ...] = tuple(
    field.name
    for field in fields(Episode)
    if field.name not in ("ids", "loss_mask", "logprobs", "versions", "turn_spans", "support")
)
_NO_IDS: Final = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """The fields of an episode besides its tokens; with a batch's tensors they restore the whole episode.

    Args:
        fields: The fields of `Episode` that are not one per id (references, nothing is copied).
        spans: int64 (K, 2), `Episode.turn_spans`.
        size: Ids of the episode.
        tail: int64; ids that no row of the layout holds (what follows the last completion in layout `"turns"`).
    """

    fields: tuple[Any, ...]
    spans: npt.NDArray[np.int64]
    size: int
    tail: npt.NDArray[np.int64]

    @property
    def name(self) -> str:
        """The episode as error messages call it."""
        return f"episode {self['index']} on {self['problem_id']!r}"

    def __getitem__(self, field: str) -> Any:
        """One of the episode's fields by name."""
        return self.fields[FACT_FIELDS.index(field)]

    def blank(self) -> Episode:
        """The episode with its tokens blotted out: ids 0, log-probs 0, versions 0."""
        mask = np.zeros(self.size, np.bool_)
        for start, end in self.spans.tolist():
            mask[start:end] = True
        return Episode(
            ids=np.zeros(self.size, np.int64),
            loss_mask=mask,
            logprobs=np.zeros(self.size, np.float32),
            versions=np.where(mask, 0, NO_VERSION).astype(np.int32),
            turn_spans=self.spans.copy(),
            **dict(zip(FACT_FIELDS, self.fields, strict=True)),
        )


class FactsTable(Sequence[Facts]):
    """The facts of many episodes; a `Facts` is made when it is asked for, so that packing makes few objects.

    Args:
        episodes: Where the facts come from; their token arrays are not kept.
        turns: int64 (E,), turns of each.
        sizes: int64 (E,), ids of each.
        tails: Per episode the ids that no row of the layout holds; None where all are held.
    """

    __slots__ = ("_columns", "_sizes", "_tails", "turns")

    def __init__(
        self,
        episodes: Sequence[Episode],
        turns: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        tails: Sequence[npt.NDArray[np.int64]] | None = None,
    ) -> None:
        # Columns, not an object per episode: a hundred thousand of those would set the garbage collector to work.
        self._columns = [list(map(attrgetter(name), episodes)) for name in (*FACT_FIELDS, "turn_spans")]
        self._sizes = sizes
        self._tails = tails
        self.turns = turns

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, at: int) -> Facts: ...

    @overload
    def __getitem__(self, at: slice) -> list[Facts]: ...

    def __getitem__(self, at: int | slice) -> Facts | list[Facts]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        *known, spans = [column[at] for column in self._columns]
        return Facts(tuple(known), spans, int(self._sizes[at]), _NO_IDS if self._tails is None else self._tails[at])

    @property
    def segments(self) -> npt.NDArray[np.int64]:
        """Segments of each episode, int64 (E,)."""
        return np.fromiter(map(len, self._columns[FACT_FIELDS.index("segment_starts")]), np.int64, len(self))

    def take(self, chosen: Sequence[int]) -> FactsTable:
        """The facts of some of the episodes."""
        index = np.asarray(chosen, np.int64)
        tails = None if self._tails is None else [self._tails[at] for at in chosen]
        part = FactsTable((), self.turns[index], self._sizes[index], tails)
        part._columns = [[column[at] for at in chosen] for column in self._columns]
        return part


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The places of ids: piece p of a batch is `episode.ids[start : start + length]`, at `offset` in its row.

    In layout `"tree"` a shared prompt is a piece of the first of its group's episodes, with branch 0.

    Args:
        row: int64 (P,); non-decreasing.
        episode: int64 (P,); index into `PackedBatch.facts`.
        start: int64 (P,).
        length: int64 (P,).
        offset: int64 (P,).
        position: int64 (P,); the place of its first id in its own context.
        turn: int64 (P,); the only turn of this piece that is trained on, -1 for all of them.
        branch: int64 (P,); 0 for what every branch of its row continues, from 1 for a branch.
    """

    row: npt.NDArray[np.int64]
    episode: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    turn: npt.NDArray[np.int64]
    branch: npt.NDArray[np.int64]

    def take(self, chosen: npt.NDArray[Any]) -> Pieces:
        """The pieces of an index or a mask."""
        return Pieces(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(frozen=True, slots=True, eq=False)
class PackedBatch:
    """Many episodes as tensors, one row per sequence.

    Per-token tensors are (B, T) in form `"padded"` (padding on the right) and (1, N) in form `"varlen"` (rows end to
    end, `cu_seqlens` says where each begins). Off the loss mask, log-probs, advantages, returns and rewards are 0
    and versions and turn_index -1.

    Args:
        layout: `"episode"`, `"turns"` or `"tree"`.
        form: `"padded"` or `"varlen"`.
        input_ids: int64; `pad_id` where padded.
        loss_mask: bool; True on the completion ids that are trained on.
        behavior_logprobs: float32; under the distribution sampled from; NaN where the policy gave none.
        advantages: float32; the advantage of the turn that the id belongs to.
        returns: float32; that turn's discounted return-to-go.
        rewards: float32; that turn's reward (on each of its ids: do not sum it over ids).
        versions: int32; version of the weights that sampled the id.
        turn_index: int32; from 0 within its episode.
        episode_index: int32; index into `facts`; -1 on padding and on a tree's shared prompt.
        position_ids: int64; the id's position in its own context (a branch goes on where its prompt ends).
        branch_index: int32; 0 outside layout `"tree"` and on its shared prompts, the branch from 1 otherwise; -1 on
            padding.
        predictor_index: int64, or None where it is simply the column before (all layouts but `"tree"`): the column
            of the id whose logits predict this id.
        cu_seqlens: int32 (B + 1,); cumulative row lengths, from 0.
        max_seqlen: The longest row.
        has_logprobs: False where some behavior log-prob is NaN.
        facts: One entry per episode.
        pieces: Which ids lie where.
        support: int32 (..., S), the ids that could be drawn in the place of each trained id, filled up with -1; None where
            nothing was cut off in sampling. Losses take probabilities among them.
    """

    layout: Layout
    form: Form
    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    behavior_logprobs: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    rewards: torch.Tensor
    versions: torch.Tensor
    turn_index: torch.Tensor
    episode_index: torch.Tensor
    position_ids: torch.Tensor
    branch_index: torch.Tensor
    predictor_index: torch.Tensor | None
    cu_seqlens: torch.Tensor
    max_seqlen: int
    has_logprobs: bool
    facts: FactsTable
    pieces: Pieces
    support: torch.Tensor | None = None

    def __post_init__(self) -> None:
        """Checks names, shapes and dtypes."""
        for field, value, allowed in (("layout", self.layout, LAYOUTS), ("form", self.form, FORMS)):
            if value not in allowed:
                raise_unknown_name(field, value, allowed)
        shape = self.input_ids.shape
        for name, dtype in _TOKEN_DTYPES.items():
            tensor = getattr(self, name)
            if tensor.dtype != dtype or tensor.shape != shape or tensor.ndim != 2:
                raise InvalidValueError(
                    f"PackedBatch.{name} must be {dtype} of shape {tuple(shape)}, got {tensor.dtype} "
                    f"{tuple(tensor.shape)}"
                )
        if self.support is not None and (self.support.dtype != torch.int32 or self.support.shape[:-1] != shape):
            raise InvalidValueError(
                f"PackedBatch.support must be torch.int32 of shape {(*shape, 'S')}, got {self.support.dtype}"
                f" {tuple(self.support.shape)}"
            )
        rows = self.cu_seqlens.shape[0] - 1
        if rows < 0 or shape[0] != (1 if self.form == "varlen" else rows):
            raise InvalidValueError(f"PackedBatch.cu_seqlens has {rows} rows for input_ids of shape {tuple(shape)}")

    @property
    def num_rows(self) -> int:
        """Number of sequences, B (also in form `"varlen"`)."""
        return int(self.cu_seqlens.shape[0]) - 1

    @property
    def num_tokens(self) -> int:
        """Ids in all rows, padding not counted."""
        return int(self.pieces.length.sum())

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.input_ids.device

    @property
    def attention_mask(self) -> torch.Tensor:
        """int64, shape of `input_ids`: 1 on ids, 0 on padding (which a tree also needs `dense_mask` for)."""
        return (self.branch_index >= 0).long()

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Ids of each row, int64 (B,), on the host."""
        return np.bincount(self.pieces.row, self.pieces.length, minlength=self.num_rows).astype(np.int64)

    def __repr__(self) -> str:
        """`PackedBatch(episode, padded: 8 rows, 1,204 tokens, 480 trained on)`."""
        return (
            f"PackedBatch({self.layout}, {self.form}: {self.num_rows:,} rows, {self.num_tokens:,} tokens,"
            f" {self.count('token'):,} trained on)"
        )

    def _repr_html_(self) -> str:
        return displayed("batch", self)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor by its name (`predictor_index` and `support` where there are such)."""
        optional = [name for name in ("predictor_index", "support") if getattr(self, name) is not None]
        return {name: getattr(self, name) for name in (*_TOKEN_DTYPES, "cu_seqlens", *optional)}

    def numpy(self) -> dict[str, npt.NDArray[Any]]:
        """Every tensor as an array; no copy is made of tensors on the CPU."""
        return {name: tensor.cpu().numpy() for name, tensor in self.tensors().items()}

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PackedBatch:
        """The batch on a device; with `non_blocking` and pinned memory, copies overlap with computation."""
        return self.replace_tensors(
            {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in self.tensors().items()}
        )

    def pin_memory(self) -> PackedBatch:
        """The batch in page-locked memory (needs an accelerator's driver, as PyTorch does)."""
        return self.replace_tensors({name: tensor.pin_memory() for name, tensor in self.tensors().items()})

    def replace_tensors(self, tensors: Mapping[str, torch.Tensor]) -> PackedBatch:
        """A batch with some tensors replaced, e.g. advantages of one's own; shapes and dtypes are checked."""
        changes: dict[str, Any] = dict(tensors)
        return replace(self, **changes)

    def count(self, unit: Unit) -> int:
        """Counts the tokens that are trained on, or the turns or episodes with at least one of them.

        Pass it as `policy_loss(..., denominator=)` to micro-batches, so that their losses sum to the whole batch's.
        """
        if unit == "token":
            return int(self.loss_mask.sum())
        if unit not in ("turn", "sequence"):
            raise InvalidValueError(f"unit must be 'token', 'turn' or 'sequence', got {unit!r}")
        return int(self.segments(unit)[0])

    def segments(self, unit: Unit) -> tuple[int, torch.Tensor]:
        """Numbers the turns or episodes (`"sequence"`) that are trained on.

        Returns:
            Their number, and int64 (M,): the number of the segment of each of the M ids on the loss mask, in the
            order of `tensor[loss_mask]`.
        """
        episode = self.episode_index[self.loss_mask].long()
        if unit == "token":
            return int(episode.shape[0]), torch.arange(episode.shape[0], device=self.device)
        # (episode, turn) as one number, so that one pass of unique counts both.
        width = int(self.facts.turns.max(initial=0)) + 1
        key = episode if unit == "sequence" else episode * width + self.turn_index[self.loss_mask].long()
        values, inverse = torch.unique(key, return_inverse=True)
        return int(values.shape[0]), inverse

    @property
    def split_episodes(self) -> tuple[int, ...]:
        """Episodes of which only some turns or segments are in this batch (a micro-batch)."""
        # A whole episode has a row per turn in layout "turns", and a row per segment in the others.
        turns = self.layout == "turns"
        own = self.pieces.episode if self.layout != "tree" else self.pieces.episode[self.pieces.branch > 0]
        rows = np.bincount(own, minlength=len(self.facts))
        return tuple(np.flatnonzero(rows != (self.facts.turns if turns else self.facts.segments)).tolist())

    def require_logprobs(self, purpose: str) -> None:
        """Raises `InvalidEpisodeError` naming episode and turn where a behavior log-prob is missing."""
        if self.has_logprobs:
            return
        # Looked for only now: the common case costs one flag.
        missing = (self.behavior_logprobs.isnan() & self.loss_mask).nonzero()
        if missing.shape[0]:
            row, column = missing[0].tolist()
            name = self.facts[int(self.episode_index[row, column])].name
            raise InvalidEpisodeError(
                f"{name}, turn {int(self.turn_index[row, column])}: behavior log-probs are missing (NaN), and "
                f"{purpose} needs them; sample with a policy that gives log-probs"
            )
