"""Batches between `credit` and `loss`: their metrics, batches without advantages, and corrections.

The corrections are options of `Optimization` that all algorithms share:

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

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import torch

from mathturn_gym.baselines.algorithms import Metrics
from mathturn_gym.baselines.algorithms._credit import differ
from mathturn_gym.episodes.losses import kl_divergence
from mathturn_gym.episodes.packing import PackedBatch
from mathturn_gym.episodes.packing.selection import select_rows
from mathturn_gym.types import Episode

if TYPE_CHECKING:
    from mathturn_gym.baselines.settings import ImportanceLevel, Optimization


def episode_of_rows(batch: PackedBatch) -> npt.NDArray[np.int64]:
    """Index into `batch.facts` of each row's episode, int64 (B,), of a batch in layout "episode"."""
    found = np.zeros(batch.num_rows, np.int64)
    found[batch.pieces.row] = batch.pieces.episode
    return found


def select_episodes(batch: PackedBatch, episodes: Sequence[int] | npt.NDArray[np.int64]) -> PackedBatch:
    """All rows of some episodes, indices into `batch.facts`, in the batch's order; the layout is "episode"."""
    return select_rows(batch, np.flatnonzero(np.isin(episode_of_rows(batch), episodes)).tolist())


# ---- metrics


def batch_metrics(episodes: Sequence[Episode], batch: PackedBatch, version: int) -> Metrics:
    """Metrics of a batch that no loss computes.

    Args:
        episodes: All sampled episodes.
        batch: The batch that is learned from, with its advantages.
        version: Version of the policy that is trained.

    Returns:
        `tokens_right`, `tokens_wrong`, `tokens_no_answer`, `tokens_undecided`: mean length of the turns with that verdict,
        if there are any. Wrong answers that grow longer use up the budget.
        `advantage@k`: mean advantage over the tokens of turn k. Far from 0, the baseline does not fit that turn.
        `staleness`, `staleness_max`: number of updates between the weights that sampled a token and the current ones.
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


# ---- degenerate batches: groups and rows without advantages


_LOG = logging.getLogger(__name__)

_NOTHING: Final = 1e-6  # advantages below this share of the returns' size are rounding
_DRY: Final = 3  # skipped iterations in a row after which a warning is logged
# A warning is logged when the entropy exceeds _FACTOR times its first value plus _RISE nats.
_RISE, _FACTOR = 0.5, 2.0


def has_advantage(batch: PackedBatch) -> bool:
    """True if any trained token has an advantage."""
    mask = batch.loss_mask
    if not bool(mask.any()):
        return False
    size = float(batch.returns[mask].abs().max())
    return float(batch.advantages[mask].abs().max()) > _NOTHING * size


def rows_with_advantage(batch: PackedBatch) -> npt.NDArray[np.int64]:
    """Indices of the rows in which any trained token has an advantage, with the tolerance of `has_advantage`."""
    mask = batch.loss_mask
    size = batch.returns.masked_fill(~mask, 0.0).abs().max() if mask.any() else torch.zeros(())
    found = (batch.advantages.abs() > _NOTHING * size) & mask
    return np.flatnonzero(found.any(dim=-1).cpu().numpy())


def groups_of(episodes: Sequence[Episode]) -> list[list[Episode]]:
    """Splits consecutive episodes into the groups that were sampled on one problem."""
    return [list(members) for _, members in groupby(episodes, key=lambda e: e.index if e.group is None else e.group)]


def uniform_share(episodes: Sequence[Episode]) -> float:
    """Share of groups whose episodes have equal returns at every turn, which gives no learning signal."""
    groups = groups_of(episodes)
    return sum(not differ(group) for group in groups) / max(1, len(groups))


class DryWatch:
    """Logs a warning, once each, when batches have no advantages and when the policy's entropy diverges."""

    def __init__(self) -> None:
        self._dry = 0
        self._first: float | None = None
        self._said_entropy = False

    def see(self, learned: bool, entropy: float, episodes: int) -> None:
        """Takes what an iteration learned from: whether it had advantages, its mean entropy in nats, and its episodes."""
        self._dry = 0 if learned else self._dry + 1
        if self._dry == _DRY:
            _LOG.warning(
                "no action was better than another in the last %d iterations (%d episodes): nothing was learned, and the"
                " policy is left as it is; choose easier problems, more turns, larger groups or a warm start",
                _DRY,
                _DRY * episodes,
            )
        self._first = entropy if self._first is None else self._first
        if entropy > _FACTOR * self._first + _RISE and not self._said_entropy:
            self._said_entropy = True
            _LOG.warning(
                "the policy's entropy has risen from %.2f to %.2f nats a token: entropy_weight or learning_rate is too"
                " large for this model",
                self._first,
                entropy,
            )


# ---- corrections


def corrected(
    batch: PackedBatch, options: Optimization, policy_logprobs: Callable[[PackedBatch], torch.Tensor] | None
) -> tuple[PackedBatch, Metrics]:
    """Applies the corrections; returns the batch for the loss, and metrics of the corrections.

    `policy_logprobs` computes log-probs under the current policy; None keeps the sampler's.
    """
    if options.mask_cut_off:
        batch = without_cut_off(batch)
    if policy_logprobs is None or not bool(batch.loss_mask.any()):
        return batch, {}
    now = policy_logprobs(batch)
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
        # a constant weight of a token's loss is the same as a weight of its advantage: clipping compares r * A with
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
    """Importance weight of each trained token, before the cap.

    Args:
        gap: Float (M,), log p_trainer - log p_sampler of each trained token, in the order of the loss mask.
        batch: Whose tokens these are.
        level: "token"; or all tokens of a turn or of an episode have the product of their ratios.
    """
    count, segment = batch.segments(level)
    # A sum of logs: the product of a thousand ratios could leave float32 on the way.
    return gap.new_zeros(count).index_add(0, segment, gap).exp()[segment]


def without_cut_off(batch: PackedBatch) -> PackedBatch:
    """Masks the tokens of turns that were cut off by their budget."""
    width = int(batch.facts.turns.max(initial=0)) + 1
    kept = np.ones((batch.num_rows, width), np.bool_)
    for row, episode in enumerate(episode_of_rows(batch).tolist()):
        flags = batch.facts[episode]["turn_truncated"]
        kept[row, : len(flags)] = ~np.asarray(flags, np.bool_)
    table = torch.from_numpy(kept).to(batch.device)
    # Prompts and feedback have no turn (-1): whatever the table says of them, they are masked.
    rows = torch.arange(batch.num_rows, device=batch.device)[:, None].expand_as(batch.turn_index)
    return batch.replace_tensors({"loss_mask": batch.loss_mask & table[rows, batch.turn_index.long().clamp(min=0)]})
