"""The decoding loop: requests join and leave a running batch, and what was computed once is kept.

    submit ─► waiting ─► prefill what no cache holds ─► arena of running rows ─► one id per row and step ─► Completion
                 ▲             ▲ prefixes                       │ a row ends: its slot is refilled
                 │             └────────── PrefixStore ◄────────┘
                 └── new weights or out of memory: rows go back, with the ids that they have

Each id of a row is read off the cumulative distribution at a uniform number that depends on the row's seed and the id's
position alone.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt
import torch

from mathturn_gym.errors import PolicyError
from mathturn_gym.policies._kv_cache import Arena, Entry, KeyValues, PrefixStore, common_prefix, encode, truncate
from mathturn_gym.policies.runner import ModelRunner
from mathturn_gym.policies.sampling import Sampling, entropy
from mathturn_gym.types import Completion, Ids

_LOG = logging.getLogger(__name__)

MIN_SHARED = 16
"""A shorter common prefix is computed again: copying it would split prefill batches for little."""

PREFILL_TOKENS = 16384
"""Most tokens of one prefill pass, padding included. It bounds activations, not caches."""

_UNASKED = 2**30  # bytes of keys and values up to which free memory is not looked up

_SHARE = 0.8  # share of the free memory that keys and values may take; activations and logits need some as well

SLACK = 256
"""Columns that a new arena has to spare for later turns (fewer where contexts are shorter)."""


@dataclass(slots=True)
class DecodingStats:
    """Counts of the loop's work since it was made (or since `reset`)."""

    # Tokens fed in prefill passes: prompts, feedback, and the last one of each continued completion (decoding sampled
    # it, and never fed it).
    prefilled: int = 0
    reused: int = 0  # tokens whose keys and values a cache held when their request was admitted
    decoded: int = 0  # tokens fed one by one
    prefill_passes: int = 0  # forward passes of prefills
    decode_passes: int = 0  # forward passes of steps
    restarts: int = 0  # rows that went back to waiting, because weights changed or memory ran out

    def reset(self) -> None:
        """Sets every count to 0."""
        for count in fields(self):
            setattr(self, count.name, 0)


@dataclass(slots=True, eq=False)
class Row:
    """A request and what was sampled for it."""

    ticket: int  # its number
    label: str  # what error messages call it
    context: Ids  # int64 (L,)
    uniforms: npt.NDArray[np.float64]  # float64 (budget,); one number for each id that may be sampled
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    raw_logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    support: list[list[int]] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    stopped: bool = False

    @property
    def left(self) -> int:
        """Tokens that may still be sampled."""
        return len(self.uniforms) - len(self.ids)

    def all_ids(self) -> Ids:
        """Context and completion so far."""
        return np.concatenate([self.context, np.array(self.ids, np.int64)])

    def completion(self, version: int, *, raw: bool, entropies: bool, support: int) -> Completion:
        """The sampled ids as a `Completion`; an empty one has the given `version`."""

        def floats(values: list[float]) -> npt.NDArray[np.float32]:
            return np.minimum(np.array(values, np.float32), 0.0)

        return Completion(
            np.array(self.ids, np.int64),
            floats(self.logprobs),
            truncated=not self.stopped,
            version_start=self.versions[0] if self.versions else version,
            version_end=self.versions[-1] if self.versions else version,
            versions=np.array(self.versions, np.int32),
            raw_logprobs=floats(self.raw_logprobs) if raw else None,
            entropies=np.array(self.entropies, np.float32) if entropies else None,
            support=np.array(self.support, np.int32).reshape(len(self.ids), support) if support else None,
        )


@dataclass(slots=True, eq=False)
class _Prefill:
    """Rows with one and the same context, and what a cache holds of it."""

    rows: list[Row]
    ids: Ids
    cached: KeyValues | None
    held: int

    @property
    def new(self) -> int:
        return len(self.ids) - self.held


class DecodingLoop:
    """Rows that decode together, the caches of contexts between their turns, and the queue of requests.

    Not thread-safe: its owner holds a lock.

    Args:
        runner: The model.
        sampling: How ids are drawn.
        stop_ids: Ids that end a completion.
        max_rows: Most rows at once; None for no limit.
        refill: Share of the rows that may stand empty while requests wait, before a prefill is worth its pass.
        cache_bytes: Budget of the resting contexts.
        raw_logprobs: Also take each id's log-prob under the untouched logits.
        entropies: Also take the entropy of each distribution sampled from.
        support: The most ids to keep of those that could be drawn; 0 keeps none.

    Attributes:
        version: Version of the weights, recorded with every id.
        store: The resting contexts.
        stats: Counts.
    """

    def __init__(
        self,
        runner: ModelRunner,
        sampling: Sampling,
        stop_ids: Sequence[int],
        *,
        max_rows: int | None,
        refill: float,
        cache_bytes: int,
        raw_logprobs: bool,
        entropies: bool,
        support: int,
    ) -> None:
        self._runner, self._sampling, self._stop_ids = runner, sampling, frozenset(stop_ids)
        self.max_rows, self._refill = max_rows, refill
        self._raw, self._entropies, self._support = raw_logprobs, entropies, support
        self.version = 0
        self.store = PrefixStore(cache_bytes)
        self.stats = DecodingStats()
        self._waiting: deque[Row] = deque()
        self._admitted: list[Row] = []  # taken from the queue, not yet running
        self._active: list[Row] = []
        self._arena = Arena(runner.num_layers)
        self._done: list[Row] = []
        self._halved = False

    @property
    def busy(self) -> bool:
        """True while requests run, wait, or have not been fetched."""
        return bool(self._active or self._waiting or self._done)

    def submit(self, row: Row) -> None:
        """Queues a request."""
        (self._waiting if row.left else self._done).append(row)

    def step(self) -> list[Row]:
        """Admits waiting requests, samples one id for every running row, and returns the rows that ended.

        Raises:
            PolicyError: logits that are not finite; memory that does not suffice even for half of the rows. All
                requests are dropped with it.
        """
        try:
            self._admit()
            if self._active:
                self._decode()
        except torch.OutOfMemoryError as error:
            self._halve(error)
        except BaseException:
            self.abort()
            raise
        done, self._done = self._done, []
        if not self.busy:
            self._halved = False
        return done

    def cancel(self, ticket: int) -> bool:
        """Drops a request; False where there is none of that number."""
        for i, row in enumerate(self._active):
            if row.ticket == ticket:
                self._rest(i)
                return True
        for queue in (self._waiting, self._done):
            for row in queue:
                if row.ticket == ticket:
                    queue.remove(row)
                    return True
        return False

    def abort(self) -> None:
        """Drops every request and every cache."""
        self._waiting.clear()
        self._admitted, self._active, self._done = [], [], []
        self._drop_caches()

    def drop_caches(self) -> None:
        """Frees and forgets every key and value: running rows go back to waiting and continue from the ids that they have."""
        self._requeue()
        self._drop_caches()

    def _drop_caches(self) -> None:
        self.store.clear()
        self._arena = Arena(self._runner.num_layers)

    def _unfinished(self) -> list[Row]:
        """Rows that run or are being admitted; one that its own prefill has ended is neither."""
        return self._active + [row for row in self._admitted if row not in self._active and row not in self._done]

    def _requeue(self) -> None:
        rows = self._unfinished()
        self.stats.restarts += len(rows)
        self._waiting.extendleft(reversed(rows))  # to the front, in their order: they have waited before
        self._active, self._admitted = [], []

    def _halve(self, error: torch.OutOfMemoryError) -> None:
        """Goes on with half of the rows; the caches are gone."""
        rows = len(self._unfinished())
        if self._halved or rows <= 1:
            self.abort()
            raise PolicyError(
                f"out of memory with {rows} rows at once: lower max_batch_size or cache_bytes, or shorten the contexts"
            ) from error
        self._halved, self.max_rows = True, (rows + 1) // 2
        self.drop_caches()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        _LOG.warning("out of memory with %d rows: going on with max_batch_size=%d", rows, self.max_rows)

    # ---- admission

    def _admit(self) -> None:
        room = len(self._waiting)
        if self.max_rows is not None:
            room = min(room, self.max_rows - len(self._active))
        # a prefill is a pass in which the running rows do not move: a few requests are worth waiting for.
        if room <= 0 or (self._active and room < math.ceil(self._refill * (len(self._active) + room))):
            return
        room = self._fitting(room)
        self._admitted = [self._waiting.popleft() for _ in range(room)]
        for batch in _batches(self._plan(self._admitted)):
            self._prefill(batch)
        self._admitted = []

    def _fitting(self, room: int) -> int:
        """How many of the first `room` waiting rows memory has room for; fewer become the limit from now on.

        Asking for an arena that does not fit ends a GPU's run with an error of its own, and gets a CPU's process killed.
        """
        longest = max(len(row.context) + len(row.ids) for row in itertools.islice(self._waiting, room))
        # What `_prefill` asks for; an arena that has to grow later meets `_halve`.
        columns = longest + min(max(row.left for row in itertools.islice(self._waiting, room)), max(longest, 64))
        each = columns * self._runner.bytes_per_id
        wanted = (len(self._active) + room) * each
        if wanted <= max(_UNASKED, self._arena.nbytes):
            return room
        free = self._runner.free_bytes()
        if free is None or wanted <= _SHARE * (free + self._arena.nbytes):
            return room
        fits = int(_SHARE * (free + self._arena.nbytes) // each)
        if fits < 1 and not self._active:
            raise PolicyError(
                f"keys and values of one context of {columns} ids take {each / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are"
                ' free: shorten the contexts, or sample on an engine with a paged cache (PolicyConfig(rollout="continuous"))'
            )
        self.max_rows = max(1, fits)
        _LOG.warning(
            "%d contexts of %d ids would take %.0f GiB of keys and values, and %.0f GiB are free: going on with"
            ' max_batch_size=%d (rollout="continuous" has a paged cache, for more)',
            len(self._active) + room,
            columns,
            wanted / 2**30,
            free / 2**30,
            self.max_rows,
        )
        return max(0, min(room, self.max_rows - len(self._active)))

    def _plan(self, rows: Sequence[Row]) -> list[_Prefill]:
        """Plans the ids that each context must still be fed; rows with equal contexts share one prefill."""
        plans: dict[bytes, _Prefill] = {}
        taken: list[Entry] = []
        running = [encode(row.context) for row in self._active]
        for row in rows:
            ids = row.all_ids()
            key = encode(ids)
            if key in plans:
                plans[key].rows.append(row)
                continue
            cached, held = self._cached(ids, key, running, taken)
            self.stats.reused += held
            plans[key] = _Prefill([row], ids, cached, held)
        for entry in taken:  # only now: several contexts may have been found to continue one entry
            self.store.pop(entry)
        return list(plans.values())

    def _cached(
        self, ids: Ids, key: bytes, running: Sequence[bytes], taken: list[Entry]
    ) -> tuple[KeyValues | None, int]:
        """Keys and values of the longest prefix that a resting or running context shares; one id is always fed.

        An entry of which all is used joins `taken`: the row, and what it leaves behind, will hold it.
        """
        entry, held = self.store.find(ids)
        held = min(held, len(ids) - 1)  # logits come from feeding: the last id is fed even if it was cached
        whole = entry is not None and held == len(entry)
        shared = [0] if whole else [common_prefix(key, other) for other in running] or [0]
        best = int(np.argmax(shared))
        if min(shared[best], len(ids) - 1) > held and shared[best] >= MIN_SHARED:
            held = min(shared[best], len(ids) - 1)
            return self._arena.take(best, held), held
        if entry is None or held == 0 or (held < MIN_SHARED and not whole):
            return None, 0
        if whole and entry not in taken:
            taken.append(entry)
        return truncate(entry.kv, held), held

    def _prefill(self, batch: Sequence[_Prefill]) -> None:
        """Feeds what the contexts lack, adds them to the running rows, and samples their first ids."""
        device, new = self._runner.device, [plan.new for plan in batch]
        rows = [row for plan in batch for row in plan.rows]
        longest = max(len(plan.ids) for plan in batch)
        first = not self._active
        size = len(self._active) + len(self._waiting) + len(self._admitted)
        size = size if self.max_rows is None else min(size, self.max_rows)
        arena = Arena(self._runner.num_layers)
        if first:  # no row runs: the chunk is computed in the loop's own arena, and nothing has to be copied
            room = min(max(row.left for row in rows), max(longest, 64))
            if not self._arena.fits(size, longest + room):
                # Contexts come back a turn longer: room for a few turns saves a new arena, and its pages, each turn.
                self._arena = Arena(self._runner.num_layers, size, longest + max(room, min(longest, SLACK)))
            arena = self._arena
        arena.open_chunk(device, new, [plan.cached for plan in batch])
        ids_BL, _ = self._runner.left_pad([plan.ids[plan.held :] for plan in batch])
        logits_BV = self._runner.forward(ids_BL, arena.mask(device), arena.positions(device), arena.cache, keep=1)[
            :, -1
        ]
        self.stats.prefilled += sum(new)
        self.stats.prefill_passes += 1
        for i, plan in enumerate(batch):
            for _ in plan.rows[1:] if first else plan.rows:
                self._arena.adopt(arena, i, size)
        leaders = [plan.rows[0] for plan in batch]
        others = [row for plan in batch for row in plan.rows[1:]]
        start = len(self._active)
        if first:
            self._active = leaders + others
            source = [*range(len(batch)), *(i for i, plan in enumerate(batch) for _ in plan.rows[1:])]
        else:
            self._active += rows
            source = [i for i, plan in enumerate(batch) for _ in plan.rows]
        if len(rows) > len(batch) or not first:
            logits_BV = logits_BV[torch.tensor(source, device=device)]
        self._sample(logits_BV, start)

    # ---- steps

    def _decode(self) -> None:
        """Feeds every running row its last id and samples the next."""
        device, arena = self._runner.device, self._arena
        arena.open_step(max(row.left for row in self._active))
        ids_B1 = torch.tensor([[row.ids[-1]] for row in self._active], device=device)
        logits_BV = self._runner.forward(ids_B1, arena.mask(device), arena.positions(device), arena.cache, keep=1)
        self.stats.decoded += len(self._active)
        self.stats.decode_passes += 1
        self._sample(logits_BV[:, -1], 0)

    def _sample(self, logits_BV: torch.Tensor, start: int) -> None:
        """Samples for the rows from `start` on; those that end leave."""
        rows = self._active[start:]
        dist_BV = self._sampling.log_distribution(logits_BV)
        uniforms_B = torch.tensor(
            [float(row.uniforms[len(row.ids)]) for row in rows], dtype=torch.float64, device=dist_BV.device
        )
        chosen_B1 = self._sampling.draw(dist_BV, uniforms_B)[:, None]
        figures = [chosen_B1[:, 0].double(), dist_BV.gather(-1, chosen_B1)[:, 0].double()]
        if self._raw:
            figures.append(torch.log_softmax(logits_BV.float(), dim=-1).gather(-1, chosen_B1)[:, 0].double())
        if self._entropies:
            figures.append(entropy(dist_BV).double())
        # One copy from the device a step: float64 holds every id exactly.
        chosen, logprobs, *more = torch.stack(figures).tolist()
        could: list[list[int]] = []
        if self._support:
            kept, drawn = dist_BV.topk(self._support, dim=-1)
            could = drawn.masked_fill(kept.isneginf(), -1).tolist()
        for i, row in enumerate(rows):
            if not math.isfinite(logprobs[i]):
                raise PolicyError(
                    f"the model's logits for {row.label} are not finite at completion id {len(row.ids)} "
                    f"(version {self.version}): its weights are broken, or its dtype overflows"
                )
            row.ids.append(int(chosen[i]))
            row.logprobs.append(logprobs[i])
            row.versions.append(self.version)
            row.support += could[i : i + 1]
            for name, values in zip(self._extra(), more, strict=True):
                getattr(row, name).append(values[i])
            row.stopped = row.ids[-1] in self._stop_ids
        # Backwards: a row that leaves is replaced by the last row, which has been looked at by then.
        for i in range(len(rows) - 1, -1, -1):
            if rows[i].stopped or not rows[i].left:
                self._done.append(rows[i])
                self._rest(start + i)

    def _extra(self) -> list[str]:
        return ["raw_logprobs"] * self._raw + ["entropies"] * self._entropies

    def _rest(self, place: int) -> None:
        """Takes a row out of the running ones and keeps its keys and values."""
        row, length = self._active[place], self._arena.lengths[place]
        if self.store.budget:
            try:
                self.store.put(row.all_ids()[:length], self._arena.take(place, length))
            except torch.OutOfMemoryError:  # what rests only saves time
                self.store.clear()
        self._arena.remove(place)
        self._active[place] = self._active[-1]
        self._active.pop()


def _batches(plans: list[_Prefill]) -> list[list[_Prefill]]:
    """Prefills that share a pass: of similar length, so that little is padding, and not too many ids at once."""
    batches: list[list[_Prefill]] = []
    for plan in sorted(plans, key=lambda plan: -plan.new):
        if batches:
            longest = batches[-1][0].new
            fits = longest * (len(batches[-1]) + 1) <= PREFILL_TOKENS
            if fits and longest - plan.new <= 32 + longest // 4:
                batches[-1].append(plan)
                continue
        batches.append([plan])
    return batches
