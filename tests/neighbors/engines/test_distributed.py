"""Several ranks are one process: the same episodes, losses, gradients, curves and checkpoints."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from mathturn_gym.baselines import Optimization, train
from mathturn_gym.baselines.batches import select_episodes
from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.errors import EngineError, InvalidValueError
from mathturn_gym.neighbors.engines.distributed import DistributedTrainer, DistributedTraining

SCRIPT = Path(__file__).with_name("two_ranks.py")
_spec = importlib.util.spec_from_file_location("two_ranks", SCRIPT)
assert _spec is not None and _spec.loader is not None  # noqa: PT018
two_ranks: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(two_ranks)

MANY = pytest.mark.skipif(
    "MATHTURN_ENGINES" not in os.environ, reason="ranks are processes of their own: `make test-engines` runs this"
)


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(("rows", "most"), [(18, None), (9, None), (3, None), (18, 70), (17, 1), (4, 1)])
def test_the_shares_of_three_ranks_add_up(rows: int, most: int | None) -> None:
    """Three ranks one after the other: what each would send, added up."""
    config = two_ranks.run_config()
    if most is not None:
        bounded = dataclasses.replace(config.optimization, accumulate=1, micro_batch_tokens=most)
        config = dataclasses.replace(config, optimization=bounded)
    trainer = DistributedTraining().prepare(config)
    assert isinstance(trainer, DistributedTrainer)
    alone = Trainer(trainer.config, trainer.policy)
    batch = select_episodes(trainer.credit(trainer.play()), np.arange(rows))
    expected_loss, expected = two_ranks.gradients(alone, batch)
    loss, found = 0.0, {name: torch.zeros_like(one) for name, one in expected.items()}
    trainer.ranks = 3
    seen, counts = 0, set()
    for rank in range(3):
        trainer.rank = rank
        parts = trainer.parts(batch)
        counts.add(len(parts))
        assert most is not None or len(parts) == min(2, rows // 3)
        for part in parts:
            seen += part.num_rows if part.loss_mask.any() else 0
            assert most is None or part.num_rows == 1 or part.input_ids.numel() <= most
            out = trainer.loss_of(part, batch)
            out.loss.backward()  # type: ignore[no-untyped-call]
            loss += float(out.loss.detach())
        for name, one in trainer.model.named_parameters():
            found[name] += one.grad
            one.grad = None
    assert seen == rows
    assert len(counts) == 1, "sharded weights are gathered by all ranks together"
    assert counts != {1} or rows == 3
    assert loss == pytest.approx(expected_loss, abs=1e-6)
    for name, one in expected.items():
        assert torch.allclose(found[name], one, rtol=0.0, atol=1e-6), name
    trainer.close()


@pytest.mark.usefixtures("one_rank")
def test_gradients_are_added_up_in_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a rank that is followed by another one with the same gradients."""
    monkeypatch.setattr("mathturn_gym.neighbors.engines.distributed._BUCKET_BYTES", 100)
    sent: list[int] = []

    def twice(flat: torch.Tensor) -> None:
        sent.append(flat.numel())
        flat.mul_(2)

    monkeypatch.setattr(dist, "all_reduce", twice)
    parameters = [torch.nn.Parameter(torch.randn(size)) for size in (20, 20, 5, 7)]
    for number, one in enumerate(parameters[:-1]):
        one.grad = torch.full_like(one, float(number + 1))
    DistributedTrainer.sum_gradients(None, parameters)  # type: ignore[arg-type]
    assert sent == [40, 12]
    assert [float(one.grad.max()) for one in parameters if one.grad is not None] == [2.0, 4.0, 6.0, 0.0]


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("shard", "options", "message"),
    [
        (True, {"optimizer": "adamw8bit"}, "optimizer 'adamw8bit' keeps its state whole"),
    ],
)
def test_options_that_ranks_do_not_share(shard: bool, options: dict[str, Any], message: str) -> None:
    given = Optimization(**{"batch_episodes": 18, **options})
    with pytest.raises(InvalidValueError, match=message):
        DistributedTraining(shard=shard).prepare(two_ranks.run_config(optimization=given))


@pytest.mark.usefixtures("one_rank")
def test_more_ranks_than_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: 10)
    with pytest.raises(InvalidValueError, match="each of 10 ranks needs a row of every minibatch"):
        DistributedTraining().prepare(two_ranks.run_config())


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), 1e9])
def test_a_time_out_is_some_seconds(seconds: float) -> None:
    with pytest.raises(InvalidValueError, match="timeout must be"):
        DistributedTraining(timeout=seconds)


def test_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(EngineError, match=r"RANK is not set: start the program with torchrun"):
        DistributedTraining().prepare(two_ranks.run_config())


@MANY
@pytest.mark.parametrize("options", [[], ["--shard"]], ids=["replicated", "sharded"])
def test_two_ranks_are_one_process(tmp_path: Path, options: list[str]) -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        str(SCRIPT),
        str(tmp_path),
        *options,
    ]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    for found in ranks:
        assert {name: value for name, value in found.items() if name.endswith("episodes") and not value} == {}
        assert {name: v for name, v in found.items() if name.endswith(("loss", "gradient")) and v > 1e-6} == {}
    assert ranks[0]["weights"] == ranks[1]["weights"]
    alone = train(two_ranks.run_config(), run_dir=tmp_path / "alone")
    for one, other in zip(alone.history, ranks[0]["history"], strict=True):
        for name in ("train/loss", "train/acc@1", "train/grad_norm", "validation/acc@1", "tokens"):
            assert one.get(name) == pytest.approx(other.get(name), abs=1e-4), name
    # What two ranks have saved, one process goes on from.
    longer = two_ranks.run_config(budget=two_ranks.Budget(episodes=72))
    resumed = train(longer, run_dir=tmp_path / "run", resume=True)
    assert resumed.history[-1]["train/loss"] == pytest.approx(
        train(longer, run_dir=tmp_path / "alone", resume=True).history[-1]["train/loss"], abs=1e-4
    )
