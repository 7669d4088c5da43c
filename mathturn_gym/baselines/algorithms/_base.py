"""The base classes of algorithms: options, advantages (`credit`) and the loss (`loss`).

    each iteration:  collect ─► credit ─► pack ─► minibatches: log-probs ─► loss ─► optimizer
                                ^^^^^^                                      ^^^^

Everything else (batches, learning rates, evaluation, checkpoints, budgets) is the trainer's and the same for all.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Protocol, TypeAlias

from typing_extensions import TypeVar

from mathturn_gym.errors import InvalidValueError, check_float, check_int, raise_unknown_name

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Self

    import numpy as np
    import numpy.typing as npt
    import torch

    from mathturn_gym.env.config import EnvConfig
    from mathturn_gym.episodes.losses import PolicyLoss
    from mathturn_gym.episodes.packing.batch import PackedBatch, Unit
    from mathturn_gym.policies.config import PolicyConfig
    from mathturn_gym.types import Episode


Advantages: TypeAlias = "list[npt.NDArray[np.float32]]"
"""One array (K,) per episode: the advantage of each turn."""

_IN_0_1: Final = ("clip", "discount", "gae_lambda", "baseline_decay")
_AT_LEAST_0: Final = ("entropy_weight", "kl_weight", "reward_kl", "critic_learning_rate", "clip_high", "shrinkage")
_COUNTS: Final = ("group_size",)
_UNITS: Final = ("token", "turn", "sequence")
_CHOICES: Final = {"kl": ("k1", "k2", "k3"), "normalization": _UNITS, "ratio": _UNITS}
_PER_TURN: Final = ("kl_weight",)  # options that may be a list, a number for each turn

Metrics: TypeAlias = dict[str, float]
"""Values to log, by name."""


class RunParts(Protocol):
    """The parts of a run that an algorithm checks itself against; `RunConfig` has them."""

    @property
    def env(self) -> EnvConfig:
        """Environment and splits."""
        ...

    @property
    def policy(self) -> PolicyConfig:
        """What training begins with."""
        ...

    @property
    def optimization(self) -> Any:
        """The `Optimization`."""
        ...

    @property
    def evaluation(self) -> Any:
        """The `Evaluation`."""
        ...


class Learner(Protocol):
    """What an algorithm may use of the trainer that runs it; `Trainer` documents each."""

    @property
    def config(self) -> RunParts:
        """The run."""
        ...

    @property
    def policy(self) -> Any:
        """The policy that is trained; its `model` is the module."""
        ...

    def make_optimizer(self, module: torch.nn.Module, learning_rate: float | None = None) -> Any:
        """An optimizer for a module of the algorithm's own; `step(factor)` returns the gradient's norm."""
        ...

    def pack(self, episodes: Sequence[Episode], advantages: Sequence[npt.NDArray[Any]] | None = None) -> PackedBatch:
        """Episodes as a padded batch."""
        ...

    def with_token_advantages(
        self, batch: PackedBatch, advantages_BT: npt.NDArray[Any], returns_BT: npt.NDArray[Any] | None = None
    ) -> PackedBatch:
        """The batch with advantages per token."""
        ...

    def reference_logprobs(self, batch: PackedBatch) -> torch.Tensor:
        """Log-probs under the policy at the start."""
        ...

    def policy_logprobs(self, batch: PackedBatch) -> torch.Tensor:
        """Log-probs under the policy as it is, without a graph."""
        ...

    def minibatches(self, batch: PackedBatch, name: str) -> list[PackedBatch]:
        """The batch's episodes in shuffled parts, one gradient step each."""
        ...

    def parts(self, minibatch: PackedBatch) -> list[PackedBatch]:
        """A minibatch as the parts whose gradients are accumulated."""
        ...

    def forward_parts(self, batch: PackedBatch) -> Iterator[tuple[npt.NDArray[np.int64], PackedBatch]]:
        """A batch in parts of that size, with the numbers of their rows."""
        ...

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision that models are called in."""
        ...

    def summed(self, value: float) -> float:
        """A value summed over all ranks."""
        ...

    def check_finite(self, what: str, *values: float) -> None:
        """Ends the run as diverged unless all values are finite."""
        ...


@dataclass(frozen=True, kw_only=True)
class BaseAlgorithm(ABC):
    """Base class of everything that `train` accepts as an algorithm: a frozen dataclass of options.

    `register` gives a class a name, a title and a source; without it the import path is the name. Options with well-known
    names (`clip`, `discount`, `group_size` and the like) are checked here, others by the subclass in `__post_init__`.
    """

    name: ClassVar[str]
    """What the command line calls it; for a class of the user's own its import path."""
    title: ClassVar[str]
    """What figures and tables call it."""
    source: ClassVar[str]
    """Where it was published, or what it varies."""
    kind: ClassVar[str]
    """"language model": trains a causal language model on whole completions; "classic": one token id per step."""
    reads_optimization: ClassVar[bool] = True
    """False where the optimizer is the algorithm's own affair, and `Optimization` means nothing to it."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Names a class by its import path, also one whose base is registered; `register` gives it a short name."""
        super().__init_subclass__(**keywords)
        cls.name, cls.title, cls.source = f"{cls.__module__}:{cls.__qualname__}", cls.__name__, "your own"

    def __post_init__(self) -> None:
        """Checks the options that have well-known names."""
        for option in dataclasses.fields(self):
            name, value = option.name, getattr(self, option.name)
            # None is this option's own default, and within no range.
            if value is None and option.default is None:
                continue
            if name in _IN_0_1:
                check_float(f"{self.name}: {name}", value, low=0.0, high=1.0)
            elif name in _AT_LEAST_0:
                for one in value if isinstance(value, (list, tuple)) and name in _PER_TURN else (value,):
                    check_float(f"{self.name}: {name}", one, low=0.0)
            elif name in _CHOICES:
                if value not in _CHOICES[name]:
                    raise_unknown_name(name, value, _CHOICES[name])
            elif name == "dual_clip":
                if check_float(f"{self.name}: {name}", value, low=1.0) == 1.0:
                    raise InvalidValueError(f"{self.name}: dual_clip must be above 1, got {value!r}")
            elif name in _COUNTS:
                check_int(f"{self.name}: {name}", value, low=1)
            elif isinstance(option.default, bool) and not isinstance(value, bool):
                raise InvalidValueError(f"{self.name}: {name} must be true or false, got {value!r}")

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """The names of the options that it reads."""
        return tuple(option.name for option in dataclasses.fields(cls))

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The algorithm with these options, and defaults for the others.

        Raises:
            InvalidValueError: an option that it does not read, or a value outside its range.
        """
        known = cls.option_names()
        for name in options:
            if name not in known:
                try:
                    raise_unknown_name("option", name, known)
                except InvalidValueError as error:  # which option is the nearest, behind who does not read this one
                    raise InvalidValueError(f"{cls.name} does not read {name!r}: {error}") from None
        return cls(**options)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types: the name, and every option."""
        kind = type(self)
        # A short name that a user registered is known only once their module is imported: the path leads to it.
        ours = kind.__module__.startswith("mathturn_gym.")
        name = self.name if ours else f"{kind.__module__}:{kind.__qualname__}"
        return {"name": name, **dataclasses.asdict(self)}

    def check(self, config: RunParts) -> None:
        """Raises `InvalidValueError` where the other parts of a run do not go with this algorithm."""
        if not self.reads_optimization and config.optimization != type(config.optimization)():
            raise InvalidValueError(
                f"{self.name} does not read optimization: its own options are {', '.join(self.option_names())}"
            )


class State:
    """State of an algorithm between iterations; this one is empty."""

    def update(self, batch: PackedBatch, rate: float) -> Metrics:
        """Updates the state from what `credit` returned, before the policy's update (a critic is trained here).

        `rate` is the factor of the learning rate's schedule. Returns figures to log, by name.
        """
        return {}

    def numbers(self) -> Mapping[str, Any]:
        """Returns the JSON part of the state, for a checkpoint."""
        return {}

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Returns the tensors of the state, for a checkpoint."""
        return {}

    def load(self, numbers: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Restores the state from `numbers` and `tensors`, which may contain other entries.

        Raises:
            KeyError, TypeError, ValueError: something is missing or does not fit.
        """


StateT = TypeVar("StateT", bound=State, default=State)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A share of a minibatch whose loss is computed at once.

    Args:
        batch: The rows.
        minibatch: All rows of the gradient step. A loss divided by *its* counts adds up over parts to the mean over
            the minibatch, so that `accumulate` changes memory and nothing else.
        terms: Keywords of `policy_loss` for entropy and KL, which all algorithms have in common.
    """

    batch: PackedBatch
    minibatch: PackedBatch
    terms: Mapping[str, Any]

    def policy_loss(
        self,
        logprobs: torch.Tensor,
        *,
        normalization: Unit = "token",
        denominator: float | None = None,
        **keywords: Any,
    ) -> PolicyLoss:
        """`mathturn_gym.episodes.losses.policy_loss` of this part, with the terms that all algorithms have in common.

        Args:
            logprobs: float32 (B, T), what `loss` was given.
            normalization: What the loss is a mean over: tokens, turns or episodes ("sequence").
            denominator: What the sum is divided by; None is the minibatch's number of these.
            **keywords: `objective`, `ratio`, `clip` and others, see there.
        """
        from mathturn_gym.episodes.losses import policy_loss

        divisor = self.minibatch.count(normalization) if denominator is None else denominator
        return policy_loss(
            logprobs,
            self.batch,
            normalization=normalization,
            # A minibatch without a trained token has the loss 0, whatever that is divided by.
            denominator=max(1, divisor),
            tokens=max(1, self.minibatch.count("token")),
            **keywords,
            **self.terms,
        )


@dataclass(frozen=True, kw_only=True)
class Algorithm(BaseAlgorithm, Generic[StateT]):
    """An algorithm that trains a language model: options, `credit` and `loss`.

    Args:
        entropy_weight: Weight of the entropy bonus, a mean over tokens in nats.
        kl_weight: Weight of the KL to the initial policy in the loss (a mean over tokens); 0 needs no
            reference model. A list has one weight per turn, the last one for all that follow: SCoRe (Kumar et al. 2024,
            arXiv:2409.12917) constrains the first turn, as in `[10.0, 0.0]`.
        kl: Estimate of that KL: "k1", "k2" or "k3" (see `kl_divergence`: only k2 has the KL's gradient).
        reward_kl: Reward taken off a turn per nat of its KL to the initial policy (k1 estimate; Stiennon et al. 2020,
            arXiv:2009.01325). Returns contain it, so that an early turn also pays for the drift of later ones.
    """

    kind = "language model"
    on_policy: ClassVar[bool] = False
    """Its gradient holds for the policy that sampled the batch alone: one gradient step per batch."""
    continues_truncated: ClassVar[bool] = True
    """Credit goes by returns-to-go, so an episode that its context cut off is continued by what the batch's turns of
    that number were worth on average (see `continued`). False: its return is what it got, as the method is published."""
    charges_turns: ClassVar[bool] = True
    """`reward_kl` is taken off the rewards of turns before `credit` sees them; False: `credit` does it by itself."""

    entropy_weight: float = 0.0
    kl_weight: float | Sequence[float] = 0.0
    kl: Literal["k1", "k2", "k3"] = "k3"
    reward_kl: float = 0.0

    def __post_init__(self) -> None:
        """Makes a tuple of weights by turn."""
        super().__post_init__()
        if isinstance(self.kl_weight, Sequence):  # a list, as JSON and TOML have it
            object.__setattr__(self, "kl_weight", tuple(self.kl_weight))

    def begin(self, trainer: Learner) -> StateT:
        """Returns the state of a new run; `trainer` has its policy, optimizer settings and device."""
        return State()  # type: ignore[return-value]  # the default of StateT

    @abstractmethod
    def credit(self, episodes: Sequence[Episode], state: StateT) -> Advantages | PackedBatch:
        """Computes the advantage of each turn, or of each token.

        Args:
            episodes: An iteration's, in order of their index; `Episode.group` names those on one problem, and
                `Episode.returns` have the algorithm's `discount`.
            state: Of `begin`.

        Returns:
            One array (K,) per episode with the advantages of its turns; or, where tokens of one turn differ, a
            `PackedBatch` of layout "episode", padded, row i being episode i.
        """

    @abstractmethod
    def loss(self, logprobs: torch.Tensor, part: Part, state: StateT) -> PolicyLoss:
        """Computes the loss of the policy; usually one call of `part.policy_loss`.

        Args:
            logprobs: float32 (B, T), of the rows of `part.batch` under the policy as it is now.
            part: The rows, and the minibatch that they are a share of.
            state: Of `begin`.
        """

    @property
    def needs_reference(self) -> bool:
        """True if a KL to the initial policy is used, so that a copy of it has to be kept."""
        weights = self.kl_weight if isinstance(self.kl_weight, Sequence) else (self.kl_weight,)
        return any(weights) or self.reward_kl > 0

    @property
    def episodes_per_problem(self) -> int:
        """Its `group_size`, where it has one."""
        return int(getattr(self, "group_size", 1))

    def check(self, config: RunParts) -> None:
        """Raises `InvalidValueError` where batches cannot be split into groups, or take more steps than are allowed."""
        super().check(config)
        batches, group = config.optimization, self.episodes_per_problem
        if batches.batch_episodes % group:
            raise InvalidValueError(
                f"optimization.batch_episodes ({batches.batch_episodes}) must be a multiple of {self.name}'s group_size"
                f" ({group})"
            )
        if batches.dynamic_sampling and group < 2:
            raise InvalidValueError(
                f"optimization.dynamic_sampling looks for differences within groups, and {self.name} has one episode per"
                " problem: set group_size to 2 at least, or leave it out"
            )
        if self.on_policy and batches.minibatches * batches.epochs > 1:
            raise InvalidValueError(
                f"{self.name} takes one gradient step per batch, as it is published: optimization.minibatches and epochs"
                f" must be 1, got {batches.minibatches} and {batches.epochs} (accumulate saves memory)"
            )


@dataclass(frozen=True, kw_only=True)
class Clipping:
    """Options of algorithms whose loss clips ratios.

    Args:
        clip: Width of the ratio's clipping; it matters from the second gradient step on.
        clip_high: Its upper width, where that is another: wider, unlikely tokens can gain more (DAPO, Yu et al. 2025,
            arXiv:2503.14476, has .2 and .28). None is `clip`.
        dual_clip: Above 1: a token with a negative advantage loses at most this many times it, however large its ratio
            (Ye et al. 2020, arXiv:1912.09729, has 3). None is no limit.
        ratio: What has one ratio: "token", "turn" (the mean over its tokens, on the log scale), or "sequence" (an episode).
    """

    clip: float = 0.2
    clip_high: float | None = None
    dual_clip: float | None = None
    ratio: Literal["token", "turn", "sequence"] = "token"

    def loss(self, logprobs: torch.Tensor, part: Part, state: Any) -> PolicyLoss:
        """The clipped objective, a mean over tokens."""
        return self.clipped(part, logprobs)

    def clipped(self, part: Part, logprobs: torch.Tensor, **keywords: Any) -> PolicyLoss:
        """The clipped objective with these options; `keywords` are of `Part.policy_loss`."""
        return part.policy_loss(
            logprobs, clip=self.clip, clip_high=self.clip_high, dual_clip=self.dual_clip, ratio=self.ratio, **keywords
        )


@dataclass(frozen=True, kw_only=True)
class GroupAlgorithm(Algorithm[StateT], Generic[StateT]):
    """An algorithm that judges an episode by the others on the same problem.

    Args:
        group_size: Episodes per problem, 2 at least.
    """

    smallest_group: ClassVar[int] = 2

    group_size: int = 8

    def __post_init__(self) -> None:
        """Refuses groups of one."""
        super().__post_init__()
        if self.group_size < self.smallest_group:
            raise InvalidValueError(
                f"{self.name} centers rewards by their group: group_size must be {self.smallest_group} at least, got"
                f" {self.group_size}"
            )
