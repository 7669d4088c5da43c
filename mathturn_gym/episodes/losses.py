"""Policy losses over a `PackedBatch`: the same number, and the same gradient, in every layout.

    logits ─► token_logprobs ─► policy_loss ─► PolicyLoss.loss.backward()

Averages are over tokens, turns or episodes, never over rows, so that a layout is a matter of cost alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import torch

from mathturn_gym.episodes.packing.batch import PackedBatch, Unit
from mathturn_gym.errors import InvalidValueError, check_float, check_int, raise_unknown_name

Objective: TypeAlias = Literal["policy_gradient", "clip"]
Ratio: TypeAlias = Literal["token", "turn", "sequence", "product"]
KLEstimator: TypeAlias = Literal["k1", "k2", "k3"]

_OBJECTIVES: Final[tuple[str, ...]] = get_args(Objective)
_RATIOS: Final[tuple[str, ...]] = get_args(Ratio)
_UNITS: Final[tuple[str, ...]] = get_args(Unit)
_KLS: Final[tuple[str, ...]] = get_args(KLEstimator)

# Log-ratios are held within this: e^40 = 2.4e17, whose square, as in the norm of a gradient, is still a float32.
_LARGEST_LOG: Final = 40.0


@dataclass(frozen=True, slots=True, eq=False)
class PolicyLoss:
    """A loss and what it is made of.

    Args:
        loss: Scalar to minimize; it carries the graph.
        policy: Its policy term, detached.
        entropy: Mean entropy in nats over tokens, detached (0 where none was given).
        kl: Mean KL estimate over tokens, detached (0 where no reference was given).
        ratio_mean: Mean importance ratio over tokens (1 where none is used).
        ratio_max: The largest of them.
        clip_fraction: Share of tokens whose gradient the clipping took away.
        approximate_kl: k3 estimate of KL(behavior || current) per token (0 where behavior log-probs are missing).
    """

    loss: torch.Tensor
    policy: torch.Tensor
    entropy: torch.Tensor
    kl: torch.Tensor
    ratio_mean: torch.Tensor
    ratio_max: torch.Tensor
    clip_fraction: torch.Tensor
    approximate_kl: torch.Tensor

    def metrics(self) -> dict[str, float]:
        """Every figure as a float, by name (copies from the device)."""
        return {name: float(getattr(self, name).detach()) for name in self.__slots__}


def token_logprobs(
    logits: torch.Tensor, batch: PackedBatch, *, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of every trained id under the logits that predict it, and the entropy of that distribution.

    Which logits predict an id is the layout's affair (in a tree, a branch's first id is predicted by its prompt's
    last); only rows of logits that predict a trained id are touched.

    Args:
        logits: float (B, T, V), the model's output for `batch.input_ids`.
        batch: On the same device.
        temperature: Logits are divided by it; the one sampled with, for ratios to mean anything.

    Returns:
        Two tensors (B, T) in the logits' dtype, in nats, 0 off the loss mask: log-probs and entropies; both carry
        the graph.

    Raises:
        InvalidValueError: logits of another shape, or a temperature that is not positive.
    """
    if logits.ndim != 3 or logits.shape[:2] != batch.input_ids.shape:
        raise InvalidValueError(
            f"logits must be (B, T, V) for input_ids of shape {tuple(batch.input_ids.shape)}, got {tuple(logits.shape)}"
        )
    row, column = batch.loss_mask.nonzero(as_tuple=True)
    source = column - 1 if batch.predictor_index is None else batch.predictor_index[row, column]
    return trained_logprobs(logits[row, source], batch, temperature=temperature)


def trained_logprobs(
    logits: torch.Tensor, batch: PackedBatch, *, temperature: float = 1.0, entropy_graph: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """`token_logprobs` of a model that made only the logits that are needed.

    Of a batch with `support` (top-k, top-p or min-p have cut ids off in sampling), probabilities are those among the ids that
    could be drawn, then as now: with the behavior log-probs, which are that, their ratio is unbiased.

    Args:
        logits: float (M, V), those that predict the trained ids, in the order of `batch.loss_mask.nonzero()`.
        batch: On the same device.
        temperature: As in `token_logprobs`.
        entropy_graph: Entropies carry the graph. Where they are only looked at, False saves the backward pass half a
            dozen walks over (M, V), which at 49,152 ids and more is a good part of an update.

    Returns:
        As `token_logprobs`.

    Raises:
        InvalidValueError: As `token_logprobs`.
    """
    if check_float("temperature", temperature, low=0.0) == 0.0:
        raise InvalidValueError("temperature must be positive, got 0: a greedy policy has no log-probs to compare")
    row, column = batch.loss_mask.nonzero(as_tuple=True)
    if logits.ndim != 2 or len(logits) != len(row):
        raise InvalidValueError(f"logits must be (M, V) for M = {len(row)} trained ids, got {tuple(logits.shape)}")
    ids = batch.input_ids[row, column, None]
    if batch.support is None:
        # log_softmax and not softmax().log(): an id of probability 1e-50 keeps a finite log-prob.
        scores = torch.log_softmax(logits / temperature, dim=-1)
        chosen = scores.gather(-1, ids)[:, 0]
    else:
        drawn = batch.support[row, column].long()
        kept = logits.gather(-1, drawn.clamp(min=0)).masked_fill(drawn < 0, -torch.inf)
        scores = torch.log_softmax(kept / temperature, dim=-1)
        chosen = scores.gather(-1, (drawn == ids).int().argmax(dim=-1, keepdim=True))[:, 0]
    with torch.set_grad_enabled(entropy_graph and torch.is_grad_enabled()):
        # A logit of -inf (a forbidden id) has probability 0 and adds 0, not 0 * -inf.
        entropy = -(scores.exp() * scores.masked_fill(scores.isneginf(), 0.0)).sum(-1)
    # index_put keeps the graph, and scatters M values: a (B, T, V) log-softmax is never made.
    blank = torch.zeros(batch.input_ids.shape, dtype=logits.dtype, device=logits.device)
    return blank.index_put((row, column), chosen), blank.index_put((row, column), entropy)


def policy_loss(
    logprobs: torch.Tensor,
    batch: PackedBatch,
    *,
    objective: Objective = "clip",
    ratio: Ratio | None = "token",
    clip: float = 0.2,
    clip_high: float | None = None,
    dual_clip: float | None = None,
    proximal_logprobs: torch.Tensor | None = None,
    behavior_cap: float | None = None,
    normalization: Unit = "token",
    denominator: float | None = None,
    tokens: float | None = None,
    entropy: torch.Tensor | None = None,
    entropy_weight: float = 0.0,
    reference_logprobs: torch.Tensor | None = None,
    kl_weight: float | Sequence[float] = 0.0,
    kl: KLEstimator = "k3",
) -> PolicyLoss:
    """The loss whose gradient improves the policy.

    With A the advantage of a token's turn, p its log-prob now, b its behavior log-prob, and r = exp(p - b) averaged
    (in the log) over `ratio`'s unit:

    * `"policy_gradient"`: -A * p; with a `ratio`, -detach(r) * A * p, the importance-weighted gradient.
    * `"clip"`: -min(r * A, clamp(r, 1 - clip, 1 + clip_high) * A) (Schulman et al. 2017, arXiv:1707.06347). With
      `dual_clip` c, tokens with A < 0 lose at most c * abs(A) (Ye et al. 2020, arXiv:1912.09729).

    `ratio="sequence"` is GSPO's length-normalized ratio of a whole episode (Zheng et al. 2025, arXiv:2507.18071, in
    its GSPO-token form, so that turns keep advantages of their own); `"turn"` is the same over a turn's completion.
    A unit's ratio has value exp(mean of p - b) and, at every token, that token's own gradient.
    `"product"` is the ratio of an episode's whole probability, exp(sum of p - b), with its whole gradient at every
    token: with `normalization="sequence"` an episode is one action (RLOO as in Ahmadian et al. 2024, arXiv:2402.14740).

    With `proximal_logprobs` q, the clip is around q and the correction to the behavior policy is a constant weight:
    -detach(exp(q - b)) * min(...), r = exp(p - q): decoupled PPO (Hilton et al. 2022, arXiv:2110.00641; as AReaL uses
    it, arXiv:2505.24298). q is either recomputed before the update or `interpolated_logprobs`. Tokens whose
    exp(q - b) exceeds `behavior_cap` are left out of the loss (they stay in its denominator).

    Averages: `normalization="token"` is the mean over trained ids, `"turn"` the mean over turns of their means,
    `"sequence"` the mean over episodes of their means. `denominator` replaces the number of tokens, turns or
    episodes: the whole batch's `count(...)` for micro-batches, a constant for Dr. GRPO. Entropy and KL are means over
    tokens whatever the policy's term is divided by, so that their weights have one unit for every algorithm.

    A batch without any trained id gives the loss 0 (with a graph), not NaN. Log-ratios are held in -40 to 40 (gradients
    are those of the held values), so that what clipping discards is a number. An id that is impossible now (log-prob
    -inf) has ratio 0 and no gradient, in the KL too; without a `ratio` its loss is infinite.

    Args:
        logprobs: float (B, T), from `token_logprobs`; read on the loss mask only.
        batch: Gives behavior log-probs, advantages and the mask.
        objective: See above.
        ratio: `"token"`, `"turn"`, `"sequence"`, `"product"`, or None (`"policy_gradient"` only: no importance ratio).
        clip: Lower clip width, in [0, 1].
        clip_high: Upper clip width, >= 0; None is `clip`.
        dual_clip: > 1, or None.
        proximal_logprobs: float (B, T), detached here; None clips around the behavior policy.
        behavior_cap: > 0, or None for no cap; with `proximal_logprobs` only.
        normalization: See above.
        denominator: > 0, or None.
        tokens: How many tokens entropy and KL are means over, > 0; None is the batch's own number. Micro-batches, and
            with them every `denominator` of one's own, need the whole batch's `count("token")`.
        entropy: float (B, T) from `token_logprobs`; needed for an `entropy_weight`.
        entropy_weight: The mean entropy, times this, is subtracted.
        reference_logprobs: float (B, T); needed for a `kl_weight`.
        kl_weight: The mean of `kl_divergence`, times this, is added. Several numbers are one per turn, the last one
            for all turns that follow: `(1.0, 0.0)` holds the first turn where it was, and lets the others go.
        kl: `"k1"`, `"k2"` or `"k3"`, see `kl_divergence`.

    Raises:
        InvalidValueError: a name, number or shape that is not allowed, or a part of layout `"turns"` that splits an
            episode which the ratio or the normalization needs whole.
        InvalidEpisodeError: behavior log-probs that a ratio needs are missing.
    """
    _check_arguments(objective, ratio, normalization, kl, clip, clip_high, dual_clip, behavior_cap)
    weights = _turn_weights(kl_weight)
    _check_pairs(entropy, entropy_weight, reference_logprobs, weights, proximal_logprobs, behavior_cap)
    _check_tokens(tokens, denominator, entropy is not None or reference_logprobs is not None)
    _check_batch(batch, ratio, normalization, logprobs, proximal_logprobs, entropy, reference_logprobs)
    # One weight for each id, whatever the layout: so that layouts and micro-batches give the same gradient.
    mean = _Mean.over(batch, normalization, denominator)
    mask = batch.loss_mask
    now, advantage = logprobs[mask], batch.advantages[mask].to(logprobs.dtype)
    old = batch.behavior_logprobs[mask].to(logprobs.dtype)
    zero = torch.zeros((), dtype=logprobs.dtype, device=logprobs.device)
    ratios, clipped = torch.ones_like(now).detach(), zero
    if ratio is None:
        losses = -advantage * now
    else:
        near = old if proximal_logprobs is None else proximal_logprobs[mask].detach().to(logprobs.dtype)
        ratios = _ratios(now, near, ratio, batch)
        # An impossible id (log-prob -inf) has ratio 0: times -inf it would be NaN, and the batch lost.
        losses = -ratios.detach() * advantage * now.masked_fill(now.isneginf(), 0.0)
        if objective == "clip":
            losses, cut = _clip_losses(ratios, advantage, clip, clip if clip_high is None else clip_high, dual_clip)
            clipped = cut.to(logprobs.dtype).mean() if cut.numel() else zero
        if proximal_logprobs is not None:
            weight = _held(near - old).exp()
            if behavior_cap is not None:
                weight = torch.where(weight <= behavior_cap, weight, 0.0)
            losses = losses * weight
    policy = loss = mean(losses)
    entropy_mean = kl_mean = zero
    of_tokens = float(max(1, now.numel())) if tokens is None else float(tokens)
    if entropy is not None:
        entropy_mean = entropy[mask].sum() / of_tokens
        loss = loss - entropy_weight * entropy_mean
    if reference_logprobs is not None:
        drift = kl_divergence(now, reference_logprobs[mask].to(logprobs.dtype), kl)
        kl_mean = drift.sum() / of_tokens
        loss = loss + (drift * _by_turn(weights, batch).to(drift.dtype)).sum() / of_tokens
    gap = _held(now.detach() - old)
    return PolicyLoss(
        loss=loss,
        policy=policy.detach(),
        entropy=entropy_mean.detach(),
        kl=kl_mean.detach(),
        ratio_mean=ratios.detach().mean() if ratios.numel() else zero,
        ratio_max=ratios.detach().max() if ratios.numel() else zero,
        clip_fraction=clipped,
        approximate_kl=(gap.exp() - 1 - gap).mean() if gap.numel() and batch.has_logprobs else zero,
    )


def kl_divergence(logprobs: torch.Tensor, reference_logprobs: torch.Tensor, kl: KLEstimator = "k3") -> torch.Tensor:
    """Per-token estimates of KL(current || reference) from ids sampled from the current policy.

    With d = p - ref: k1 = d (unbiased; but its *gradient* has mean 0, so as a loss it does nothing), k2 = d**2 / 2
    (biased value; its gradient is that of the KL), k3 = exp(-d) - 1 + d (unbiased, never negative; its gradient is
    that of KL(reference || current)). (Schulman 2020, "Approximating KL divergence"; for the gradients Tang & Munos
    2025, arXiv:2506.09477.)

    Args:
        logprobs: Any shape.
        reference_logprobs: The same shape; detached here.
        kl: Which estimate.

    Returns:
        The same shape; it carries `logprobs`' graph.

    >>> kl_divergence(torch.tensor([-1.0]), torch.tensor([-1.0]), "k3").item()
    0.0
    """
    gap = _held(logprobs - reference_logprobs.detach())
    if kl == "k1":
        return gap
    if kl == "k2":
        return gap.square() / 2
    if kl != "k3":
        raise_unknown_name("kl", kl, _KLS)
    return (-gap).exp() - 1 + gap


def interpolated_logprobs(logprobs: torch.Tensor, batch: PackedBatch, *, current_version: int) -> torch.Tensor:
    """Proximal log-probs from behavior versions, without a forward pass of the proximal policy.

    The proximal policy is the version before the current one; on the log scale it is taken to lie between the
    behavior policy (version v) and the current one (version n): q = b + (n - 1 - v) / (n - v) * (p - b), and q = b
    for ids of staleness 0 or 1. Each id has its own version, so an episode during which the policy was updated is
    treated id by id. (AReaL's staleness-aware approximation; arXiv:2512.06547.)

    Args:
        logprobs: float (B, T), the current policy's.
        batch: Gives behavior log-probs and versions.
        current_version: n, at least every version in the batch.

    Returns:
        float (B, T), detached, 0 off the loss mask: `policy_loss(proximal_logprobs=...)`.

    Raises:
        InvalidValueError: an id is newer than `current_version`.
        InvalidEpisodeError: behavior log-probs are missing.
    """
    now = check_int("current_version", current_version, low=0)
    batch.require_logprobs("interpolated_logprobs")
    age = torch.where(batch.loss_mask, now - batch.versions, 0)
    if age.numel() and int(age.min()) < 0:
        raise InvalidValueError(f"current_version is {now}, but the batch has version {int(batch.versions.max())}")
    # Ages 0 and 1 have nothing between behavior and proximal policy: their share is 0, whatever the division says.
    share = ((age - 1).clamp(min=0) / age.clamp(min=1)).to(logprobs.dtype)
    old = batch.behavior_logprobs.to(logprobs.dtype)
    return torch.where(batch.loss_mask, old + share * (logprobs.detach() - old), 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Mean:
    """A mean over tokens, or of the means over turns or episodes."""

    weights: torch.Tensor  # (M,) what each trained id counts for

    @classmethod
    def over(cls, batch: PackedBatch, unit: Unit, denominator: float | None) -> _Mean:
        count, segment = batch.segments(unit)
        if denominator is not None and check_float("denominator", denominator, low=0.0) == 0.0:
            raise InvalidValueError("denominator must be positive, got 0")
        total = float(max(count, 1)) if denominator is None else float(denominator)
        sizes = torch.bincount(segment, minlength=count).double()
        # Double: a sum of many single-precision shares of a long episode drifts off 1.
        return cls((1.0 / sizes)[segment] / total)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        return (values * self.weights.to(values.dtype)).sum()


def _ratios(now: torch.Tensor, near: torch.Tensor, ratio: Ratio, batch: PackedBatch) -> torch.Tensor:
    """exp(now - near), its log averaged over the unit in value and left to each token in gradient; or its product."""
    gap = _held(now - near)
    if ratio == "token":
        return gap.exp()
    # The whole episode is one action: each token carries the gradient of the product (RLOO in its original form).
    if ratio == "product":
        count, segment = batch.segments("sequence")
        return _held(gap.new_zeros(count).index_add(0, segment, gap)).exp()[segment]
    count, segment = batch.segments(ratio)
    sizes = torch.bincount(segment, minlength=count).to(gap.dtype)
    # Detached: the mean has a value here, and no gradient; each token brings its own below.
    total = torch.zeros(count, dtype=gap.dtype, device=gap.device).index_add(0, segment, gap.detach())
    return (total / sizes)[segment].exp() * (gap - gap.detach()).exp()


def _held(gap: torch.Tensor) -> torch.Tensor:
    """A log-ratio within limits where its exponential is a number; NaN stays NaN, to be noticed.

    The gradient stays 1 beyond the limits: a ratio that large must still be pushed back. At infinity it is 0.
    """
    finite = gap.masked_fill(gap.isneginf(), -_LARGEST_LOG).masked_fill(gap.isposinf(), _LARGEST_LOG)
    return finite + (finite.detach().clamp(-_LARGEST_LOG, _LARGEST_LOG) - finite.detach())


def _clip_losses(
    ratios: torch.Tensor, advantage: torch.Tensor, low: float, high: float, dual_clip: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    free, held = ratios * advantage, ratios.clamp(1 - low, 1 + high) * advantage
    # The pessimistic bound: clipping only ever takes gain away (Schulman et al. 2017, eq. 7).
    gain = torch.minimum(free, held)
    cut = held < free
    if dual_clip is not None:
        floor = dual_clip * advantage
        capped = (advantage < 0) & (gain < floor)
        gain, cut = torch.where(capped, floor, gain), cut | capped
    return -gain, cut


def _check_arguments(
    objective: str,
    ratio: str | None,
    normalization: str,
    kl: str,
    clip: float,
    clip_high: float | None,
    dual_clip: float | None,
    behavior_cap: float | None,
) -> None:
    for field, value, allowed in (
        ("objective", objective, _OBJECTIVES),
        ("ratio", "token" if ratio is None else ratio, _RATIOS),
        ("normalization", normalization, _UNITS),
        ("kl", kl, _KLS),
    ):
        if value not in allowed:
            raise_unknown_name(field, value, allowed)
    if ratio is None and objective == "clip":
        raise InvalidValueError(f"objective 'clip' needs a ratio ({', '.join(_RATIOS)}), got None")
    check_float("clip", clip, low=0.0, high=1.0)
    if clip_high is not None:
        check_float("clip_high", clip_high, low=0.0)
    if dual_clip is not None and check_float("dual_clip", dual_clip, low=1.0) == 1.0:
        raise InvalidValueError("dual_clip must be greater than 1, got 1.0")
    if behavior_cap is not None and check_float("behavior_cap", behavior_cap, low=0.0) == 0.0:
        raise InvalidValueError("behavior_cap must be positive, got 0.0")


def _check_batch(
    batch: PackedBatch,
    ratio: Ratio | None,
    normalization: Unit,
    logprobs: torch.Tensor,
    proximal_logprobs: torch.Tensor | None,
    entropy: torch.Tensor | None,
    reference_logprobs: torch.Tensor | None,
) -> None:
    """Shapes, whole episodes where they are needed, and behavior log-probs where they are."""
    for name, tensor in (
        ("logprobs", logprobs),
        ("proximal_logprobs", proximal_logprobs),
        ("entropy", entropy),
        ("reference_logprobs", reference_logprobs),
    ):
        if tensor is not None and tensor.shape != batch.input_ids.shape:
            raise InvalidValueError(f"{name} must be {tuple(batch.input_ids.shape)}, got {tuple(tensor.shape)}")
    # Half an episode would be averaged as if it were one, and the loss would depend on the micro-batches.
    if ("sequence" in (ratio, normalization) or ratio == "product") and batch.split_episodes:
        raise InvalidValueError(
            f"sequence ratios and means need whole episodes, but only a part of "
            f"{batch.facts[batch.split_episodes[0]].name} are here: use micro_batches(..., keep_episodes=True)"
        )
    if ratio is not None:
        batch.require_logprobs(f"ratio={ratio!r}")


def _turn_weights(kl_weight: float | Sequence[float]) -> tuple[float, ...]:
    """One weight, or one per turn, as numbers."""
    given = tuple(kl_weight) if isinstance(kl_weight, Sequence) else (kl_weight,)
    if not given:
        raise InvalidValueError("kl_weight must be a number or one per turn, got none")
    return tuple(check_float("kl_weight", weight) for weight in given)


def _by_turn(weights: Sequence[float], batch: PackedBatch) -> torch.Tensor:
    """The weight of each trained id's turn, (M,)."""
    # Turns beyond the list take its last weight: episodes have no fixed number of turns.
    table = torch.tensor(weights, dtype=torch.float64, device=batch.device)
    return table[batch.turn_index[batch.loss_mask].long().clamp(max=len(weights) - 1)]


def _check_tokens(tokens: float | None, denominator: float | None, has_terms: bool) -> None:
    """A mean over a part alone would weigh entropy and KL once for each part."""
    if tokens is not None and check_float("tokens", tokens, low=0.0) == 0.0:
        raise InvalidValueError("tokens must be positive, got 0")
    if has_terms and denominator is not None and tokens is None:
        raise InvalidValueError(
            "entropy and KL are means over tokens, and denominator is a number of your own: say how many tokens there are,"
            ' tokens=batch.count("token") of the whole batch'
        )


def _check_pairs(
    entropy: torch.Tensor | None,
    entropy_weight: float,
    reference_logprobs: torch.Tensor | None,
    kl_weights: Sequence[float],
    proximal_logprobs: torch.Tensor | None,
    behavior_cap: float | None,
) -> None:
    """A weight without its tensor would be a term that silently does nothing."""
    if check_float("entropy_weight", entropy_weight) != 0 and entropy is None:
        raise InvalidValueError(f"entropy_weight is {entropy_weight:g}, but no entropy was given")
    if any(kl_weights) and reference_logprobs is None:
        shown = ", ".join(f"{weight:g}" for weight in kl_weights)
        raise InvalidValueError(f"kl_weight is {shown}, but no reference_logprobs were given")
    if behavior_cap is not None and proximal_logprobs is None:
        raise InvalidValueError(f"behavior_cap is {behavior_cap:g}, but no proximal_logprobs were given")
