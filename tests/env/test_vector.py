from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import mathturn_gym  # noqa: F401
from mathturn_gym.env.environment import info_of
from mathturn_gym.env.vector import MathMultiTurnVectorEnv
from mathturn_gym.errors import EpisodeStateError, InvalidActionError, InvalidValueError, UserFunctionError
from mathturn_gym.problems import ProblemSource, load_problems
from mathturn_gym.testing import RandomPolicy
from mathturn_gym.types import Ids, Problem, Status, TurnContext, Verdict

MODES = ("sync", "async", "vector_entry_point")
KWARGS: dict[str, Any] = {"num_turns": 2, "max_completion_tokens": 12, "problems": "add1"}


def make(mode: str, autoreset: AutoresetMode, num_envs: int = 2, **vector_kwargs: Any) -> Any:
    if mode == "vector_entry_point":
        return gym.make_vec(
            "MathMultiTurn-v0", num_envs=num_envs, vectorization_mode=mode, autoreset_mode=autoreset, **KWARGS
        )
    return gym.make_vec(
        "MathMultiTurn-v0",
        num_envs=num_envs,
        vectorization_mode=mode,
        vector_kwargs={"autoreset_mode": autoreset, **vector_kwargs},
        **KWARGS,
    )


def play(env: Any, steps: int) -> list[Any]:
    """Everything a vector environment says in `steps` steps of a fixed random policy."""
    policy = RandomPolicy(env.single_action_space.vocab_size)
    obs, infos = env.reset(seed=3)
    said: list[Any] = [plain(obs), plain(infos)]
    for step in range(steps):
        actions = tuple(c.ids for c in policy.complete(obs, max_tokens=[5, 9], seeds=[step, step + 100]))
        obs, rewards, terminated, truncated, infos = env.step(actions)
        assert obs in env.observation_space
        said += [plain(obs), rewards.tolist(), terminated.tolist(), truncated.tolist(), plain(infos)]
    return said


def plain(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: plain(value) for key, value in sorted(data.items())}
    if isinstance(data, (tuple, list)) or (isinstance(data, np.ndarray) and data.dtype == object):
        return [plain(value) for value in data]
    return data.tolist() if isinstance(data, np.ndarray) else data


@pytest.mark.parametrize("autoreset", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_the_three_vectorisations_say_the_same(autoreset: AutoresetMode) -> None:
    said = {}
    for mode in MODES:
        env = make(mode, autoreset)
        assert env.metadata["autoreset_mode"] is autoreset
        said[mode] = play(env, steps=6)
        env.close()
    assert said["vector_entry_point"] == said["sync"]
    # Async workers hand infos over in other keys' order and types; all values are the same.
    assert said["async"] == said["sync"]


def test_async_without_shared_memory_and_without_copies() -> None:
    env = make("async", AutoresetMode.NEXT_STEP, shared_memory=False)
    expected = play(env, steps=3)
    env.close()
    live = make("async", AutoresetMode.NEXT_STEP, copy=False)
    obs, _ = live.reset(seed=3)
    assert [row.tolist() for row in obs] == expected[0]
    live.close()


def test_disabled_autoreset_refuses_to_step_an_ended_episode() -> None:
    env = make("vector_entry_point", AutoresetMode.DISABLED)
    env.reset(seed=0)
    nothing: tuple[Ids, ...] = (np.zeros(0, np.int64),) * 2
    env.step(nothing)
    assert env.step(nothing)[2].tolist() == [True, True]
    with pytest.raises(EpisodeStateError, match=r"environments \[0, 1\]"):
        env.step(nothing)
    obs, infos = env.reset(options={"reset_mask": np.array([True, False])})
    assert infos["_problem_id"].tolist() == [True, False]
    assert len(obs) == 2
    with pytest.raises(EpisodeStateError, match=r"environments \[1\]"):
        env.step(nothing)


def test_a_step_makes_one_verifier_call() -> None:
    class Counting:
        def __init__(self) -> None:
            self.batches: list[int] = []

        def verify(self, response: str, gold: Any) -> Verdict:
            raise AssertionError("the vector environment verifies in batches")

        def verify_batch(self, responses: Any, golds: Any) -> list[Verdict]:
            self.batches.append(len(responses))
            return [Verdict(Status.WRONG)] * len(responses)

    verifier = Counting()
    env = MathMultiTurnVectorEnv(4, verifier=verifier, problems=[Problem("p/1", "1+1", "2")])
    env.reset(seed=0)
    for _ in range(3):
        env.step((np.zeros(2, np.int64),) * 4)
    assert verifier.batches == [4, 4, 4]
    assert len({id(e.dialogue.tokenizer) for e in env.envs}) == 1


# ---- a user's part that raises


class Fragile:
    """Parts that work until they are told to break for one environment's answer."""

    def __init__(self) -> None:
        self.broken = ""

    def verifier(self, context: TurnContext) -> Any:
        return None if self.broken == "verifier" and context.response == "x" else False

    def feedback(self, context: TurnContext) -> str:
        if self.broken == "feedback" and context.response == "x":
            raise RuntimeError("no feedback")
        return "No."

    def term(self, context: TurnContext) -> float:
        if self.broken == "term" and context.response == "x":
            raise RuntimeError("no reward")
        return 0.5


class FragileSource(ProblemSource):
    """Problems by number, until it is told to break."""

    name, split = "fragile", None
    broken = False

    def get(self, seed: int, index: int) -> Problem:
        if self.broken:
            raise OSError("the disk is gone")
        return Problem(f"p/{seed}/{index}", f"{index}+1?", index + 1)

    def by_id(self, problem_id: str) -> Problem:
        raise NotImplementedError


def everything(env: MathMultiTurnVectorEnv) -> list[Any]:
    return [
        [getattr(state, name) for name in ("problem", "turns", "stop_reason", "ended", "stream", "next_index")]
        + [state.ids.tolist()]
        for state in (one.get_state() for one in env.envs)
    ]


# With autoreset DISABLED no step begins an episode, so that problems cannot break one.
BREAKING = [(b, mode) for b in ("verifier", "feedback", "term", "problems") for mode in AutoresetMode][:-1]


@pytest.mark.parametrize(("broken", "autoreset"), BREAKING)
@pytest.mark.parametrize("place", [0, 2])
def test_where_a_users_part_raises_no_environment_has_advanced(
    broken: str, autoreset: AutoresetMode, place: int
) -> None:
    parts, source = Fragile(), FragileSource()
    env = MathMultiTurnVectorEnv(
        3,
        autoreset,
        problems=source,
        num_turns=3,
        verifier=parts.verifier,
        feedback=parts.feedback,
        reward_terms={"mine": parts.term},
    )
    env.reset(seed=0)
    tokenizer = env.envs[0].dialogue.tokenizer
    plain, bad = (np.array(tokenizer(text, add_special_tokens=False)["input_ids"], np.int64) for text in "7x")
    turns_before = 1
    if broken == "problems":  # raises where a new episode begins: in the step that ends one, or the one after it
        turns_before = 2 if autoreset is AutoresetMode.SAME_STEP else 3
    for _ in range(turns_before):
        env.step((plain,) * 3)
    before, observations = everything(env), [ids.tolist() for ids in env._observations]
    actions = tuple(bad if i == place else plain for i in range(3))
    parts.broken, source.broken = broken, broken == "problems"
    for _ in range(2):
        with pytest.raises((InvalidValueError, UserFunctionError, OSError)):
            env.step(actions)
        assert everything(env) == before
        assert [ids.tolist() for ids in env._observations] == observations
    parts.broken, source.broken = "", False
    env.step(actions)
    assert everything(env) != before
    source.broken = True
    before = everything(env)
    with pytest.raises(OSError, match="disk"):
        env.reset(seed=1)
    assert everything(env) == before


def test_seeds_and_masks() -> None:
    env = MathMultiTurnVectorEnv(3)

    def ids(infos: dict[str, Any]) -> list[str]:
        return [info_of(infos, i)["problem_id"] for i in range(3)]

    first = {seed: load_problems("lins").get(seed, 0).id for seed in (2, 4, 5, 6, 9)}
    assert ids(env.reset(seed=4)[1]) == [first[4], first[5], first[6]]
    assert ids(env.reset(seed=[9, 9, 2])[1]) == [first[9], first[9], first[2]]
    assert env.np_random_seed == (9, 9, 2)
    assert len(env.np_random) == 3
    assert env.call("get_state")[0].problem.id == first[9]
    bad: list[tuple[dict[str, Any], str]] = [
        ({"reset_mask": [True] * 3}, "must be a bool array of shape"),
        ({"reset_mask": np.zeros(3, np.bool_)}, "must be True somewhere"),
    ]
    for options, message in bad:
        with pytest.raises(InvalidValueError, match=message):
            env.reset(options=options)
    with pytest.raises(InvalidValueError, match="one int or 3 of them, got 2"):
        env.reset(seed=[1, 2])


def test_bad_arguments_and_actions() -> None:
    with pytest.raises(InvalidValueError, match="num_envs must be an integer >= 1, got 0"):
        MathMultiTurnVectorEnv(0)
    with pytest.raises(InvalidValueError, match="unknown autoreset_mode 'Sometimes'"):
        MathMultiTurnVectorEnv(1, autoreset_mode="Sometimes")
    env = MathMultiTurnVectorEnv(2, num_turns=1)
    env.reset(seed=0)
    good = np.zeros(1, np.int64)
    with pytest.raises(InvalidActionError, match="actions must be 2 arrays"):
        env.step((good,))
    with pytest.raises(InvalidActionError, match=r"actions\[1\] is not in .* its dtype is float64"):
        env.step((good, np.array([0.5])))
    assert env.step((good, good))[2].all(), "a refused batch began no turn"


def test_rendering_and_closing() -> None:
    env = MathMultiTurnVectorEnv(2, render_mode="ansi")
    env.reset(seed=0)
    texts = env.render()
    assert all("problem lins/" in str(text) for text in texts)
    env.close()


def test_info_of_nested_and_missing_keys() -> None:
    infos = {
        "turn": np.array([1, 0]),
        "_turn": np.array([True, False]),
        "metadata": {"level": np.array([3, 0]), "_level": np.array([True, False])},
        "_metadata": np.array([True, False]),
    }
    assert info_of(infos, 0) == {"turn": 1, "metadata": {"level": 3}}
    assert info_of(infos, 1) == {}
