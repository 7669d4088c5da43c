"""What a training run is made of, checked; the same options for every algorithm."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from mathturn_gym.baselines.tasks import PRESETS, TUNED
from mathturn_gym.errors import InvalidValueError, check_float, check_int, raise_unknown_name
from mathturn_gym.returns import Estimator

__all__ = ["ALGORITHM_NAMES", "PRESETS", "TrainConfig", "preset"]

ALGORITHM_NAMES: Final = (
    "reinforce",
    "reinforce_pp",
    "rloo",
    "grpo",
    "dr_grpo",
    "gspo",
    "ppo",
    "turn_ppo",
    "rft",
)
"""The trainers of language models, one module of `mathturn_gym.baselines` each."""

_CENTERED_BY_GROUP: Final = ("rloo", "grpo", "dr_grpo", "gspo")
_PRECISIONS: Final = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Everything that decides a run: the same config gives the same curve on the same machine.

    Args:
        run_dir: Folder to write.
        algorithm: One of `ALGORITHM_NAMES`.
        problems: Name of a built-in family ("lins", "add1", "guess8"), a mixture, a `.jsonl` file, or
            "curriculum:FAMILY,FAMILY@1-3" (see `mathturn_gym.problems.Curriculum`); trained on its train split.
        validation_problems: What the periodic evaluation plays; None is the family's validation split.
        env_id: Environment id.
        num_turns: Turns of an episode.
        feedback: Feedback mode.
        max_completion_tokens: The most ids of one answer.
        reward_bias: See `mathturn_gym.rewards`.
        model: Folder or hub name of the warm start; None is the built-in one.
        random_weights: Begin with random weights in the built-in model's shape instead of a warm start.
        answers_only: Sample boxed whole numbers alone (`mathturn_gym.decoding.grammar`).
        device: Where model and batches are.
        precision: "float32", or "bfloat16" for autocast around sampling and training (weights stay float32).
        threads: CPU threads of torch during training; 1 is fastest for the built-in model, and makes sums the same
            whatever the machine's number of cores.
        seed: Determines problems, samples and minibatches.
        episodes: The most episodes to train on in all: as many whole iterations as fit, and one at least. None for no
            such limit.
        budget_tokens: The run ends with the iteration in which this many ids have been sampled; None for no limit.
        budget_cpu_s: The same for CPU seconds spent on training, evaluations not counted.
        batch_episodes: Episodes per iteration.
        group_size: Episodes per problem; batch_episodes must be a multiple. Algorithms that center rewards by their
            group need 2 at least.
        minibatches: Parts that a batch is split into, each of which is one gradient step.
        accumulate: Parts that a minibatch is split into, whose gradients are added up: less memory, the same step.
        epochs: Passes over a batch, each split anew.
        learning_rate: AdamW's.
        warmup_iterations: Iterations over which the learning rate rises from near zero: AdamW's first steps are as long
            as its later ones, with nothing known yet of the gradients' sizes, and cost accuracy.
        final_learning_rate: Reached linearly at the end of the run; None keeps it constant.
        weight_decay: AdamW's.
        adam_beta2: AdamW's decay of squared gradients.
        adam_eps: AdamW's epsilon. Ids that are hardly ever sampled have tiny gradients; with torch's 1e-8 AdamW would
            move their embeddings as far per step as all others, and the answers' format drifts.
        max_grad_norm: Gradients are scaled down to this norm.
        clip: Width of the ratio's clipping (PPO's; it matters from the second minibatch on).
        entropy_weight: Nats of entropy per token are worth this much loss.
        kl_weight: Nats of KL from the warm start per token (k3) cost this much loss; 0 needs no reference model.
        discount: Per turn, in [0, 1]; 0 lets every turn stand for itself.
        estimator: Replaces the algorithm's own estimator of advantages (`mathturn_gym.returns`); for ablations.
        scale_advantages: Divide the batch's advantages by their standard deviation (rloo and dr_grpo; the others are
            defined with or without it).
        baseline_decay: "reinforce": the baseline of turn k is a running mean of its returns, with this decay per
            iteration.
        critic_learning_rate: "ppo", "turn_ppo": of the separate critic, scheduled like the policy's.
        gae_lambda: "ppo" (per token), "turn_ppo" (per turn).
        temperature: Of sampling, in training and evaluation.
        eval_every: Iterations between evaluations; 0 evaluates at the start and the end only.
        eval_episodes: Episodes of an evaluation.
        patience: Evaluations without a better accuracy after which the run stops early; 0 never does.
        save_every: Iterations between checkpoints; there is always one at the end and after an interrupt.
        wandb_project: Also log to this Weights & Biases project (needs `pip install 'mathturn-gym[wandb]'`).

    Raises:
        InvalidValueError: a value outside its range; the field is named.
    """

    run_dir: str
    algorithm: str = "reinforce"
    problems: str = "lins"
    validation_problems: str | None = None
    env_id: str = "MathMultiTurnUntilCorrect-v0"
    num_turns: int = 4
    feedback: str = "plain"
    max_completion_tokens: int = 8
    reward_bias: float = 0.0
    model: str | None = None
    random_weights: bool = False
    answers_only: bool = False
    device: str = "cpu"
    precision: str = "float32"
    threads: int = 1
    seed: int = 0
    episodes: int | None = 15_000
    budget_tokens: int | None = None
    budget_cpu_s: float | None = None
    batch_episodes: int = 64
    group_size: int = 1
    minibatches: int = 4
    accumulate: int = 1
    epochs: int = 1
    learning_rate: float = 1e-3
    warmup_iterations: int = 20
    final_learning_rate: float | None = 1e-4
    weight_decay: float = 0.0
    adam_beta2: float = 0.95
    adam_eps: float = 1e-5
    max_grad_norm: float = 1.0
    clip: float = 0.2
    entropy_weight: float = 0.005
    kl_weight: float = 0.0
    discount: float = 0.0
    estimator: str | None = None
    scale_advantages: bool = True
    baseline_decay: float = 0.9
    critic_learning_rate: float = 1e-3
    gae_lambda: float = 0.95
    temperature: float = 1.0
    eval_every: int = 20
    eval_episodes: int = 256
    patience: int = 0
    save_every: int = 20
    wandb_project: str | None = None

    def __post_init__(self) -> None:
        """Checks every field that no one else checks."""
        for name in ("run_dir", "problems", "env_id", "feedback", "device"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise InvalidValueError(f"{name} must be a non-empty text, got {value!r}")
        for name, allowed in (
            ("algorithm", ALGORITHM_NAMES),
            ("precision", _PRECISIONS),
            ("estimator", (None, *get_args(Estimator))),
        ):
            if getattr(self, name) not in allowed:
                raise_unknown_name(name, getattr(self, name), [one for one in allowed if one is not None])
        for name in ("random_weights", "answers_only", "scale_advantages"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
        self._check_numbers()
        self._check_together()

    def _check_numbers(self) -> None:
        """Every number is in its range."""
        counts = "threads batch_episodes group_size minibatches accumulate epochs num_turns max_completion_tokens"
        for name in (*counts.split(), "save_every"):
            check_int(name, getattr(self, name), low=1)
        for name in ("episodes", "budget_tokens"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), low=1)
        if self.budget_cpu_s is not None and check_float("budget_cpu_s", self.budget_cpu_s, low=0.0) == 0.0:
            raise InvalidValueError("budget_cpu_s must be above 0, got 0.0")
        for name in ("seed", "warmup_iterations", "eval_every", "eval_episodes", "patience"):
            check_int(name, getattr(self, name), low=0)
        at_least_0 = "learning_rate weight_decay max_grad_norm entropy_weight kl_weight adam_eps critic_learning_rate"
        for name in at_least_0.split():
            check_float(name, getattr(self, name), low=0.0)
        for name in ("adam_beta2", "clip", "discount", "baseline_decay", "gae_lambda"):
            check_float(name, getattr(self, name), low=0.0, high=1.0)
        if self.final_learning_rate is not None:
            check_float("final_learning_rate", self.final_learning_rate, low=0.0)
        if check_float("temperature", self.temperature, low=0.0) == 0.0:
            raise InvalidValueError("temperature must be above 0 in training: greedy log-probs are no behavior")

    def _check_together(self) -> None:
        """Fields that are right by themselves may still not go together."""
        if self.episodes is None and self.budget_tokens is None and self.budget_cpu_s is None:
            raise InvalidValueError("episodes, budget_tokens and budget_cpu_s are all None: the run would never end")
        if self.minibatches * self.accumulate > self.batch_episodes:
            raise InvalidValueError(
                f"minibatches ({self.minibatches}) x accumulate ({self.accumulate}) exceed"
                f" batch_episodes ({self.batch_episodes})"
            )
        if self.batch_episodes % self.group_size:
            raise InvalidValueError(
                f"batch_episodes ({self.batch_episodes}) must be a multiple of group_size ({self.group_size})"
            )
        if self.algorithm in _CENTERED_BY_GROUP and self.group_size < 2:
            raise InvalidValueError(
                f"algorithm {self.algorithm!r} centers rewards by their group: group_size must be 2 at least, got 1"
            )
        if self.random_weights and self.model is not None:
            raise InvalidValueError(f"random_weights leaves no use for model {self.model!r}: give one of the two")
        if self.patience and not (self.eval_every and self.eval_episodes):
            raise InvalidValueError("patience counts evaluations: eval_every and eval_episodes must not be 0")

    @property
    def iterations(self) -> int | None:
        """Number of iterations that `episodes` allows; None for no limit."""
        return None if self.episodes is None else max(1, self.episodes // self.batch_episodes)

    def share_done(self, iteration: int, tokens: int) -> float:
        """How much of the run lies behind, 0 to 1, where an iteration begins; the same each time: no seconds count.

        Args:
            iteration: The iteration, from 0.
            tokens: Ids sampled before it.
        """
        by_tokens = 0.0 if self.budget_tokens is None else tokens / self.budget_tokens
        by_iterations = 0.0 if self.iterations is None else iteration / max(1, self.iterations - 1)
        return min(1.0, max(by_tokens, by_iterations))

    def schedule(self, iteration: int, tokens: int) -> float:
        """What the learning rate is multiplied with in an iteration, from 0, that begins after `tokens` ids.

        A linear rise over `warmup_iterations`, and a linear way to `final_learning_rate` over the run.
        """
        rise = min(1.0, (iteration + 1) / (self.warmup_iterations + 1))
        if self.final_learning_rate is None or not self.learning_rate:
            return rise
        return rise * (1.0 + (self.final_learning_rate / self.learning_rate - 1.0) * self.share_done(iteration, tokens))

    def problems_of(self, split: str) -> Any:
        """The source that is played of a split; a curriculum is a new one each time, without a history.

        Args:
            split: "train", "validation" or "test".
        """
        from mathturn_gym.problems import load_problems

        if split == "validation" and self.validation_problems is not None:
            return load_problems(self.validation_problems)
        return load_problems(self.problems, split)

    def env_kwargs(self, split: str) -> dict[str, Any]:
        """Keywords of `gym.make_vec`, but for the tokenizer."""
        return {
            "problems": self.problems_of(split),
            "num_turns": self.num_turns,
            "feedback": self.feedback,
            "max_completion_tokens": self.max_completion_tokens,
            "reward_bias": self.reward_bias,
        }

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrainConfig:
        """The config that `to_json` gave.

        Raises:
            InvalidValueError: a field is unknown (the nearest is suggested) or outside its range.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in data:
            if name not in known:
                raise_unknown_name("config field", name, known)
        return cls(**data)


def preset(name: str, run_dir: str, *, algorithm: str = "reinforce", **changes: Any) -> TrainConfig:
    """The config of a preset task.

    Args:
        name: A key of `PRESETS`.
        run_dir: Folder to write.
        algorithm: One of `ALGORITHM_NAMES`; it brings the settings that were tuned for it.
        **changes: Any other field of `TrainConfig`.

    Raises:
        InvalidValueError: a name is unknown (the nearest is suggested), or a value is outside its range.

    >>> preset("guess8", "runs/guess", episodes=1000).iterations
    15
    >>> preset("lins", "runs/lins", algorithm="grpo").group_size
    2
    """
    if name not in PRESETS:
        raise_unknown_name("preset", name, PRESETS)
    if algorithm not in ALGORITHM_NAMES:
        raise_unknown_name("algorithm", algorithm, ALGORITHM_NAMES)
    tuned = {**PRESETS[name], **TUNED.get((algorithm, None), {}), **TUNED.get((algorithm, name), {})}
    return TrainConfig.from_json({**tuned, "run_dir": run_dir, "algorithm": algorithm, **changes})
