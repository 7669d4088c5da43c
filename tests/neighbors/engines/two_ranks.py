"""What `test_distributed.py` runs on several ranks: `torchrun … two_ranks.py OUT`. Each rank writes what it has found."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mathturn_gym.baselines import GRPO, Budget, Evaluation, Optimization, RunConfig, TurnPPO, train
from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.env.config import EnvConfig
from mathturn_gym.neighbors.engines.distributed import DistributedTrainer, DistributedTraining


def run_config(**changes: Any) -> RunConfig:
    """A run of three iterations; nine episodes are no even share of two ranks."""
    values: dict[str, Any] = {
        "env": EnvConfig(problems="lins", num_turns=2, max_completion_tokens=32),
        "algorithm": GRPO(group_size=3, entropy_weight=0.01, kl_weight=0.02),
        "budget": Budget(episodes=54),
        "optimization": Optimization(batch_episodes=18, minibatches=2, epochs=2, accumulate=2, learning_rate=1e-3),
        "evaluation": Evaluation(every=0, episodes=7),
        "save_every": 1,
        "seed": 3,
    }
    return RunConfig(**{**values, **changes})


def gradients(trainer: Trainer, batch: Any) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss of a minibatch, and every parameter's gradient."""
    trainer.model.train()
    outs, parts = [], trainer.parts(batch)
    for part in parts:
        out = trainer.loss_of(part, batch)
        out.loss.backward()  # type: ignore[no-untyped-call]
        outs.append(out.metrics())
    named = dict(trainer.model.named_parameters())
    trainer.sum_gradients(named.values())
    found = {name: one.grad.clone() for name, one in named.items() if one.grad is not None}
    trainer.model.zero_grad()
    return trainer.merged(outs, [part.count("token") for part in parts])["loss"], found


def main(out: Path, *, shard: bool) -> None:
    """Compares what the ranks compute together with what this one computes alone."""
    engine = DistributedTraining(backend="gloo", shard=shard)
    found: dict[str, Any] = {}
    algorithms = {"grpo": GRPO(group_size=3, entropy_weight=0.01, kl_weight=0.02), "ppo": TurnPPO()}
    for name, algorithm in algorithms.items():
        if shard and name == "ppo":
            continue
        config = run_config(algorithm=algorithm)
        together = engine.prepare(config)
        assert isinstance(together, DistributedTrainer)
        alone = Trainer(together.config)
        episodes = together.play()
        expected = alone.play()
        found[f"{name} episodes"] = [one.ids.tolist() for one in episodes] == [one.ids.tolist() for one in expected]
        for rows in (18, 9, 3):  # of 3, two ranks have 2 and 1
            batch = together.credit(episodes[:rows])
            loss, mine = gradients(together, batch)
            reference, theirs = gradients(alone, batch)
            found[f"{name} {rows} loss"] = abs(loss - reference)
            found[f"{name} {rows} gradient"] = max(
                float((_whole(mine[one]) - theirs[one]).abs().max()) for one in theirs
            )
        together.close()
        alone.close()
    result = train(run_config(), run_dir=out / "run", engine=engine)
    found["history"] = list(result.history)
    found["weights"] = {
        name: float(_whole(one).double().sum()) for name, one in result.policy.model.state_dict().items()
    }
    (out / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def _whole(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), shard="--shard" in sys.argv)
