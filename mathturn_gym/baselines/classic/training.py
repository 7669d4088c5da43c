"""Classic algorithms - PPO, A2C, DQN, MaskablePPO, RecurrentPPO, TRPO, QR-DQN - on the tasks of the trainers.

    TokenLevelEnv x n ─► stable-baselines3 or sb3-contrib ─► Sb3Policy ─► collect ─► the figures that all share

One id per step; what is trained is a small transformer over a window (`mathturn_gym.wrappers.token_level`). Problems, ids,
budgets, evaluation and files are those of the language models' trainers: see `mathturn_gym.baselines.algorithms`.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from mathturn_gym.baselines.algorithms import play_test, result_of, write_result
from mathturn_gym.baselines.classic.features import WindowTransformer, language_model_kwargs, load_language_model
from mathturn_gym.baselines.classic.policy import Sb3Policy
from mathturn_gym.baselines.classic.settings import CLASSIC, ClassicConfig, algorithm_class
from mathturn_gym.baselines.config import TrainConfig, preset
from mathturn_gym.baselines.process import cpu_threads, interrupt_flag
from mathturn_gym.baselines.runs import RunFolder
from mathturn_gym.baselines.trainer import accuracy_by_turn, make_vec
from mathturn_gym.decoding import BUILTIN_PATH
from mathturn_gym.decoding.grammar import answer_grammar, answer_ids
from mathturn_gym.dialogue import load_tokenizer
from mathturn_gym.errors import CheckpointError, PolicyError
from mathturn_gym.problems import Curriculum, load_problems
from mathturn_gym.rollout import collect
from mathturn_gym.seeding import derive_seed
from mathturn_gym.wrappers.token_level import TokenLevelEnv

__all__ = ["ClassicRun", "load_classic", "run_classic"]

Metrics: TypeAlias = dict[str, float]

_MORE_TEXTS: Final[Mapping[str, str]] = {"mixed": "-/(), "}
"""Besides boxed whole numbers: signs, fractions, and pairs of quotient and remainder."""

_NO_END: Final = 10**9
"""stable-baselines3 wants a number of steps; where there is no limit, the CPU seconds end the run long before."""


def run_classic(
    algorithm: str,
    task: str,
    run_dir: str | Path,
    *,
    seed: int = 0,
    tokens: int | None = None,
    cpu_seconds: float | None = None,
    overwrite: bool = False,
    settings: Mapping[str, Any] | None = None,
    on_progress: Callable[[Mapping[str, float]], None] | None = None,
) -> dict[str, Any] | None:
    """Trains a classic algorithm on a task within a budget, and plays the test split once at the end.

    Writes config.json, metrics.jsonl, policy.safetensors and, last, result.json into `run_dir`. The first Ctrl-C ends
    the run without a result (it cannot be resumed, only begun again), a second one raises.

    Args:
        algorithm: A key of `settings.CLASSIC`.
        task: A key of `config.PRESETS`.
        run_dir: Folder to write.
        seed: Determines everything but the seconds: the same seed gives the same figures on the same machine.
        tokens: The run ends with the rollout in which this many ids have been sampled.
        cpu_seconds: The same for CPU seconds of training; the first limit that is reached ends the run.
        overwrite: Delete an earlier run in the folder.
        settings: What differs from the defaults: keys of `settings.OURS`, and arguments of the algorithm's
            constructor.
        on_progress: Called with each iteration's metrics, iteration 0 (before training) included.

    Returns:
        The content of result.json; None where Ctrl-C ended the run.

    Raises:
        InvalidValueError: an unknown name, a setting outside its range, no budget, or a folder that is in use.
        MissingDependencyError: the algorithm is sb3-contrib's, which is not installed.
    """
    config = ClassicConfig(algorithm, task, str(run_dir), seed, tokens, cpu_seconds, dict(settings or {}))
    with cpu_threads(1), _global_randomness(), interrupt_flag() as interrupted:
        run = ClassicRun(config)
        try:
            # It asks for a config's `run_dir` and `to_json` alone.
            path = RunFolder(cast(Any, config), overwrite=overwrite).path
            status, message, used = run.train(path / "metrics.jsonl", on_progress, interrupted)
            if interrupted():
                return None
            run.save(path)
            test = None if status == "diverged" else play_test(run.task, run.policy())
        finally:
            run.close()
        result = result_of(
            algorithm, task, seed, {"tokens": tokens, "cpu_seconds": cpu_seconds}, status, message, used, test
        )
        write_result(path, result)
    return result


class ClassicRun:
    """An algorithm, its environments, and what is needed to measure it.

    Args:
        config: The run.

    Attributes:
        model: The algorithm.
        task: The task's settings, as the trainers of language models have them.
    """

    def __init__(self, config: ClassicConfig) -> None:
        self.config, settings = config, config.settings
        self.task: TrainConfig = preset(config.task, config.run_dir, seed=config.seed)
        tokenizer = load_tokenizer("builtin")
        kwargs = self.task.env_kwargs("train")
        source = load_problems(kwargs["problems"])
        kwargs |= {"problems": source, **{name: settings[name] for name in ("reward_bias", "reward_scaling")}}
        self.curriculum = source if isinstance(source, Curriculum) else None
        ids = _action_ids(config.task, tokenizer)
        masks = config.algorithm == "maskable_ppo"

        def make() -> TokenLevelEnv:
            env = gym.make(self.task.env_id, disable_env_checker=True, tokenizer=tokenizer, **kwargs)
            restriction: dict[str, Any] = {"action_ids": ids}
            if masks:  # answers that are more than whole numbers have no grammar
                whole_numbers = ids == answer_ids(tokenizer)
                restriction = {"grammar": answer_grammar(tokenizer)} if whole_numbers else {"allowed_ids": ids}
            return TokenLevelEnv(env, window=settings["window"], pinned=settings["pinned"], **restriction)

        self._view = make()
        self._env = DummyVecEnv([make] * settings["n_envs"])
        self._env.seed(derive_seed(config.seed, "train") % 2**32)
        self._eval_env = make_vec(
            self.task.env_id,
            min(settings["eval_episodes"], 128),
            tokenizer=tokenizer,
            **self.task.env_kwargs("validation"),
        )
        self.model = self._make_model()
        if settings["warm_start"]:
            load_language_model(self.model.policy, BUILTIN_PATH, None if masks else ids)

    def policy(self) -> Sb3Policy:
        """The model as a `Policy`."""
        return Sb3Policy(self.model, self._view)

    def train(
        self,
        metrics_file: Path,
        on_progress: Callable[[Mapping[str, float]], None] | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> tuple[str, str, Metrics]:
        """Trains until the first budget is used up.

        Args:
            metrics_file: A line of JSON is appended for every iteration.
            on_progress: Called with each line.
            interrupted: Asked after every step; True ends the run.

        Returns:
            "finished" or "diverged"; what there is to say about it; and the "episodes", "tokens" and "cpu_s" used.
        """

        def report(metrics: Metrics) -> None:
            with metrics_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(metrics) + "\n")
            if on_progress is not None:
                on_progress(metrics)

        recorder = _Recorder(self, report, interrupted)
        status, message = "finished", ""
        try:
            self.model.learn(self.config.tokens or _NO_END, callback=recorder, log_interval=_NO_END)
        except (ValueError, PolicyError) as error:  # torch refuses distributions of NaN with a ValueError
            if self.is_finite():
                raise
            status, message = "diverged", f"after {recorder.tokens} tokens: {error}".splitlines()[0]
        return status, message, {"episodes": recorder.episodes, "tokens": recorder.tokens, "cpu_s": recorder.cpu_s}

    def evaluate(self) -> Metrics:
        """Accuracy by turn on the validation problems; the same episodes each time."""
        seed = derive_seed(self.config.seed, "validation")
        episodes = collect(self._eval_env, self.policy(), self.config.settings["eval_episodes"], seed=seed)
        accuracy = accuracy_by_turn(episodes, self.task.num_turns)
        return {f"validation/{name}": value for name, value in accuracy.items()}

    def is_finite(self) -> bool:
        """True where every weight is, and so is what the policy makes of a prompt."""
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.model.policy.parameters()):
            return False
        prompt, _ = self._view.env.reset(seed=0)
        try:
            self.policy().complete([prompt], max_tokens=[1], seeds=[0])
        except PolicyError:
            return False
        return True

    def save(self, folder: Path) -> None:
        """Writes the policy's weights; `load_classic` reads them."""
        from safetensors.torch import save_model

        save_model(self.model.policy, str(folder / "policy.safetensors"))

    def close(self) -> None:
        """Closes the environments."""
        for env in (self._env, self._eval_env, self._view):
            env.close()

    def _make_model(self) -> BaseAlgorithm:
        config, settings = self.config, self.config.settings
        kind = algorithm_class(config.algorithm)
        arguments = config.arguments
        sizes = {name: settings[name] for name in ("width", "layers", "heads", "feedforward")}
        policy: dict[str, Any] = {"features_extractor_class": WindowTransformer, "features_extractor_kwargs": sizes}
        if config.algorithm in ("sb3_dqn", "qr_dqn"):
            steps = settings["exploration_steps"]
            arguments["exploration_fraction"] = min(1.0, steps / (config.tokens or _NO_END))
            policy["net_arch"] = []
            if config.algorithm == "qr_dqn":
                policy["n_quantiles"] = settings["quantiles"]
        else:
            policy = language_model_kwargs(BUILTIN_PATH, share_features_extractor=settings["share_trunk"])
            if not settings["warm_start"]:  # the extractor draws its own first weights
                policy["features_extractor_kwargs"] = sizes
        if (
            config.algorithm == "recurrent_ppo"
        ):  # the critic reads the extractor: a second LSTM costs more than it brings
            policy |= {"lstm_hidden_size": settings["memory"], "enable_critic_lstm": False}
        model: BaseAlgorithm = kind(
            CLASSIC[config.algorithm][2],
            self._env,
            seed=derive_seed("classic", config.seed) % 2**32,
            device="cpu",
            policy_kwargs=policy,
            **arguments,
        )
        model.set_logger(Logger(folder=None, output_formats=[]))
        return model


class _Recorder(BaseCallback):
    """Counts episodes, ids and seconds, writes a line per iteration, and ends the run with its budgets.

    An iteration is a number of ids, and ends at the next boundary between rollouts, after what was learned from them.
    """

    def __init__(self, run: ClassicRun, report: Callable[[Metrics], None], interrupted: Callable[[], bool]) -> None:
        super().__init__()
        self._run, self._report, self._interrupted = run, report, interrupted
        self._settings = run.config.settings
        self.episodes = self.tokens = 0
        self.cpu_s = 0.0
        self._iteration = 0
        self._began = time.process_time()
        self._ended: list[dict[str, Any]] = []
        self._over = False

    def _on_training_start(self) -> None:
        self._write(evaluate=True)

    def _on_rollout_start(self) -> None:
        if self.num_timesteps - self.tokens >= self._settings["iteration_tokens"]:
            self._end_iteration()

    def _on_step(self) -> bool:
        for done, info in zip(self.locals["dones"], self.locals["infos"], strict=True):
            if done:
                self._ended.append(info)
                if self._run.curriculum is not None:
                    self._run.curriculum.record(str(info["metadata"]["cell"]), solved=info["is_success"])
        return not (self._over or self._interrupted())

    def _on_training_end(self) -> None:
        if not (self._over or self._interrupted()):
            self._end_iteration(last=True)

    def _end_iteration(self, *, last: bool = False) -> None:
        self._iteration += 1
        self.tokens, self.episodes = self.num_timesteps, self.episodes + len(self._ended)
        self.cpu_s += time.process_time() - self._began
        limit, seconds = self._run.config.tokens, self._run.config.cpu_seconds
        spent = seconds is not None and self.cpu_s >= seconds
        self._over = last or spent or (limit is not None and self.tokens >= limit)
        self._write(evaluate=self._over or self._iteration % self._settings["eval_every"] == 0)

    def _write(self, *, evaluate: bool) -> None:
        """A line of metrics; the clock of training stands still meanwhile."""
        line: Metrics = {
            "iteration": self._iteration,
            "episodes": self.episodes,
            "tokens": self.tokens,
            "cpu_s": self.cpu_s,
            **self._training_figures(),
        }
        if not self._run.is_finite():
            self._report(line)
            raise PolicyError("weights or logits are no longer finite")
        if evaluate:
            line.update(self._run.evaluate())
        self._report(line)
        self._ended = []
        self._began = time.process_time()

    def _training_figures(self) -> Metrics:
        """Accuracy by turn of the episodes that ended in this iteration, and the algorithm's own last figures."""
        figures: Metrics = {}
        if self._ended:
            for turn in range(1, self._run.task.num_turns + 1):
                solved = [info["is_success"] and info["turn"] <= turn for info in self._ended]
                figures[f"train/acc@{turn}"] = float(np.mean(solved))
            figures["train/turns"] = float(np.mean([info["turn"] for info in self._ended]))
        logged = self.model.logger.name_to_value
        # JSON knows no NaN: a figure that is none is left out, and `is_finite` says what it means.
        return figures | {
            name: float(value)
            for name, value in logged.items()
            if name.startswith("train/") and name not in figures and np.isfinite(value)
        }


def load_classic(run_dir: str | Path) -> Sb3Policy:
    """The policy that a run ended with.

    Raises:
        CheckpointError: the folder holds no such run.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    folder = Path(run_dir)
    try:
        config = ClassicConfig.from_json(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        with _global_randomness():
            run = ClassicRun(config)
        load_model(run.model.policy, str(folder / "policy.safetensors"))
    except (OSError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{str(folder)!r} holds no run of a classic algorithm that loads: {error}") from error
    return run.policy()


def _action_ids(task: str, tokenizer: Any) -> tuple[int, ...]:
    """The ids that answers are written with: those of whole numbers, and what else the task's answers need."""
    more = [tokenizer.encode(text, add_special_tokens=False) for text in _MORE_TEXTS.get(task, "")]
    return tuple(sorted({*answer_ids(tokenizer), *(one for ids in more for one in ids)}))


@contextmanager
def _global_randomness() -> Iterator[None]:
    """stable-baselines3 seeds the global generators of Python, NumPy and torch: they are given back as they were."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
