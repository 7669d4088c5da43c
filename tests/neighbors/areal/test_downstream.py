"""Our batch against what the original's trainer made of the same trajectories."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from areal_replay import collect_episodes, tokenizers_beside

from mathturn_gym.episodes.packing import PackedBatch, pack
from mathturn_gym.episodes.packing.selection import select_rows
from mathturn_gym.types import Episode

GoldenPath = Callable[[str], Path]
NAMES = ("t2_batch", "t4_batch", "t5_batch")


def load(shared: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((shared / "golden" / "downstream" / f"{name}.json").read_text())
    return content


def episodes_of(recorded: dict[str, Any], golden_path: GoldenPath) -> list[Episode]:
    """The batch's episodes, played through the environment and ReturnsWrapper."""
    episodes = []
    for name in recorded["samples"]:
        path = golden_path(name)
        recording = json.loads(path.read_text())
        calls = [outputs["env_calls"] for outputs in recording["outputs"]["episodes"]]
        episodes += collect_episodes(recording["inputs"], tokenizers_beside(path), calls)
    return episodes


def batch_of(episodes: list[Episode], advantages: list[Any] | None = None) -> PackedBatch:
    """One row per turn. With a token discount and lambda of 1, no KL and no value, an id's advantage is its return."""
    chosen = [episode.returns for episode in episodes] if advantages is None else advantages
    return pack(episodes, layout="turns", form="varlen", advantages=chosen)  # type: ignore[arg-type]


def predicted(batch: PackedBatch, values: torch.Tensor) -> torch.Tensor:
    """Values of the ids that something predicts: every row without its first."""
    keep = torch.ones(batch.num_tokens, dtype=torch.bool)
    keep[batch.cu_seqlens[:-1].long()] = False
    return values[0, keep]


@pytest.mark.parametrize("name", NAMES)
def test_batch_has_the_trainers_tokens_masks_and_advantages(name: str, shared: Path, golden_path: GoldenPath) -> None:
    recorded = load(shared, name)
    batch = batch_of(episodes_of(recorded, golden_path))
    assert batch.input_ids[0].tolist() == recorded["packed_input_ids"]
    assert batch.cu_seqlens.tolist() == recorded["cu_seqlens"]
    theirs = recorded["adv_norm_false"]
    mask = predicted(batch, batch.loss_mask)
    assert mask.tolist() == theirs["ppo_loss_mask"]
    assert predicted(batch, batch.behavior_logprobs).tolist() == theirs["old_logp"]
    advantages = predicted(batch, batch.advantages)[mask]
    assert advantages.tolist() == torch.tensor(theirs["advantages"])[mask].tolist()
    assert len(set(advantages.tolist())) > 1


@pytest.mark.parametrize("name", NAMES)
def test_normalised_advantages_are_the_trainers(name: str, shared: Path, golden_path: GoldenPath) -> None:
    """The trainer centres over trained tokens and divides by their (biased) deviation + 1e-5."""
    recorded = load(shared, name)
    batch = batch_of(episodes_of(recorded, golden_path))
    own = predicted(batch, batch.advantages)[predicted(batch, batch.loss_mask)].double()
    normalised = (own - own.mean()) / (own.std(correction=0) + 1e-5)
    theirs = torch.tensor(recorded["adv_norm_true"]["advantages"])[predicted(batch, batch.loss_mask)].double()
    assert float((normalised - theirs).abs().max()) < 2e-7


@pytest.mark.parametrize("name", NAMES)
def test_cut_off_turns_can_be_made_worth_nothing(name: str, shared: Path, golden_path: GoldenPath) -> None:
    recorded = load(shared, name)
    episodes = episodes_of(recorded, golden_path)
    worth = [np.where(episode.turn_truncated, 0.0, episode.returns) for episode in episodes]  # type: ignore[arg-type]
    batch = batch_of(episodes, worth)
    mask = predicted(batch, batch.loss_mask)
    theirs = torch.tensor(recorded["mask_no_eos_with_zero"]["advantages"])[mask]
    assert predicted(batch, batch.advantages)[mask].tolist() == theirs.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_cut_off_turns_can_be_left_out(name: str, shared: Path, golden_path: GoldenPath) -> None:
    recorded = load(shared, name)
    episodes = episodes_of(recorded, golden_path)
    cut_off = [flag for episode in episodes for flag in episode.turn_truncated]
    kept = select_rows(batch_of(episodes), [row for row, flag in enumerate(cut_off) if not flag])
    theirs = recorded["mask_too_long"]
    assert int(kept.loss_mask.sum()) == sum(theirs["ppo_loss_mask"])
    trained = torch.tensor(theirs["advantages"])[torch.tensor(theirs["ppo_loss_mask"])]
    assert kept.advantages[kept.loss_mask].tolist() == trained.tolist()
