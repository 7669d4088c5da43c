"""`train`: runs any algorithm, from the parts of a run to its folder."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mathturn_gym.base.files import storage_errors, write_json
from mathturn_gym.baselines._evaluation import play_test
from mathturn_gym.baselines.algorithms import Metrics
from mathturn_gym.baselines.progress import draw_curve
from mathturn_gym.baselines.run_folder import RunFolder, are_numbers, read_object
from mathturn_gym.baselines.session import Ended, Engine, RunStatus, Session, interrupt_flag
from mathturn_gym.baselines.settings import Budget, Evaluation, Optimization, RunConfig
from mathturn_gym.errors import CheckpointError, InvalidValueError, shown
from mathturn_gym.policies import PolicyConfig

if TYPE_CHECKING:
    from mathturn_gym.baselines.algorithms import BaseAlgorithm
    from mathturn_gym.env.config import EnvConfig
    from mathturn_gym.types import Policy


_LOG = logging.getLogger(__name__)


def _language_model_session(config: RunConfig, policy: Policy | None) -> Session:
    from mathturn_gym.baselines.trainer import Trainer

    return Trainer(config, policy)


def _classic_session(config: RunConfig, policy: Policy | None) -> Session:
    from mathturn_gym.baselines.classic.training import ClassicSession

    if policy is not None:
        raise InvalidValueError(
            f"{config.algorithm.name} trains a policy of its own kind: none can be given, got {policy!r}"
        )
    return ClassicSession(config)


SESSIONS: Final[dict[str, Callable[[RunConfig, Policy | None], Session]]] = {
    "language model": _language_model_session,
    "classic": _classic_session,
}
"""The session that runs an algorithm, by the algorithm's `kind`; a kind of your own is one more entry."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Result of a run.

    Args:
        run_dir: Its folder.
        policy: The trained policy.
        history: The lines of metrics.jsonl.
        status: "finished"; "stopped_early" by `patience`; "interrupted" by Ctrl-C: resuming goes on from its
            checkpoint; "diverged": `message` says where, and the checkpoint is the last one that was finite.
        message: More about a status other than "finished".
        episodes: Episodes trained on.
        tokens: Tokens sampled in training.
        cpu_s: CPU seconds spent in training, evaluations not counted.
        test: Figures of the test split, "acc@1" and on; None where it was not played.
    """

    run_dir: Path
    policy: Any
    history: Sequence[Mapping[str, float]]
    status: RunStatus
    message: str
    episodes: int
    tokens: int
    cpu_s: float
    test: Mapping[str, float] | None = None

    def __repr__(self) -> str:
        """`TrainResult(finished: 640 episodes, 20,480 tokens, 12.5 CPU s, in runs/lins)`."""
        used = f"{self.episodes:,} episodes, {self.tokens:,} tokens, {self.cpu_s:.1f} CPU s"
        return f"TrainResult({self.status}: {used}, in {self.run_dir})"

    @property
    def interrupted(self) -> bool:
        """True where Ctrl-C ended the run."""
        return self.status == "interrupted"


def train(
    config: RunConfig | None = None,
    *,
    run_dir: str | Path,
    env: EnvConfig | None = None,
    policy: PolicyConfig | Policy | None = None,
    algorithm: BaseAlgorithm | None = None,
    budget: Budget | None = None,
    optimization: Optimization | None = None,
    evaluation: Evaluation | None = None,
    seed: int | None = None,
    threads: int | None = None,
    save_every: int | None = None,
    keep: int | None = None,
    tracker: str | None = None,
    engine: Engine | None = None,
    resume: bool = False,
    overwrite: bool = False,
    on_progress: Callable[[Metrics], None] | None = None,
) -> TrainResult:
    """Trains a policy and writes its run folder.

    The run is given by its parts, or as a `RunConfig` (of a task, for example) whose parts are replaced by those that are
    given. `RunConfig` documents the parts.

    The first Ctrl-C ends the run after the current iteration, with a checkpoint. A second one raises at once and keeps the
    previous checkpoint. Both can be resumed. A run whose loss or weights are no longer finite ends with the status
    "diverged"; nothing is raised, and the metrics are kept.

    Args:
        config: The run, whole.
        run_dir: Folder to write.
        env: Environment and splits.
        policy: What training begins with: a config, or a policy that exists, whose weights are trained in place. A run
            of the latter is resumed with a policy of the same kind, whose weights the checkpoint replaces.
        algorithm: What is learned from a batch of episodes.
        budget: When the run ends.
        optimization: Batches and gradient steps.
        evaluation: How the run is measured.
        seed: Determines problems, samples and minibatches.
        threads: CPU threads of torch during training.
        save_every: Iterations between checkpoints.
        keep: Checkpoints that are kept.
        tracker: Also show metrics and episodes in "wandb:PROJECT", "trackio:PROJECT" or "mlflow:EXPERIMENT".
        engine: Where the run plays and computes: None is this process, `mathturn_gym.neighbors.engines` has others. It is not
            part of the run's config, so that a run can be resumed with another engine.
        resume: Continue from the folder's checkpoint if there is one; a larger budget may be given.
        overwrite: Delete an earlier run in the folder.
        on_progress: Called with each iteration's metrics, iteration 0 (the evaluation before training) included.

    Returns:
        The trained policy and the curve.

    Raises:
        InvalidValueError: a part is missing or does not go with the others, or the folder is in use.
        SharedPromptsError: training and evaluation would share prompts (`EnvConfig(allow_overlap=True)` allows it).
        CheckpointError: the policy or the checkpoint does not load.
        LockedError: another process trains in the folder.
        StorageError: the folder cannot be written.
    """
    own: Any = None if isinstance(policy, PolicyConfig) else policy  # described in config.json, which cannot load it
    given = {
        "env": env,
        "policy": policy if own is None else PolicyConfig(f"(a {type(policy).__name__} of the program)"),
        "algorithm": algorithm,
        "budget": budget,
        "optimization": optimization,
        "evaluation": evaluation,
        "seed": seed,
        "threads": threads,
        "save_every": save_every,
        "keep": keep,
        "tracker": tracker,
    }
    whole = _composed(config, {name: value for name, value in given.items() if value is not None})
    path = Path(run_dir) if engine is None else engine.run_dir(Path(run_dir))
    return _train(whole, path, own, engine, resume=resume, overwrite=overwrite, on_progress=on_progress)


def _composed(config: RunConfig | None, given: Mapping[str, Any]) -> RunConfig:
    if config is not None:
        return dataclasses.replace(config, **given)
    missing = [name for name in ("env", "algorithm", "budget") if name not in given]
    if missing:
        raise InvalidValueError(f"train() needs {', '.join(missing)} (or a whole RunConfig as its first argument)")
    return RunConfig(**given)


def _train(
    config: RunConfig,
    run_dir: Path,
    policy: Policy | None,
    engine: Engine | None,
    *,
    resume: bool,
    overwrite: bool,
    on_progress: Callable[[Metrics], None] | None,
) -> TrainResult:
    # A split that is not played may share prompts: nothing is measured on it.
    measured = {"validation": config.evaluation.episodes, "test": config.evaluation.test_episodes}
    config.env.check_splits(*(split for split, episodes in measured.items() if episodes))
    # From here on Ctrl-C sets a flag: a checkpoint is never half written.
    with interrupt_flag() as interrupted:
        prepare = SESSIONS[config.algorithm.kind] if engine is None else engine.prepare
        session = prepare(config, policy)  # first: a config that does not fit leaves no folder behind
        try:
            folder = RunFolder(run_dir, config, resume=resume, overwrite=overwrite)
            try:
                ended, test = _run(config, session, folder, interrupted, on_progress, resume=resume)
                history = folder.metrics()
            finally:
                folder.close()
        finally:
            session.close()
    with storage_errors(run_dir):
        problems = config.env.value("problems")
        played = config.task or (problems if isinstance(problems, str) else config.env.id)
        title = f"{config.algorithm.name} on {played}, seed {config.seed}"
        draw_curve(history, run_dir / "curve.png", title=title)
    used = ended.episodes, ended.tokens, ended.cpu_s
    return TrainResult(run_dir, session.policy, history, ended.status, ended.message, *used, test)


def _run(
    config: RunConfig,
    session: Session,
    folder: RunFolder,
    interrupted: Callable[[], bool],
    on_progress: Callable[[Metrics], None] | None,
    *,
    resume: bool,
) -> tuple[Ended, Mapping[str, float] | None]:
    """Trains, plays the test split, and writes result.json last."""

    def report(metrics: Metrics) -> None:
        folder.log(metrics)
        if on_progress is not None:
            on_progress(metrics)

    file = folder.path / "result.json"
    before = read_object(file) if resume and file.exists() else None
    ended = session.run(folder, resume=resume, report=report, interrupted=interrupted)
    if ended.status == "interrupted":
        file.unlink(missing_ok=True)  # of a shorter run that was gone on with
        return ended, None
    result = result_of(config, ended)
    if before is not None and all(before.get(name) == result[name] for name in ("status", "episodes", "tokens")):
        # There was nothing left to do.
        test = before.get("test")
        if test is not None and not (
            isinstance(test, dict) and are_numbers(test) and {"episodes", "problems"} <= set(test)
        ):
            raise CheckpointError(f"{file}: test must be null or numbers by name, got {shown(test)}: delete the file")
        return ended, test
    test = ended.test
    wanted = config.evaluation.test_episodes
    if test is None and wanted and ended.status != "diverged":
        test = play_test(config.env, session.policy, wanted, seed=config.seed)
    result["test"] = None if test is None else dict(test)
    write_json(file, result)
    return ended, test


def result_of(config: RunConfig, ended: Ended) -> dict[str, Any]:
    """Returns the content of result.json, without the metrics of the test split."""
    return {
        "algorithm": config.algorithm.name,
        "task": config.task,
        "seed": config.seed,
        "status": ended.status,
        "message": ended.message,
        "episodes": int(ended.episodes),
        "tokens": int(ended.tokens),
        "total_tokens": ended.total_tokens,
        "cpu_s": float(ended.cpu_s),
        "budget_tokens": config.budget.tokens,
        "budget_total_tokens": config.budget.total_tokens,
        "budget_cpu_s": config.budget.cpu_seconds,
    }
