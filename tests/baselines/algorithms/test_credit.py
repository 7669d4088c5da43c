"""What each algorithm says turns and tokens were worth, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mathturn_gym.baselines import (
    GRPO,
    RLOO,
    ClippedREINFORCE,
    DrGRPO,
    OnlineRFT,
    ReinforcePP,
    ReinforcePPBaseline,
    ScaledDrGRPO,
    ShrunkRLOO,
    TurnReinforcePP,
    TurnRLOO,
)
from mathturn_gym.baselines.algorithms import Part, State, registered
from mathturn_gym.baselines.algorithms._credit import RunningMeans, charged, continued, differ, token_gae, token_returns
from mathturn_gym.baselines.algorithms.grpo import GSPO, EpisodeBudget
from mathturn_gym.baselines.algorithms.reinforce import REINFORCE
from mathturn_gym.episodes.losses import policy_loss
from mathturn_gym.episodes.packing import PackedBatch, pack
from mathturn_gym.episodes.returns import advantages, returns_to_go
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode, Status, Verdict


def episode(index: int, lengths: list[int], rewards: list[float], group: str | None = None, **fields: Any) -> Episode:
    returns = returns_to_go(rewards, 1.0)
    return synthetic_episode(
        0, index, lengths, rewards=np.array(rewards), group=group, returns=returns, discount=1.0, **fields
    )


GROUP = [
    episode(0, [2], [1.0], "g"),
    episode(1, [2, 3], [-1.0, 1.0], "g"),
    episode(2, [4, 1], [-1.0, -1.0], "g"),
]
WHOLE = np.array([1.0, 0.0, -2.0])
"""Returns of the group's episodes."""


def per_episode(found: Any) -> list[float]:
    assert [len(a) for a in found] == [1, 2, 2]
    assert all(len(set(a.tolist())) == 1 for a in found), "all turns of an episode share its advantage"
    return [float(a[0]) for a in found]


def test_running_means_judge_by_what_came_before() -> None:
    baseline = RunningMeans(decay=0.75)
    first = [np.array([1.0]), np.array([-1.0, 1.0]), np.array([-1.0, -1.0])]
    centered = np.array([4 / 3, -2 / 3, 1.0, -2 / 3, -1.0])
    np.testing.assert_allclose(np.concatenate(baseline.center(first)), centered)
    assert baseline.means[1:] == [0.0]
    # The second batch is judged by the means before it; turn 3 is new.
    second = [np.array([1.0]), np.array([-1.0, -1.0, 1.0])]
    found = np.concatenate(baseline.center(second))
    np.testing.assert_allclose(found, [4 / 3, -2 / 3, -1.0, 0.0])
    assert [round(mean, 6) for mean in baseline.means] == [-0.25, -0.25, 1.0]
    again = RunningMeans(decay=0.75)
    again.load(baseline.numbers(), {})
    assert again.means == baseline.means


def test_reinforce_is_the_return_less_its_baseline_and_nothing_else() -> None:
    state = RunningMeans(decay=0.5)
    state.means = [0.25, -0.5]
    found = REINFORCE().credit(GROUP, state)
    for one, by_hand in zip(found, ([0.75], [-0.25, 1.5], [-2.25, -0.5]), strict=True):
        np.testing.assert_allclose(one, by_hand)


def test_clipped_reinforce_divides_by_the_root_mean_square() -> None:
    found = np.concatenate(ClippedREINFORCE().credit(GROUP, RunningMeans(decay=0.5)))
    plain = np.concatenate(RunningMeans(decay=0.5).center([e.returns for e in GROUP if e.returns is not None]))
    np.testing.assert_allclose(found, plain / np.sqrt(np.mean(plain**2)), rtol=1e-5)
    same = [episode(i, [1], [1.0]) for i in range(3)]
    assert np.concatenate(ClippedREINFORCE().credit(same, RunningMeans(decay=0.9))).tolist() == [0.0] * 3


def wrong(count: int) -> list[Episode]:
    return [episode(i, [1], [-1.0]) for i in range(count)]


@pytest.mark.parametrize("algorithm", [ClippedREINFORCE(), REINFORCE()])
def test_one_success_and_then_none_makes_no_advantage_explode(algorithm: Any) -> None:
    """One success in 128, then batches without any: the divisor of the last batches alone would be rounding."""
    state = RunningMeans(decay=0.9)
    batches = [[episode(0, [1], [1.0]), *wrong(127)], *([wrong(128)] * 200), [episode(0, [1], [1.0]), *wrong(127)]]
    largest = [float(np.abs(np.concatenate(algorithm.credit(batch, state))).max()) for batch in batches]
    assert max(largest) <= np.sqrt(128)
    assert largest[1] < 0.1, "a batch in which all were alike teaches next to nothing"
    assert largest[200] < 1e-5, "and less and less"
    assert largest[201] > 1.0, "until something works again"


def test_a_batch_without_success_from_the_start_teaches_nothing() -> None:
    for algorithm in (ClippedREINFORCE(), REINFORCE()):
        state = RunningMeans(decay=0.9)
        for _ in range(20):
            assert np.abs(np.concatenate(algorithm.credit(wrong(16), state))).max() < 1e-9


def test_running_means_resume_with_their_scale() -> None:
    first, again = RunningMeans(decay=0.9), RunningMeans(decay=0.9)
    ClippedREINFORCE().credit(GROUP, first)
    again.load(first.numbers(), {})
    one, other = (np.concatenate(ClippedREINFORCE().credit(wrong(4), state)) for state in (first, again))
    assert one.tolist() == other.tolist()


def test_shrunk_rloo_reads_the_other_problems_too() -> None:
    batch = [*GROUP, *(episode(3 + i, [1], [float(i)], "h") for i in range(2))]
    plain, shrunk = TurnRLOO(group_size=3, scale_advantages=False), ShrunkRLOO(shrinkage=2.0, scale_advantages=False)
    assert plain.credit(batch, State())[0][0] == pytest.approx(1 - (0 - 2) / 2)
    assert shrunk.credit(batch, State())[0][0] == pytest.approx(1 - (0 - 2 + 2 * 0.5) / 4)
    scaled = np.concatenate(ShrunkRLOO(shrinkage=2.0).credit(batch, State()))
    assert np.sqrt(np.mean(scaled**2)) == pytest.approx(1.0, rel=1e-5)


def test_reinforce_pp_with_baseline_centers_in_groups_and_scales_over_the_batch() -> None:
    found = np.concatenate(ReinforcePPBaseline(group_size=3).credit(GROUP, State()))
    centered = np.repeat(WHOLE - WHOLE.mean(), [1, 2, 2])
    tokens = np.repeat(centered, [2, 2, 3, 4, 1])
    np.testing.assert_allclose(found, (centered - tokens.mean()) / tokens.std(), rtol=1e-5)


def cut(index: int, rewards: list[float]) -> Episode:
    return episode(index, [1] * len(rewards), rewards, terminated=False, truncated=True, stop_reason=None)


def test_an_episode_that_its_context_cut_off_is_continued_by_what_others_turns_were_worth() -> None:
    ended = [episode(0, [1, 1, 1], [-1.0, -1.0, 1.0]), episode(1, [1, 1], [-1.0, 3.0]), episode(2, [1], [1.0])]
    first, second, alone = continued([cut(3, [-1.0]), cut(4, [-1.0, -1.0]), cut(5, [0.0] * 3)], 0.5), None, None
    assert [e.rewards.tolist() for e in first] == [[-1.0], [-1.0, -1.0], [0.0] * 3], (
        "nobody was there: nothing is known"
    )
    found = continued([*ended, cut(3, [-1.0]), cut(4, [-1.0, -1.0])], 0.5)
    assert found[:3] == ended
    second, alone = found[3], found[4]
    following = np.mean([0.0, 3.0])  # of the second turns, by the returns that episodes carry (discount 1)
    assert second.rewards.tolist() == [-1.0 + 0.5 * following]
    assert alone.rewards.tolist() == [-1.0, -1.0 + 0.5 * 1.0]
    assert second.returns is not None
    assert second.returns.tolist() == [-0.25]


def test_every_trainer_continues_such_an_episode_or_says_that_its_method_does_not() -> None:
    as_published = {"rloo", "grpo", "dr_grpo", "scaled_dr_grpo", "gspo", "reinforce_pp_baseline", "online_rft"}
    kinds = {n: kind for n, kind in registered().items() if kind.kind == "language model"}
    assert {n for n, kind in kinds.items() if not kind.continues_truncated} == as_published  # type: ignore[attr-defined]


def test_turns_pay_for_their_kl() -> None:
    (found,) = charged([GROUP[1]], [np.array([2.0, 4.0])], 0.25, 1.0)
    assert found.rewards.tolist() == [-1.5, 0.0]
    assert found.returns is not None
    assert found.returns.tolist() == [-1.5, 0.0]


def test_returns_differ_or_do_not() -> None:
    assert differ(GROUP)
    assert not differ(wrong(5))
    assert not differ([episode(0, [1, 1], [-1.0, 1.0]), episode(1, [1], [0.0])])  # 0 and 0 at the first turn
    assert not differ([])


def test_rloo_is_an_episodes_return_less_the_others_mean() -> None:
    found = per_episode(RLOO(group_size=3).credit(GROUP, State()))
    np.testing.assert_allclose(found, [1 - (0 - 2) / 2, 0 - (1 - 2) / 2, -2 - (1 + 0) / 2])


def test_grpo_divides_by_the_groups_deviation_and_dr_grpo_does_not() -> None:
    centered = WHOLE - WHOLE.mean()
    np.testing.assert_allclose(per_episode(DrGRPO(group_size=3).credit(GROUP, EpisodeBudget(8))), centered, rtol=1e-6)
    by_deviation = centered / (WHOLE.std(ddof=1) + 1e-4)
    np.testing.assert_allclose(per_episode(GRPO(group_size=3).credit(GROUP, State())), by_deviation, rtol=1e-6)
    turns = np.repeat(centered, [1, 2, 2])
    found = np.concatenate(ScaledDrGRPO(group_size=3).credit(GROUP, EpisodeBudget(8)))
    np.testing.assert_allclose(found, turns / np.sqrt((turns**2).mean()), rtol=1e-5)


def test_turn_rloo_judges_a_turn_by_those_who_reached_it() -> None:
    found = TurnRLOO(group_size=3, scale_advantages=False).credit(GROUP, State())
    np.testing.assert_allclose(found[1], [0 - (1 - 2) / 2, 1 - (-1)])
    scaled = np.concatenate(TurnRLOO(group_size=3).credit(GROUP, State()))
    plain = np.concatenate(found)
    np.testing.assert_allclose(scaled, plain / np.sqrt((plain**2).mean()), rtol=1e-5)


def test_reinforce_pp_normalizes_over_tokens_and_its_variant_over_turns() -> None:
    returns = np.concatenate([e.returns for e in GROUP if e.returns is not None])
    tokens = np.repeat(returns, [2, 2, 3, 4, 1])
    turn = (returns - returns.mean()) / returns.std()
    np.testing.assert_allclose(np.concatenate(TurnReinforcePP().credit(GROUP, State())), turn, rtol=1e-5)
    state: Any = SimpleNamespace(trainer=None)
    found = ReinforcePP().credit(GROUP, state)
    assert not isinstance(found, PackedBatch)
    np.testing.assert_allclose(np.concatenate(found), (returns - tokens.mean()) / tokens.std(), rtol=1e-5)
    by_token = np.repeat(np.concatenate(found), [2, 2, 3, 4, 1])
    assert by_token.mean() == pytest.approx(0.0, abs=1e-6)
    assert by_token.std() == pytest.approx(1.0, rel=1e-5)


class FakeTrainer:
    """As much of a trainer as credit by tokens asks for; the reference says -1 to everything."""

    config = SimpleNamespace(env=None)

    def pack(self, episodes: Any, per_turn: Any = None) -> PackedBatch:
        zeros = [np.zeros(e.num_turns, np.float32) for e in episodes]
        return pack(episodes, advantages=zeros if per_turn is None else per_turn)

    def reference_logprobs(self, batch: PackedBatch) -> torch.Tensor:
        return torch.full(batch.input_ids.shape, -1.0)

    def with_token_advantages(self, batch: PackedBatch, values: Any) -> PackedBatch:
        return batch.replace_tensors({"advantages": torch.from_numpy(values.astype(np.float32))})


def test_reinforce_pp_takes_the_kl_that_is_still_to_come_off_the_return() -> None:
    """Equation 8 of arXiv:2501.03262: A[t] = r - beta * sum over i >= t of log(p_old / p_ref)."""
    found = ReinforcePP(reward_kl=0.5).credit(GROUP, SimpleNamespace(trainer=FakeTrainer()))  # type: ignore[arg-type]
    assert isinstance(found, PackedBatch)
    by_hand = []
    for one in GROUP:
        drift = one.logprobs[one.loss_mask].astype(float) + 1.0
        lengths = np.diff(one.turn_spans, axis=1)[:, 0]
        returns = np.repeat(returns_to_go(one.rewards, 1.0), lengths)
        by_hand.append(returns - 0.5 * np.cumsum(drift[::-1])[::-1])
    tokens = np.concatenate(by_hand)
    normalized = (tokens - tokens.mean()) / tokens.std()
    np.testing.assert_allclose(found.advantages[found.loss_mask].numpy(), normalized, rtol=1e-5, atol=1e-6)


def test_online_rft_keeps_right_turns_alone() -> None:
    right, wrong = Verdict(Status.RIGHT), Verdict(Status.WRONG)
    episodes = [
        synthetic_episode(0, 0, [2, 3], verdicts=(wrong, right)),
        synthetic_episode(0, 1, [2], verdicts=(wrong,)),
    ]
    algorithm = OnlineRFT()
    batch = pack(episodes, advantages=algorithm.credit(episodes, State()))
    assert float(batch.advantages.sum()) == 3.0
    logprobs = torch.full(batch.input_ids.shape, -2.0, requires_grad=True)
    out = algorithm.loss(logprobs, Part(batch, batch, {}), State())
    out.loss.backward()  # type: ignore[no-untyped-call]
    assert float(out.loss.detach()) == pytest.approx(2.0)
    assert logprobs.grad is not None
    assert sorted(set(logprobs.grad[batch.loss_mask].tolist())) == pytest.approx([-1 / 3, 0.0])


def test_online_rft_keeps_whole_episodes_where_one_turn_helps_another() -> None:
    right, wrong = Verdict(Status.RIGHT), Verdict(Status.WRONG)
    episodes = [
        synthetic_episode(0, 0, [2, 3], verdicts=(wrong, right)),
        synthetic_episode(0, 1, [2, 2], verdicts=(wrong, wrong)),
        synthetic_episode(0, 2, [4, 1], verdicts=(right, wrong)),
    ]
    turns = [[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    assert [one.tolist() for one in OnlineRFT().credit(episodes, State())] == turns
    solved = OnlineRFT(selection="episode").credit(episodes, State())
    assert [one.tolist() for one in solved] == [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    assert all(one.dtype == np.float32 for one in solved)


@pytest.mark.parametrize("algorithm", [REINFORCE(), RLOO(group_size=3)])
def test_the_published_gradients_are_those_of_whole_episodes(algorithm: Any) -> None:
    """-1/E times the sum over episodes and tokens of A * grad log p: no ratio, no clipping, no length."""
    given = [np.array([0.5], np.float32), np.array([1.0, -2.0], np.float32), np.array([3.0, 3.0], np.float32)]
    batch = pack(GROUP, advantages=given)
    logprobs: Any = (batch.behavior_logprobs + 5.0).requires_grad_()  # far from the behavior policy: it is no matter
    algorithm.loss(logprobs, Part(batch, batch, {}), State()).loss.backward()
    expected = -batch.advantages[batch.loss_mask] / 3
    torch.testing.assert_close(logprobs.grad[batch.loss_mask], expected)


@pytest.mark.parametrize(
    ("algorithm", "keywords"),
    [
        (GRPO(normalization="token", dual_clip=3.0), {"normalization": "token", "dual_clip": 3.0}),
        (GRPO(ratio="turn"), {"normalization": "sequence", "ratio": "turn"}),
        (GSPO(clip=0.2, clip_high=0.2), {"normalization": "sequence", "ratio": "sequence"}),
        (TurnRLOO(normalization="turn", clip_high=0.3), {"normalization": "turn", "clip_high": 0.3}),
    ],
)
def test_options_of_clipping_reach_the_loss(algorithm: Any, keywords: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    batch = pack(GROUP, advantages=[rng.normal(size=e.num_turns).astype(np.float32) for e in GROUP])
    logprobs = batch.behavior_logprobs + torch.from_numpy(rng.normal(0, 3, batch.input_ids.shape).astype(np.float32))
    found = algorithm.loss(logprobs, Part(batch, batch, {}), State()).loss
    torch.testing.assert_close(found, policy_loss(logprobs, batch, **keywords).loss)
    assert found != policy_loss(logprobs, batch).loss


def test_parts_add_up_to_their_minibatch() -> None:
    batch = pack(GROUP, advantages=[np.ones(e.num_turns, np.float32) for e in GROUP])
    logprobs = batch.behavior_logprobs + 0.1
    for normalization in ("token", "turn", "sequence"):
        whole = Part(batch, batch, {}).policy_loss(logprobs, normalization=normalization)
        direct = policy_loss(logprobs, batch, normalization=normalization)
        torch.testing.assert_close(whole.loss, direct.loss)


@given(st.data())
def test_token_gae_is_turn_gae_where_a_turn_is_one_token(data: st.DataObject) -> None:
    turns = data.draw(st.integers(1, 5))
    reals = st.floats(-2, 2)
    values = np.array([data.draw(reals) for _ in range(turns)])
    rewards = np.array([data.draw(reals) for _ in range(turns)])
    discount, lam = data.draw(st.floats(0, 1)), data.draw(st.floats(0, 1))
    one = synthetic_episode(0, 0, [1] * turns, rewards=rewards)
    with pytest.warns() if lam < 1 else pytest.MonkeyPatch.context():
        expected = advantages([one], "gae", values=[values], discount=discount, gae_lambda=lam)[0]
    # Per turn, lambda multiplies discount; per token the discount falls on the same place.
    found = token_gae(values, np.ones(turns, np.int64), rewards, discount, lam)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_token_gae_without_bootstrapping_is_the_return_less_the_value() -> None:
    values, lengths = np.array([0.1, 0.2, 0.3, 0.4]), np.array([2, 0, 2])
    found = token_gae(values, lengths, [1.0, 10.0, 100.0], discount=0.5, gae_lambda=1.0)
    last = 100.0
    first = 1 + 0.5 * (10 + 0.5 * last)  # the turn without tokens passes its reward on
    np.testing.assert_allclose(found + values, [first, first, last, last])
    alone = token_gae(values, lengths, [1.0, 10.0, 100.0], discount=0.0, gae_lambda=0.0)
    np.testing.assert_allclose(alone, [0.1, 0.8, 0.1, 99.6])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.floats(0, 1), st.data())
def test_token_returns_are_gae_without_values(lengths: list[int], discount: float, data: st.DataObject) -> None:
    rewards = [data.draw(st.floats(-2, 2)) for _ in lengths]
    zeros = np.zeros(sum(lengths))
    found = token_returns(zeros, np.array(lengths), rewards, discount)
    np.testing.assert_allclose(found, token_gae(zeros, np.array(lengths), rewards, discount, 1.0), atol=1e-9)
