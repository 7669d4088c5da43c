"""Runs of classic algorithms (PPO, A2C, DQN, MaskablePPO, RecurrentPPO, TRPO, QR-DQN) on the tasks of the trainers.

    TokenLevelEnv x n ─► stable-baselines3 or sb3-contrib ─► Sb3Policy ─► collect ─► the figures that all share

One token id per step; what is trained is a small transformer over a window. Problems, budgets, evaluation and files are
those of the language models' trainers: `train` runs either kind.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from mathturn_gym.base.files import storage_errors
from mathturn_gym.baselines._evaluation import accuracy_by_turn, validation_env
from mathturn_gym.baselines.algorithms import Metrics
from mathturn_gym.baselines.classic.algorithms import (
    QRDQN,
    ActorCritic,
    ClassicAlgorithm,
    MaskablePPO,
    RecurrentPPO,
    ValueBased,
)
from mathturn_gym.baselines.classic.features import WindowTransformer, language_model_kwargs, load_language_model
from mathturn_gym.baselines.classic.policy import Sb3Policy
from mathturn_gym.baselines.run_folder import RunFolder, read_config, read_object
from mathturn_gym.baselines.session import Ended, Report, RunStatus, Session, cpu_threads
from mathturn_gym.baselines.settings import RunConfig
from mathturn_gym.env.dialogue import load_tokenizer
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.errors import CheckpointError, InvalidValueError, PolicyError
from mathturn_gym.policies import BUILTIN_PATH
from mathturn_gym.policies.sampling import answer_grammar, answer_ids
from mathturn_gym.problems import Curriculum
from mathturn_gym.seeding import derive_seed
from mathturn_gym.wrappers.token_level import TokenLevelEnv

_WEIGHTS: Final = "policy.safetensors"
# stable-baselines3 wants a number of steps; where there is no limit, another budget ends the run long before.
_NO_END: Final = 10**9


class ClassicSession(Session):
    """An algorithm, its environments, and what is needed to measure it.

    The first Ctrl-C ends the run without a result: it cannot be resumed, only begun again.

    Raises:
        InvalidValueError: the library refuses the algorithm's arguments.

    Attributes:
        context_tokens: The most tokens that a context can have.
    """

    def __init__(self, config: RunConfig) -> None:
        assert isinstance(config.algorithm, ClassicAlgorithm)
        self.config, self.algorithm = config, config.algorithm
        algorithm, self.num_turns = config.algorithm, int(config.env.value("num_turns"))
        self._warm_start = BUILTIN_PATH if config.policy.model == "builtin" else Path(config.policy.model)
        if not self._warm_start.is_dir():
            raise CheckpointError(
                f"policy.model {config.policy.model!r} is no folder: {algorithm.name} needs one on this machine"
            )
        tokenizer = load_tokenizer(config.policy.model)
        source = config.env.problems("train")
        self.curriculum = source if isinstance(source, Curriculum) else None
        ids = _action_ids(algorithm.answer_characters, tokenizer)
        masks = isinstance(algorithm, MaskablePPO)
        # In training alone: evaluation has the task's own rewards, like every other algorithm.
        rewards: dict[str, Any] = {"reward_bias": algorithm.reward_bias, "reward_scaling": algorithm.reward_scaling}

        def make() -> TokenLevelEnv:
            env: Any = config.env.make("train", tokenizer=tokenizer, problems=source, **rewards)
            restriction: dict[str, Any] = {"action_ids": ids}
            if masks:  # answers that are more than whole numbers have no grammar
                whole_numbers = ids == answer_ids(tokenizer)
                restriction = {"grammar": answer_grammar(tokenizer)} if whole_numbers else {"allowed_ids": ids}
            return TokenLevelEnv(env, window=algorithm.window, pinned=algorithm.pinned, **restriction)

        with _global_randomness():
            self._view = make()
            self.context_tokens = int(self._view.env.get_wrapper_attr("max_context_tokens"))
            self._env = DummyVecEnv([make] * algorithm.n_envs)
            self._env.seed(derive_seed(config.seed, "train") % 2**32)
            self.model = self._make_model()
            self._eval_env = validation_env(config, self.policy)
            if config.policy.init == "pretrained":
                load_language_model(self.model.policy, self._warm_start, None if masks else ids)
            self._randomness = _state_of_randomness()

    @property
    def policy(self) -> Sb3Policy:
        """The model as a `Policy`."""
        return Sb3Policy(self.model, self._view)

    def run(self, folder: RunFolder, *, resume: bool, report: Report, interrupted: Callable[[], bool]) -> Ended:
        """Trains until the first budget is used up; a run that is resumed without a result begins again."""
        if resume and (folder.path / "result.json").exists():
            self.load(folder.path)
            return _ended(folder.path / "result.json")
        # From the first line on: a classic run has no checkpoint in its middle to go on from.
        folder.start_metrics(-1)
        recorder = _Recorder(self, report, interrupted)
        with cpu_threads(self.config.threads), _global_randomness():
            _set_randomness(self._randomness)
            try:
                self.model.learn(self.config.budget.tokens or _NO_END, callback=recorder, log_interval=_NO_END)
            except (ValueError, PolicyError) as error:  # torch refuses distributions of NaN with a ValueError
                if self.is_finite():
                    raise
                return self._end(folder, recorder, f"after {recorder.tokens} tokens: {error}".splitlines()[0])
        if interrupted():
            return recorder.ended("interrupted", "run it again")
        return self._end(folder, recorder, "")

    def _end(self, folder: RunFolder, recorder: _Recorder, message: str) -> Ended:
        with storage_errors(folder.path):
            self.save(folder.path)
        return recorder.ended("diverged" if message else "finished", message)

    def evaluate(self) -> Metrics:
        """Accuracy by turn on the validation problems; the same episodes each time."""
        if self._eval_env is None:
            return {}
        seed = derive_seed(self.config.seed, "validation")
        episodes = collect(self._eval_env, self.policy, self.config.evaluation.episodes, seed=seed)
        accuracy = accuracy_by_turn(episodes, self.num_turns)
        return {f"validation/{name}": value for name, value in accuracy.items()}

    def is_finite(self) -> bool:
        """True if all weights are finite, and the policy's output for a prompt."""
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.model.policy.parameters()):
            return False
        prompt, _ = self._view.env.reset(seed=0)
        try:
            self.policy.complete([prompt], max_tokens=[1], seeds=[0])
        except PolicyError:
            return False
        return True

    def save(self, folder: Path) -> None:
        """Writes the policy's weights; `load_classic` reads them."""
        from safetensors.torch import save_model

        save_model(self.model.policy, str(folder / _WEIGHTS))

    def load(self, folder: Path) -> None:
        """Loads the result of `save`."""
        from safetensors.torch import load_model

        load_model(self.model.policy, str(folder / _WEIGHTS))

    def close(self) -> None:
        """Closes the environments."""
        for env in (self._env, self._eval_env, self._view):
            if env is not None:
                env.close()

    def _make_model(self) -> BaseAlgorithm:
        algorithm, config = self.algorithm, self.config
        arguments = dict(algorithm.arguments)
        sizes = {name: getattr(algorithm, name) for name in ("width", "layers", "heads", "feedforward")}
        policy: dict[str, Any] = {"features_extractor_class": WindowTransformer, "features_extractor_kwargs": sizes}
        if isinstance(algorithm, ValueBased):
            # The library counts exploration as a share of all steps; a share of a budget would change with the budget.
            steps = config.budget.tokens or _NO_END
            arguments["exploration_fraction"] = min(1.0, algorithm.exploration_steps / steps)
            policy["net_arch"] = []
        if isinstance(algorithm, QRDQN):
            policy["n_quantiles"] = algorithm.quantiles
        if isinstance(algorithm, ActorCritic):
            policy = language_model_kwargs(self._warm_start, share_features_extractor=algorithm.share_trunk)
            if config.policy.init == "random":  # the extractor draws its own first weights
                policy["features_extractor_kwargs"] = sizes
        if isinstance(algorithm, RecurrentPPO):
            # The critic reads the extractor: a second LSTM costs more than it brings.
            policy |= {"lstm_hidden_size": algorithm.memory, "enable_critic_lstm": False}
        make = algorithm.library_class()
        seed = derive_seed("classic", config.seed) % 2**32
        try:
            model: BaseAlgorithm = make(
                algorithm.policy_name, self._env, seed=seed, device="cpu", policy_kwargs=policy, **arguments
            )
        except Exception as error:  # it checks its arguments with assertions, or finds out when it uses them
            raise InvalidValueError(
                f"{algorithm.name} cannot be made with {arguments} ({type(error).__name__}: {error}): see"
                f" {make.__module__}.{make.__name__} for what its arguments may be"
            ) from error
        model.set_logger(Logger(folder=None, output_formats=[]))
        return model


class _Recorder(BaseCallback):
    """Counts episodes, ids and seconds, writes a line per iteration, and ends the run with its budgets.

    An iteration is a number of ids, and ends at the next boundary between rollouts, after what was learned from them.
    """

    def __init__(self, run: ClassicSession, report: Report, interrupted: Callable[[], bool]) -> None:
        super().__init__()
        self._run, self._report, self._interrupted = run, report, interrupted
        self._iteration_tokens = run.algorithm.iteration_tokens
        self.episodes = self.tokens = self.total_tokens = 0
        self.cpu_s = 0.0
        self._iteration = 0
        self._began = time.process_time()
        self._ended: list[dict[str, Any]] = []
        self._over, self._share = False, 0.0

    def ended(self, status: RunStatus, message: str) -> Ended:
        """Returns how the run ended, with the budget it used."""
        return Ended(status, message, self.episodes, self.tokens, self.cpu_s, total_tokens=self.total_tokens)

    def _on_training_start(self) -> None:
        self._write(evaluate=True)

    def _on_rollout_start(self) -> None:
        if self.num_timesteps - self.tokens >= self._iteration_tokens:
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
        # An episode's context is as long as what is not left of the most that it may be.
        self.total_tokens += sum(self._run.context_tokens - info["context_left"] for info in self._ended)
        self.cpu_s += time.process_time() - self._began
        budget = self._run.config.budget
        used = [
            (budget.tokens, self.tokens),
            (budget.total_tokens, self.total_tokens),
            (budget.episodes, self.episodes),
            (budget.cpu_seconds, self.cpu_s),
        ]
        # Whichever budget is used up first ends the run.
        self._over = last or any(limit is not None and spent >= limit for limit, spent in used)
        # CPU seconds do not count: a repeated run is evaluated at the same places.
        before, self._share = self._share, max(spent / limit if limit else 0.0 for limit, spent in used[:3])
        due = self._run.config.evaluation.is_due(self._iteration, before, self._share)
        self._write(evaluate=self._over or due)

    def _write(self, *, evaluate: bool) -> None:
        """Writes a line of metrics; the training clock is paused meanwhile."""
        line: Metrics = {
            "iteration": self._iteration,
            "episodes": self.episodes,
            "tokens": self.tokens,
            "total_tokens": self.total_tokens,
            "cpu_s": self.cpu_s,
            **self._training_figures(),
        }
        # Before an evaluation, which would raise in the middle of an episode.
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
            for turn in range(1, self._run.num_turns + 1):
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


def load_classic(run_dir: str | Path, *, own_code: bool = False) -> Sb3Policy:
    """The policy that a run ended with.

    Args:
        run_dir: The run's folder.
        own_code: See `read_config`.

    Raises:
        CheckpointError: the folder holds no such run, or its config names code and `own_code` is off.
    """
    from safetensors import SafetensorError

    folder = Path(run_dir)
    config = read_config(folder, own_code=own_code)
    if not isinstance(config.algorithm, ClassicAlgorithm):
        raise CheckpointError(f"{str(folder)!r} holds no run of a classic algorithm, but of {config.algorithm.name}")
    try:
        run = ClassicSession(config)
        run.load(folder)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{str(folder)!r} holds no run of a classic algorithm that loads: {error}") from error
    return run.policy


def _ended(file: Path) -> Ended:
    """What the result.json of a run that has ended says."""
    result = read_object(file)
    try:
        used = int(result["episodes"]), int(result["tokens"]), float(result["cpu_s"])
        all_tokens = result.get("total_tokens")
        return Ended(
            result["status"],
            str(result["message"]),
            *used,
            total_tokens=None if all_tokens is None else int(all_tokens),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{file} is no result of a run ({type(error).__name__}: {error})") from error


def _action_ids(more_characters: str, tokenizer: Any) -> tuple[int, ...]:
    """The ids that answers are written with: those of whole numbers, and of what else the task's answers need."""
    more = [tokenizer.encode(text, add_special_tokens=False) for text in more_characters]
    return tuple(sorted({*answer_ids(tokenizer), *(one for ids in more for one in ids)}))


@contextmanager
def _global_randomness() -> Iterator[None]:
    """stable-baselines3 seeds the global generators of Python, NumPy and torch: they are given back as they were."""
    before = _state_of_randomness()
    try:
        yield
    finally:
        _set_randomness(before)


def _state_of_randomness() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002


def _set_randomness(state: tuple[Any, ...]) -> None:
    python, numpy, torchs = state
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002
    torch.set_rng_state(torchs)
