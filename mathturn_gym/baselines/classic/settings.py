"""What the classic algorithms are run with on each task: the view, the extractor, and the constructor's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mathturn_gym.errors import InvalidValueError, MissingDependencyError, check_float, check_int, raise_unknown_name

__all__ = ["CLASSIC", "ClassicConfig", "algorithm_class"]

CLASSIC: Final[Mapping[str, tuple[str, str, str]]] = {
    "sb3_ppo": ("stable_baselines3", "PPO", "MlpPolicy"),
    "sb3_a2c": ("stable_baselines3", "A2C", "MlpPolicy"),
    "sb3_dqn": ("stable_baselines3", "DQN", "MlpPolicy"),
    "maskable_ppo": ("sb3_contrib", "MaskablePPO", "MlpPolicy"),
    "recurrent_ppo": ("sb3_contrib", "RecurrentPPO", "MlpLstmPolicy"),
    "trpo": ("sb3_contrib", "TRPO", "MlpPolicy"),
    "qr_dqn": ("sb3_contrib", "QRDQN", "MlpPolicy"),
}
"""Each algorithm's library, class and policy."""

OURS: Final[Mapping[str, Any]] = {
    "n_envs": 64,
    "window": 64,
    "pinned": 0,
    "reward_bias": -1.0,
    "reward_scaling": 0.5,
    "warm_start": True,
    "width": 64,
    "layers": 2,
    "heads": 4,
    "feedforward": 192,
    "share_trunk": True,
    "memory": 64,
    "quantiles": 25,
    "exploration_steps": 40_000,
    "iteration_tokens": 2048,
    "eval_every": 5,
    "eval_episodes": 256,
}
"""Settings that are not the algorithm's own.

    n_envs             environments played side by side
    window, pinned     of `TokenLevelEnv`
    reward_bias, reward_scaling    of `mathturn_gym.rewards.turn_reward`, in training: 1 for a right answer, else 0
                       (with a discount per id, a penalty for each wrong answer would pay for answering late)
    warm_start         begin with the built-in language model's weights; else with random ones, of the sizes
    width, layers, heads, feedforward     of `WindowTransformer`
    share_trunk        actor and critic read one extractor; else each has its own
    memory             RecurrentPPO: width of the LSTM behind the extractor
    quantiles          QR-DQN: of each action's value
    exploration_steps  DQN, QR-DQN: ids over which the share of random actions falls to its final value
    iteration_tokens   ids between two lines of metrics.jsonl (at the next boundary between rollouts)
    eval_every         iterations between evaluations on the validation split
    eval_episodes      episodes of an evaluation
"""

_ACTOR_CRITIC: Final[Mapping[str, Any]] = {"gae_lambda": 1.0, "gamma": 0.8}
_PPO: Final[Mapping[str, Any]] = {
    **_ACTOR_CRITIC,
    "n_steps": 16,
    "batch_size": 256,
    "n_epochs": 4,
    "learning_rate": 1e-3,
    "ent_coef": 0.03,
}
_DQN: Final[Mapping[str, Any]] = {
    "gamma": 0.8,
    "n_steps": 5,
    "buffer_size": 30_000,
    "learning_starts": 2_000,
    "batch_size": 128,
    "train_freq": 1,
    "gradient_steps": 2,
    "target_update_interval": 1_000,
    "learning_rate": 1e-3,
    "exploration_final_eps": 0.05,
}
_BY_ALGORITHM: Final[Mapping[str, Mapping[str, Any]]] = {
    "sb3_ppo": _PPO,
    "maskable_ppo": _PPO,
    "recurrent_ppo": _PPO,
    "trpo": {
        **_ACTOR_CRITIC,
        "n_steps": 16,
        "batch_size": 256,
        "n_critic_updates": 4,
        "cg_max_steps": 5,
        "sub_sampling_factor": 4,
        "target_kl": 0.03,
    },
    "sb3_a2c": {
        **_ACTOR_CRITIC,
        "n_steps": 16,
        "use_rms_prop": False,
        "learning_rate": 2e-3,
        "ent_coef": 0.03,
        "normalize_advantage": True,
    },
    "sb3_dqn": _DQN,
    "qr_dqn": _DQN,
}
_BY_TASK: Final[Mapping[str, Mapping[str, Any]]] = {
    # Sums of digits: the problem's 11 ids, and behind them the current answer.
    "add1": {"warm_start": False, "layers": 1, "window": 24, "pinned": 11},
}
_FINE_TUNING: Final[Mapping[str, Mapping[str, Any]]] = {
    # Gentler: there is something to lose.
    "sb3_ppo": {"n_epochs": 2, "learning_rate": 3e-4, "ent_coef": 0.005},
    "maskable_ppo": {"n_epochs": 2, "learning_rate": 3e-4, "ent_coef": 0.005},
    "recurrent_ppo": {"n_epochs": 2, "learning_rate": 5e-4, "ent_coef": 0.01},
    "sb3_a2c": {"learning_rate": 5e-4, "ent_coef": 0.005},
}
_BY_BOTH: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = {
    # In guess8 a wrong guess is worth the hint that it brings, some ten ids later.
    (algorithm, task): {**_FINE_TUNING.get(algorithm, {}), "gamma": 0.98 if task == "guess8" else 0.9}
    for algorithm in CLASSIC
    for task in ("lins", "guess8", "mul2", "mixed")
}
"""Chosen on validation problems and one seed: PPO and A2C on add1, PPO on lins; the others follow them."""


@dataclass(frozen=True, slots=True)
class ClassicConfig:
    """A run of a classic algorithm.

    Args:
        algorithm: A key of `CLASSIC`.
        task: A key of `mathturn_gym.baselines.config.PRESETS`.
        run_dir: Folder to write.
        seed: Determines everything but the seconds.
        tokens: The run ends with the rollout in which this many ids have been sampled; None for no limit.
        cpu_seconds: The same for CPU seconds of training.
        settings: What differs from the defaults: keys of `OURS`, and arguments of the algorithm's constructor.

    Raises:
        InvalidValueError: a name is unknown (the nearest is suggested), or a value is outside its range.
        MissingDependencyError: the algorithm is sb3-contrib's, which is not installed.
    """

    algorithm: str
    task: str
    run_dir: str
    seed: int = 0
    tokens: int | None = None
    cpu_seconds: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the names, and fills in the defaults."""
        from mathturn_gym.baselines.config import PRESETS

        if self.algorithm not in CLASSIC:
            raise_unknown_name("algorithm", self.algorithm, CLASSIC)
        if self.task not in PRESETS:
            raise_unknown_name("task", self.task, PRESETS)
        check_int("seed", self.seed, low=0)
        if self.tokens is None and self.cpu_seconds is None:
            raise InvalidValueError("tokens and cpu_seconds are both None: the run would never end")
        if self.tokens is not None:
            check_int("tokens", self.tokens, low=1)
        if self.cpu_seconds is not None and check_float("cpu_seconds", self.cpu_seconds, low=0.0) == 0.0:
            raise InvalidValueError("cpu_seconds must be above 0, got 0.0")
        allowed = {*OURS, *_own_arguments(algorithm_class(self.algorithm))}
        for name in self.settings:
            if name not in allowed:
                raise_unknown_name(f"setting of {self.algorithm}", name, allowed)
        merged = {
            **OURS,
            **_BY_ALGORITHM[self.algorithm],
            **_BY_TASK.get(self.task, {}),
            **_BY_BOTH.get((self.algorithm, self.task), {}),
            **self.settings,
        }
        for name in ("n_envs", "iteration_tokens", "eval_every", "eval_episodes", "exploration_steps"):
            check_int(name, merged[name], low=1)
        if not isinstance(merged["warm_start"], bool):
            raise InvalidValueError(f"warm_start must be true or false, got {merged['warm_start']!r}")
        object.__setattr__(self, "settings", merged)

    @property
    def arguments(self) -> dict[str, Any]:
        """Those settings that are the algorithm's own."""
        return {name: value for name, value in self.settings.items() if name not in OURS}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        names = ("algorithm", "task", "run_dir", "seed", "tokens", "cpu_seconds")
        return {**{name: getattr(self, name) for name in names}, "settings": dict(self.settings)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ClassicConfig:
        """The config that `to_json` gave."""
        return cls(**data)


def algorithm_class(algorithm: str) -> Any:
    """The class behind a key of `CLASSIC`; its library is loaded here.

    Raises:
        MissingDependencyError: the library is not installed.
    """
    from importlib import import_module

    library, name, _ = CLASSIC[algorithm]
    try:
        return getattr(import_module(library), name)
    except ImportError as error:
        raise MissingDependencyError(
            f"{algorithm} needs {library}: pip install 'mathturn-gym[baselines]' ({error})"
        ) from error


def _own_arguments(kind: Any) -> set[str]:
    """The constructor's arguments, without those that a run decides."""
    import inspect

    decided = {"self", "policy", "env", "seed", "device", "verbose", "policy_kwargs", "_init_setup_model"}
    return set(inspect.signature(kind.__init__).parameters) - decided
