"""`train`: a run from its config to its folder, whatever the algorithm."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from mathturn_gym._transformers import no_progress_bars
from mathturn_gym.baselines.config import TrainConfig
from mathturn_gym.baselines.display import draw_curve
from mathturn_gym.baselines.process import cpu_threads, interrupt_flag
from mathturn_gym.baselines.runs import RunFolder, read_metrics
from mathturn_gym.baselines.trainer import DivergedError, Metrics, Trainer
from mathturn_gym.wrappers.policy import CausalLMPolicy

__all__ = ["TrainResult", "make_trainer", "train"]

_CLASSES: Final[Mapping[str, str]] = {
    "reinforce": "Reinforce",
    "reinforce_pp": "ReinforcePP",
    "rloo": "RLOO",
    "grpo": "GRPO",
    "dr_grpo": "DrGRPO",
    "gspo": "GSPO",
    "ppo": "PPO",
    "turn_ppo": "TurnPPO",
    "rft": "RFT",
}


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a run came to.

    Args:
        run_dir: Its folder.
        policy: The trained policy.
        history: The lines of metrics.jsonl.
        status: "finished"; "stopped_early" by `patience`; "interrupted" by Ctrl-C: resuming goes on from its
            checkpoint; "diverged": `message` says where, and the checkpoint is the last one that was finite.
        message: What there is to say about the status.
        episodes: Episodes trained on.
        tokens: Ids sampled in training.
        cpu_s: CPU seconds spent in training, evaluations not counted.
    """

    run_dir: Path
    policy: CausalLMPolicy
    history: Sequence[Mapping[str, float]]
    status: Literal["finished", "stopped_early", "interrupted", "diverged"]
    message: str
    episodes: int
    tokens: int
    cpu_s: float

    @property
    def interrupted(self) -> bool:
        """True where Ctrl-C ended the run."""
        return self.status == "interrupted"


def make_trainer(config: TrainConfig) -> Trainer:
    """The trainer of the config's algorithm: class `_CLASSES[algorithm]` of the module of the algorithm's name."""
    module = importlib.import_module(f"mathturn_gym.baselines.{config.algorithm}")
    trainer: Trainer = getattr(module, _CLASSES[config.algorithm])(config)
    return trainer


def train(
    config: TrainConfig,
    *,
    resume: bool = False,
    overwrite: bool = False,
    on_progress: Callable[[Metrics], None] | None = None,
) -> TrainResult:
    """Trains a policy and writes its run folder (see `mathturn_gym.baselines.runs`).

    The first Ctrl-C ends the run after the iteration that is under way, with a checkpoint; a second one raises at
    once, and leaves the checkpoint before. Both can be resumed. A run whose loss or weights stop being finite ends
    with the status "diverged"; nothing is raised, and the metrics up to there are kept.

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
        trainer = make_trainer(config)  # first: a config that does not fit leaves no folder behind
        try:
            folder = RunFolder(config, resume=resume, overwrite=overwrite)
            if resume and folder.has_checkpoint():
                trainer.load(folder.checkpoint_path)
            status, message = _run(trainer, folder, interrupted, on_progress)
        finally:
            trainer.close()
    history = read_metrics(folder.path)
    draw_curve(history, folder.path / "curve.png")
    episodes = trainer.iteration * config.batch_episodes
    return TrainResult(folder.path, trainer.policy, history, status, message, episodes, trainer.tokens, trainer.cpu_s)


def _run(
    trainer: Trainer,
    folder: RunFolder,
    interrupted: Callable[[], bool],
    on_progress: Callable[[Metrics], None] | None,
) -> tuple[Any, str]:
    """Iterates to the end of the run's budget, or to an interrupt, with a checkpoint at the last."""
    config = trainer.config
    folder.start_metrics(trainer.iteration if trainer.iteration else -1)

    def report(metrics: Metrics) -> None:
        folder.log(metrics)
        if on_progress is not None:
            on_progress(metrics)

    try:
        if trainer.iteration == 0:
            report({"iteration": 0, "episodes": 0, "tokens": 0, "cpu_s": 0.0, **trainer.evaluate()})
        while not trainer.done and not interrupted():
            try:
                metrics = trainer.step()
            except DivergedError as error:
                return "diverged", str(error)
            evaluated = trainer.done or bool(config.eval_every and trainer.iteration % config.eval_every == 0)
            metrics.update(trainer.evaluate() if evaluated else {})
            report(metrics)
            stale = evaluated and _stale(folder, config)
            if stale or trainer.done or interrupted() or trainer.iteration % config.save_every == 0:
                folder.save(trainer.policy, trainer.state())
            if stale and not trainer.done:
                return "stopped_early", f"no better validation accuracy in {config.patience} evaluations"
    finally:
        folder.close()
    return ("finished", "") if trainer.done else ("interrupted", "resume goes on")


def _stale(folder: RunFolder, config: TrainConfig) -> bool:
    """True where the last `patience` evaluations brought nothing better than what was there before them."""
    if not config.patience:
        return False
    name = f"validation/acc@{config.num_turns}"
    seen = [row[name] for row in read_metrics(folder.path) if name in row]
    return len(seen) > config.patience and max(seen[-config.patience :]) <= max(seen[: -config.patience])
