"""Verdicts and hints that are sometimes false: rates, what sees which verdict, and the laws of the environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import mathturn_gym  # noqa: F401 - registers the environments
from mathturn_gym.env.feedback import AboveBelow
from mathturn_gym.env.feedback._registry import RIGHT_TEXT
from mathturn_gym.env.noise import VerdictNoise
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems import load_problems
from mathturn_gym.testing import ScriptedPolicy
from mathturn_gym.types import Problem, Status, TurnContext, Verdict

RIGHT, WRONG = Verdict(Status.RIGHT, answer="3"), Verdict(Status.WRONG, answer="4")


def shares(noise: VerdictNoise, verdict: Verdict, episodes: int = 4_000) -> list[float]:
    """How often reward and feedback are false, and how often they agree."""
    seen = [noise.verdicts(seed, 1, verdict) for seed in range(episodes)]
    false = np.array([[one.correct != verdict.correct for one in pair] for pair in seen])
    return [float(false[:, 0].mean()), float(false[:, 1].mean()), float((false[:, 0] == false[:, 1]).mean())]


def test_verdicts_are_false_as_often_as_asked_and_agree_where_they_share_a_coin() -> None:
    shared = VerdictNoise((0.3, 0.1), (0.3, 0.1))
    assert shares(shared, RIGHT) == pytest.approx([0.3, 0.3, 1.0], abs=0.03)
    assert shares(shared, RIGHT)[2] == 1.0
    assert shares(shared, WRONG)[:2] == pytest.approx([0.1, 0.1], abs=0.02)
    apart = shares(VerdictNoise((0.3, 0.1), (0.3, 0.1), same_coin=False), RIGHT)
    assert apart[2] == pytest.approx(0.3**2 + 0.7**2, abs=0.03), "two independent draws"
    none = Verdict(Status.NO_ANSWER)
    assert VerdictNoise((1.0, 1.0), (1.0, 1.0)).verdicts(0, 0, none) == (none, none)


def make(**keywords: Any) -> Any:
    return gym.make("MathMultiTurnUntilCorrect-v0", problems="guess8:test", num_turns=3, **keywords).unwrapped


def answer(env: Any, number: int | str) -> Any:
    return np.array(env.dialogue.tokenizer.encode(f"\\boxed{{{number}}}<|im_end|>"), np.int64)


def test_reward_and_feedback_each_see_their_own_verdict_and_the_info_all_three() -> None:
    terms = {"mine": lambda context: float(context.judged.correct)}
    env = make(verdict_noise={"feedback": [1.0, 0.0]}, reward_terms=terms)
    env.reset(seed=0)
    gold = env.problem.gold[0]
    *_, reward, terminated, _, info = env.step(answer(env, gold))
    assert (reward, terminated) == (2.0, False), "rewarded as right, told that it is wrong, and so not at its end"
    assert info["verdict"].correct
    assert info["reward_verdict"].correct
    assert not info["feedback_verdict"].correct
    env = make(verdict_noise={"reward": [0.0, 1.0]}, feedback="delayed", reward_terms=terms)
    env.reset(seed=0)
    wrong = 1 + int(env.problem.gold[0]) % 8
    *_, reward, terminated, _, info = env.step(answer(env, wrong))
    assert (reward, terminated) == (2.0, False)
    assert not info["feedback_verdict"].correct
    assert info["reward_verdict"].correct


def test_whoever_reads_earlier_verdicts_reads_the_noisy_ones() -> None:
    """`delayed` feedback speaks of the turn before, and would tell the truth otherwise."""
    env = make(verdict_noise={"feedback": [0.0, 1.0]}, feedback="delayed", stop_on_success=False)
    env.reset(seed=0)
    wrong = 1 + int(env.problem.gold[0]) % 8
    env.step(answer(env, wrong))
    assert env.step(answer(env, wrong))[4]["feedback"] == RIGHT_TEXT


@pytest.mark.parametrize("feedback", ["plain", AboveBelow(lies=0.5)])
def test_episodes_are_repeatable_and_forks_meet_the_same_noise(feedback: Any) -> None:
    noise = {"reward": [0.5, 0.5], "feedback": [0.5, 0.5], "same_coin": False}
    env, other = (make(verdict_noise=noise, feedback=feedback, stop_on_success=False) for _ in range(2))

    def played(one: Any, turns: int) -> list[Any]:
        steps = [one.step(answer(one, 4)) for _ in range(turns)]
        return [(reward, info["feedback"], info["reward_verdict"]) for _, reward, _, _, info in steps]

    found = []
    for index in range(8):
        env.reset(seed=5, options={"index": index})
        state = env.get_state()
        first = played(env, 3)
        other.set_state(state)
        assert played(other, 3) == first
        other.reset(seed=5, options={"index": np.int64(index)})
        assert played(other, 3) == first
        found.append(str(first))
    assert len(set(found)) == 8, "episodes have draws of their own"


def test_vector_and_single_environments_meet_the_same_noise_and_so_does_each_member_of_a_group() -> None:
    keywords: dict[str, Any] = {
        "problems": "guess8:test",
        "num_turns": 4,
        "stop_on_success": False,
        "verdict_noise": {"reward": [0.5, 0.5], "feedback": [0.5, 0.5]},
    }
    policy = ScriptedPolicy(["\\boxed{4}"], make().dialogue)
    rewards = []
    for count in (1, 3):
        env = gym.make_vec("MathMultiTurnUntilCorrect-v0", num_envs=count, **keywords)
        episodes = collect(env, policy, 8, seed=2, group_size=4)
        rewards.append([tuple(one.rewards.tolist()) for one in episodes])
        env.close()
    assert rewards[0] == rewards[1]
    assert len(set(rewards[0][:4])) > 1, "a group's episodes are independent"


def test_hints_lie_as_often_as_asked() -> None:
    problem = Problem("p/1", "?", "5")

    def said(lies: float, guess: int, seed: int) -> str:
        verdict = Verdict(Status.WRONG, answer=str(guess))
        return AboveBelow(lies)(TurnContext(problem, 0, 3, "", verdict=verdict, episode_seed=seed))

    assert said(0.0, 3, 0).endswith("Hint: it is above 3.")
    assert said(0.0, 8, 0).endswith("Hint: it is below 8.")
    lies = np.mean([said(0.25, 3, seed).endswith("it is below 3.") for seed in range(2_000)])
    assert lies == pytest.approx(0.25, abs=0.03)
    unreadable = TurnContext(problem, 0, 3, "", verdict=Verdict(Status.WRONG, answer="x"))
    assert "Hint" not in AboveBelow()(unreadable)


def test_priors_are_those_that_the_documentation_says() -> None:
    def counts(name: str) -> list[float]:
        source = load_problems(name)
        drawn = [int(source.get(0, index).gold[0]) for index in range(4_000)]
        return [float(share) for share in np.bincount(drawn)[1:] / len(drawn)]

    weights = 0.75 ** np.arange(7)
    assert counts("guess-geometric7") == pytest.approx((weights / weights.sum()).tolist(), abs=0.03)
    assert counts("guess-peaks15") == pytest.approx([3 / 19, *[1 / 19] * 13, 3 / 19], abs=0.03)


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        ({"rewards": [0, 0]}, "unknown key of verdict_noise 'rewards': did you mean 'reward'"),
        ({"reward": 0.3}, r"reward must be \[FALSE NEGATIVES, FALSE POSITIVES\], got 0.3"),
        ({"reward": [0.3, 1.5]}, "verdict_noise: reward must be a finite number in"),
        ({"same_coin": 1}, "same_coin must be true or false, got 1"),
        (0.3, "verdict_noise must be a table"),
    ],
)
def test_noise_that_is_none_is_refused(noise: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        make(verdict_noise=noise)
