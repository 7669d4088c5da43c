from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from mathturn_gym.episodes.losses import (
    interpolated_logprobs,
    kl_divergence,
    policy_loss,
    token_logprobs,
    trained_logprobs,
)
from mathturn_gym.episodes.packing import PackedBatch, micro_batches, pack
from mathturn_gym.episodes.packing.batch import LAYOUTS
from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode


def made(
    turns: list[list[float]], advantages: list[float], versions: list[list[int]] | None = None, index: int = 0
) -> tuple[Episode, list[float]]:
    """An episode whose turns have these behavior probabilities, with its advantages."""
    episode = synthetic_episode(0, index, [len(turn) for turn in turns], prompt=1, feedback=1)
    logprobs, ages = episode.logprobs.copy(), episode.versions.copy()
    for k, (start, end) in enumerate(episode.turn_spans.tolist()):
        logprobs[start:end] = np.log(turns[k])
        if versions is not None:
            ages[start:end] = versions[k]
    return dataclasses.replace(episode, logprobs=logprobs, versions=ages), advantages


def batch_of(*pairs: tuple[Episode, list[float]]) -> PackedBatch:
    return pack([episode for episode, _ in pairs], advantages=[advantages for _, advantages in pairs])


def now(batch: PackedBatch, probabilities: list[float]) -> torch.Tensor:
    """Current log-probs on the mask, in order; a leaf that takes a gradient."""
    full = torch.zeros(batch.input_ids.shape, dtype=torch.float64)
    full[batch.loss_mask] = torch.tensor(probabilities, dtype=torch.float64).log()
    return full.requires_grad_()


def gradient(loss: torch.Tensor, at: torch.Tensor, batch: PackedBatch) -> list[float]:
    (found,) = torch.autograd.grad(loss, at)
    return [round(value, 5) for value in found[batch.loss_mask].tolist()]


def test_among_the_ids_that_could_be_drawn_ratios_are_unbiased() -> None:
    """Top-k of 5 out of 9: the weighted mean over what the old policy draws is the new policy's, restricted to the same ids."""
    rng = np.random.default_rng(0)
    old, new, worth = (torch.from_numpy(rng.normal(size=9)) for _ in range(3))
    drawn = old.topk(5).indices
    behavior = torch.log_softmax(old[drawn], -1)
    batch = pack(
        [
            dataclasses.replace(
                synthetic_episode(0, i, [1], vocab_size=9),
                ids=np.append(synthetic_episode(0, i, [1], vocab_size=9).prompt_ids, int(one)),
                support=drawn.numpy().astype(np.int32)[None],
            )
            for i, one in enumerate(drawn)
        ]
    )
    now, entropy = trained_logprobs(new.expand(5, 9), batch)
    restricted = torch.log_softmax(new[drawn], -1)
    torch.testing.assert_close(now[batch.loss_mask], restricted)
    torch.testing.assert_close(entropy[batch.loss_mask], -(restricted.exp() * restricted).sum().expand(5))
    ratios = (now[batch.loss_mask] - behavior).exp()
    meant = float((restricted.exp() * worth[drawn]).sum())
    assert float((behavior.exp() * ratios * worth[drawn]).sum()) == pytest.approx(meant)
    naive, _ = trained_logprobs(new.expand(5, 9), batch.replace_tensors({"support": None}))  # type: ignore[dict-item]
    wrong = float((behavior.exp() * (naive[batch.loss_mask] - behavior).exp() * worth[drawn]).sum())
    assert abs(wrong - meant) > 0.05, "over all ids it is another number"


def test_policy_gradient_by_hand() -> None:
    batch = batch_of(made([[0.5, 0.25], [0.5]], [2.0, -1.0]))
    p = now(batch, [0.5, 0.5, 0.25])
    out = policy_loss(p, batch, objective="policy_gradient", ratio=None)
    expected = -(2 * math.log(0.5) + 2 * math.log(0.5) - math.log(0.25)) / 3
    assert out.loss.item() == pytest.approx(expected)
    assert gradient(out.loss, p, batch) == [round(-2 / 3, 5)] * 2 + [round(1 / 3, 5)]
    weighted = policy_loss(p, batch, objective="policy_gradient", ratio="token")
    assert gradient(weighted.loss, p, batch) == [round(-2 / 3, 5), round(-4 / 3, 5), round(0.5 / 3, 5)]


def test_clip_by_hand() -> None:
    batch = batch_of(made([[0.5] * 4], [1.0]), made([[0.5] * 4], [-1.0], index=1))
    ratios = [1.0, 1.1, 1.5, 0.5] * 2
    p = now(batch, [0.5 * r for r in ratios])
    out = policy_loss(p, batch, clip=0.2)
    gains = [1.0, 1.1, 1.2, 0.5, -1.0, -1.1, -1.5, -0.8]
    assert out.loss.item() == pytest.approx(-sum(gains) / 8)
    assert gradient(out.loss, p, batch) == [round(g / 8, 5) for g in [-1.0, -1.1, 0, -0.5, 1.0, 1.1, 1.5, 0]]
    assert out.clip_fraction.item() == 2 / 8
    assert out.ratio_mean.item() == pytest.approx(sum(ratios) / 8)
    wide = policy_loss(p, batch, clip=0.2, clip_high=0.4)
    assert wide.loss.item() == pytest.approx(-(sum(gains) + 0.2) / 8)


def test_dual_clip_bounds_what_a_bad_token_can_lose() -> None:
    batch = batch_of(made([[0.1, 0.1]], [-1.0]))
    p = now(batch, [0.9, 0.15])
    assert policy_loss(p, batch).loss.item() == pytest.approx((9 + 1.5) / 2)
    out = policy_loss(p, batch, dual_clip=3.0)
    assert out.loss.item() == pytest.approx((3 + 1.5) / 2)
    assert gradient(out.loss, p, batch) == [0.0, 0.75]
    assert out.clip_fraction.item() == 0.5


def test_turn_and_sequence_ratios_are_geometric_means_with_token_gradients() -> None:
    batch = batch_of(made([[0.5, 0.5], [0.5]], [1.0, 3.0]))
    p = now(batch, [0.6, 0.5, 0.45])
    turn = policy_loss(p, batch, ratio="turn", clip=1.0)
    first, second = math.sqrt(1.2), 0.9
    assert turn.loss.item() == pytest.approx(-(2 * first + 3 * second) / 3)
    assert gradient(turn.loss, p, batch) == [round(-first / 3, 5)] * 2 + [round(-3 * second / 3, 5)]
    whole = policy_loss(p, batch, ratio="sequence", clip=1.0)
    ratio = (1.2 * 0.9) ** (1 / 3)
    # Each turn keeps its own advantage, although the ratio is one for the whole episode.
    assert gradient(whole.loss, p, batch) == [round(-ratio / 3, 5)] * 2 + [round(-3 * ratio / 3, 5)]


def test_sequence_ratio_has_gspos_gradient_where_the_advantage_is_one_number() -> None:
    batch = batch_of(made([[0.5, 0.5], [0.5]], [2.0, 2.0]))
    p = now(batch, [0.6, 0.5, 0.45])
    ours = policy_loss(p, batch, ratio="sequence", normalization="sequence").loss
    gap = (p - batch.behavior_logprobs)[batch.loss_mask].mean()
    gspo = -torch.minimum(gap.exp() * 2, gap.exp().clamp(0.8, 1.2) * 2)
    assert ours.item() == pytest.approx(gspo.item())
    assert gradient(ours, p, batch) == gradient(gspo, p, batch)


def test_product_ratio_makes_an_episode_one_action() -> None:
    batch = batch_of(made([[0.5, 0.5], [0.5]], [2.0, 2.0]), made([[0.5], [0.25]], [-1.0, -1.0], index=1))
    p = now(batch, [0.6, 0.5, 0.45, 0.9, 0.25])
    ours = policy_loss(p, batch, ratio="product", normalization="sequence")
    first, second = 1.2 * 0.9, 1.8  # the second is clipped on no side: its advantage is negative
    assert ours.loss.item() == pytest.approx((-first * 2 + second) / 2)
    assert gradient(ours.loss, p, batch) == [round(-first * 2 / 2, 5)] * 3 + [round(second / 2, 5)] * 2


def test_normalizations_by_hand() -> None:
    batch = batch_of(made([[0.5], [0.5] * 3], [1.0, 0.0]), made([[0.5] * 2], [4.0], index=1))
    p = now(batch, [0.5] * 6)
    options: dict[str, Any] = {"objective": "clip"}
    token = policy_loss(p, batch, normalization="token", **options).loss.item()
    turn = policy_loss(p, batch, normalization="turn", **options).loss.item()
    sequence = policy_loss(p, batch, normalization="sequence", **options).loss.item()
    assert token == pytest.approx(-(1 + 4 * 2) / 6)
    assert turn == pytest.approx(-(1 + 0 + 4) / 3)
    assert sequence == pytest.approx(-(1 / 4 + 4) / 2)
    assert policy_loss(p, batch, denominator=100).loss.item() == pytest.approx(-(1 + 4 * 2) / 100)
    assert (batch.count("token"), batch.count("turn")) == (6, 3)
    assert batch.count("sequence") == 2


def test_decoupled_clip_by_hand() -> None:
    batch = batch_of(made([[0.5, 0.5, 0.1]], [1.0]))
    q = now(batch, [0.4, 0.6, 0.8]).detach()
    p = now(batch, [0.6, 0.6, 0.8])
    # 0.6 / 0.4 = 1.5 is clipped at 1.2; weights q / b are 0.8, 1.2 and 8.
    out = policy_loss(p, batch, proximal_logprobs=q)
    assert out.loss.item() == pytest.approx(-(0.8 * 1.2 + 1.2 * 1 + 8 * 1) / 3)
    assert gradient(out.loss, p, batch) == [0.0, -0.4, round(-8 / 3, 5)]
    capped = policy_loss(p, batch, proximal_logprobs=q, behavior_cap=5.0)
    assert capped.loss.item() == pytest.approx(-(0.8 * 1.2 + 1.2 * 1) / 3)
    same = policy_loss(p, batch, proximal_logprobs=batch.behavior_logprobs)
    assert same.loss.item() == pytest.approx(policy_loss(p, batch).loss.item())


def test_interpolation_goes_by_each_ids_own_version() -> None:
    batch = batch_of(made([[0.5] * 4], [1.0], versions=[[0, 2, 3, 4]]))
    p = now(batch, [0.25] * 4)
    q = interpolated_logprobs(p, batch, current_version=4)
    gap = math.log(0.25) - math.log(0.5)
    assert q[batch.loss_mask].tolist() == pytest.approx(
        [math.log(0.5) + s * gap for s in (3 / 4, 1 / 2, 0, 0)], rel=1e-6
    )
    assert not q.requires_grad
    assert not q[~batch.loss_mask].any()
    with pytest.raises(InvalidValueError, match="current_version is 3, but the batch has version 4"):
        interpolated_logprobs(p, batch, current_version=3)


def test_kl_terms_estimate_the_divergence_and_its_gradient() -> None:
    """Exact expectations over a three-letter alphabet."""
    logits = torch.tensor([0.3, -0.5, 0.9], dtype=torch.float64, requires_grad=True)
    p = torch.log_softmax(logits, 0)
    r = torch.log_softmax(torch.tensor([-0.2, 0.4, 0.1], dtype=torch.float64), 0)
    true = (p.exp() * (p - r)).sum()
    (true_gradient,) = torch.autograd.grad(true, logits, retain_graph=True)
    reverse = (r.exp() * (r - p)).sum()
    (reverse_gradient,) = torch.autograd.grad(reverse, logits, retain_graph=True)
    weights = p.exp().detach()
    gradients = {}
    for kind in ("k1", "k2", "k3"):
        mean = (weights * kl_divergence(p, r, kind)).sum()
        if kind != "k2":
            assert mean.item() == pytest.approx(true.item())
        (gradients[kind],) = torch.autograd.grad(mean, logits, retain_graph=True)
    assert gradients["k1"].abs().max() < 1e-12
    assert torch.allclose(gradients["k2"], true_gradient)
    assert torch.allclose(gradients["k3"], reverse_gradient)


def test_entropy_and_kl_terms_enter_with_their_weights() -> None:
    batch = batch_of(made([[0.5, 0.5]], [1.0]))
    p = now(batch, [0.5, 0.25])
    entropy = torch.full(batch.input_ids.shape, 0.7, dtype=torch.float64)
    plain = policy_loss(p, batch)
    out = policy_loss(
        p,
        batch,
        entropy=entropy,
        entropy_weight=0.1,
        reference_logprobs=batch.behavior_logprobs,
        kl_weight=2.0,
        kl="k1",
    )
    kl = math.log(0.25 / 0.5) / 2
    assert out.loss.item() == pytest.approx(plain.loss.item() - 0.07 + 2 * kl)
    metrics = out.metrics()
    assert metrics["entropy"] == pytest.approx(0.7)
    assert metrics["kl"] == pytest.approx(kl)
    assert metrics["policy"] == pytest.approx(plain.loss.item())
    assert metrics["approximate_kl"] == pytest.approx((0.5 - 1 - math.log(0.5)) / 2)


def test_token_logprobs_are_the_shifted_log_softmax() -> None:
    batch = pack([synthetic_episode(0, i, [3, 2], prompt=2, group="g", vocab_size=11) for i in range(2)])
    logits = torch.randn(*batch.input_ids.shape, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logprobs, entropy = token_logprobs(logits, batch, temperature=0.5)
    scores = torch.log_softmax(logits / 0.5, -1)
    for row, column in batch.loss_mask.nonzero().tolist():
        assert logprobs[row, column] == scores[row, column - 1, batch.input_ids[row, column]]
        expected = -(scores[row, column - 1].exp() * scores[row, column - 1]).sum()
        assert entropy[row, column].item() == pytest.approx(expected.item())
    assert not logprobs[~batch.loss_mask].any()
    assert not entropy[~batch.loss_mask].any()


def test_an_entropy_that_is_only_looked_at_has_no_graph() -> None:
    batch = pack([synthetic_episode(0, i, [3, 2], prompt=2, vocab_size=11) for i in range(2)])
    logits = torch.randn(int(batch.loss_mask.sum()), 11, dtype=torch.float64, requires_grad=True)
    logprobs, entropy = trained_logprobs(logits, batch, temperature=0.7)
    again, looked_at = trained_logprobs(logits, batch, temperature=0.7, entropy_graph=False)
    assert torch.equal(entropy, looked_at)
    assert torch.equal(logprobs, again)
    assert again.requires_grad
    assert not looked_at.requires_grad


def test_forbidden_ids_leave_entropy_and_gradient_finite() -> None:
    batch = pack([synthetic_episode(0, 0, [2], prompt=2, vocab_size=4)])
    logits = torch.zeros(*batch.input_ids.shape, 5, requires_grad=True)
    masked = logits.masked_fill(torch.tensor([False] * 4 + [True]), -math.inf)
    logprobs, entropy = token_logprobs(masked, batch)
    assert entropy[batch.loss_mask].tolist() == pytest.approx([math.log(4)] * 2)
    (found,) = torch.autograd.grad((logprobs + entropy).sum(), logits)
    assert found.isfinite().all()


@pytest.mark.parametrize(
    ("normalization", "denominator"),
    [("token", None), ("token", 640.0), ("turn", None), ("sequence", None), ("sequence", 3.0)],
)
def test_entropy_and_kl_are_means_over_tokens_whatever_the_policys_term_is_divided_by(
    normalization: Any, denominator: float | None
) -> None:
    batch = batch_of(made([[0.5], [0.5] * 3], [1.0, 0.0]), made([[0.5] * 2], [4.0], index=1))
    p = now(batch, [0.5] * 6)
    entropy = torch.zeros(batch.input_ids.shape, dtype=torch.float64)
    entropy[batch.loss_mask] = torch.tensor([0.6, 0.0, 0.3, 0.0, 0.9, 0.0], dtype=torch.float64)
    reference = batch.behavior_logprobs.double()
    reference[batch.loss_mask] -= torch.tensor([1.2, 0.0, 0.0, 0.6, 0.0, 0.0])
    options: dict[str, Any] = {"normalization": normalization, "denominator": denominator, "tokens": 6}
    plain = policy_loss(p, batch, **options)
    terms: dict[str, Any] = {"entropy": entropy, "reference_logprobs": reference, "kl": "k1"}
    out = policy_loss(p, batch, **options, **terms, entropy_weight=0.1, kl_weight=2.0)
    assert out.metrics()["entropy"] == pytest.approx(0.3)
    assert out.metrics()["kl"] == pytest.approx(0.3)
    assert out.loss.item() == pytest.approx(plain.loss.item() - 0.1 * 0.3 + 2.0 * 0.3)


def test_parts_of_a_batch_add_up_to_its_means_of_entropy_and_kl() -> None:
    pairs = [made([[0.5], [0.5] * 3], [1.0, 0.0]), made([[0.5] * 2], [4.0], index=1)]
    whole, parts = batch_of(*pairs), [batch_of(pair) for pair in pairs]

    def entropies(batch: PackedBatch) -> float:
        entropy = torch.where(batch.loss_mask, 0.7, 0.0)
        found = policy_loss(
            batch.behavior_logprobs, batch, entropy=entropy, denominator=99.0, tokens=whole.count("token")
        )
        return float(found.entropy)

    assert sum(entropies(part) for part in parts) == pytest.approx(entropies(whole)) == pytest.approx(0.7)
    with pytest.raises(InvalidValueError, match=r'tokens=batch\.count\("token"\)'):
        policy_loss(whole.behavior_logprobs, whole, entropy=whole.behavior_logprobs, denominator=99.0)


def test_a_kl_weight_for_each_turn_holds_the_first_and_lets_the_others_go() -> None:
    batch = batch_of(made([[0.5], [0.5] * 2, [0.5]], [0.0, 0.0, 0.0]))
    p = now(batch, [0.5] * 4)
    reference = torch.full(batch.input_ids.shape, math.log(0.25), dtype=torch.float64)
    drift = math.log(2)
    for weights, expected in (((3.0, 0.0), [3, 0, 0, 0]), ((1.0, 2.0), [1, 2, 2, 2]), ((1.0, 0.0, 5.0), [1, 0, 0, 5])):
        out = policy_loss(p, batch, reference_logprobs=reference, kl_weight=weights, kl="k1")
        assert out.loss.item() == pytest.approx(sum(expected) * drift / 4)
        assert out.kl.item() == pytest.approx(drift), "what is logged is the mean, without weights"
        assert gradient(out.loss, p, batch) == [round(weight / 4, 5) for weight in expected]


RATIOS: list[Any] = ["token", "turn", "sequence", "product"]


@pytest.mark.parametrize("gap", [60.0, 100.0, 1e6])
@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("objective", ["clip", "policy_gradient"])
def test_log_ratios_of_any_size_leave_the_gradient_finite(objective: Any, ratio: Any, gap: float) -> None:
    """float32, where exp(88.8) is infinite; advantages of both signs, and 0, which times infinity is NaN."""
    batch = batch_of(made([[0.5] * 2, [0.5], [0.5]], [1.0, 0.0, -1.0]), made([[0.5], [0.5]], [2.0, 0.0], index=1))
    for sign in (1, -1):
        p = (batch.behavior_logprobs + sign * gap).float().requires_grad_()
        out = policy_loss(
            p, batch, objective=objective, ratio=ratio, reference_logprobs=batch.behavior_logprobs, kl_weight=0.1
        )
        (found,) = torch.autograd.grad(out.loss, p)
        assert found.isfinite().all(), found
        assert all(math.isfinite(value) for value in out.metrics().values()), out.metrics()
        assert torch.nn.utils.get_total_norm([found]).isfinite()


def test_a_gradient_that_clipping_discards_is_0_whatever_the_ratio() -> None:
    batch = batch_of(made([[0.5], [0.5]], [1.0, -1.0]))
    p = (batch.behavior_logprobs + 100.0).float().requires_grad_()
    assert gradient(policy_loss(p, batch, ratio="token").loss, p, batch)[0] == 0.0
    low = (batch.behavior_logprobs - 100.0).float().requires_grad_()
    assert gradient(policy_loss(low, batch, ratio="token").loss, low, batch)[1] == 0.0


def test_a_product_over_many_tokens_is_a_number() -> None:
    batch = batch_of(made([[0.5] * 80], [1.0]), made([[0.5] * 80], [-1.0], index=1))
    p = (batch.behavior_logprobs + 2.0).float().requires_grad_()
    out = policy_loss(p, batch, ratio="product", normalization="sequence")
    (found,) = torch.autograd.grad(out.loss, p)
    assert found.isfinite().all()
    assert (found[1][batch.loss_mask[1]] > 0).all(), "what was bad is still pushed down"


@pytest.mark.parametrize("kl", ["k1", "k2", "k3"])
@pytest.mark.parametrize("ratio", RATIOS)
def test_an_id_that_is_impossible_now_has_no_gradient(ratio: Any, kl: Any) -> None:
    """Its logit is -inf: a grammar or a top-k forbids what was sampled without it."""
    episode = synthetic_episode(0, 0, [3, 2], prompt=2, vocab_size=4)
    batch = pack([episode], advantages=[[1.0, -1.0]])
    logits = torch.zeros(*batch.input_ids.shape, 5, requires_grad=True)
    forbidden = torch.zeros(*batch.input_ids.shape, 5, dtype=torch.bool)
    first = int(batch.loss_mask[0].nonzero()[0])
    forbidden[0, first - 1, batch.input_ids[0, first]] = True
    logprobs, _ = token_logprobs(logits.masked_fill(forbidden, -math.inf), batch)
    assert logprobs[0, first].item() == -math.inf
    objectives: list[Any] = ["clip", "policy_gradient"]
    for objective in objectives:
        out = policy_loss(
            logprobs,
            batch,
            objective=objective,
            ratio=ratio,
            reference_logprobs=batch.behavior_logprobs,
            kl_weight=0.1,
            kl=kl,
        )
        (found,) = torch.autograd.grad(out.loss, logits, retain_graph=True)
        assert out.loss.isfinite()
        assert found.isfinite().all()
        assert (found[0, first - 1] == 0).all()
        assert found.abs().sum() > 0, "the other ids have theirs"


def test_a_log_prob_that_is_no_number_is_not_hidden() -> None:
    batch = batch_of(made([[0.5], [0.5]], [1.0, -1.0]))
    assert policy_loss(torch.full_like(batch.behavior_logprobs, math.nan), batch).loss.isnan()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_empty_loss_mask_gives_zero_not_nan(layout: Any) -> None:
    batch = pack([synthetic_episode(0, i, [0], group="g") for i in range(2)], layout)
    logits = torch.randn(*batch.input_ids.shape, 100, requires_grad=True)
    logprobs, entropy = token_logprobs(logits, batch)
    for normalization in ("token", "turn", "sequence"):
        out = policy_loss(logprobs, batch, entropy=entropy, entropy_weight=1.0, normalization=normalization)
        assert out.metrics()["loss"] == 0
        (found,) = torch.autograd.grad(out.loss, logits, retain_graph=True)
        assert not found.any()
        assert all(math.isfinite(value) for value in out.metrics().values())


def test_ratios_need_behavior_logprobs_and_plain_gradients_do_not() -> None:
    batch = pack([synthetic_episode(0, 4, [1, 2], logprobs=False)], allow_missing_logprobs=True)
    p = torch.zeros(batch.input_ids.shape, requires_grad=True)
    with pytest.raises(InvalidEpisodeError, match=r"episode 4 on 'synthetic/4', turn 0: .* ratio='token' needs them"):
        policy_loss(p, batch)
    with pytest.raises(InvalidEpisodeError, match="interpolated_logprobs needs them"):
        interpolated_logprobs(p, batch, current_version=1)
    out = policy_loss(p, batch, objective="policy_gradient", ratio=None)
    assert all(math.isfinite(value) for value in out.metrics().values())


def test_sequence_ratios_refuse_parts_of_an_episode() -> None:
    batch = pack([synthetic_episode(0, 0, [4, 4], prompt=2)], "turns")
    part = micro_batches(batch, max_tokens=14)[0]
    p = torch.zeros(part.input_ids.shape)
    for options in ({"ratio": "sequence"}, {"normalization": "sequence"}):
        with pytest.raises(InvalidValueError, match=r"only a part of episode 0 .* keep_episodes=True"):
            policy_loss(p, part, **options)  # type: ignore[arg-type]
    assert policy_loss(p, part).loss.isfinite()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "ppo"}, "unknown objective 'ppo'"),
        ({"ratio": "tokens"}, "did you mean 'token'"),
        ({"ratio": None}, "objective 'clip' needs a ratio"),
        ({"normalization": "row"}, "unknown normalization"),
        ({"kl": "k4"}, "unknown kl"),
        ({"clip": -0.1}, "clip must be"),
        ({"clip_high": -1.0}, "clip_high must be"),
        ({"dual_clip": 1.0}, "dual_clip must be greater than 1"),
        ({"denominator": 0}, "denominator must be positive"),
        ({"behavior_cap": 5.0}, "no proximal_logprobs were given"),
        ({"entropy_weight": 0.1}, "no entropy was given"),
        ({"kl_weight": 0.1}, "no reference_logprobs were given"),
        ({"kl_weight": [0.0, 0.1]}, "kl_weight is 0, 0.1, but no reference_logprobs were given"),
        ({"kl_weight": []}, "kl_weight must be a number or one per turn"),
        ({"tokens": 0}, "tokens must be positive"),
        ({"entropy": torch.zeros(1, 1)}, r"entropy must be \(1, 10\), got \(1, 1\)"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    batch = pack([synthetic_episode(0, 0, [2])])
    with pytest.raises(InvalidValueError, match=message):
        policy_loss(torch.zeros(batch.input_ids.shape), batch, **options)


def test_logits_must_fit_the_batch() -> None:
    batch = pack([synthetic_episode(0, 0, [2])])
    with pytest.raises(InvalidValueError, match=r"logits must be \(B, T, V\)"):
        token_logprobs(torch.zeros(1, 3, 100), batch)
    with pytest.raises(InvalidValueError, match="temperature must be positive"):
        token_logprobs(torch.zeros(1, 10, 100), batch, temperature=0.0)
    with pytest.raises(InvalidValueError, match="unknown kl 'k9'"):
        kl_divergence(torch.zeros(1), torch.zeros(1), "k9")  # type: ignore[arg-type]
