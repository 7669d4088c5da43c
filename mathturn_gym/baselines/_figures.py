"""Figures of a batch that no loss needs and that tell what goes wrong: length by verdict, advantage by turn, staleness."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mathturn_gym.types import Episode

if TYPE_CHECKING:
    from mathturn_gym.baselines._session import Metrics
    from mathturn_gym.packing import PackedBatch

__all__ = ["batch_figures"]


def batch_figures(episodes: Sequence[Episode], batch: PackedBatch, version: int) -> Metrics:
    """What an iteration's batch looks like.

    Args:
        episodes: Those that were sampled.
        batch: What is learned from, with its advantages.
        version: Of the policy that learns.

    Returns:
        `tokens_right`, `tokens_wrong`, `tokens_no_answer`, `tokens_undecided`: mean length of the turns with that verdict,
        where there are any (answers that only grow longer while they are wrong: a budget is being used up).
        `advantage@k`: mean advantage of the tokens of turn k (far from 0: the baseline does not fit that turn).
        `staleness`, `staleness_max`: updates between the weights that sampled a token and those that learn from it.
    """
    lengths: dict[str, list[int]] = defaultdict(list)
    for episode in episodes:
        for (start, end), verdict in zip(episode.turn_spans.tolist(), episode.verdicts, strict=True):
            lengths[verdict.status.value].append(end - start)
    figures = {f"tokens_{status}": float(np.mean(found)) for status, found in sorted(lengths.items())}
    mask = batch.loss_mask
    if not bool(mask.any()):
        return figures
    turn, advantage, age = batch.turn_index[mask], batch.advantages[mask], version - batch.versions[mask]
    for k in sorted(set(turn.tolist())):
        figures[f"advantage@{k + 1}"] = float(advantage[turn == k].mean())
    return {**figures, "staleness": float(age.float().mean()), "staleness_max": float(age.max())}
