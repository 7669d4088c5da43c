"""The parts of a run besides environment, policy and algorithm, and the run as a whole.

Budget          when the run ends
Optimization    batches, gradient steps, optimizer and learning rate, for every trainer of a language model
Evaluation      how often the run is evaluated, on how many episodes, and when it stops early
RunConfig       all parts of a run as one value; the run's folder keeps it as config.json
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args

from mathturn_gym.baselines.algorithms import BaseAlgorithm
from mathturn_gym.baselines.algorithms._registry import algorithm_from_json
from mathturn_gym.baselines.rollouts import OnFailure
from mathturn_gym.baselines.trackers import check_tracker
from mathturn_gym.env.config import EnvConfig
from mathturn_gym.errors import InvalidValueError, check_float, check_int, raise_unknown_name
from mathturn_gym.policies import PolicyConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


Schedule = Literal["constant", "linear", "cosine"]
OptimizerName = Literal["adamw", "adamw8bit", "adafactor", "sgd"]
ImportanceLevel = Literal["token", "turn", "sequence"]
ImportanceMode = Literal["clip", "mask"]
_PRECISIONS: Final = ("float32", "bfloat16")

# Options that only some optimizers read.
_OPTIMIZER_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "adamw": ("betas", "eps"),
    "adamw8bit": ("betas", "eps"),
    "adafactor": (),
    "sgd": ("momentum",),
}

_SMALLEST: Final = 133_000  # parameters up to which a learning rate of 1e-3 is right

_Part = TypeVar("_Part", bound="DataclassInstance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When a run ends: with the iteration in which the first of these is reached.

    Args:
        tokens: Tokens that the policy samples in training.
        total_tokens: All tokens of the episodes that are trained on: prompts, feedback and sampled tokens. If the context
            is re-rendered between turns, the tokens of each segment count.
        episodes: Episodes to train on: as many whole iterations as fit, and one at least.
        cpu_seconds: CPU seconds of training, evaluations not counted.

    Raises:
        InvalidValueError: none is given, or one is not above 0.

    >>> Budget(episodes=1000).iterations(64)
    15
    """

    tokens: int | None = None
    episodes: int | None = None
    cpu_seconds: float | None = None
    total_tokens: int | None = None

    def __post_init__(self) -> None:
        """Checks the limits."""
        if self.tokens is self.total_tokens is self.episodes is self.cpu_seconds is None:
            raise InvalidValueError(
                "budget: give tokens, total_tokens, episodes or cpu_seconds, or the run would never end"
            )
        for name in ("tokens", "total_tokens", "episodes"):
            if getattr(self, name) is not None:
                check_int(f"budget.{name}", getattr(self, name), low=1)
        if self.cpu_seconds is not None and check_float("budget.cpu_seconds", self.cpu_seconds, low=0.0) == 0.0:
            raise InvalidValueError("budget.cpu_seconds must be above 0, got 0.0")

    def iterations(self, batch_episodes: int) -> int | None:
        """Number of iterations that `episodes` allows; None for no limit."""
        return None if self.episodes is None else max(1, self.episodes // batch_episodes)

    def is_used_up(
        self, *, iteration: int, tokens: int, cpu_s: float, batch_episodes: int, total_tokens: int = 0
    ) -> bool:
        """True once one of the limits is reached, with what the iterations so far have used."""
        most = self.iterations(batch_episodes)
        return (
            (most is not None and iteration >= most)
            or (self.tokens is not None and tokens >= self.tokens)
            or (self.total_tokens is not None and total_tokens >= self.total_tokens)
            or (self.cpu_seconds is not None and cpu_s >= self.cpu_seconds)
        )

    def share_used(self, *, iteration: int, tokens: int, batch_episodes: int, total_tokens: int = 0) -> float:
        """Share of the budget that is used when an iteration begins, in [0, 1].

        CPU seconds do not count: learning rates follow this share, and a repeated run must be the same. Iterations count
        from 0, and tokens are those before it.
        """
        most = self.iterations(batch_episodes)
        by_tokens = 0.0 if self.tokens is None else tokens / self.tokens
        by_all = 0.0 if self.total_tokens is None else total_tokens / self.total_tokens
        # All is used in the last iteration, not after it: a schedule reaches its end.
        by_iterations = 0.0 if most is None else iteration / max(1, most - 1)
        return min(1.0, max(by_tokens, by_all, by_iterations))


def default_learning_rate(parameters: int, *, adapter: bool = False) -> float:
    """Default learning rate of AdamW by model size: 1e-3 * (133,000 / parameters)^(2/3).

    The power law goes through three sizes at which learning rates were tried (133 thousand: 1e-3; 1.06 million: 1.5e-4
    learned and 4e-4 did not; 135 million: 1e-5). It also agrees with usual values for billions of parameters.

    A LoRA adapter alone (`adapter`) gets ten times the learning rate.

    >>> default_learning_rate(133_000), f"{default_learning_rate(135_000_000):.1g}", f"{default_learning_rate(7_000_000_000, adapter=True):.0e}"
    (0.001, '1e-05', '7e-06')
    """
    rate = 1e-3 * min(1.0, math.pow(_SMALLEST / max(1, parameters), 2 / 3))
    return 10.0 * rate if adapter else rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimization:
    """How a batch of episodes becomes gradient steps, the same for every algorithm that trains a language model.

    Args:
        learning_rate: Highest learning rate of the run; None is `default_learning_rate`: 1e-3 for the built-in tiny policy,
            1e-5 for 135 million parameters, 1e-6 for four billion, ten times as much for LoRA.
        final_learning_rate: Where the schedules "linear" and "cosine" end; None is 0.
        schedule: "constant", or how the learning rate falls over the run's budget of tokens or episodes.
        warmup: Iterations over which the learning rate rises from near zero. Adam's first steps are as long as later ones,
            although the size of the gradients is not known yet.
        optimizer: "adamw", "adamw8bit" (its two moments in 8 bits a number instead of 32; needs torchao), "adafactor"
            (hardly any state), or "sgd".
        weight_decay: Decoupled for "adamw" and "adamw8bit".
        betas: "adamw", "adamw8bit": decay of the gradients' and the squared gradients' running means; None is (0.9, 0.95).
        eps: "adamw", "adamw8bit": None is 1e-5. Rarely sampled tokens have tiny gradients; with torch's default of 1e-8, AdamW
            would move their embeddings as far per step as all others, and the format of answers would drift.
        momentum: "sgd": None is 0.
        max_grad_norm: Gradients are scaled down to this norm; None leaves them as they are.
        batch_episodes: Episodes per iteration.
        dynamic_sampling: Most extra rounds of sampling that fill a batch with groups of unequal returns (DAPO's dynamic
            sampling); 0 takes every group. Tokens of groups that are set aside count towards the budget.
        minibatches: Number of parts of a batch, each of which is one gradient step.
        epochs: Passes over a batch, each with another split.
        accumulate: Number of parts of a minibatch whose gradients are summed: less memory, the same step.
        micro_batch_tokens: Instead of `accumulate`, the most ids of such a part (rows times the longest row). Memory is
            bounded for any length of episodes, and rows of similar length go together. A longer episode is a part by itself.
        precision: "float32", or "bfloat16" for autocast around sampling and training (weights keep their own type).
        gradient_checkpointing: Recompute activations in the backward pass instead of storing them.
        compile: Run the layers through `torch.compile` in updates (not in sampling): less time between matrix products,
            after some seconds of compiling. Needs a C++ compiler on a CPU.
        mask_cut_off: Mask completions that were cut off by their budget (DAPO's overlong filtering).
        recompute_logprobs: Take ratios to log-probs that the trainer recomputes before the first step, instead of the
            sampler's. None does so after sampling in half precision, or if a correction needs them.
        importance_cap: Upper limit of importance weights that correct for differences between sampler and trainer (2 is
            usual); None does not correct.
        importance_level: Unit of a weight: "token", "turn" or "sequence" (the product over its tokens: unbiased for the
            whole, with a variance that grows with its length).
        importance_mode: Treatment of a weight over the cap: "clip" sets it to the cap, "mask" to 0.
        max_staleness: With `policy.rollout`, batches that are played ahead while the policy learns: nothing that is learned from
            is more versions old. 0 waits for each batch and each update.
        on_failure: An episode that fails (a server that does not answer, a verifier's error): "stop" ends the run, "retry"
            plays its group again and ends the run after three failures, "drop_group" goes on without the group then.
        log_kl: Log the KL from the policy at the start also where no loss has a weight for it: one more pass
            over a batch, and without LoRA a second copy of the weights.

    Raises:
        InvalidValueError: a value outside its range, or an option that this optimizer or schedule does not read.
    """

    learning_rate: float | None = None
    final_learning_rate: float | None = None
    schedule: Schedule = "constant"
    warmup: int = 0
    optimizer: OptimizerName = "adamw"
    weight_decay: float = 0.0
    betas: tuple[float, float] | None = None
    eps: float | None = None
    momentum: float | None = None
    max_grad_norm: float | None = 1.0
    batch_episodes: int = 64
    dynamic_sampling: int = 0
    minibatches: int = 1
    epochs: int = 1
    accumulate: int = 1
    micro_batch_tokens: int | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    gradient_checkpointing: bool = False
    compile: bool = False
    mask_cut_off: bool = False
    recompute_logprobs: bool | None = None
    importance_cap: float | None = None
    importance_level: ImportanceLevel = "token"
    importance_mode: ImportanceMode = "clip"
    log_kl: bool = False
    max_staleness: int = 0
    on_failure: OnFailure = "stop"

    def __post_init__(self) -> None:
        """Checks every field, and those that go together."""
        for name, allowed in (
            ("schedule", get_args(Schedule)),
            ("optimizer", get_args(OptimizerName)),
            ("precision", _PRECISIONS),
            ("importance_level", get_args(ImportanceLevel)),
            ("importance_mode", get_args(ImportanceMode)),
            ("on_failure", get_args(OnFailure)),
        ):
            if getattr(self, name) not in allowed:
                raise_unknown_name(f"optimization.{name}", getattr(self, name), allowed)
        for name in ("gradient_checkpointing", "compile", "mask_cut_off", "recompute_logprobs", "log_kl"):
            value = getattr(self, name)
            if not isinstance(value, bool) and not (name == "recompute_logprobs" and value is None):
                raise InvalidValueError(f"optimization.{name} must be true or false, got {value!r}")
        self._check_numbers()
        self._check_read()
        if self.minibatches * self.accumulate > self.batch_episodes:
            raise InvalidValueError(
                f"optimization.minibatches ({self.minibatches}) x accumulate ({self.accumulate}) exceed"
                f" batch_episodes ({self.batch_episodes})"
            )

    def _check_numbers(self) -> None:
        for name in ("batch_episodes", "minibatches", "epochs", "accumulate"):
            check_int(f"optimization.{name}", getattr(self, name), low=1)
        if self.micro_batch_tokens is not None:
            check_int("optimization.micro_batch_tokens", self.micro_batch_tokens, low=1)
        for name in ("warmup", "dynamic_sampling", "max_staleness"):
            check_int(f"optimization.{name}", getattr(self, name), low=0)
        for name in ("learning_rate", "final_learning_rate", "weight_decay"):
            if getattr(self, name) is not None:
                check_float(f"optimization.{name}", getattr(self, name), low=0.0)
        for name, value in self._decays():
            if check_float(f"optimization.{name}", value, low=0.0, high=1.0) == 1.0:
                raise InvalidValueError(f"optimization.{name} must be below 1, got 1.0")
        for name in ("max_grad_norm", "eps", "importance_cap"):
            value = getattr(self, name)
            if value is not None and check_float(f"optimization.{name}", value, low=0.0) == 0.0:
                raise InvalidValueError(f"optimization.{name} must be above 0, got 0.0")

    def _decays(self) -> list[tuple[str, Any]]:
        """The decay rates that are given, by name."""
        if self.betas is not None:
            if not isinstance(self.betas, (tuple, list)) or len(self.betas) != 2:
                raise InvalidValueError(f"optimization.betas must be two numbers, got {self.betas!r}")
            # JSON and TOML have lists, and a list is not hashable.
            object.__setattr__(self, "betas", tuple(self.betas))
        betas = [] if self.betas is None else [(f"betas[{i}]", value) for i, value in enumerate(self.betas)]
        return betas if self.momentum is None else [*betas, ("momentum", self.momentum)]

    def _check_read(self) -> None:
        """Refuses options that the chosen optimizer or schedule does not read."""
        own = _OPTIMIZER_OPTIONS[self.optimizer]
        for name in sorted({one for options in _OPTIMIZER_OPTIONS.values() for one in options} - set(own)):
            if getattr(self, name) is not None:
                has = f"it has {', '.join(own)}" if own else "it has no options of its own"
                raise InvalidValueError(f"optimization.{name} is not read by optimizer {self.optimizer!r}: {has}")
        if self.final_learning_rate is not None and self.schedule == "constant":
            raise InvalidValueError(
                "optimization.final_learning_rate is not read by schedule 'constant': choose 'linear' or 'cosine'"
            )
        if self.micro_batch_tokens is not None and self.accumulate != 1:
            raise InvalidValueError(
                f"optimization.accumulate ({self.accumulate}) and micro_batch_tokens ({self.micro_batch_tokens}) both say how"
                " a minibatch is split: give one of them"
            )
        for name, default in (("importance_level", "token"), ("importance_mode", "clip")):
            if getattr(self, name) != default and self.importance_cap is None:
                raise InvalidValueError(f"optimization.{name} is not read without an importance_cap")
        if self.importance_cap is not None and self.recompute_logprobs is False:
            raise InvalidValueError(
                "optimization.importance_cap needs recomputed log-probs: leave recompute_logprobs out"
            )

    def rate(self, iteration: int, share_used: float) -> float:
        """Factor of the learning rate in an iteration, from 0, at a share of the budget (`Budget.share_used`).

        >>> half = Optimization(learning_rate=1.0, schedule="linear", warmup=1)
        >>> half.rate(0, 0.0), half.rate(4, 0.25)
        (0.5, 0.75)
        """
        # Above 0 from the first iteration on: a step of size 0 would waste its batch.
        rise = min(1.0, (iteration + 1) / (self.warmup + 1))
        if self.schedule == "constant" or not self.learning_rate:
            return rise
        end = (self.final_learning_rate or 0.0) / self.learning_rate
        fallen = share_used if self.schedule == "linear" else (1.0 - math.cos(math.pi * share_used)) / 2.0
        return rise * (1.0 + (end - 1.0) * fallen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How a run is evaluated.

    Args:
        every: Iterations between evaluations on the validation problems; 0 evaluates only at the start and at the end.
        times: Also evaluate whenever another of this many equal parts of the budget (of tokens or episodes) is used up, so
            that curves of algorithms with long and short iterations have as many points.
        episodes: Episodes per evaluation, the same ones each time; 0 disables evaluations.
        patience: Number of evaluations without a better accuracy (within all turns) after which the run stops early; 0
            disables early stopping.
        test_episodes: Episodes played on the test problems once, at the end; 0 plays none.
        kept: Episodes of each evaluation, and of the iteration before it, that the run's folder keeps with their texts,
            for `mathturn view`.

    Raises:
        InvalidValueError: a number below 0, or a patience that counts evaluations which do not take place.
    """

    every: int = 20
    times: int = 0
    episodes: int = 256
    patience: int = 0
    test_episodes: int = 0
    kept: int = 16

    def __post_init__(self) -> None:
        """Checks the numbers."""
        for one in dataclasses.fields(self):
            check_int(f"evaluation.{one.name}", getattr(self, one.name), low=0)
        if self.patience and not ((self.every or self.times) and self.episodes):
            raise InvalidValueError(
                "evaluation.patience counts evaluations: evaluation.every and evaluation.episodes must not be 0"
            )

    def is_due(self, iteration: int, before: float, used: float) -> bool:
        """True if the run is evaluated after an iteration that began and ended with these shares of the budget used.

        >>> [Evaluation(every=0, times=10).is_due(1, *shares) for shares in ((0.08, 0.11), (0.11, 0.19))]
        [True, False]
        """
        return bool(self.every and iteration % self.every == 0) or int(self.times * before) < int(self.times * used)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything that determines a run: the same config gives the same curve on the same machine.

    Args:
        env: Environment and splits.
        policy: The policy that training begins with.
        algorithm: The algorithm with its options.
        budget: When the run ends.
        optimization: Batches and gradient steps.
        evaluation: How it is evaluated.
        seed: Determines problems, samples and minibatches.
        threads: CPU threads of torch during training. 1 is fastest for the built-in model, and sums then do not depend on
            the machine's number of cores.
        save_every: Iterations between checkpoints; there is always one at the end and after an interrupt.
        keep: Checkpoints that are kept. Where the newest does not load, a resumed run falls back to the one before.
        tracker: Also show metrics and a few episodes in "wandb:PROJECT", "trackio:PROJECT" or "mlflow:EXPERIMENT" (each
            is an extra of its name). TensorBoard's files are always written where it is installed.
        task: Name of the task that the parts were taken from, for reports.

    Raises:
        InvalidValueError: a value outside its range, or parts that do not go together.
    """

    env: EnvConfig
    algorithm: BaseAlgorithm
    budget: Budget
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    optimization: Optimization = field(default_factory=Optimization)
    evaluation: Evaluation = field(default_factory=Evaluation)
    seed: int = 0
    threads: int = 1
    save_every: int = 20
    keep: int = 2
    tracker: str | None = None
    task: str | None = None

    def __post_init__(self) -> None:
        """Checks types and numbers, and lets the algorithm check the other parts."""
        for name, kind in PARTS.items():
            if not isinstance(getattr(self, name), kind):
                article = "an" if kind.__name__[0] in "AEIOU" else "a"
                raise InvalidValueError(f"{name} must be {article} {kind.__name__}, got {getattr(self, name)!r}")
        check_int("seed", self.seed, low=0, high=2**63 - 1)
        for name in ("threads", "save_every", "keep"):
            check_int(name, getattr(self, name), low=1)
        for name in ("num_turns", "max_completion_tokens"):  # read before there is an environment that would check them
            check_int(f"env.{name}", self.env.value(name), low=1)
        if self.tracker is not None:
            check_tracker(self.tracker)
        if self.task is not None and (not isinstance(self.task, str) or not self.task):
            raise InvalidValueError(f"task must be a non-empty text or None, got {self.task!r}")
        if self.policy.seed:
            raise InvalidValueError(f"policy.seed is not read in a run, whose own seed decides: got {self.policy.seed}")
        ahead = self.optimization.max_staleness
        if ahead and self.policy.rollout is None:
            raise InvalidValueError(
                f"optimization.max_staleness ({ahead}) plays ahead on another engine than the trainer's: set policy.rollout"
            )
        if ahead and self.optimization.dynamic_sampling:
            raise InvalidValueError(
                "optimization.dynamic_sampling decides after each batch what is played next: with it, max_staleness must be 0"
            )
        self.algorithm.check(self)  # last, so that it can rely on all other parts

    def to_json(self) -> dict[str, Any]:
        """Returns the config in plain JSON types."""
        plain = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        return {name: _plain(value.to_json() if hasattr(value, "to_json") else value) for name, value in plain.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, algorithm: BaseAlgorithm | None = None) -> RunConfig:
        """Reads the config from the result of `to_json`.

        Args:
            data: Plain JSON types.
            algorithm: Replaces the one in `data`.

        Raises:
            InvalidValueError: a field is unknown (the nearest is suggested), missing or outside its range.
        """
        data = dict(data) if algorithm is None else {**data, "algorithm": algorithm}
        if (project := data.pop("wandb_project", None)) is not None:  # runs from before there were other trackers
            data["tracker"] = f"wandb:{project}"
        known = [one.name for one in dataclasses.fields(cls)]
        for name in data:
            if name not in known:
                raise_unknown_name("config field", name, known)
        for name in ("env", "algorithm", "budget"):
            if name not in data:
                raise InvalidValueError(f"config lacks {name}")
        return cls(**{name: part_from_json(name, value) for name, value in data.items()})


PARTS: Final[Mapping[str, type]] = {
    "env": EnvConfig,
    "policy": PolicyConfig,
    "algorithm": BaseAlgorithm,
    "budget": Budget,
    "optimization": Optimization,
    "evaluation": Evaluation,
}
"""The parts of a run by name."""


def part_from_json(name: str, data: Any) -> Any:
    """Reads a part of a `RunConfig` from plain JSON types; values of other fields are returned unchanged."""
    if name not in PARTS or isinstance(data, PARTS[name]):
        return data
    if not isinstance(data, Mapping):
        raise InvalidValueError(f"{name} must be a table of FIELD = VALUE, got {data!r}")
    if name == "algorithm":
        return algorithm_from_json(data)
    kind = PARTS[name]
    if name in ("env", "policy"):
        return kind.from_json(data)  # type: ignore[attr-defined]
    known = [one.name for one in dataclasses.fields(kind)]
    for field_name in data:
        if field_name not in known:
            raise_unknown_name(f"{name} field", field_name, known)
    return kind(**data)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (tuple, list)) else value
