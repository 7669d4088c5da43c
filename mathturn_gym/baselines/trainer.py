"""What every trainer of a language model shares; an algorithm is a subclass with two methods.

    each iteration:  collect ─► credit ─► pack ─► minibatches: logprobs ─► loss ─► AdamW
                                ^^^^^^                                     ^^^^

`credit` says what each id was worth, `loss` what is made of it. All else - options, logs, evaluation, checkpoints,
budgets, early stops - is here, and the same for all. Everything random is drawn from (seed, iteration), so a resumed
run continues the curve that it would have drawn.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from mathturn_gym.baselines.config import TrainConfig
from mathturn_gym.baselines.optimizer import Optimizer
from mathturn_gym.baselines.runs import TrainerState, load_checkpoint
from mathturn_gym.decoding import PolicyConfig, load_policy, trained_logits, use_row_attention
from mathturn_gym.errors import CheckpointError
from mathturn_gym.losses import PolicyLoss, policy_loss, trained_logprobs
from mathturn_gym.metrics.figures import facts
from mathturn_gym.packing import PackedBatch, select_rows
from mathturn_gym.problems import Curriculum
from mathturn_gym.rollout import collect
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Episode
from mathturn_gym.wrappers.policy import CausalLMPolicy

__all__ = ["DivergedError", "Metrics", "Trainer", "accuracy_by_turn", "make_vec"]

Metrics: TypeAlias = dict[str, float]


class DivergedError(Exception):
    """A loss, gradient or weight became NaN or infinite: the run has nothing left to learn from."""


class Trainer(ABC):
    """Policy, optimizer and environments of a run; `step` is one iteration.

    Args:
        config: The run.

    Attributes:
        policy: The policy that is trained; its version is the number of iterations done.
        iteration: Iterations done.
        tokens: Ids sampled in training.
        cpu_s: CPU seconds of this process spent in `step`.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.iteration = self.tokens = 0
        self.cpu_s = 0.0
        self.policy: CausalLMPolicy = load_policy(policy_config(config))
        self.model = self.policy.model
        use_row_attention(self.model)
        self._optimizer = Optimizer(self.model, config.learning_rate, config)
        self._reference: Any = _frozen_copy(self.policy) if config.kl_weight else None
        tokenizer = self.policy.tokenizer
        kwargs = config.env_kwargs("train")
        self._curriculum = kwargs["problems"] if isinstance(kwargs["problems"], Curriculum) else None
        self._env = make_vec(config.env_id, config.batch_episodes, tokenizer=tokenizer, **kwargs)
        self._eval_env = make_vec(
            config.env_id,
            max(1, min(config.eval_episodes, 128)),
            tokenizer=tokenizer,
            **config.env_kwargs("validation"),
        )

    @abstractmethod
    def credit(self, episodes: Sequence[Episode]) -> PackedBatch:
        """What each sampled id was worth.

        Args:
            episodes: An iteration's, in order of their index; `Episode.group` names those on one problem.

        Returns:
            Layout "episode", padded: row i is episode i, its advantages set.
        """

    def loss(self, logprobs: torch.Tensor, part: PackedBatch, minibatch: PackedBatch, **shared: Any) -> PolicyLoss:
        """What the policy minimizes; the clipped objective, every id counting alike.

        Args:
            logprobs: float32 (B, T), of the policy as it is now.
            part: The rows that `logprobs` are of.
            minibatch: What `part` is a part of; a sum over parts is the minibatch's mean if divided by its counts.
            **shared: Keywords of `policy_loss` that all algorithms have in common: entropy and reference.
        """
        return policy_loss(logprobs, part, clip=self.config.clip, denominator=minibatch.count("token"), **shared)

    def step(self) -> Metrics:
        """Plays a batch of episodes, learns from them, and returns the iteration's figures.

        Raises:
            DivergedError: a loss, gradient or weight is no longer finite.
        """
        config, began, cpu = self.config, time.perf_counter(), time.process_time()
        episodes = self._play()
        played = time.perf_counter()
        for episode in episodes if self._curriculum is not None else ():
            self._curriculum.record_episode(episode)  # type: ignore[union-attr]
        batch = self.credit(episodes)
        rate = config.schedule(self.iteration, self.tokens)
        figures = self._learn(batch, rate)
        sampled = int(batch.loss_mask.sum())
        self.iteration += 1
        self.tokens += sampled
        self.policy.version = self.iteration
        taken = time.perf_counter()
        self.cpu_s += time.process_time() - cpu
        turns = sum(episode.num_turns for episode in episodes)
        return {
            "iteration": self.iteration,
            "episodes": self.iteration * config.batch_episodes,
            "tokens": self.tokens,
            "cpu_s": self.cpu_s,
            **{f"train/{name}": value for name, value in accuracy_by_turn(episodes, config.num_turns).items()},
            "train/reward": float(np.mean([episode.rewards.sum() for episode in episodes])),
            "train/turns": turns / len(episodes),
            "train/completion_tokens": sampled / max(1, turns),
            "train/learning_rate": config.learning_rate * rate,
            **{f"train/{name}": value for name, value in figures.items()},
            "time/rollout_s": played - began,
            "time/update_s": taken - played,
            "time/tokens_per_s": batch.num_tokens / (taken - began),
        }

    def evaluate(self) -> Metrics:
        """Accuracy by turn on the validation problems; the same episodes each time."""
        if not self.config.eval_episodes:
            return {}
        began = time.perf_counter()
        seed = derive_seed(self.config.seed, "validation")
        with self.autocast():
            episodes = collect(self._eval_env, self.policy, self.config.eval_episodes, seed=seed)
        accuracy = accuracy_by_turn(episodes, self.config.num_turns)
        figures = {f"validation/{name}": value for name, value in accuracy.items()}
        return {**figures, "time/evaluation_s": time.perf_counter() - began}

    @property
    def done(self) -> bool:
        """True once the run's episodes, tokens or CPU seconds are used up."""
        config = self.config
        return (
            (config.iterations is not None and self.iteration >= config.iterations)
            or (config.budget_tokens is not None and self.tokens >= config.budget_tokens)
            or (config.budget_cpu_s is not None and self.cpu_s >= config.budget_cpu_s)
        )

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision that models are called in, in sampling and training alike."""
        mixed = self.config.precision == "bfloat16"
        return torch.autocast(self.config.device.partition(":")[0], torch.bfloat16, enabled=mixed)

    def state(self) -> TrainerState:
        """What `load` needs, besides the weights."""
        numbers: dict[str, Any] = {"tokens": self.tokens, "cpu_s": self.cpu_s, **self._more_numbers()}
        if self._curriculum is not None:
            numbers["curriculum"] = self._curriculum.state_dict()
        tensors = {**self._optimizer.tensors("policy"), **self._more_tensors()}
        return TrainerState(self.iteration, self._optimizer.steps, numbers, tensors)

    def load(self, checkpoint: str | Path) -> None:
        """Goes on where the trainer that saved `checkpoint` was.

        Raises:
            CheckpointError: it is missing, broken, or of another model.
        """
        state = load_checkpoint(checkpoint)
        try:
            self._optimizer.load(state.tensors, "policy", state.steps)
            self._load_more(state)
            self.policy.update_weights(checkpoint, version=max(1, state.iteration))
            if self._curriculum is not None:
                self._curriculum.load_state_dict(state.numbers["curriculum"])
            self.iteration, self.tokens = state.iteration, int(state.numbers["tokens"])
            self.cpu_s = float(state.numbers["cpu_s"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{str(checkpoint)!r} is no checkpoint of this run: {error}") from error

    def close(self) -> None:
        """Closes the environments."""
        self._env.close()
        self._eval_env.close()

    def _more_numbers(self) -> Mapping[str, Any]:
        """What an algorithm keeps from one iteration to the next, as JSON types."""
        return {}

    def _more_tensors(self) -> Mapping[str, torch.Tensor]:
        """The same for tensors."""
        return {}

    def _load_more(self, state: TrainerState) -> None:  # noqa: B027  (most algorithms keep nothing)
        """Takes back what `_more_numbers` and `_more_tensors` gave."""

    def _learn(self, batch: PackedBatch, rate: float) -> Metrics:
        """Updates whatever the algorithm updates; `rate` is the schedule's factor."""
        return self._update_policy(batch, rate)

    def _play(self) -> list[Episode]:
        config = self.config
        with self.autocast():
            return collect(
                self._env,
                self.policy,
                config.batch_episodes,
                seed=derive_seed(config.seed, "train"),
                first_index=self.iteration * config.batch_episodes,
                group_size=config.group_size,
                discount=config.discount,
            )

    def _minibatches(self, batch: PackedBatch, name: str) -> list[PackedBatch]:
        """The batch's rows, shuffled anew for each epoch, in parts."""
        config = self.config
        rng = np.random.Generator(np.random.Philox(key=derive_seed(config.seed, name, self.iteration)))
        return [
            select_rows(batch, np.sort(rows).tolist())
            for _ in range(config.epochs)
            for rows in np.array_split(rng.permutation(batch.num_rows), config.minibatches)
        ]

    def _parts(self, minibatch: PackedBatch) -> list[PackedBatch]:
        """A minibatch as the parts whose gradients are accumulated."""
        if self.config.accumulate == 1:
            return [minibatch]
        shares = np.array_split(np.arange(minibatch.num_rows), min(self.config.accumulate, minibatch.num_rows))
        return [select_rows(minibatch, share.tolist()) for share in shares]

    def _update_policy(self, batch: PackedBatch, rate: float) -> Metrics:
        """Gradient steps over the batch; the mean of each step's figures."""
        figures: list[Metrics] = []
        self.model.train()
        for minibatch in self._minibatches(batch, "minibatches"):
            outs, parts = [], self._parts(minibatch)
            for part in parts:
                out = self._part_loss(part, minibatch)
                out.loss.backward()  # type: ignore[no-untyped-call]
                outs.append(out.metrics())
            norm = self._optimizer.step(rate)
            loss = sum(out["loss"] for out in outs)
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise DivergedError(f"iteration {self.iteration + 1}: loss {loss}, gradient norm {norm}")
            figures.append({**_merged(outs, [part.count("token") for part in parts]), "grad_norm": norm})
        self.model.eval()
        return {name: float(np.mean([figure[name] for figure in figures])) for name in figures[0]}

    def _part_loss(self, part: PackedBatch, minibatch: PackedBatch) -> PolicyLoss:
        config = self.config
        logprobs, entropy = self._logprobs(self.model, part)
        shared: dict[str, Any] = {"entropy": entropy, "entropy_weight": config.entropy_weight}
        if self._reference is not None:
            with torch.no_grad():
                shared["reference_logprobs"] = self._logprobs(self._reference, part)[0]
            shared["kl_weight"] = config.kl_weight
        return self.loss(logprobs, part, minibatch, **shared)

    def _logprobs(self, model: Any, part: PackedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        with self.autocast():
            logits = trained_logits(model, part)[:, : self.policy.vocab_size]
        return trained_logprobs(logits.float(), part, temperature=self.config.temperature)


def policy_config(config: TrainConfig) -> PolicyConfig:
    """The policy that a run starts from."""
    return PolicyConfig(
        config.model or "builtin",
        device=config.device,
        dtype="float32",
        init="random" if config.random_weights else "pretrained",
        seed=derive_seed("init", config.seed) % 2**32,
        grammar="boxed-integer" if config.answers_only else "none",
        temperature=config.temperature,
    )


def make_vec(env_id: str, num_envs: int, **kwargs: Any) -> gym.vector.VectorEnv[Any, Any, Any]:
    """The environment's batched form, places refilled by `collect`."""
    return gym.make_vec(
        env_id,
        num_envs=num_envs,
        vectorization_mode="vector_entry_point",
        autoreset_mode=AutoresetMode.DISABLED,
        **kwargs,
    )


def accuracy_by_turn(episodes: Sequence[Episode], num_turns: int) -> Metrics:
    """Share of episodes with a right answer at or before each turn, as "acc@1", "acc@2" and so on."""
    first = [facts(episode).first_success for episode in episodes]
    return {
        f"acc@{turn + 1}": float(np.mean([at is not None and at <= turn for at in first])) for turn in range(num_turns)
    }


def _frozen_copy(policy: CausalLMPolicy) -> Any:
    """The policy's model as it is now, for the KL."""
    import copy

    return copy.deepcopy(policy.model).eval().requires_grad_(False)


def _merged(outs: Sequence[Metrics], sizes: Sequence[int]) -> Metrics:
    """Figures of a minibatch from its parts': losses are shares of a whole already, the rest are means over ids."""
    shares = [1.0] * len(outs), (np.asarray(sizes) / max(1, sum(sizes))).tolist()
    weights = {name: shares[name not in ("loss", "policy", "entropy", "kl")] for name in outs[0]}
    return {name: sum(out[name] * w for out, w in zip(outs, weights[name], strict=True)) for name in outs[0]}
