"""Figures of a batch, counted by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from mathturn_gym.baselines import RunConfig
from mathturn_gym.baselines.batches import batch_metrics
from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.episodes.packing import pack
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Status, Verdict


def test_by_hand() -> None:
    long = dataclasses.replace(
        synthetic_episode(0, 0, [5, 3]), verdicts=(Verdict(Status.NO_ANSWER), Verdict(Status.RIGHT))
    )
    short = dataclasses.replace(synthetic_episode(0, 1, [1]), verdicts=(Verdict(Status.NO_ANSWER),))
    aged = [
        dataclasses.replace(episode, versions=np.where(episode.loss_mask, age, -1).astype(np.int32))
        for episode, age in ((long, 2), (short, 5))
    ]
    batch = pack(aged, advantages=[[1.0, -0.5], [-2.0]])
    found = batch_metrics(aged, batch, version=5)
    assert found == pytest.approx(
        {
            "tokens_no_answer": 3.0,
            "tokens_right": 3.0,
            "advantage@1": (5 * 1.0 - 2.0) / 6,
            "advantage@2": -0.5,
            "staleness": 8 * 3 / 9,
            "staleness_max": 3.0,
        }
    )


def test_every_iteration_logs_them(small: Callable[..., RunConfig]) -> None:
    trainer = Trainer(small("ppo", {"minibatches": 2, "epochs": 2, "evaluation.episodes": 0, "evaluation.every": 0}))
    try:
        figures = trainer.step()
    finally:
        trainer.close()
    assert (figures["train/staleness"], figures["train/staleness_max"]) == (0.0, 0.0)
    assert figures["train/ratio_max"] >= figures["train/ratio_mean"]
    assert figures["train/ratio_max"] > 1.0, "of all gradient steps"
    named = {"advantage@1", "advantage@2", "critic_explained_variance", "clip_fraction", "grad_norm", "kl", "entropy"}
    assert {f"train/{name}" for name in named} <= set(figures)
    assert any(name.startswith("train/tokens_") for name in figures)
