"""The algorithms of stable-baselines3 and sb3-contrib, registered beside the trainers of language models.

Options are the fields here, and every argument of the constructor that the library gives the algorithm. The libraries
are loaded when a run begins, not here.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from mathturn_gym.baselines.algorithms import BaseAlgorithm, register
from mathturn_gym.errors import (
    InvalidValueError,
    MissingDependencyError,
    check_float,
    check_int,
    install_extra,
    raise_unknown_name,
)

if TYPE_CHECKING:
    from mathturn_gym.baselines.algorithms._base import RunParts


# Arguments of a constructor that the run decides.
_DECIDED: Final = {"self", "policy", "env", "seed", "device", "verbose", "policy_kwargs", "_init_setup_model"}


@dataclass(frozen=True, kw_only=True)
class ClassicAlgorithm(BaseAlgorithm):
    """An algorithm that chooses one token id per step (`TokenLevelEnv`).

    Args:
        n_envs: Environments played side by side.
        window: Token ids that it sees, see `TokenLevelEnv`.
        pinned: Token ids of the prompt that stay in view, see `TokenLevelEnv`.
        answer_characters: What answers are written with, besides boxed whole numbers.
        reward_bias: Of the environment in training, in place of its own.
        reward_scaling: The same. The defaults give 1 for a right answer, else 0: with a discount per token a penalty for
            each wrong answer would pay for answering late.
        width: Of `WindowTransformer`, where it does not begin as a language model; so are the next three.
        layers: See there.
        heads: See there.
        feedforward: See there.
        iteration_tokens: Tokens between two lines of metrics.jsonl (at the next boundary between rollouts).
        arguments: Of the algorithm's constructor, where they differ from the class's `defaults`. They can be given as
            options of their own: `from_options({"n_steps": 16})`.
    """

    kind = "classic"
    reads_optimization = False
    library: ClassVar[str]
    class_name: ClassVar[str]
    policy_name: ClassVar[str] = "MlpPolicy"
    defaults: ClassVar[Mapping[str, Any]] = {}

    n_envs: int = 64
    window: int = 64
    pinned: int = 0
    answer_characters: str = ""
    reward_bias: float = -1.0
    reward_scaling: float = 0.5
    width: int = 64
    layers: int = 2
    heads: int = 4
    feedforward: int = 192
    iteration_tokens: int = 2048
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the fields, and fills in the arguments' defaults."""
        super().__post_init__()
        for name in ("n_envs", "iteration_tokens", "width", "layers", "heads", "feedforward", "window"):
            check_int(f"{self.name}: {name}", getattr(self, name), low=1)
        check_int(f"{self.name}: pinned", self.pinned, low=0)
        for name in ("reward_bias", "reward_scaling"):
            check_float(f"{self.name}: {name}", getattr(self, name))
        if not isinstance(self.answer_characters, str):
            raise InvalidValueError(f"{self.name}: answer_characters must be a text, got {self.answer_characters!r}")
        # Filled in, so that a run's config says what it ran with, also after the class's defaults change.
        object.__setattr__(self, "arguments", {**self.defaults, **self.arguments})

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """Its fields, and its constructor's arguments."""
        own = [one.name for one in dataclasses.fields(cls) if one.name != "arguments"]
        return (*own, *cls.argument_names())

    @classmethod
    def argument_names(cls) -> tuple[str, ...]:
        """Returns the constructor's arguments without those that the run determines (imports the library)."""
        parameters = inspect.signature(cls.library_class().__init__).parameters
        return tuple(name for name in parameters if name not in _DECIDED)

    @classmethod
    def library_class(cls) -> Any:
        """The class that is run.

        Raises:
            MissingDependencyError: its library is not installed.
        """
        try:
            return getattr(import_module(cls.library), cls.class_name)
        except ImportError as error:
            raise MissingDependencyError(
                f"{cls.name} needs {cls.library}: {install_extra('baselines')} ({error})"
            ) from error

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The algorithm with these options: fields, and arguments of the constructor."""
        fields = {one.name for one in dataclasses.fields(cls)}
        own = {name: value for name, value in options.items() if name in fields}
        arguments = {name: value for name, value in options.items() if name not in fields}
        known = cls.option_names()
        for name in {**arguments, **own.get("arguments", {})}:
            if name not in known:
                raise_unknown_name(f"option of {cls.name}", name, known)
        return cls(**{**own, "arguments": {**own.get("arguments", {}), **arguments}})

    def to_json(self) -> dict[str, Any]:
        """The name, and every option, arguments of the constructor among them."""
        own = {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.name != "arguments"}
        return {"name": self.name, **own, **self.arguments}

    def check(self, config: RunParts) -> None:
        """Raises `InvalidValueError` for parts of a run that it does not read."""
        super().check(config)
        policy = config.policy
        # a language model's settings (LoRA, dtype …) would be ignored without a word.
        plain = dataclasses.replace(policy, model="builtin", init="pretrained", grammar=None)
        if (policy.model != "builtin" and Path(policy.model).name == policy.model) or plain != type(policy)():
            raise InvalidValueError(
                f"{self.name} begins with the built-in model's weights or with random ones, or with those of a folder"
                f" (./warm) that experiments/warmup.py wrote: of the policy it reads init and grammar alone, got {policy}"
            )
        if config.evaluation.patience:
            raise InvalidValueError(f"{self.name} does not stop early: evaluation.patience must be 0")


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


@dataclass(frozen=True, kw_only=True)
class ActorCritic(ClassicAlgorithm):
    """An algorithm with an actor and a critic.

    Args:
        share_trunk: Actor and critic read one extractor; else each has its own.
    """

    share_trunk: bool = True


@dataclass(frozen=True, kw_only=True)
class ValueBased(ClassicAlgorithm):
    """An algorithm that learns values of actions.

    Args:
        exploration_steps: Tokens over which the share of random actions falls to its final value.
    """

    exploration_steps: int = 40_000

    def __post_init__(self) -> None:
        """Checks the steps."""
        super().__post_init__()
        check_int(f"{self.name}: exploration_steps", self.exploration_steps, low=1)


@register("sb3_ppo", title="PPO (SB3)", source="stable-baselines3; Schulman et al. 2017, arXiv:1707.06347")
@dataclass(frozen=True, kw_only=True)
class PPO(ActorCritic):
    """PPO of stable-baselines3."""

    library, class_name, defaults = "stable_baselines3", "PPO", _PPO


@register("sb3_a2c", title="A2C (SB3)", source="stable-baselines3; Mnih et al. 2016, arXiv:1602.01783")
@dataclass(frozen=True, kw_only=True)
class A2C(ActorCritic):
    """A2C of stable-baselines3."""

    library, class_name = "stable_baselines3", "A2C"
    defaults: ClassVar[Mapping[str, Any]] = {
        **_ACTOR_CRITIC,
        "n_steps": 16,
        "use_rms_prop": False,
        "learning_rate": 2e-3,
        "ent_coef": 0.03,
        "normalize_advantage": True,
    }


@register("sb3_dqn", title="DQN (SB3)", source="stable-baselines3; Mnih et al. 2015")
@dataclass(frozen=True, kw_only=True)
class DQN(ValueBased):
    """DQN of stable-baselines3."""

    library, class_name, defaults = "stable_baselines3", "DQN", _DQN


@register("maskable_ppo", title="MaskablePPO", source="sb3-contrib; Huang & Ontañón 2022, arXiv:2006.14171")
@dataclass(frozen=True, kw_only=True)
class MaskablePPO(ActorCritic):
    """PPO of sb3-contrib that knows which token ids may follow."""

    library, class_name, defaults = "sb3_contrib", "MaskablePPO", _PPO


@register("recurrent_ppo", title="RecurrentPPO", source="sb3-contrib, an LSTM")
@dataclass(frozen=True, kw_only=True)
class RecurrentPPO(ActorCritic):
    """PPO of sb3-contrib with an LSTM behind the extractor.

    Args:
        memory: Width of the LSTM.
    """

    library, class_name, defaults = "sb3_contrib", "RecurrentPPO", _PPO
    policy_name = "MlpLstmPolicy"

    memory: int = 64


@register("trpo", title="TRPO", source="sb3-contrib; Schulman et al. 2015, arXiv:1502.05477")
@dataclass(frozen=True, kw_only=True)
class TRPO(ActorCritic):
    """TRPO of sb3-contrib."""

    library, class_name = "sb3_contrib", "TRPO"
    defaults: ClassVar[Mapping[str, Any]] = {
        **_ACTOR_CRITIC,
        "n_steps": 16,
        "batch_size": 256,
        "n_critic_updates": 4,
        "cg_max_steps": 5,
        "sub_sampling_factor": 4,
        "target_kl": 0.03,
    }


@register("qr_dqn", title="QR-DQN", source="sb3-contrib; Dabney et al. 2018, arXiv:1710.10044")
@dataclass(frozen=True, kw_only=True)
class QRDQN(ValueBased):
    """QR-DQN of sb3-contrib.

    Args:
        quantiles: Of each action's value.
    """

    library, class_name, defaults = "sb3_contrib", "QRDQN", _DQN

    quantiles: int = 25
