"""The trainer of language models: one loop for every algorithm with `credit` and `loss`.

    each iteration:  collect ─► credit ─► pack ─► corrections ─► minibatches: log-probs ─► loss ─► optimizer
                                ^^^^^^                                                      ^^^^

Everything random is drawn from (seed, iteration), so a resumed run continues the curve that it would have drawn.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mathturn_gym.base.import_paths import names_code
from mathturn_gym.base.model_folders import no_progress_bars
from mathturn_gym.baselines._evaluation import accuracy_by_turn, validation_env, with_advantages
from mathturn_gym.baselines._optimizer import CompiledLayers, Optimizer
from mathturn_gym.baselines.alarms import AlarmWatch
from mathturn_gym.baselines.algorithms import Algorithm, Metrics, Part
from mathturn_gym.baselines.algorithms._credit import charged, continued, differ
from mathturn_gym.baselines.batches import (
    DryWatch,
    batch_metrics,
    corrected,
    episode_of_rows,
    groups_of,
    has_advantage,
    rows_with_advantage,
    select_episodes,
    uniform_share,
)
from mathturn_gym.baselines.rollouts import Ahead, play_groups
from mathturn_gym.baselines.run_folder import RunFolder, TrainerState, load_checkpoint
from mathturn_gym.baselines.session import Ended, Report, RunStatus, Session, cpu_threads
from mathturn_gym.baselines.settings import Optimization, RunConfig, default_learning_rate
from mathturn_gym.episodes.losses import PolicyLoss, kl_divergence
from mathturn_gym.episodes.packing import PackedBatch, pack
from mathturn_gym.episodes.packing.selection import micro_batch_rows, select_rows
from mathturn_gym.episodes.rollout import check_tokenizer, collect
from mathturn_gym.errors import CheckpointError, InvalidValueError
from mathturn_gym.policies import PolicyConfig
from mathturn_gym.policies.config import MODEL_SCHEMES
from mathturn_gym.policies.scoring import trained_scores, use_row_attention
from mathturn_gym.problems import Curriculum
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Episode, Policy
from mathturn_gym.wrappers import load_policy
from mathturn_gym.wrappers.policy import CausalLMPolicy
from mathturn_gym.wrappers.rollout import RolloutEngine, load_rollout

_LOG = logging.getLogger(__name__)
_MUCH: Final = 3.0  # factor over the default learning rate from which on a warning is logged
_CAP: Final = 2.0  # largest importance weight of a token that another engine sampled (Yao et al. 2025).
_GAP: Final = 0.05  # mean difference of log-probs, in nats, that kernels and bfloat16 do not explain
_MEASURED_SHARE: Final = 4
_LEAST_MEASURED: Final = 8  # one in four of the episodes without advantage is measured, and at least 8


class SampledBatch(NamedTuple):
    """Episodes of one iteration."""

    episodes: Sequence[Episode]  # the batch that is learned from
    sampled: Sequence[Episode]  # all episodes that were sampled for it, with those that `dynamic_sampling` set aside


class DivergedError(Exception):
    """A loss, gradient or weight became NaN or infinite; the run ends with the status "diverged"."""


class Trainer(Session):
    """Policy, optimizer and environments of a run; `step` is one iteration.

    Args:
        config: The run.
        policy: Train this one, in place; None loads `config.policy`.

    Raises:
        InvalidValueError: the policy cannot be trained (it is no `CausalLMPolicy`, or samples by other probabilities
            than its model's at its temperature), or the config does not fit the environment.
        CheckpointError: the policy does not load.

    Attributes:
        config: The run.
        iteration: Iterations done.
        drawn: Episodes sampled in training; the next one's index.
        tokens: Tokens sampled in training.
        total_tokens: All tokens of the sampled episodes, with prompts and feedback.
        cpu_s: CPU seconds of this process spent in `step`.
    """

    def __init__(self, config: RunConfig, policy: Policy | None = None) -> None:
        assert isinstance(config.algorithm, Algorithm)
        self.config, self.algorithm = config, config.algorithm
        self.iteration = self.tokens = self.total_tokens = self.drawn = 0
        self.cpu_s = 0.0
        self._evaluated: Sequence[Episode] = ()
        self._learned_from: Sequence[Episode] = ()
        self._policy = _trainable(config, policy)
        self.model = self._policy.model
        use_row_attention(self.model)
        _switch_off_dropout(self.model)
        _refuse_half_weights(self.model)
        self.config = config = dataclasses.replace(config, optimization=_for_model(config, self.model))
        self.recomputes = _recomputes(config, self.model)
        self._watch, self._alarms = DryWatch(), AlarmWatch()
        if config.optimization.gradient_checkpointing:
            _checkpoint_gradients(self.model)
        keeps_start = self.algorithm.needs_reference or config.optimization.log_kl
        self._reference = self._make_reference() if keeps_start else None
        for module in (self.model, self._reference):
            if module is not None:
                self.place(module)
        self._compiled = CompiledLayers(self.model) if config.optimization.compile else None
        self._optimizer = self.make_optimizer(self.model)
        self.state = self.algorithm.begin(self)
        self._num_turns = int(config.env.value("num_turns"))
        source = config.env.problems("train")
        self._curriculum = source if isinstance(source, Curriculum) else None
        batch = config.optimization.batch_episodes
        # The gold answers are for the episodes that are kept: no policy sees an info.
        self._env: Any = config.env.make("train", batch, policy=self._policy, problems=source, gold_in_info=True)
        check_tokenizer(self._env, self._policy)  # before a folder is made; a config may name a tokenizer of its own
        self._eval_env = validation_env(config, self._policy)
        budget = config.budget
        if (
            config.optimization.schedule != "constant"
            and budget.tokens is budget.total_tokens is budget.episodes is None
        ):
            _LOG.warning(
                "optimization.schedule %r follows tokens or episodes, and the budget has CPU seconds alone: the learning"
                " rate stays constant",
                config.optimization.schedule,
            )
        ahead = config.optimization.max_staleness
        if ahead and self._curriculum is not None:
            raise InvalidValueError(
                "a curriculum chooses problems by what was learned before: with it, optimization.max_staleness must be 0"
            )
        self._ahead = Ahead(ahead) if ahead else None
        self._warned = False
        # Last: nothing that was started must be ended where the config does not fit.
        self._rollout: RolloutEngine | None = None
        if config.policy.rollout is not None:
            self._rollout = load_rollout(config.policy, self._policy, in_flight=bool(ahead))
        self._sampler: Any = self._policy if self._rollout is None else self._rollout

    # ---- the session

    @property
    def policy(self) -> CausalLMPolicy:
        """Returns the policy that is trained; its version is the number of iterations done."""
        return self._policy

    def run(self, folder: RunFolder, *, resume: bool, report: Report, interrupted: Callable[[], bool]) -> Ended:
        """Iterates until the budget is used up or an interrupt comes, and saves a checkpoint at the end."""
        with cpu_threads(self.config.threads), no_progress_bars():
            checkpoint = self.newest(folder) if resume else None
            if checkpoint is not None:
                self.load(checkpoint)
            # From the start, the evaluation before training is written again as well.
            folder.start_metrics(self.iteration if self.iteration else -1)
            status, message = self._iterate(folder, report, interrupted)
        episodes = self.iteration * self.config.optimization.batch_episodes
        return Ended(status, message, episodes, self.tokens, self.cpu_s, total_tokens=self.total_tokens)

    def close(self) -> None:
        """Ends the rollout engine and closes the environments."""
        if self._rollout is not None:
            self._rollout.close()
        if self._ahead is not None:
            self._ahead.close()
        self._env.close()
        if self._eval_env is not None:
            self._eval_env.close()

    def _iterate(self, folder: RunFolder, report: Report, interrupted: Callable[[], bool]) -> tuple[RunStatus, str]:
        config = self.config
        patience, before = config.evaluation.patience, self._share_used
        if self.iteration == 0:
            report({"iteration": 0, "episodes": 0, "tokens": 0, "total_tokens": 0, "cpu_s": 0.0, **self.evaluate()})
            self._keep_episodes(folder)
        while not self.done and not interrupted():
            try:
                metrics = self.step()
            except DivergedError as error:
                return "diverged", str(error)
            used = self._share_used
            evaluated = self.done or config.evaluation.is_due(self.iteration, before, used)
            before = used
            metrics.update(self.evaluate() if evaluated else {})
            report(metrics)
            if evaluated:
                self._keep_episodes(folder)
            stale = evaluated and bool(patience) and self.is_stale(folder)
            if stale or self.done or interrupted() or self.iteration % config.save_every == 0:
                self.save(folder)
            if stale and not self.done:
                return "stopped_early", f"no better validation accuracy in {patience} evaluations"
        return ("finished", "") if self.done else ("interrupted", "resume goes on")

    # ---- an iteration

    def step(self) -> Metrics:
        """Plays a batch of episodes, learns from them, and returns the iteration's metrics."""
        # Counted here alone: evaluations use up no budget of CPU seconds.
        began, cpu = time.perf_counter(), time.process_time()
        drawn = self.draw()
        played = time.perf_counter()
        # An engine on the same device must not compute, or hold its memory, during the update.
        with nullcontext() if self._rollout is None else self._rollout.held():
            metrics = self._learn(drawn)
        taken = time.perf_counter()
        self.cpu_s += time.process_time() - cpu
        return {
            **metrics,
            "cpu_s": self.cpu_s,
            "time/rollout_s": played - began,
            "time/update_s": taken - played,
            "time/tokens_per_s": sum(len(episode.ids) for episode in drawn.episodes) / (taken - began),
        }

    def _learn(self, drawn: SampledBatch) -> Metrics:
        """Learns from a batch, and gives the new weights to the engine that samples."""
        options, episodes = self.config.optimization, drawn.sampled
        self._policy.drop_caches()  # the update needs the memory, and its new weights other keys and values
        for episode in episodes if self._curriculum is not None else ():
            self._curriculum.record_episode(episode)  # type: ignore[union-attr]
        batch = self.credit(drawn.episodes)
        self._learned_from = with_advantages(drawn.episodes[: self.config.evaluation.kept], batch)
        rate = options.rate(self.iteration, self._share_used)
        figures = batch_metrics(episodes, batch, self._policy.version)
        figures |= {**self.state.update(batch, rate), **self._update_policy(batch, rate)}
        self._watch_mismatch(figures)
        if self.algorithm.episodes_per_problem > 1:
            figures["uniform_groups"] = uniform_share(episodes)
        sampled = sum(int(episode.loss_mask.sum()) for episode in episodes)
        self._watch.see(not figures["skipped"], figures["entropy"], len(episodes))
        self._alarms.see(episodes)
        self.iteration += 1
        self.drawn += len(episodes)
        self.tokens += sampled
        self.total_tokens += sum(len(episode.ids) for episode in episodes)
        # Also drops the caches, whose keys and values are of the old weights.
        self._policy.version = self.iteration
        figures |= self._synced()
        turns = sum(episode.num_turns for episode in episodes)
        return {
            "iteration": self.iteration,
            "episodes": self.iteration * options.batch_episodes,
            "tokens": self.tokens,
            "total_tokens": self.total_tokens,
            **{f"train/{name}": value for name, value in accuracy_by_turn(episodes, self._num_turns).items()},
            "train/reward": float(np.mean([episode.rewards.sum() for episode in episodes])),
            "train/turns": turns / len(episodes),
            "train/completion_tokens": sampled / max(1, turns),
            "train/learning_rate": self._optimizer.learning_rate * rate,
            **{f"train/{name}": value for name, value in figures.items()},
        }

    @property
    def _used(self) -> dict[str, int]:
        counts = {"iteration": self.iteration, "tokens": self.tokens, "total_tokens": self.total_tokens}
        return {**counts, "batch_episodes": self.config.optimization.batch_episodes}

    @property
    def _share_used(self) -> float:
        return self.config.budget.share_used(**self._used)

    def _watch_mismatch(self, figures: Metrics) -> None:
        """Warns, once, where another engine with the newest weights gives its own ids other log-probs than the trainer does."""
        gap = figures.get("mismatch_mean", 0.0)
        if self._rollout is not None and gap > _GAP and not figures["staleness_max"] and not self._warned:
            self._warned = True
            _LOG.warning(
                "log-probs of policy.rollout %r are %.3f away from the trainer's on average: it samples with other weights,"
                " another precision or another distribution (vLLM: --logprobs-mode processed_logprobs)",
                self.config.policy.rollout,
                gap,
            )

    def _synced(self) -> Metrics:
        """Gives the weights to the engine that samples; returns how long that took."""
        if self._rollout is None:
            return {}
        began = time.perf_counter()
        self._rollout.sync(self._policy.version)
        return {"sync_s": time.perf_counter() - began}

    def draw(self) -> SampledBatch:
        """Samples the episodes of the next iteration.

        With `dynamic_sampling`, groups with equal returns are set aside, and more groups are sampled in their place
        (DAPO, Yu et al. 2025, arXiv:2503.14476, section 3.2). After the last round they fill the rest of the batch.
        """
        wanted, rounds = self.config.optimization.batch_episodes, self.config.optimization.dynamic_sampling
        sampled: list[Episode] = []
        informative: list[Episode] = []
        uninformative: list[Episode] = []
        for _ in range(1 + rounds):
            found = self._play(self.drawn + len(sampled))
            sampled += found
            for group in groups_of(found) if rounds else [found]:
                (informative if not rounds or differ(group) else uninformative).extend(group)
            if len(informative) >= wanted:
                break
        return SampledBatch([*informative, *uninformative][:wanted], sampled)

    def play(self) -> list[Episode]:
        """Samples the batch of the next iteration."""
        return list(self.draw().episodes)

    def _play(self, first: int) -> list[Episode]:
        return self.collected(
            "train",
            self.config.optimization.batch_episodes,
            first_index=first,
            group_size=self.algorithm.episodes_per_problem,
            discount=self._discount,
        )

    def collected(self, split: Literal["train", "validation"], episodes: int, **options: Any) -> list[Episode]:
        """Plays episodes with the current policy; engines override this with workers."""
        env, seed = self._env if split == "train" else self._eval_env, derive_seed(self.config.seed, split)
        start, group = options.pop("first_index", 0), options.get("group_size", 1)

        def play(first: int, count: int) -> list[Episode]:
            with self.autocast():
                # In the precision of training: ratios compare log-probs of both.
                return collect(env, self._sampler, count, seed=seed, first_index=first, **options)

        def batch(first: int) -> list[Episode]:
            on_failure = self.config.optimization.on_failure
            return play_groups(play, first, episodes, group=group, on_failure=on_failure)

        if self._ahead is None:
            return batch(start)
        if split == "validation":
            return self._ahead.between(lambda: batch(start))
        return self._ahead.batch(start, episodes, batch)

    def credit(self, episodes: Sequence[Episode]) -> PackedBatch:
        """Packs episodes with the advantages that the algorithm gives to their tokens."""
        algorithm = self.algorithm
        if algorithm.reward_kl and algorithm.charges_turns:
            episodes = charged(episodes, self._spent(episodes), algorithm.reward_kl, self._discount)
        if algorithm.continues_truncated and any(episode.truncated for episode in episodes):
            episodes = continued(episodes, self._discount)
        found = algorithm.credit(episodes, self.state)
        return found if isinstance(found, PackedBatch) else self.pack(episodes, found)

    @property
    def _discount(self) -> float:
        return float(getattr(self.algorithm, "discount", 1.0))

    def _spent(self, episodes: Sequence[Episode]) -> list[npt.NDArray[np.float64]]:
        """Returns the KL from the initial policy of each turn, in nats (k1 estimate)."""
        reference = self.reference_logprobs(self.pack(episodes)).cpu().double().numpy()
        drift = [e.logprobs.astype(np.float64) - row[: len(e.ids)] for e, row in zip(episodes, reference, strict=True)]
        return [
            np.array([one[start:end].sum() for start, end in e.turn_spans.tolist()])
            for e, one in zip(episodes, drift, strict=True)
        ]

    def evaluate(self) -> Metrics:
        """Accuracy by turn on the validation problems; the same episodes each time."""
        if self._eval_env is None:
            return {}
        began = time.perf_counter()
        episodes = self.collected("validation", self.config.evaluation.episodes)
        self._evaluated = episodes[: self.config.evaluation.kept]
        accuracy = accuracy_by_turn(episodes, self._num_turns)
        figures = {f"validation/{name}": value for name, value in accuracy.items()}
        return {**figures, "time/evaluation_s": time.perf_counter() - began}

    def is_stale(self, folder: RunFolder) -> bool:
        """True if none of the last `patience` evaluations was better than the best one before them."""
        name, patience = f"validation/acc@{self._num_turns}", self.config.evaluation.patience
        seen = [row[name] for row in folder.metrics() if name in row]
        return len(seen) > patience and max(seen[-patience:]) <= max(seen[:-patience])

    def newest(self, folder: RunFolder) -> Path | None:
        """The checkpoint that a resumed run goes on from."""
        return folder.whole_checkpoint()

    def save(self, folder: RunFolder) -> None:
        """Writes a checkpoint."""
        folder.save(self._policy, self.checkpoint())

    def _keep_episodes(self, folder: RunFolder) -> None:
        """Writes the last evaluation's episodes and those of the last batch to the folder."""
        folder.keep_episodes("validation", self._evaluated, self.iteration)
        folder.keep_episodes("train", self._learned_from, self.iteration)

    @property
    def done(self) -> bool:
        """True once the budget is used up."""
        return self.config.budget.is_used_up(cpu_s=self.cpu_s, **self._used)

    # ---- called by algorithms

    def make_optimizer(self, module: torch.nn.Module, learning_rate: float | None = None) -> Optimizer:
        """An optimizer as the run has it."""
        options = self.config.optimization
        rate = options.learning_rate if learning_rate is None else learning_rate
        assert rate is not None, "a trainer's config has a learning rate by the model's size"
        return Optimizer(module, rate, options, self.sum_gradients)

    def pack(self, episodes: Sequence[Episode], advantages: Sequence[npt.NDArray[Any]] | None = None) -> PackedBatch:
        """Episodes as a padded batch on the policy's device.

        Without advantages it is filled with zeros, for algorithms that give each token its own: row i is episode i. An
        episode of several segments would be several rows, and is refused.
        """
        if advantages is None and any(len(episode.segment_starts) > 1 for episode in episodes):
            raise InvalidValueError(
                f"{self.algorithm.name} gives tokens their advantages, and reads an episode as one sequence: with"
                f" history={self.config.env.value('history')!r} an episode is several; choose an algorithm that gives"
                ' turns theirs (turn_rloo, grpo), or history="keep"'
            )
        per_turn = [np.zeros(e.num_turns, np.float32) for e in episodes] if advantages is None else list(advantages)
        return pack(episodes, advantages=per_turn, device=self._policy.device)

    def with_token_advantages(
        self, batch: PackedBatch, advantages_BT: npt.NDArray[Any], returns_BT: npt.NDArray[Any] | None = None
    ) -> PackedBatch:
        """The batch with other advantages, and with other returns where they are given; float (B, T) each."""
        given = {"advantages": advantages_BT, **({} if returns_BT is None else {"returns": returns_BT})}
        return batch.replace_tensors(
            {name: torch.from_numpy(values.astype(np.float32)).to(batch.device) for name, values in given.items()}
        )

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision that models are called in, in sampling and training alike."""
        mixed = self.config.optimization.precision == "bfloat16"
        return torch.autocast(self._policy.device.type, torch.bfloat16, enabled=mixed)

    def minibatches(self, batch: PackedBatch, name: str) -> list[PackedBatch]:
        """The batch's episodes in parts, shuffled again for each epoch; `name`, seed and iteration decide the order."""
        options = self.config.optimization
        # Of seed and iteration alone: a resumed run shuffles as an uninterrupted one.
        rng = np.random.Generator(np.random.Philox(key=derive_seed(self.config.seed, name, self.iteration)))
        return [
            select_episodes(batch, episodes)
            for _ in range(options.epochs)
            for episodes in np.array_split(rng.permutation(len(batch.facts)), options.minibatches)
        ]

    def parts(self, minibatch: PackedBatch) -> list[PackedBatch]:
        """A minibatch as the parts whose gradients are accumulated."""
        accumulate, tokens = self.config.optimization.accumulate, self.config.optimization.micro_batch_tokens
        if tokens is not None:
            rows = micro_batch_rows(minibatch, max_tokens=tokens, keep_episodes=True, long_alone=True)
            return [select_rows(minibatch, part) for part in rows]
        if accumulate == 1:
            return [minibatch]
        count = len(minibatch.facts)
        return [select_episodes(minibatch, share) for share in np.array_split(np.arange(count), min(accumulate, count))]

    @property
    def fewest_episodes(self) -> int:
        """What `parts` needs of a minibatch."""
        return 1

    @property
    def writes(self) -> bool:
        """Whether this process writes checkpoints; the others need no copy of the state."""
        return True

    def forward_parts(self, batch: PackedBatch) -> Iterator[tuple[npt.NDArray[np.int64], PackedBatch]]:
        """A batch in parts as large as those that are trained on, with the numbers of their rows."""
        options = self.config.optimization
        shares: Sequence[Any]
        if options.micro_batch_tokens is None:
            count = min(options.minibatches * options.accumulate, batch.num_rows)
            shares = [part.tolist() for part in np.array_split(np.arange(batch.num_rows), count)]
        else:
            shares = micro_batch_rows(batch, max_tokens=options.micro_batch_tokens, long_alone=True)
        for rows in shares:
            yield np.asarray(rows, np.int64), select_rows(batch, rows)

    def reference_logprobs(self, batch: PackedBatch) -> torch.Tensor:
        """Float (B, T): log-probs of the trained tokens under the policy at the start, without a graph."""
        return self._in_parts(batch, self._reference_of)

    def policy_logprobs(self, batch: PackedBatch) -> torch.Tensor:
        """Float (B, T): log-probs of the trained tokens under the policy as it is, without a graph."""
        with torch.no_grad():
            return self._in_parts(batch, lambda part: self._logprobs(self.model, part)[0])

    def _in_parts(self, batch: PackedBatch, logprobs: Callable[[PackedBatch], torch.Tensor]) -> torch.Tensor:
        found = torch.zeros(batch.input_ids.shape, device=batch.device)
        for rows, part in self.forward_parts(batch):
            of_part = logprobs(part)
            found[rows, : of_part.shape[1]] = of_part
        return found

    # ---- overridden by trainers of several processes

    def place(self, module: torch.nn.Module) -> None:
        """Hook of an engine: moves or shards a model (policy or reference) before its parameters are used."""

    def load_weights(self, checkpoint: Path, *, version: int) -> None:
        """The policy's weights, from a checkpoint's folder."""
        self._policy.update_weights(checkpoint, version=version)

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sums gradients over ranks before a step; a single process has the whole batch."""

    def summed(self, value: float) -> float:
        """Sums a value over ranks."""
        return value

    def merged(self, outs: Sequence[Metrics], sizes: Sequence[float]) -> Metrics:
        """Combines the metrics of a minibatch's parts over all ranks, each weighed by the trained tokens it stands for."""
        return merged_metrics(outs, sizes)

    def check_finite(self, what: str, *values: float) -> None:
        """Raises `DivergedError` unless all values are numbers."""
        if not all(map(math.isfinite, values)):
            shown = ", ".join(str(value) for value in values)
            raise DivergedError(f"iteration {self.iteration + 1}: {what} is no longer finite ({shown})")

    # ---- checkpoints

    def checkpoint(self) -> TrainerState:
        """Returns the state that `load` needs besides the weights."""
        used = {"tokens": self.tokens, "total_tokens": self.total_tokens, "cpu_s": self.cpu_s}
        numbers: dict[str, Any] = {**used, "drawn": self.drawn}
        numbers.update(self.state.numbers())
        if self._curriculum is not None:
            numbers["curriculum"] = self._curriculum.state_dict()
        tensors = {**self._optimizer.tensors("policy", keep=self.writes), **self.state.tensors()}
        return TrainerState(self.iteration, self._optimizer.steps, numbers, tensors)

    def load(self, checkpoint: str | Path) -> None:
        """Restores the state of the trainer that saved `checkpoint`."""
        state = load_checkpoint(checkpoint)
        try:
            self._optimizer.load(state.tensors, "policy", state.steps)
            self.state.load(state.numbers, state.tensors)
            # Versions only rise, and the weights that were loaded first have 0.
            self.load_weights(Path(checkpoint), version=max(1, state.iteration))
            self._synced()
            if self._curriculum is not None:
                self._curriculum.load_state_dict(state.numbers["curriculum"])
            self.iteration, self.tokens = state.iteration, int(state.numbers["tokens"])
            self.drawn, self.cpu_s = int(state.numbers["drawn"]), float(state.numbers["cpu_s"])
            if "total_tokens" not in state.numbers:
                _LOG.warning(
                    "%s was written before all tokens were counted: total_tokens counts from here on", checkpoint
                )
            self.total_tokens = int(state.numbers.get("total_tokens", 0))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CheckpointError(f"{str(checkpoint)!r} is no checkpoint of this run: {error}") from error

    def corrected(self, batch: PackedBatch) -> tuple[PackedBatch, Metrics]:
        """Applies the corrections of `Optimization` (recomputed log-probs, masked turns, capped weights) to a batch."""
        return corrected(batch, self.config.optimization, self.policy_logprobs if self.recomputes else None)

    # ---- the update

    def _update_policy(self, batch: PackedBatch, rate: float) -> Metrics:
        """Takes the gradient steps of an iteration, and returns its metrics. A batch without advantages changes nothing.

        `entropy`, `kl`, `ratio_mean`, `clip_fraction` and `approximate_kl` are means over all trained tokens of a minibatch
        (under the weights of its step; dropped episodes count through a sample, see `_measured`), then over the steps.
        `ratio_max` is the largest ratio that was computed in any step.
        """
        with nullcontext() if self._compiled is None else self._compiled.used():
            return self._stepped(batch, rate)

    def _stepped(self, batch: PackedBatch, rate: float) -> Metrics:
        learned = has_advantage(batch)
        drift = self._drift(batch)
        batch, corrections = self.corrected(batch)
        figures: list[Metrics] = []
        self.model.train()
        for minibatch in self.minibatches(batch, "minibatches"):
            kept, dropped = self._drop_rows_without_advantage(minibatch)
            outs: list[Metrics] = []
            sizes: list[float] = []
            for part in self.parts(kept):
                # Without a signal only the metrics are wanted: no graph is kept for a step that is not taken.
                with torch.set_grad_enabled(learned):
                    out = self.loss_of(part, minibatch)
                if learned:
                    out.loss.backward()  # type: ignore[no-untyped-call]
                outs.append(out.metrics())
                sizes.append(part.count("token"))
            for figures_of_part, size in () if dropped is None else self._measured(dropped, minibatch):
                outs.append(figures_of_part)
                sizes.append(size)
            norm = self._optimizer.step(rate) if learned else 0.0
            figure = self.merged(outs, sizes)
            # Before anything is written: the checkpoint stays the last one that was finite.
            self.check_finite("loss or gradient norm", figure["loss"], norm)
            figures.append({**figure, "grad_norm": norm})
        self.model.eval()
        over_steps = {name: float(np.mean([figure[name] for figure in figures])) for name in figures[0]}
        over_steps["ratio_max"] = max(figure["ratio_max"] for figure in figures)
        return {**over_steps, **corrections, **drift, "skipped": float(not learned)}

    def _drift(self, batch: PackedBatch) -> Metrics:
        """KL to the initial policy on the sampled batch. Empty if the loss already logs it or `log_kl` is off."""
        mask = batch.loss_mask
        if not self.config.optimization.log_kl or np.any(self.algorithm.kl_weight) or not bool(mask.any()):
            return {}
        at_start = self.reference_logprobs(batch)
        return {"kl": float(kl_divergence(batch.behavior_logprobs[mask], at_start[mask], "k3").mean())}

    def _drop_rows_without_advantage(self, minibatch: PackedBatch) -> tuple[PackedBatch, PackedBatch | None]:
        """Splits a minibatch into the episodes that have a gradient and those that have none (None: nothing is dropped).

        Without a term for entropy or KL, an episode without advantages adds nothing to the loss, and a large model saves
        its forward and backward pass. The loss is still divided by the counts of the whole minibatch.
        """
        if self.algorithm.entropy_weight or np.any(self.algorithm.kl_weight):
            return minibatch, None
        learned = np.unique(episode_of_rows(minibatch)[rows_with_advantage(minibatch)])
        rest = np.setdiff1d(np.arange(len(minibatch.facts)), learned)
        if min(len(learned), len(rest)) < self.fewest_episodes:
            return minibatch, None
        return select_episodes(minibatch, learned), select_episodes(minibatch, rest)

    def _measured(self, dropped: PackedBatch, minibatch: PackedBatch) -> Iterator[tuple[Metrics, float]]:
        """Yields the metrics of dropped episodes, and the number of tokens that they stand for, part by part.

        Metrics are means over all tokens of a minibatch, and the dropped episodes are not like the others: a policy that
        has collapsed gives uniform groups. A quarter of them, at least 8, gets a forward pass without a graph and stands
        for all of them.
        """
        episodes = len(dropped.facts)
        count = min(episodes, max(_LEAST_MEASURED, self.fewest_episodes, -(-episodes // _MEASURED_SHARE)))
        # Evenly spaced: members of a group follow each other, so that every group has its share.
        sample = select_episodes(dropped, np.arange(count) * episodes // count)
        scale = dropped.count("token") / max(1, sample.count("token"))
        for part in self.parts(sample):
            with torch.no_grad():
                found = self.loss_of(part, minibatch).metrics()
            # Without advantages the loss is 0; entropy is a share of the whole minibatch's mean.
            yield (
                {**found, "loss": 0.0, "policy": 0.0, "entropy": found["entropy"] * scale},
                part.count("token") * scale,
            )

    def loss_of(self, part: PackedBatch, minibatch: PackedBatch) -> PolicyLoss:
        """The algorithm's loss of a part of a minibatch, with the terms for entropy and KL."""
        logprobs, entropy = self._logprobs(self.model, part, entropy_graph=self.algorithm.entropy_weight != 0.0)
        terms: dict[str, Any] = {"entropy": entropy, "entropy_weight": self.algorithm.entropy_weight}
        if np.any(self.algorithm.kl_weight):
            terms["reference_logprobs"] = self._reference_of(part)
            terms["kl_weight"], terms["kl"] = self.algorithm.kl_weight, self.algorithm.kl
        return self.algorithm.loss(logprobs, Part(part, minibatch, terms), self.state)

    def _make_reference(self) -> Any:
        """Copies the current policy as the reference of the KL; None if disabling a new adapter gives the same."""
        if self.config.policy.lora is not None and hasattr(self.model, "disable_adapter"):
            return None
        return copy.deepcopy(self.model).eval().requires_grad_(False)

    def _reference_of(self, part: PackedBatch) -> torch.Tensor:
        """Log-probs under the initial model: the frozen copy, or the model with its adapter switched off."""
        frozen = self._reference
        with torch.no_grad(), self.model.disable_adapter() if frozen is None else nullcontext():
            return self._logprobs(self.model if frozen is None else frozen, part)[0]

    def _logprobs(
        self, model: Any, part: PackedBatch, *, entropy_graph: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        policy = self._policy
        with self.autocast():
            return trained_scores(
                model, part, policy.vocab_size, temperature=policy.sampling.temperature, entropy_graph=entropy_graph
            )


def policy_to_load(config: RunConfig) -> PolicyConfig:
    """The policy that a run begins with, its weights in float32 unless the config says otherwise."""
    name = config.policy.model
    if name == "random" or name.startswith(("http://", "https://", "vllm:")):
        raise InvalidValueError(f"policy.model {name!r} cannot be trained: it has no weights in this process")
    changes: dict[str, Any] = {"seed": derive_seed("init", config.seed) % 2**32, "rollout": None, "rollout_options": {}}
    if config.policy.dtype is None and (Path(name).exists() or not names_code(name, MODEL_SCHEMES)):
        changes["dtype"] = "float32"  # an optimizer's steps are too small for the eight bits of bfloat16
    if Path(name).exists() or not names_code(name, MODEL_SCHEMES):
        changes["options"] = {"support": True, **config.policy.options}
    return dataclasses.replace(config.policy, **changes)


def _trainable(config: RunConfig, policy: Policy | None) -> CausalLMPolicy:
    """Loads and checks the policy: it must sample from the same distribution that the loss sees."""
    found = load_policy(policy_to_load(config)) if policy is None else policy
    if not isinstance(found, CausalLMPolicy):
        raise InvalidValueError(f"policy must be a CausalLMPolicy to be trained, got {type(found).__name__}")
    sampling = found.sampling
    if sampling.temperature == 0.0:
        raise InvalidValueError("policy.temperature must be above 0 in training: greedy log-probs are no behavior")
    # Of another engine, `load_rollout` asks for the ids that could be drawn.
    if sampling.truncates and not found.keeps_support and config.policy.rollout is None:
        cut = next(
            name for name, off in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)) if getattr(sampling, name) != off
        )
        raise InvalidValueError(
            f"policy.{cut} must be off in training unless there is a top_k and the policy keeps the ids that could be drawn"
            " (support=True): what it cuts off has a probability in the loss, and none in sampling"
        )
    return found


def _for_model(config: RunConfig, model: Any) -> Optimization:
    """Fills in the default learning rate, and warns if the given one suits a much smaller model."""
    options = config.optimization
    if config.policy.rollout is not None and options.importance_cap is None and options.recompute_logprobs is not False:
        # Kernels and precision of another engine differ; the correction also logs by how much.
        options = dataclasses.replace(options, importance_cap=_CAP)
    adapter = config.policy.lora is not None or config.policy.adapter is not None
    suited = default_learning_rate(sum(one.numel() for one in model.parameters()), adapter=adapter)
    if options.learning_rate is None:
        return dataclasses.replace(options, learning_rate=suited)
    if options.optimizer == "adamw" and options.learning_rate > _MUCH * suited:
        _LOG.warning(
            "optimization.learning_rate %.2g is %.0f times what suits a model of this size (%.2g): it may break the"
            " policy; leave it out to have it by size",
            options.learning_rate,
            options.learning_rate / suited,
            suited,
        )
    return options


def _refuse_half_weights(model: Any) -> None:
    """Raises where steps would be rounded away.

    Of bfloat16 weights, 18 in 132,736 move at a learning rate of 1e-6: a step below 1/256 of a weight is no step.
    """
    small = sorted({str(one.dtype) for one in model.parameters() if one.requires_grad and one.dtype.itemsize < 4})
    if small:
        raise InvalidValueError(
            f"the trained weights are {small[0].removeprefix('torch.')}, in which an optimizer's steps are rounded away: leave"
            ' policy.dtype out and set optimization.precision="bfloat16", or train an adapter (policy.lora), whose own weights'
            " are float32"
        )


def _recomputes(config: RunConfig, model: Any) -> bool:
    """Whether log-probs are recomputed before the first step: as configured, else if sampling used half precision."""
    asked = config.optimization.recompute_logprobs
    halved = config.optimization.precision == "bfloat16" or next(model.parameters()).dtype.itemsize < 4
    return halved or config.optimization.importance_cap is not None if asked is None else asked


def _switch_off_dropout(model: torch.nn.Module) -> None:
    """Sets every dropout of a model to 0, so that the trained policy is the one that sampled.

    With dropout, ratios to the behavior log-probs are noise before the first step, and clipping acts on that noise.
    """
    found = []
    for name, module in model.named_modules():
        own = ["p"] if isinstance(module, torch.nn.modules.dropout._DropoutNd) else []
        own += [field for field in vars(module) if "dropout" in field]  # attention layers pass a number on
        for field in own:
            value = getattr(module, field)
            if isinstance(value, float) and value > 0:
                setattr(module, field, 0.0)
                found.append(f"{name}.{field}")
    if found:
        _LOG.info("dropout is off in training, for ratios to mean something: %s", ", ".join(found))


def _checkpoint_gradients(model: Any) -> None:
    """Recomputes activations in the backward pass instead of storing them."""
    options = {"use_reentrant": False}  # the other kind loses gradients where a layer's inputs need none (LoRA)
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=options)
    else:  # what older releases of transformers call it
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)


def merged_metrics(outs: Sequence[Metrics], sizes: Sequence[float]) -> Metrics:
    """Combines the metrics of parts: losses, entropy and KL are shares of the whole and add up, others are token means."""
    shares = [1.0] * len(outs), (np.asarray(sizes) / max(1, sum(sizes))).tolist()
    weights = {name: shares[name not in ("loss", "policy", "entropy", "kl")] for name in outs[0]}
    found = {name: sum(out[name] * w for out, w in zip(outs, weights[name], strict=True)) for name in outs[0]}
    # A maximum of maxima: the mean over parts would hide the one ratio that matters.
    return {**found, "ratio_max": max(out["ratio_max"] for out in outs)}
