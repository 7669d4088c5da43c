"""Training with an engine: the learner is this process, the episodes come from Ray.

    max_staleness = 0    every batch is played by the newest weights; the learner waits (the barrier, and the reference)
    max_staleness = n    playing goes on while the learner learns, at most n versions ahead of what it learns from

Batch k is always the episodes that it is without an engine, by their indices. An episode of batch k may begin once the
weights are those of iteration k - n, so nothing that is learned from is staler than n, whatever is slow or dies. What
older weights sampled is corrected as AReaL does (decoupled PPO, Hilton et al. 2022, arXiv:2110.00641; arXiv:2505.24298):
ratios are taken to the policy as it is before the update, and an importance weight makes up for the weights that sampled.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import torch

from mathturn_gym.baselines.algorithms import Algorithm, Metrics
from mathturn_gym.baselines.session import Session, refuse_rollout
from mathturn_gym.baselines.settings import RunConfig
from mathturn_gym.baselines.trainer import Trainer, policy_to_load
from mathturn_gym.episodes.packing import PackedBatch
from mathturn_gym.errors import InvalidValueError, check_int
from mathturn_gym.neighbors.engines.ray._engine import Collection, RayEngine
from mathturn_gym.neighbors.engines.ray_settings import RaySettings
from mathturn_gym.problems import Curriculum
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import NO_VERSION, Episode, Policy

_CAP: Final = 5.0
"""Largest importance weight of a token that older weights sampled; AReaL's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayTraining:
    """The engine of `train(engine=...)` that plays on Ray.

    Args:
        settings: How many workers, of what, and where.
        max_staleness: Versions that the weights which sampled an episode may be behind those that learn from it; 0
            waits for the newest. With more, `Optimization.importance_cap` is 5 unless the run has its own.

    Raises:
        InvalidValueError: a number below 0.

    >>> train(task.config(), run_dir="runs/ray", engine=RayTraining(max_staleness=1))  # doctest: +SKIP
    """

    settings: RaySettings = field(default_factory=RaySettings)
    max_staleness: int = 0

    def __post_init__(self) -> None:
        """Checks the number."""
        check_int("max_staleness", self.max_staleness, low=0)

    def run_dir(self, run_dir: Path) -> Path:
        """The learner is one process: it writes the run's folder."""
        return run_dir

    def prepare(self, config: RunConfig, policy: Policy | None = None) -> Session:
        """Loads the learner, starts the workers, and checks that the two fit.

        Raises:
            InvalidValueError: a policy that workers cannot load by its name, an algorithm that trains no language model,
                or a curriculum together with staleness.
            EngineError: see `RayEngine`.
        """
        if policy is not None:
            raise InvalidValueError(
                f"workers load a policy by its name: give train() a PolicyConfig, not a {type(policy).__name__}"
            )
        refuse_rollout(config, "the Ray engine")
        if not isinstance(config.algorithm, Algorithm):
            raise InvalidValueError(f"the Ray engine trains language models; {config.algorithm.name} trains none")
        if self.max_staleness and isinstance(config.env.problems("train"), Curriculum):
            raise InvalidValueError(
                "a curriculum chooses problems by what was learned before: with it, max_staleness must be 0"
            )
        options = config.optimization
        if self.max_staleness and options.importance_cap is None:
            config = dataclasses.replace(config, optimization=dataclasses.replace(options, importance_cap=_CAP))
        return RayTrainer(config, self)


class RayTrainer(Trainer):
    """A trainer whose episodes come from an engine.

    Args:
        config: The run.
        training: Workers and staleness.
    """

    def __init__(self, config: RunConfig, training: RayTraining) -> None:
        super().__init__(config)
        self._training = training
        self._stream: Collection | None = None
        self._broadcast_s = 0.0
        options = self.config.optimization
        try:
            self._engine = RayEngine(
                config.env,
                policy_to_load(config),
                training.settings,
                threads=config.threads,
                precision=options.precision,
            )
            self._engine.check_room(self._weights())
        except BaseException:
            super().close()
            raise

    def close(self) -> None:
        """Ends the workers and closes the environments."""
        self._engine.close()
        super().close()

    def load(self, checkpoint: str | Path) -> None:
        """Goes on from a checkpoint, the workers too."""
        super().load(checkpoint)
        self._broadcast(wait=True)

    def step(self) -> Metrics:
        """An iteration; the weights that it makes are broadcast at its end."""
        metrics = super().step()
        stale = self._training.max_staleness
        self._broadcast(wait=not stale)
        assert self._stream is not None
        return {
            **metrics,
            "engine/replayed": self._stream.work_queue.replayed,
            "engine/deaths": self._engine.deaths,
            "engine/rollout_actors": self._engine.rollout_actors,
            "engine/object_store_bytes": self._stream.bytes,
            "time/broadcast_s": self._broadcast_s,
        }

    def collected(self, split: Literal["train", "validation"], episodes: int, **options: Any) -> list[Episode]:
        """Plays on the engine: of the train split, ahead as far as staleness allows."""
        seed = derive_seed(self.config.seed, split)
        if split == "validation":
            return self._engine.collect(episodes, seed=seed, split=split, gold_in_info=True, **options)
        first = options.pop("first_index")
        if self._stream is None:
            problems = self._curriculum or self.config.env.problems("train")
            self._stream = self._engine.begin(
                problems, seed=seed, first_index=first, limit=first, gold_in_info=True, **options
            )
        if self._curriculum is not None:
            self._stream.curriculum = self._curriculum.state_dict()
        self._stream.allow(first + episodes * (1 + self._training.max_staleness))
        return self._stream.take(range(first, first + episodes))

    def _update_policy(self, batch: PackedBatch, rate: float) -> Metrics:
        return {**super()._update_policy(batch, rate), **staleness(batch, self._policy.version)}

    def _broadcast(self, *, wait: bool) -> None:
        began = time.perf_counter()
        self._engine.update_weights(self._weights(), version=self._policy.version, wait=wait)
        self._broadcast_s = time.perf_counter() - began

    def _weights(self) -> Mapping[str, torch.Tensor]:
        if hasattr(self.model, "peft_config"):
            from peft import get_peft_model_state_dict  # type: ignore[import-not-found,unused-ignore]

            adapter: Mapping[str, torch.Tensor] = get_peft_model_state_dict(self.model)
            return adapter
        whole: Mapping[str, torch.Tensor] = self.model.state_dict()
        return whole


def staleness(batch: PackedBatch, version: int) -> Metrics:
    """How many versions ago the trained tokens were sampled: mean, largest, and the share of each age.

    Args:
        batch: What is learned from.
        version: Of the weights that learn.
    """
    sampled = batch.versions[batch.loss_mask]
    age = version - sampled[sampled != NO_VERSION]
    if not age.numel():
        return {}
    shares = torch.bincount(age.clamp(min=0).long()).double() / age.numel()
    return {
        "staleness_mean": float(age.double().mean()),
        "staleness_max": float(age.max()),
        **{f"staleness_{ago}": float(share) for ago, share in enumerate(shares)},
    }
