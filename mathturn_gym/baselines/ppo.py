"""PPO over tokens, with a separate critic (Schulman et al. 2017, arXiv:1707.06347).

An id is an action, a turn's reward falls on its last id, and `gae_lambda` counts ids (Schulman et al. 2016,
arXiv:1506.02438). The discount is applied where one turn ends and the next begins, and nowhere else, so that it means
what it does for the other algorithms. An episode cut off by its context is continued by the critic's value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from mathturn_gym.baselines.critic import CriticTrainer
from mathturn_gym.packing import PackedBatch
from mathturn_gym.types import Episode

__all__ = ["PPO", "token_gae"]


class PPO(CriticTrainer):
    """PPO over tokens; see the module."""

    def judge(self, episodes: Sequence[Episode], batch: PackedBatch, values_BT: torch.Tensor) -> PackedBatch:
        """GAE over the ids of each episode, normalized over the batch's ids."""
        advantages, returns = np.zeros(values_BT.shape), np.zeros(values_BT.shape)
        mask_BT = batch.loss_mask.cpu().numpy()
        for row, episode in enumerate(episodes):
            at = np.flatnonzero(mask_BT[row])
            values = values_BT[row].double().numpy()
            found = token_gae(
                values[at - 1],
                np.diff(episode.turn_spans, axis=1)[:, 0],
                episode.rewards,
                self.config.discount,
                self.config.gae_lambda,
                float(values[len(episode.ids) - 1]) if episode.truncated else 0.0,
            )
            advantages[row, at], returns[row, at] = found, found + values[at - 1]
        if mask_BT.any():
            chosen = advantages[mask_BT]
            advantages[mask_BT] = (chosen - chosen.mean()) / (chosen.std() + 1e-6)
        return batch.replace_tensors(
            {
                "advantages": torch.from_numpy(advantages.astype(np.float32)).to(batch.device),
                "returns": torch.from_numpy(returns.astype(np.float32)).to(batch.device),
            }
        )

    def judged(self, part: PackedBatch) -> torch.Tensor:
        """Every id that was sampled."""
        return part.loss_mask


def token_gae(
    values: npt.NDArray[np.float64],
    lengths: npt.NDArray[np.int64],
    rewards: npt.ArrayLike,
    discount: float,
    gae_lambda: float,
    last_value: float = 0.0,
) -> npt.NDArray[np.float64]:
    """Generalized advantages of the ids of one episode.

    Args:
        values: float64 (n,); the value of the context before each sampled id.
        lengths: int64 (K,), adding up to n; ids of each turn. A turn without ids passes its reward on to the one before.
        rewards: (K,); each falls on its turn's last id.
        discount: Between the last id of a turn and the next turn.
        gae_lambda: Per id.
        last_value: What follows the last turn; 0 unless the episode was truncated.

    Returns:
        float64 (n,).

    >>> token_gae(np.array([0.5, 0.5, 0.0]), np.array([2, 1]), [0.0, 1.0], discount=1.0, gae_lambda=1.0).tolist()
    [0.5, 0.5, 1.0]
    """
    result = np.zeros(len(values))
    at, following, ahead = len(values), last_value, 0.0  # value and advantage of what comes next
    for length, reward in zip(lengths[::-1], np.asarray(rewards, np.float64)[::-1], strict=True):
        following, ahead = reward + discount * following, discount * ahead
        for _ in range(length):
            at -= 1
            ahead = following - values[at] + gae_lambda * ahead
            result[at], following = ahead, values[at]
    return result
