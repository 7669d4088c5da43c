"""What is done to a batch between credit and loss, by options that all algorithms share.

mask_cut_off          answers that their budget cut off are not learned from (DAPO's overlong filtering, Yu et al.
                      2025, arXiv:2503.14476, section 3.4)
recompute_logprobs    ratios are taken to what the *trainer's* pass gives the policy as it is, not to what the
                      sampler noted: kernels and precision differ between the two
importance_cap        what the sampler did otherwise is corrected by the importance weight p_trainer / p_sampler of a
                      token, a turn or a whole sequence; a weight over the cap becomes the cap ("clip": Yao et al.
                      2025, "Your efficient RL framework secretly brings you off-policy RL training"; Espeholt et al.
                      2018, arXiv:1802.01561) or 0 ("mask")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from mathturn_gym.baselines._rows import episode_of_rows
from mathturn_gym.losses import kl_divergence

if TYPE_CHECKING:
    from mathturn_gym.baselines._session import Metrics
    from mathturn_gym.baselines._trainer import Trainer
    from mathturn_gym.baselines.settings import ImportanceLevel
    from mathturn_gym.packing import PackedBatch

__all__ = ["corrected", "without_cut_off"]


def corrected(batch: PackedBatch, trainer: Trainer) -> tuple[PackedBatch, Metrics]:
    """The batch that losses see, and what the corrections found.

    Args:
        batch: With its advantages, before the first gradient step.
        trainer: Of the run.
    """
    options = trainer.config.optimization
    if options.mask_cut_off:
        batch = without_cut_off(batch)
    if not trainer.recomputes or not bool(batch.loss_mask.any()):
        return batch, {}
    now = trainer.policy_logprobs(batch)
    gap = torch.where(batch.loss_mask, now - batch.behavior_logprobs, 0.0)
    found = gap[batch.loss_mask]
    figures = {
        "mismatch_mean": float(found.abs().mean()),
        "mismatch_max": float(found.abs().max()),
        "mismatch_kl": float(
            kl_divergence(batch.behavior_logprobs[batch.loss_mask], now[batch.loss_mask], "k3").mean()
        ),
    }
    changes = {"behavior_logprobs": now}
    if options.importance_cap is not None:
        # A constant weight of a token's loss is the same as a weight of its advantage: clipping compares r * A with
        # clamp(r) * A, and both are multiplied by it.
        weights = importance_weights(found, batch, options.importance_level)
        over = weights > options.importance_cap
        held = torch.where(over, options.importance_cap if options.importance_mode == "clip" else 0.0, weights)
        changes["advantages"] = batch.advantages.masked_scatter(
            batch.loss_mask, (batch.advantages[batch.loss_mask] * held).to(batch.advantages.dtype)
        )
        figures["importance_capped"] = float(over.float().mean())
    return batch.replace_tensors(changes), figures


def importance_weights(gap: torch.Tensor, batch: PackedBatch, level: ImportanceLevel) -> torch.Tensor:
    """What each trained token's loss is multiplied by, not yet held at a cap.

    Args:
        gap: Float (M,), log p_trainer - log p_sampler of each trained token, in the order of the loss mask.
        batch: Whose tokens these are.
        level: "token"; or all tokens of a turn or of an episode have the product of their ratios.
    """
    count, segment = batch.segments(level)
    return gap.new_zeros(count).index_add(0, segment, gap).exp()[segment]


def without_cut_off(batch: PackedBatch) -> PackedBatch:
    """The batch without the tokens of turns that their budget cut off."""
    width = int(batch.facts.turns.max(initial=0)) + 1
    kept = np.ones((batch.num_rows, width), np.bool_)
    for row, episode in enumerate(episode_of_rows(batch).tolist()):
        flags = batch.facts[episode]["turn_truncated"]
        kept[row, : len(flags)] = ~np.asarray(flags, np.bool_)
    table = torch.from_numpy(kept).to(batch.device)
    rows = torch.arange(batch.num_rows, device=batch.device)[:, None].expand_as(batch.turn_index)
    return batch.replace_tensors({"loss_mask": batch.loss_mask & table[rows, batch.turn_index.long().clamp(min=0)]})
