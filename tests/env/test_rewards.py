from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.env.dialogue import Dialogue, TurnDialogue
from mathturn_gym.env.environment import info_of
from mathturn_gym.env.rewards import TERMS, get_terms, turn_reward
from mathturn_gym.errors import InvalidValueError, UserFunctionError
from mathturn_gym.types import Problem, Status, TurnContext, TurnRecord, Verdict

RIGHT, WRONG = Verdict(Status.RIGHT, answer="42"), Verdict(Status.WRONG, answer="41")


ONE = Problem("p/1", "6*7=?", "42")


def turn(verdict: Verdict = WRONG, earlier: tuple[Verdict, ...] = (), tokens: int = 10) -> TurnContext:
    records = tuple(TurnRecord("", one, "", 0.0, 0, 0) for one in earlier)
    ids = np.zeros(tokens, np.int64)
    return TurnContext(ONE, len(earlier), 5, "", ids=ids, max_tokens=100, earlier=records, verdict=verdict)


def worth(name: str, verdict: Verdict = WRONG, earlier: tuple[Verdict, ...] = (), tokens: int = 10) -> float:
    return TERMS[name](turn(verdict, earlier, tokens))


def test_the_original_formula() -> None:
    assert [turn_reward(score) for score in (0.0, 0.5, 1.0)] == [-1.0, 0.0, 1.0]
    assert turn_reward(1.0, bias=0.5, scaling=5.0) == 2.5


@pytest.mark.parametrize(("tokens", "value"), [(0, 0), (80, 0), (85, -0.25), (90, -0.5), (100, -1), (101, -1)])
def test_overlong_falls_over_the_last_fifth_of_the_budget(tokens: int, value: float) -> None:
    assert worth("overlong", tokens=tokens) == pytest.approx(value)


def test_format_rewards_an_answer_that_was_found() -> None:
    assert worth("format") == worth("format", Verdict(Status.UNDECIDED)) == 1
    assert worth("format", Verdict(Status.NO_ANSWER)) == 0


def test_repeated_answers_are_those_that_failed_before() -> None:
    assert worth("repeated_answer", earlier=(WRONG,)) == -1
    assert worth("repeated_answer", Verdict(Status.WRONG, answer="82/2"), (Verdict(Status.WRONG, answer="41.0"),)) == -1
    assert worth("repeated_answer", Verdict(Status.WRONG, answer="x + 1"), (Verdict(Status.WRONG, answer="x+1"),)) == -1
    assert worth("repeated_answer", Verdict(Status.WRONG, answer="40"), (WRONG,)) == 0
    assert worth("repeated_answer", RIGHT, (RIGHT,)) == 0
    assert worth("repeated_answer", Verdict(Status.NO_ANSWER), (Verdict(Status.NO_ANSWER),)) == 0


def test_improvement_is_the_difference_of_scores() -> None:
    partly = Verdict(Status.WRONG, score=0.25)
    assert worth("improvement", partly) == 0
    assert worth("improvement", partly, (WRONG, WRONG)) == 0.25
    assert worth("improvement", partly, (RIGHT,)) == -0.75


def test_correct_to_wrong_looks_at_the_turn_before_alone() -> None:
    assert worth("correct_to_wrong", WRONG, (RIGHT,)) == -1
    assert worth("correct_to_wrong", WRONG, (RIGHT, WRONG)) == 0
    assert worth("correct_to_wrong", RIGHT, (RIGHT,)) == 0
    assert worth("correct_to_wrong", WRONG) == 0


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"overlnog": 1.0}, "did you mean 'overlong'"),
        ({"verdict": 1.0}, "choose another"),
        ({"overlong": float("nan")}, r"reward_terms\['overlong'\] must be a finite number"),
        ({"overlong": "1"}, r"reward_terms\['overlong'\] must be a finite number"),
    ],
)
def test_impossible_terms_are_refused(terms: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        get_terms(terms)


@pytest.mark.parametrize("value", ["a", None, float("nan"), float("inf"), True])
def test_a_term_of_the_user_must_return_a_number(value: Any) -> None:
    def mine(context: TurnContext) -> float:
        return value  # type: ignore[no-any-return]

    message = rf"what reward_terms\['mine'\] .*mine \(test_rewards.py, line \d+\) returns must be a finite number, got {value!r}"
    with pytest.raises(InvalidValueError, match=message):
        get_terms({"mine": mine})["mine"](turn())


def test_a_term_of_the_user_that_raises_is_named() -> None:
    def mine(context: TurnContext) -> float:
        return 1 / 0

    message = (
        r"reward_terms\['mine'\] .*mine \(.*\) raised ZeroDivisionError for problem 'p/1', turn 0: division by zero"
    )
    with pytest.raises(UserFunctionError, match=message) as caught:
        get_terms({"mine": mine})["mine"](turn())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_term_that_cannot_be_called_is_refused_when_it_is_given() -> None:
    with pytest.raises(
        InvalidValueError, match=r"reward_terms\['mine'\] is called as f\(context\), which .* does not take"
    ):
        get_terms({"mine": lambda verdict, tokens: 0.0})  # type: ignore[dict-item, misc]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"reward_scaling": 1e300},
        {"reward_scaling": -1e38},
        {"reward_bias": 1e39},
        {"reward_scaling": 1e30, "reward_bias": -1e10},
    ],
)
def test_rewards_whose_returns_leave_float32_are_refused(kwargs: dict[str, float]) -> None:
    with pytest.raises(InvalidValueError, match=r"reward_scaling=.* makes returns of up to .*float32"):
        MathMultiTurnEnv([ONE], **kwargs)  # type: ignore[arg-type]


def test_terms_whose_sum_leaves_float32_are_refused_when_they_come() -> None:
    env = MathMultiTurnEnv([ONE], reward_terms={"mine": lambda context: 1e38})
    env.reset(seed=0)
    with pytest.raises(InvalidValueError, match=r"the reward of problem 'p/1', turn 0 is 1e\+38.*returns are float32"):
        env.step(np.array([70]))
    largest = MathMultiTurnEnv([ONE], num_turns=1, reward_scaling=1.5e38)
    largest.reset(seed=0)
    assert largest.step(np.array([70]))[1] == -1.5e38


def action(text: str, dialogue: TurnDialogue) -> Any:
    return np.array(dialogue.tokenizer(text, add_special_tokens=False)["input_ids"], np.int64)


def test_terms_add_up_to_the_reward_and_are_each_in_the_info() -> None:
    weights = dict.fromkeys(TERMS, 0.5)
    env = MathMultiTurnEnv(
        [ONE],
        max_completion_tokens=64,
        num_turns=3,
        reward_terms={**weights, "mine": lambda context: float(len(context.ids))},
    )
    _, info = env.reset(seed=0)
    assert "reward_terms" not in info
    for text, verdict in ((r"\boxed{42}", 1.0), (r"\boxed{41}", -1.0), (r"\boxed{41}", -1.0)):
        ids = action(text, env.dialogue)
        _, reward, _, _, info = env.step(ids)
        terms = info["reward_terms"]
        assert set(terms) == {"verdict", "mine", *TERMS}
        assert reward == sum(terms.values())
        assert (terms["verdict"], terms["mine"]) == (verdict, len(ids))
        assert isinstance(reward, float)
    assert terms["repeated_answer"] == -0.5
    assert terms["correct_to_wrong"] == 0.0


def test_without_terms_the_reward_is_the_verdicts_alone() -> None:
    env = MathMultiTurnEnv([ONE])
    env.reset(seed=0)
    _, reward, _, _, info = env.step(action(r"\boxed{41}", env.dialogue))
    assert reward == -1.0
    assert "reward_terms" not in info


def test_rewards_do_not_depend_on_what_the_environment_says() -> None:
    """Only the policy's own text is rewarded: a feedback that holds the right answer changes nothing."""
    rewards = []
    for feedback in ("plain", lambda context: r"\boxed{42} " * 40):
        env = MathMultiTurnEnv(
            [ONE], max_completion_tokens=64, feedback=feedback, reward_terms=dict.fromkeys(TERMS, 1.0)
        )
        env.reset(seed=0)
        rewards.append([env.step(action(text, env.dialogue))[1] for text in (r"\boxed{41}", "nothing", r"\boxed{41}")])
    assert rewards[0] == rewards[1]


def test_a_vector_environment_reports_the_terms_of_each() -> None:
    env = gym.make_vec("MathMultiTurn-v0", num_envs=2, problems=[ONE], reward_terms={"turn_cost": 0.25})
    env.reset(seed=0)
    dialogue = Dialogue("builtin")
    _, rewards, _, _, infos = env.step((action(r"\boxed{42}", dialogue), action(r"\boxed{41}", dialogue)))
    assert rewards.tolist() == [0.75, -1.25]
    assert [info_of(infos, i)["reward_terms"] for i in (0, 1)] == [
        {"verdict": 1.0, "turn_cost": -0.25},
        {"verdict": -1.0, "turn_cost": -0.25},
    ]
    env.close()


def test_a_forked_state_keeps_the_terms() -> None:
    env = MathMultiTurnEnv([ONE], reward_terms={"turn_cost": 0.25})
    env.reset(seed=0)
    info = env.step(action(r"\boxed{41}", env.dialogue))[-1]
    assert env.set_state(env.get_state())[1]["reward_terms"] == info["reward_terms"]
