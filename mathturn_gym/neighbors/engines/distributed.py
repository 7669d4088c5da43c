"""A learner of several ranks: the gradient of one process, from as many as there are.

    torchrun --nproc-per-node 8 -m mathturn_gym.cli.app train lins --engine distributed
    train(config, run_dir="runs/lins", engine=DistributedTraining())        # in a program that torchrun starts

Each rank plays its share of the groups and hands its episodes to all, so that credit sees the whole batch; each then
computes the loss of its share of the rows, divided by the *whole* minibatch's tokens, turns or episodes. So the sum of the
ranks' gradients is the gradient of one process, however uneven the shares are, and checkpoints are those of one process: a
run may go on with another number of ranks, or with one.

`shard=True` is for models that do not fit (FSDP2): weights, gradients and the optimizer's state are spread over the ranks.
While episodes are played, every rank has the weights whole; gradients and the optimizer's state never are.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from mathturn_gym.baselines.algorithms import Algorithm, Metrics
from mathturn_gym.baselines.algorithms.critic import CriticAlgorithm
from mathturn_gym.baselines.batches import select_episodes
from mathturn_gym.baselines.run_folder import RunFolder
from mathturn_gym.baselines.session import Ended, Report, Session, refuse_rollout
from mathturn_gym.baselines.settings import RunConfig
from mathturn_gym.baselines.trainer import Trainer, merged_metrics
from mathturn_gym.episodes.packing import PackedBatch
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.errors import EngineError, InvalidValueError, check_float
from mathturn_gym.policies.models import load_model
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Episode, Policy

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedTraining:
    """The engine of `train(engine=...)` that trains on all ranks of a torch.distributed job.

    The process group is the program's, where it has made one; otherwise it is made from what torchrun puts into the
    environment.

    Args:
        backend: "nccl" or "gloo"; None takes NCCL where there are GPUs.
        shard: Spread weights, gradients and optimizer state over the ranks (FSDP2).
        timeout: Seconds after which ranks that wait for another one give up. Episodes differ in length: it has to be longer than
            the slowest rank plays beyond the quickest.

    Raises:
        InvalidValueError: a time-out that is not positive.
    """

    backend: Literal["nccl", "gloo"] | None = None
    shard: bool = False
    timeout: float = 1800.0

    def __post_init__(self) -> None:
        """Checks the time-out."""
        if not 0 < check_float("timeout", self.timeout) < 1e6:
            raise InvalidValueError(f"timeout must be between 0 and 1,000,000 seconds, got {self.timeout:g}")

    def connect(self) -> None:
        """Joins the process group.

        Raises:
            EngineError: this process is no rank of anything, or the others do not come.
        """
        if dist.is_initialized():
            return
        missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise EngineError(
                f"the distributed engine runs on the ranks of a job, and {missing[0]} is not set: start the program with"
                " torchrun --nproc-per-node N"
            )
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        try:
            dist.init_process_group(
                self.backend or ("nccl" if torch.cuda.is_available() else "gloo"),
                timeout=timedelta(seconds=self.timeout),
            )
        except (dist.DistError, RuntimeError, ValueError) as error:
            raise EngineError(f"the ranks of this job do not find each other: {error}") from error

    def run_dir(self, run_dir: Path) -> Path:
        """Rank 0 writes the run folder. Other ranks write to a temporary folder."""
        self.connect()
        return run_dir if dist.get_rank() == 0 else Path(tempfile.mkdtemp(prefix="mathturn-rank-"))

    def prepare(self, config: RunConfig, policy: Policy | None = None) -> Session:
        """Loads the learner on this rank.

        Raises:
            EngineError: see `connect`.
            InvalidValueError: an algorithm that trains no language model, or that cannot be sharded; more ranks than rows
                of a minibatch.
        """
        self.connect()
        refuse_rollout(config, "the distributed engine")
        if not isinstance(config.algorithm, Algorithm):
            raise InvalidValueError(
                f"the distributed engine trains language models; {config.algorithm.name} trains none"
            )
        options, ranks = config.optimization, dist.get_world_size()
        if options.batch_episodes // options.minibatches < ranks:
            raise InvalidValueError(
                f"each of {ranks} ranks needs a row of every minibatch, and optimization.batch_episodes"
                f" ({options.batch_episodes}) / minibatches ({options.minibatches}) are fewer"
            )
        if self.shard and options.optimizer == "adamw8bit":
            raise InvalidValueError("shard=True: optimizer 'adamw8bit' keeps its state whole; choose 'adamw'")
        if self.shard and isinstance(config.algorithm, CriticAlgorithm):
            raise InvalidValueError(
                f"shard=True: the critic of {config.algorithm.name} is a copy of the policy's model, which a sharded one does"
                " not give; use an algorithm without a critic, or shard=False"
            )
        return DistributedTrainer(config, self, policy)


class DistributedTrainer(Trainer):
    """A trainer that is one of several ranks; all do the same, but for their shares.

    Args:
        config: The run.
        training: Backend and sharding.
        policy: See `Trainer`; every rank needs its own.
    """

    def __init__(self, config: RunConfig, training: DistributedTraining, policy: Policy | None = None) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self._training = training
        super().__init__(config, policy)

    def place(self, module: torch.nn.Module) -> None:
        """The first rank's weights on every rank (a policy made by hand may differ), sharded where that was asked for."""
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.data, 0)
        if self._training.shard:
            _shard(module, self._policy.device.type)
        self._policy.drop_caches()

    @contextmanager
    def _unsharded(self) -> Iterator[None]:
        """Weights whole on every rank: episodes differ in length, and what is gathered is gathered by all at once."""
        sharded = [one for one in self.model.modules() if isinstance(one, FSDPModule)]
        for one in sharded:
            one.unshard()
            one.set_reshard_after_forward(False, recurse=False)
        try:
            yield
        finally:
            for one in sharded:
                one.set_reshard_after_forward(True, recurse=False)
                one.reshard()

    # ---- the run

    def run(self, folder: RunFolder, *, resume: bool, report: Report, interrupted: Callable[[], bool]) -> Ended:
        """See `Trainer.run`; an interrupt of one rank is one of all."""
        return super().run(folder, resume=resume, report=report, interrupted=lambda: self._any(interrupted()))

    def newest(self, folder: RunFolder) -> Path | None:
        """The first rank's."""
        return self._from_first(lambda: super(DistributedTrainer, self).newest(folder))

    def is_stale(self, folder: RunFolder) -> bool:
        """As the first rank's folder says."""
        return self._from_first(lambda: super(DistributedTrainer, self).is_stale(folder))

    def save(self, folder: RunFolder) -> None:
        """Rank 0 writes; the others wait until the files are there."""
        state, policy = self.checkpoint(), self._policy
        weights = get_model_state_dict(self.model, options=_WHOLE) if self._training.shard else None
        if self.rank == 0:
            folder.save(policy if weights is None else _Whole(policy, weights), state)  # type: ignore[arg-type]
        dist.barrier()

    def load_weights(self, checkpoint: Path, *, version: int) -> None:
        """Each rank takes its part of the weights."""
        if not self._training.shard:
            super().load_weights(checkpoint, version=version)
            return
        set_model_state_dict(self.model, load_model(checkpoint).state_dict(), options=_WHOLE)
        self._policy.version = version

    @property
    def done(self) -> bool:
        """True once the run's budget is used up; CPU seconds are the first rank's."""
        return self._from_first(lambda: super(DistributedTrainer, self).done)

    # ---- shares

    def collected(self, split: Literal["train", "validation"], episodes: int, **options: Any) -> list[Episode]:
        """Plays this rank's groups, and returns all ranks' episodes."""
        group, first = options.get("group_size", 1), options.pop("first_index", 0)
        shares = np.array_split(np.arange(-(-episodes // group)), self.ranks)
        mine = shares[self.rank] * group
        env = self._env if split == "train" else self._eval_env
        played: list[Episode] = []
        with self.autocast(), self._unsharded():
            if len(mine):
                count = min(episodes, int(mine[-1]) + group) - int(mine[0])
                seed = derive_seed(self.config.seed, split)
                played = collect(env, self._policy, count, seed=seed, first_index=first + int(mine[0]), **options)
        return [episode for share in self._gathered(played) for episode in share]

    def parts(self, minibatch: PackedBatch) -> list[PackedBatch]:
        """This rank's episodes of a minibatch, in as many parts as every rank has."""
        options, count = self.config.optimization, len(minibatch.facts)
        # Sharded weights are gathered part by part, by all ranks together: none may have more parts than another.
        shares, number = np.array_split(np.arange(count), self.ranks), min(options.accumulate, count // self.ranks)
        if options.micro_batch_tokens is not None:
            shares, number = _bounded_shares(minibatch, shares, options.micro_batch_tokens)
        return [
            select_episodes(minibatch, part) if len(part) else _untrained(select_episodes(minibatch, shares[0][:1]))
            for part in np.array_split(shares[self.rank], max(1, number))
        ]

    @property
    def fewest_episodes(self) -> int:
        """One for each rank."""
        return self.ranks

    @property
    def writes(self) -> bool:
        """The first rank's: eight copies of a 7B's state would take 450 GB of a node's memory."""
        return self.rank == 0

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Adds up the ranks' gradients: each is divided by the whole minibatch's size already."""
        named = [one for one in parameters if not isinstance(one, DTensor)]  # FSDP has added up its own
        for one in named:
            if one.grad is None:  # no token of this rank's has met it
                one.grad = torch.zeros_like(one)
        for bucket in _buckets([one.grad for one in named if one.grad is not None]):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            dist.all_reduce(flat)
            summed = torch.split(flat, [one.numel() for one in bucket])
            for gradient, whole in zip(bucket, summed, strict=True):
                gradient.copy_(whole.view_as(gradient))

    def summed(self, value: float) -> float:
        """Over the ranks."""
        return float(sum(self._gathered(value)))

    def merged(self, outs: Sequence[Metrics], sizes: Sequence[float]) -> Metrics:
        """Of all ranks' parts."""
        everybody = self._gathered((list(outs), list(sizes)))
        return merged_metrics(
            [out for one, _ in everybody for out in one], [size for _, one in everybody for size in one]
        )

    # ---- between ranks

    def _gathered(self, mine: T) -> list[T]:
        """What every rank has, in the order of ranks."""
        found: list[Any] = [None] * self.ranks
        dist.all_gather_object(found, mine)
        return found

    def _from_first(self, make: Callable[[], T]) -> T:
        """What the first rank finds; the others do not look."""
        found: list[Any] = [make() if self.rank == 0 else None]
        dist.broadcast_object_list(found, 0)
        value: T = found[0]
        return value

    def _any(self, flag: bool) -> bool:
        return any(self._gathered(flag))


def _bounded_shares(
    minibatch: PackedBatch, shares: Sequence[npt.NDArray[np.int64]], most: int
) -> tuple[list[npt.NDArray[np.int64]], int]:
    """The shares with the longest episodes first, and into how many parts each must be split for `most` tokens a part.

    Every rank has the whole minibatch, so all find the same number without asking. An episode that is longer is a part by itself.
    """
    pieces, count = minibatch.pieces, len(minibatch.facts)
    rows = np.bincount(pieces.episode, minlength=count)
    longest = np.zeros(count, np.int64)
    np.maximum.at(longest, pieces.episode, minibatch.lengths[pieces.row])
    ordered = [share[np.argsort(-longest[share], kind="stable")] for share in shares]

    def fits(part: npt.NDArray[np.int64]) -> bool:
        return len(part) < 2 or int(rows[part].sum() * longest[part].max()) <= most

    number = 1
    while not all(fits(part) for share in ordered for part in np.array_split(share, number)):
        number += 1
    return ordered, number


def _untrained(part: PackedBatch) -> PackedBatch:
    """A part without a gradient, for a rank that has fewer episodes than another has parts."""
    return part.replace_tensors({"loss_mask": torch.zeros_like(part.loss_mask)})


def _shard(module: Any, device: str) -> None:
    """FSDP2: each layer is a unit, and what is left is one."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    layers = set(getattr(module, "_no_split_modules", None) or ())
    for one in module.modules():
        if type(one).__name__ in layers:
            fully_shard(one, mesh=mesh)
    fully_shard(module, mesh=mesh)
    for one in module.modules():
        if isinstance(one, FSDPModule):
            # A sum: losses are divided by the whole minibatch's size already. gloo knows no other reduction.
            one.set_gradient_divide_factor(1.0)
            one.set_force_sum_reduction_for_comms(True)


class _Whole:
    """A policy whose weights are written from a state dict that is whole."""

    def __init__(self, policy: Any, weights: dict[str, Any]) -> None:
        self._policy, self._weights = policy, weights

    def save_pretrained(self, folder: Path) -> None:
        """See `CausalLMPolicy.save_pretrained`."""
        self._policy.save_pretrained(folder, weights=self._weights)


_WHOLE: Final = StateDictOptions(full_state_dict=True, cpu_offload=True)
_BUCKET_BYTES: Final = 2**26


def _buckets(gradients: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Gradients of one dtype that are sent together: many small messages cost more than one."""
    bucket: list[torch.Tensor] = []
    size = 0
    for gradient in gradients:
        if bucket and (gradient.dtype != bucket[0].dtype or size > _BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.numel() * gradient.element_size()
    if bucket:
        yield bucket
