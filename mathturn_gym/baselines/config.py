"""What a REINFORCE run is made of, checked, and the presets that learn on one CPU core."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mathturn_gym.errors import InvalidValueError, check_float, check_int, raise_unknown_name

__all__ = ["PRESETS", "ReinforceConfig", "preset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforceConfig:
    """Everything that decides a run: the same config gives the same curve on the same machine.

    Args:
        run_dir: Folder to write.
        problems: Name of a built-in family ("lins", "add1", "guess8") or a `.jsonl` file; trained on its train split.
        validation_problems: What the periodic evaluation plays; None is the family's validation split.
        env_id: Environment id.
        num_turns: Turns of an episode.
        feedback: Feedback mode.
        max_completion_tokens: The most ids of one answer.
        reward_bias: See `mathturn_gym.rewards`.
        model: Folder or hub name of the warm start; None is the built-in one.
        device: Where model and batches are.
        threads: CPU threads of torch during training; 1 is fastest for the built-in model, and makes sums the same
            whatever the machine's number of cores.
        seed: Determines problems, samples and minibatches.
        episodes: The most episodes to train on in all: as many whole iterations as fit, and one at least.
        batch_episodes: Episodes per iteration, each on a problem of its own.
        minibatches: Parts that a batch is split into, each of which is one gradient step.
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
        discount: Per turn, in [0, 1]; 0 lets every turn stand for itself.
        baseline_decay: The baseline of turn k is a running mean of its returns, with this decay per iteration.
        temperature: Of sampling, in training and evaluation.
        eval_every: Iterations between evaluations; 0 evaluates at the start and the end only.
        eval_episodes: Episodes of an evaluation.
        save_every: Iterations between checkpoints; there is always one at the end and after an interrupt.

    Raises:
        InvalidValueError: a value outside its range; the field is named.
    """

    run_dir: str
    problems: str = "lins"
    validation_problems: str | None = None
    env_id: str = "MathMultiTurnUntilCorrect-v0"
    num_turns: int = 4
    feedback: str = "plain"
    max_completion_tokens: int = 8
    reward_bias: float = 0.0
    model: str | None = None
    device: str = "cpu"
    threads: int = 1
    seed: int = 0
    episodes: int = 15_000
    batch_episodes: int = 64
    minibatches: int = 4
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
    discount: float = 0.0
    baseline_decay: float = 0.9
    temperature: float = 1.0
    eval_every: int = 20
    eval_episodes: int = 256
    save_every: int = 20

    def __post_init__(self) -> None:
        """Checks every field that no one else checks."""
        for name in ("run_dir", "problems", "env_id", "feedback", "device"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise InvalidValueError(f"{name} must be a non-empty text, got {value!r}")
        for name in (
            "threads",
            "episodes",
            "batch_episodes",
            "minibatches",
            "epochs",
            "num_turns",
            "max_completion_tokens",
        ):
            check_int(name, getattr(self, name), low=1)
        for name in ("seed", "warmup_iterations", "eval_every", "eval_episodes"):
            check_int(name, getattr(self, name), low=0)
        check_int("save_every", self.save_every, low=1)
        for name in ("learning_rate", "weight_decay", "max_grad_norm", "entropy_weight", "adam_eps"):
            check_float(name, getattr(self, name), low=0.0)
        for name in ("adam_beta2", "clip", "discount", "baseline_decay"):
            check_float(name, getattr(self, name), low=0.0, high=1.0)
        if self.final_learning_rate is not None:
            check_float("final_learning_rate", self.final_learning_rate, low=0.0)
        if check_float("temperature", self.temperature, low=0.0) == 0.0:
            raise InvalidValueError("temperature must be above 0 in training: greedy log-probs are no behaviour")
        if self.minibatches > self.batch_episodes:
            raise InvalidValueError(f"minibatches ({self.minibatches}) exceed batch_episodes ({self.batch_episodes})")

    @property
    def iterations(self) -> int:
        """Number of iterations of the whole run."""
        return max(1, self.episodes // self.batch_episodes)

    def learning_rate_at(self, iteration: int) -> float:
        """The learning rate of an iteration, from 0."""
        rise = min(1.0, (iteration + 1) / (self.warmup_iterations + 1))
        if self.final_learning_rate is None:
            return self.learning_rate * rise
        share = iteration / max(1, self.iterations - 1)
        return rise * (self.learning_rate + (self.final_learning_rate - self.learning_rate) * share)

    def problems_of(self, split: str) -> str:
        """The problems of "train" or "validation"; a file, or a name that has a split already, is left as it is."""
        if split == "validation" and self.validation_problems is not None:
            return self.validation_problems
        named = ":" in self.problems or self.problems.endswith((".jsonl", ".json"))
        return self.problems if named else f"{self.problems}:{split}"

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
    def from_json(cls, data: Mapping[str, Any]) -> ReinforceConfig:
        """The config that `to_json` gave.

        Raises:
            InvalidValueError: a field is unknown (the nearest is suggested) or outside its range.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in data:
            if name not in known:
                raise_unknown_name("config field", name, known)
        return cls(**data)


_ARITHMETIC: Final[Mapping[str, Any]] = {
    "num_turns": 4,
    "batch_episodes": 128,
    "minibatches": 8,
    "epochs": 2,
    "warmup_iterations": 10,
}
PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "lins": {"problems": "lins", **_ARITHMETIC},
    "add1": {"problems": "add1", **_ARITHMETIC, "episodes": 5120},
    "guess8": {
        "problems": "guess8",
        "num_turns": 3,
        "feedback": "hint",
        "discount": 1.0,  # a guess that brings a hint is worth what the hint brings
        "entropy_weight": 0.0,
        "episodes": 6400,
        "epochs": 2,
        "learning_rate": 1.5e-3,
    },
}
"""Tasks that the built-in model learns, each with the settings that were chosen for it on validation problems."""


def preset(name: str, run_dir: str, **changes: Any) -> ReinforceConfig:
    """The config of a preset task.

    Args:
        name: A key of `PRESETS`.
        run_dir: Folder to write.
        **changes: Any field of `ReinforceConfig`.

    Raises:
        InvalidValueError: the name is unknown (the nearest is suggested), or a value is outside its range.

    >>> preset("guess8", "runs/guess", episodes=1000).iterations
    15
    """
    if name not in PRESETS:
        raise_unknown_name("preset", name, PRESETS)
    return ReinforceConfig.from_json({**PRESETS[name], "run_dir": run_dir, **changes})
