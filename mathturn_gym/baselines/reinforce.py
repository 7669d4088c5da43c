"""REINFORCE for a language model in the multi-turn environment, to be read from top to bottom.

    each iteration:  collect ─► advantages ─► pack ─► minibatches: logprobs ─► clipped loss ─► AdamW

The return of a turn, minus a running mean over earlier iterations of that turn's returns, divided by the batch's
standard deviation, is the advantage of every id of its completion (Williams 1992, "Simple statistical gradient-following
algorithms"). Several minibatches make the policy move within an iteration; the ratio to the behaviour log-probs is
clipped for that (Schulman et al. 2017, arXiv:1707.06347). Everything random is drawn from (seed, iteration), so a
resumed run continues the curve that it would have drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from gymnasium.vector import AutoresetMode

from mathturn_gym.baselines.config import ReinforceConfig
from mathturn_gym.baselines.display import draw_curve
from mathturn_gym.baselines.process import cpu_threads, interrupt_flag, no_progress_bars
from mathturn_gym.baselines.runs import RunFolder, TrainerState, load_checkpoint, read_metrics
from mathturn_gym.baselines.tiny import TINY_PATH
from mathturn_gym.errors import CheckpointError
from mathturn_gym.losses import policy_loss, token_logprobs
from mathturn_gym.metrics.figures import facts
from mathturn_gym.packing import PackedBatch, model_inputs, pack, select_rows
from mathturn_gym.rollout import collect
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Episode
from mathturn_gym.wrappers.policy import CausalLMPolicy

__all__ = ["TrainResult", "Trainer", "TurnBaseline", "accuracy_by_turn", "make_vec", "train"]

Metrics: TypeAlias = dict[str, float]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a run came to.

    Args:
        run_dir: Its folder.
        policy: The trained policy.
        history: The lines of metrics.jsonl.
        interrupted: Ctrl-C ended it early; resuming goes on from its checkpoint.
    """

    run_dir: Path
    policy: CausalLMPolicy
    history: Sequence[Mapping[str, float]]
    interrupted: bool


def train(
    config: ReinforceConfig,
    *,
    resume: bool = False,
    overwrite: bool = False,
    on_progress: Callable[[Metrics], None] | None = None,
) -> TrainResult:
    """Trains a policy and writes its run folder (see `mathturn_gym.baselines.runs`).

    The first Ctrl-C ends the run after the iteration that is under way, with a checkpoint; a second one raises at
    once, and leaves the checkpoint before. Both can be resumed.

    Args:
        config: The run.
        resume: Go on from the folder's checkpoint, where there is one.
        overwrite: Delete an earlier run in the folder.
        on_progress: Called with each iteration's metrics, iteration 0 (the evaluation before training) included.

    Returns:
        The trained policy and the curve.

    Raises:
        InvalidValueError: the folder is in use, or the config does not fit the environment.
        CheckpointError: the warm start or the checkpoint does not load.
    """
    with cpu_threads(config.threads), no_progress_bars(), interrupt_flag() as interrupted:
        trainer = Trainer(config)  # first: a config that does not fit leaves no folder behind
        try:
            folder = RunFolder(config, resume=resume, overwrite=overwrite)
            if resume and folder.has_checkpoint():
                trainer.load(folder.checkpoint_path)
            _run(trainer, folder, interrupted, on_progress)
        finally:
            trainer.close()
    history = read_metrics(folder.path)
    draw_curve(history, folder.path / "curve.png")
    return TrainResult(folder.path, trainer.policy, history, trainer.iteration < config.iterations)


def _run(
    trainer: Trainer,
    folder: RunFolder,
    interrupted: Callable[[], bool],
    on_progress: Callable[[Metrics], None] | None,
) -> None:
    """Iterates to the end of the config's episodes, or to an interrupt, with a checkpoint at the last."""
    config = trainer.config
    folder.start_metrics(trainer.iteration if trainer.iteration else -1)
    try:
        if trainer.iteration == 0:
            _report(folder, {"iteration": 0, "episodes": 0, **trainer.evaluate()}, on_progress)
        while trainer.iteration < config.iterations and not interrupted():
            metrics = trainer.step()
            last = trainer.iteration == config.iterations
            if last or (config.eval_every and trainer.iteration % config.eval_every == 0):
                metrics.update(trainer.evaluate())
            _report(folder, metrics, on_progress)
            if last or interrupted() or trainer.iteration % config.save_every == 0:
                folder.save(trainer.policy.model, trainer.policy.tokenizer, trainer.state())
    finally:
        folder.close()


class TurnBaseline:
    """A running mean of the returns of each turn, and advantages against it.

    A turn's mean is over earlier iterations only, so it does not depend on the actions that it judges, and the
    gradient stays unbiased; in a turn's first iteration there is nothing earlier, and that batch's own mean is taken.

    Args:
        num_turns: Turns of an episode.
        decay: What is kept of the old mean per iteration, in [0, 1].

    >>> baseline = TurnBaseline(2, decay=0.5)
    >>> [a.astype(float).round(3).tolist() for a in baseline.advantages([np.array([1.0]), np.array([-1.0, 1.0])])]
    [[1.225], [-1.225, 0.0]]
    >>> baseline.means
    (0.0, 1.0)
    """

    def __init__(self, num_turns: int, decay: float) -> None:
        self._decay = decay
        self.means: tuple[float | None, ...] = (None,) * num_turns

    def advantages(self, returns: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[np.float32]]:
        """(return - mean of its turn) / standard deviation of these over the batch; moves the means on.

        Args:
            returns: One array (K,) per episode.

        Returns:
            One array per episode, float32 (K,).
        """
        used: list[float] = []
        moved: list[float | None] = []
        for turn, before in enumerate(self.means):
            seen = [float(r[turn]) for r in returns if len(r) > turn]
            now = float(np.mean(seen)) if seen else before
            used.append(now or 0.0 if before is None else before)
            moved.append(now if before is None or now is None else self._decay * before + (1 - self._decay) * now)
        self.means = tuple(moved)
        centred = [np.asarray(r, np.float64) - used[: len(r)] for r in returns]
        scale = float(np.std(np.concatenate(centred))) + 1e-6
        return [(c / scale).astype(np.float32) for c in centred]


class Trainer:
    """Policy, optimiser and environments of a run; `step` is one iteration.

    Args:
        config: The run.

    Attributes:
        policy: The policy that is trained; its version is the number of iterations done.
        iteration: Iterations done.
    """

    def __init__(self, config: ReinforceConfig) -> None:
        self.config = config
        self.iteration = 0
        self.policy = CausalLMPolicy.from_pretrained(
            config.model or TINY_PATH, device=config.device, dtype=torch.float32, temperature=config.temperature
        )
        self._model = self.policy.model
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=config.learning_rate,
            betas=(0.9, config.adam_beta2),
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
        )
        self._steps = 0
        self._baseline = TurnBaseline(config.num_turns, config.baseline_decay)
        tokenizer = self.policy.tokenizer
        self._env = make_vec(config.env_id, config.batch_episodes, tokenizer=tokenizer, **config.env_kwargs("train"))
        self._eval_env = make_vec(
            config.env_id,
            max(1, min(config.eval_episodes, 128)),
            tokenizer=tokenizer,
            **config.env_kwargs("validation"),
        )

    def step(self) -> Metrics:
        """Plays a batch of episodes, learns from them, and returns the iteration's figures."""
        config, began = self.config, time.perf_counter()
        episodes = collect(
            self._env,
            self.policy,
            config.batch_episodes,
            seed=derive_seed(config.seed, "train"),
            first_index=self.iteration * config.batch_episodes,
            discount=config.discount,
        )
        played = time.perf_counter()
        returns = [episode.returns for episode in episodes if episode.returns is not None]
        batch = pack(episodes, advantages=self._baseline.advantages(returns), device=config.device)
        losses = self._update(batch)
        self.iteration += 1
        self.policy.version = self.iteration
        taken = time.perf_counter()
        return {
            "iteration": self.iteration,
            "episodes": self.iteration * config.batch_episodes,
            **{f"train/{name}": value for name, value in accuracy_by_turn(episodes, config.num_turns).items()},
            "train/reward": float(np.mean([episode.rewards.sum() for episode in episodes])),
            "train/turns": float(np.mean([episode.num_turns for episode in episodes])),
            "train/completion_tokens": float(batch.loss_mask.sum()) / sum(episode.num_turns for episode in episodes),
            "train/learning_rate": config.learning_rate_at(self.iteration - 1),
            **{f"train/{name}": value for name, value in losses.items()},
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
        episodes = collect(self._eval_env, self.policy, self.config.eval_episodes, seed=seed)
        accuracy = accuracy_by_turn(episodes, self.config.num_turns)
        figures = {f"validation/{name}": value for name, value in accuracy.items()}
        return {**figures, "time/evaluation_s": time.perf_counter() - began}

    def state(self) -> TrainerState:
        """What `load` needs, besides the weights."""
        moments = {
            f"{kind}.{name}": self._optimizer.state[parameter][kind].detach().cpu()
            for name, parameter in self._model.named_parameters()
            if parameter in self._optimizer.state
            for kind in ("exp_avg", "exp_avg_sq")
        }
        return TrainerState(self.iteration, self._baseline.means, self._steps, moments)

    def load(self, checkpoint: str | Path) -> None:
        """Goes on where the trainer that saved `checkpoint` was.

        Raises:
            CheckpointError: it is missing, broken, or of another model.
        """
        state = load_checkpoint(checkpoint)
        parameters = dict(self._model.named_parameters())
        for name, parameter in parameters.items():
            for kind in ("exp_avg", "exp_avg_sq"):
                tensor = state.moments.get(f"{kind}.{name}")
                if tensor is None or tensor.shape != parameter.shape:
                    raise CheckpointError(f"{str(checkpoint)!r} has no {kind} of {name} with shape {parameter.shape}")
        self.policy.update_weights(checkpoint, version=max(1, state.iteration))
        for name, parameter in parameters.items():
            self._optimizer.state[parameter] = {
                "step": torch.tensor(float(state.steps)),
                "exp_avg": state.moments[f"exp_avg.{name}"].to(parameter.device),
                "exp_avg_sq": state.moments[f"exp_avg_sq.{name}"].to(parameter.device),
            }
        self.iteration, self._steps = state.iteration, state.steps
        self._baseline.means = state.baselines

    def close(self) -> None:
        """Closes the environments."""
        self._env.close()
        self._eval_env.close()

    def _update(self, batch: PackedBatch) -> Metrics:
        """Passes over the episodes in shuffled minibatches; returns the mean figures."""
        config = self.config
        rng = np.random.Generator(np.random.Philox(key=derive_seed(config.seed, "minibatches", self.iteration)))
        figures: list[Metrics] = []
        for group in self._optimizer.param_groups:
            group["lr"] = config.learning_rate_at(self.iteration)
        self._model.train()
        parts = [
            np.sort(rows).tolist()
            for _ in range(config.epochs)
            for rows in np.array_split(rng.permutation(batch.num_rows), config.minibatches)
        ]
        for rows in parts:
            part = select_rows(batch, rows)
            logits = self._model(**model_inputs(part), use_cache=False).logits[..., : self.policy.vocab_size]
            logprobs, entropy = token_logprobs(logits, part, temperature=config.temperature)
            out = policy_loss(logprobs, part, clip=config.clip, entropy=entropy, entropy_weight=config.entropy_weight)
            self._optimizer.zero_grad(set_to_none=True)
            out.loss.backward()  # type: ignore[no-untyped-call]
            norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), config.max_grad_norm)
            self._optimizer.step()
            self._steps += 1
            figures.append({**out.metrics(), "grad_norm": float(norm)})
        self._model.eval()
        return {name: float(np.mean([figure[name] for figure in figures])) for name in figures[0]}


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


def _report(folder: RunFolder, metrics: Metrics, on_progress: Callable[[Metrics], None] | None) -> None:
    folder.log(metrics)
    if on_progress is not None:
        on_progress(metrics)
