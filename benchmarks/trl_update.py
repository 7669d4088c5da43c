"""One update of ours against TRL's `GRPOTrainer`: the same tiny model, the same multi-turn episodes, the same objective.

    python benchmarks/trl_update.py [--out runs/benchmarks/trl_update.json] [--repeats 5] [--episodes 128]

A batch is played on `lins` (4 turns, groups of 4) with the built-in policy and given to both: to ours as it is, to TRL
through its `rollout_func` (prompt, all ids after it, `env_mask` over feedback). Both make the same gradient steps with
it: minibatches of 16 episodes, two passes, clipped objective with an episode's mean over ids, AdamW, norm 1.

* update: forward, loss, backward, optimizer, and each trainer's own metrics. TRL's scoring of the batch beforehand
  (rewards, log-probs of the old policy, which ours has from sampling) is left out, and shown by itself.
* whole: playing included; TRL's `rollout_func` calls the same `collect`, since its own generation knows no turns.

One thread; the two alternate, repeat by repeat, and CPU seconds are compared by their medians. "ids" are all ids of the
episodes, padding not counted; "trained ids" those that the policy sampled: the same numbers for both, so that the
ratio does not depend on which are counted.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is announced as experimental

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from mathturn_gym.baselines import GRPO, RunConfig, load_task
from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.types import Episode


class Clock:
    """CPU seconds of named parts of a run."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def add(self, name: str, seconds: float) -> None:
        """Adds to a part."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its calls added to a part."""

        def run(*args: Any, **kwargs: Any) -> Any:
            began = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.add(name, time.process_time() - began)

        return run


class StepClock(TrainerCallback):
    """Adds up the CPU seconds from a step's begin to its end, the optimizer's step included."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """See `TrainerCallback`."""
        self.began = time.process_time()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """See `TrainerCallback`."""
        self.clock.add("steps", time.process_time() - self.began)


def rollout_of(episodes: Sequence[Episode]) -> dict[str, Any]:
    """What a `rollout_func` of TRL returns for these episodes."""
    out: dict[str, list[Any]] = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": [], "score": []}
    for episode in episodes:
        first = int(episode.turn_spans[0, 0])
        out["prompt_ids"].append(episode.ids[:first].tolist())
        out["completion_ids"].append(episode.ids[first:].tolist())
        out["logprobs"].append(episode.logprobs[first:].tolist())
        out["env_mask"].append(episode.loss_mask[first:].astype(int).tolist())
        out["score"].append(float(episode.rewards.sum()))
    return out


def score(completions: list[Any], score: list[float], **_: Any) -> list[float]:
    """The reward function: what the environment paid."""
    return score


def theirs(ours: Trainer, play: Callable[[], list[Episode]], clock: Clock, folder: str) -> GRPOTrainer:
    """TRL's trainer with the settings of ours, on a copy of its model."""
    config, algorithm = ours.config.optimization, ours.algorithm
    assert isinstance(algorithm, GRPO)
    rows = config.batch_episodes // config.minibatches
    args = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,  # saves memory that this model does not need, and costs a second forward
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        num_generations=algorithm.group_size,
        per_device_train_batch_size=rows,
        steps_per_generation=config.minibatches,
        num_iterations=config.epochs,
        max_steps=config.minibatches * config.epochs,
        max_completion_length=512,
        loss_type="grpo",
        scale_rewards="group",
        epsilon=algorithm.clip,
        beta=0.0,
        entropy_coef=algorithm.entropy_weight,
        temperature=ours.policy.sampling.temperature,
        learning_rate=config.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=config.weight_decay,
        adam_beta2=0.95,  # the defaults of `Optimization`
        adam_epsilon=1e-5,
        max_grad_norm=config.max_grad_norm,
        seed=0,
    )
    trainer = GRPOTrainer(
        model=copy.deepcopy(ours.model),
        args=args,
        reward_funcs=score,
        train_dataset=Dataset.from_dict({"prompt": [f"problem {i}" for i in range(config.batch_episodes)]}),
        processing_class=ours.policy.tokenizer,
        callbacks=[StepClock(clock)],
        rollout_func=lambda prompts, trainer: rollout_of(clock.timed("rollout", play)()),
    )
    trainer.remove_callback(PrinterCallback)
    trainer._generate_and_score_completions = clock.timed("scoring", trainer._generate_and_score_completions)
    return trainer


def measure_theirs(ours: Trainer, play: Callable[[], list[Episode]], folder: str) -> dict[str, float]:
    """CPU seconds of TRL's steps on one batch, by part."""
    clock = Clock()
    trainer = theirs(ours, play, clock, folder)
    trainer.train()
    rollout, scoring = clock.seconds["rollout"], clock.seconds["scoring"] - clock.seconds["rollout"]
    update = clock.seconds["steps"] - clock.seconds["scoring"]
    return {"update": update, "scoring": scoring, "rollout": rollout, "whole": clock.seconds["steps"]}


def measure_ours(ours: Trainer, play: Callable[[], list[Episode]]) -> dict[str, float]:
    """The same for ours; the weights are put back afterwards."""
    kept = {name: tensor.clone() for name, tensor in ours.model.state_dict().items()}
    start = time.process_time()
    episodes = play()
    played = time.process_time()
    batch = ours.credit(episodes)
    scored = time.process_time()
    ours._update_policy(batch, 1.0)
    end = time.process_time()
    ours.model.load_state_dict(kept)
    return {"update": end - scored, "scoring": scored - played, "rollout": played - start, "whole": end - start}


def settings(episodes: int) -> RunConfig:
    changes = {
        "batch_episodes": episodes,
        "minibatches": max(1, episodes // 16),
        "epochs": 2,
        "group_size": 4,
        "evaluation.episodes": 0,
        "policy.device": "cpu",
    }
    return load_task("lins").config("grpo", changes)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", default="runs/benchmarks/trl_update.json")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=128)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = Trainer(settings(args.episodes))
        episodes = ours.play()
        kept, fresh = {"ours": [], "trl": []}, {"ours": [], "trl": []}  # type: ignore[var-annotated]
        for repeat in range(args.repeats + 1):  # the first warms up
            rows = (
                (kept["ours"], measure_ours(ours, lambda: episodes)),
                (kept["trl"], measure_theirs(ours, lambda: episodes, folder)),
                (fresh["ours"], measure_ours(ours, ours.play)),
                (fresh["trl"], measure_theirs(ours, ours.play, folder)),
            )
            for rows_of, row in rows if repeat else ():
                rows_of.append(row)
    report = summary(kept, fresh, episodes, ours)
    print(json.dumps(report, indent=2))
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def summary(
    kept: dict[str, list[dict[str, float]]],
    fresh: dict[str, list[dict[str, float]]],
    episodes: Sequence[Episode],
    ours: Trainer,
) -> dict[str, Any]:
    """Medians, ids per second, ratios."""
    config = ours.config.optimization
    passes = config.epochs
    ids = passes * sum(len(episode.ids) for episode in episodes)
    trained = passes * sum(int(episode.loss_mask.sum()) for episode in episodes)

    def median(rows: list[dict[str, float]], part: str) -> float:
        return statistics.median(row[part] for row in rows)

    def side(name: str) -> dict[str, Any]:
        update, whole = median(kept[name], "update"), median(fresh[name], "whole")
        return {
            "update_cpu_s": update,
            "update_ids_per_s": ids / update,
            "update_trained_ids_per_s": trained / update,
            "scoring_cpu_s": median(kept[name], "scoring"),
            "whole_cpu_s": whole,
            "whole_rollout_share": median(fresh[name], "rollout") / whole,
        }

    sides = {name: side(name) for name in kept}
    ratios = [t["update"] / o["update"] for o, t in zip(kept["ours"], kept["trl"], strict=True)]
    return {
        "versions": {name: version(name) for name in ("trl", "transformers", "torch")},
        "parameters": sum(p.numel() for p in ours.model.parameters()),
        "episodes": len(episodes),
        "gradient_steps": config.minibatches * passes,
        "ids": ids,
        "trained_ids": trained,
        "repeats": len(kept["ours"]),
        **sides,
        "update_ratio": sides["trl"]["update_cpu_s"] / sides["ours"]["update_cpu_s"],
        "update_ratio_range": [min(ratios), max(ratios)],
        "whole_ratio": sides["trl"]["whole_cpu_s"] / sides["ours"]["whole_cpu_s"],
        "goal": 1.5,
    }


if __name__ == "__main__":
    main()
