"""The token-level view: what a step is, what is seen, what it is worth, and who can use it."""

from __future__ import annotations

import functools
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

import mathturn_gym  # registers the ids
from mathturn_gym.baselines.classic import make_token_env
from mathturn_gym.env.dialogue import load_tokenizer
from mathturn_gym.errors import EpisodeStateError, InvalidActionError, InvalidValueError
from mathturn_gym.policies.sampling import answer_ids
from mathturn_gym.types import Problem
from mathturn_gym.wrappers import ReturnsWrapper
from mathturn_gym.wrappers.token_level import TokenLevelEnv

assert mathturn_gym
TOKENIZER = load_tokenizer("builtin")
IDS = answer_ids(TOKENIZER)
END = TOKENIZER.eos_token_id
VOCAB = len(TOKENIZER)
TASK: dict[str, Any] = {"problems": "add1", "num_turns": 3, "max_completion_tokens": 6}


def ids_of(text: str) -> list[int]:
    return list(TOKENIZER.encode(text))


def play(env: TokenLevelEnv, text: str, *, close: bool = True) -> list[Any]:
    """Writes an answer id by id; returns what each step returned."""
    ids = ids_of(text) + ([END] if close else [])
    places = {int(one): action for action, one in enumerate(env.action_ids)}
    return [env.step(places[one]) for one in ids]


def right_answer(env: TokenLevelEnv) -> str:
    base: Any = env.env.unwrapped
    return f"\\boxed{{{base.problem.gold[0]}}}"


def views() -> list[tuple[str, Callable[[], gym.Env[Any, Any]]]]:
    return [
        ("ids", functools.partial(make_token_env, **TASK)),
        ("dict", functools.partial(make_token_env, observation="dict", window=16, pinned=8, **TASK)),
        ("actions", functools.partial(make_token_env, action_ids=IDS, **TASK)),
    ]


class TestOneTokenPerStep:
    def test_the_closing_token_plays_the_turn_and_brings_its_reward(self) -> None:
        env = make_token_env(**TASK, action_ids=IDS)
        env.reset(seed=0)
        steps = play(env, "\\boxed{99}")
        assert [step[1] for step in steps] == [0.0] * (len(steps) - 1) + [-1.0]
        assert [step[4] for step in steps[:-1]] == [{}] * (len(steps) - 1)
        assert steps[-1][4]["turn"] == 1
        assert steps[-1][4]["response"] == "\\boxed{99}"
        assert steps[-1][2:4] == (False, False)
        assert "is_success" not in steps[-1][4]
        assert play(env, right_answer(env))[-1][1:4] == (1.0, True, False)

    def test_it_is_the_same_game_as_below(self) -> None:
        """The same ids in one piece give the same contexts, rewards and endings."""
        token, whole = make_token_env(**TASK), gym.make("MathMultiTurnUntilCorrect-v0", **TASK)
        token.reset(seed=5)
        whole.reset(seed=5)
        for text in ("\\boxed{1}", "what?", "\\boxed{7}"):
            observation, reward, terminated, truncated, info = play(token, text)[-1]
            below = whole.step(np.array([*ids_of(text), END]))
            assert observation[observation < VOCAB].tolist() == below[0][-64:].tolist()
            assert (reward, terminated, truncated) == below[1:4]
            assert {name: info[name] for name in below[4]} == below[4]
            if terminated:
                break
        assert terminated
        assert info["is_success"] == info["verdict"].correct

    def test_a_full_budget_closes_the_answer(self) -> None:
        env = make_token_env(**TASK)
        env.reset(seed=0)
        steps = play(env, "123456", close=False)
        assert [step[1] for step in steps] == [0.0] * 5 + [-1.0]
        assert steps[-1][4]["response"] == "123456"

    def test_truncation_by_the_context_is_kept(self) -> None:
        env = make_token_env(**{**TASK, "num_turns": 5}, max_context_tokens=30)
        env.reset(seed=0)
        for _ in range(40):
            _, _, terminated, truncated, info = env.step(ids_of("1")[0])
            if terminated or truncated:
                break
        assert (terminated, truncated, info["stop_reason"]) == (False, True, "context")
        assert info["is_success"] is False

    def test_a_prompt_without_room_ends_at_the_first_step(self) -> None:
        problems = [Problem(f"p/{i}", "1", "1") for i in range(16)] + [Problem("p/long", "1234", "1")]
        env = make_token_env(problems=problems, max_context_tokens=10, max_completion_tokens=4)
        env.reset(seed=0, options={"problem_id": "p/long"})
        _, reward, terminated, truncated, info = env.step(5)
        assert (reward, terminated, truncated, info["turn"]) == (0.0, False, True, 0)

    def test_actions_and_states_that_are_mistakes(self) -> None:
        env = make_token_env(**TASK, action_ids=IDS)
        with pytest.raises(EpisodeStateError, match=r"reset\(\)"):
            env.step(0)
        env.reset(seed=0)
        with pytest.raises(InvalidActionError, match=r"\[0, 13\), got 13"):
            env.step(13)
        play(env, right_answer(env))
        with pytest.raises(EpisodeStateError, match=r"reset\(\)"):
            env.step(0)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"window": 0}, "window must be an integer >= 1"),
            ({"pinned": 64}, r"pinned must be an integer in \[0, 63\]"),
            ({"observation": "dic"}, "did you mean 'dict'"),
            ({"action_ids": IDS, "allowed_ids": IDS}, "give one of them"),
            ({"action_ids": [1, 1]}, "none twice"),
            ({"allowed_ids": []}, "at least one"),
            ({"action_ids": [VOCAB]}, rf"action_ids\[0\] must be an integer in \[0, {VOCAB - 1}\]"),
            ({"action_ids": IDS[1:], "force_end": True}, "force_end needs an end-of-turn id"),
        ],
    )
    def test_arguments(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidValueError, match=message):
            make_token_env(**TASK, **changes)

    def test_only_around_our_environment(self) -> None:
        with pytest.raises(InvalidValueError, match="MathMultiTurnEnv"):
            TokenLevelEnv(gym.make("CartPole-v1"))

    def test_an_episode_record_from_below_makes_room_for_monitors(self) -> None:
        env = TokenLevelEnv(ReturnsWrapper(gym.make("MathSingleTurn-v0", problems="add1")))
        env.reset(seed=0)
        info = play(env, "5")[-1][4]
        assert "episode" not in info
        assert info["trajectory"].num_turns == 1


class TestWhatIsSeen:
    def test_window(self) -> None:
        env = make_token_env(**TASK, window=14)
        prompt, _ = env.reset(seed=0)
        length = int((prompt < VOCAB).sum())
        assert (prompt[length:] == VOCAB).all()
        steps = play(env, "\\boxed{9}")
        assert steps[0][0][length] == ids_of("\\boxed{")[0]
        assert (steps[-1][0] < VOCAB).all()

    def test_dict(self) -> None:
        env = make_token_env(**TASK, observation="dict")
        observation, _ = env.reset(seed=0)
        assert (observation["turn"], observation["verdict"]) == (0, 0)
        env_ids = make_token_env(**TASK)
        assert np.array_equal(observation["ids"], env_ids.reset(seed=0)[0])
        assert [play(env, text)[-1][0]["verdict"] for text in ("\\boxed{99}", "")] == [2, 3]
        final = play(env, right_answer(env))[-1][0]
        assert (final["turn"], final["verdict"]) == (3, 1)
        assert env.observation_space.contains(final)

    def test_observations_do_not_change_afterwards(self) -> None:
        env = make_token_env(**TASK)
        kept = [env.reset(seed=0)[0]] + [step[0] for step in play(env, "\\boxed{1}")]
        copies = [one.copy() for one in kept]
        play(env, "\\boxed{2}")
        assert all(np.array_equal(a, b) for a, b in zip(kept, copies, strict=True))


class TestMasks:
    def test_allowed_ids(self) -> None:
        env = make_token_env(**TASK, allowed_ids=IDS)
        assert np.flatnonzero(env.action_masks()).tolist() == sorted(IDS)
        assert make_token_env(**TASK, action_ids=IDS).action_masks().tolist() == [True] * 13
        assert make_token_env(**TASK).action_masks().all()

    def test_the_last_id_of_the_budget_can_be_forced_to_end_the_turn(self) -> None:
        env = make_token_env(**TASK, action_ids=IDS, force_end=True)
        env.reset(seed=0)
        for _ in range(5):
            assert env.action_masks().all()
            env.step(1)
        assert env.action_ids[env.action_masks()].tolist() == [END]
        env.step(IDS.index(END))
        assert env.action_masks().all()


class TestWhoCanUseIt:
    @pytest.mark.parametrize(("name", "make"), views())
    def test_checkers(self, name: str, make: Callable[[], gym.Env[Any, Any]]) -> None:
        from stable_baselines3.common.env_checker import check_env

        check_env(make(), warn=True)  # every warning is an error here
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gymnasium_check_env(make(), skip_render_check=False)

    @pytest.mark.parametrize("start_method", [None, pytest.param("spawn", marks=pytest.mark.slow), "forkserver"])
    def test_vector_environments_of_stable_baselines(self, start_method: str | None) -> None:
        from stable_baselines3.common.monitor import Monitor
        from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

        def one() -> gym.Env[Any, Any]:
            return Monitor(make_token_env(**TASK, action_ids=IDS))

        env: Any = SubprocVecEnv([one, one], start_method) if start_method else DummyVecEnv([one, one])
        try:
            env.seed(3)
            first = env.reset()
            assert first.shape == (2, 64)
            alone = make_token_env(**TASK)
            assert np.array_equal(first[1], alone.reset(seed=4)[0])
            assert np.stack(env.env_method("action_masks")).all()
            ended: list[dict[str, Any]] = []
            for _ in range(60):
                _, rewards, dones, infos = env.step(np.full(2, IDS.index(END)))
                ended += [info for info, done in zip(infos, dones, strict=True) if done]
                assert (rewards == -1.0).all()
            assert ended
            assert all(info["episode"]["r"] == -3.0 and info["episode"]["l"] == 3 for info in ended)
            assert all(info["is_success"] is False and not info["TimeLimit.truncated"] for info in ended)
        finally:
            env.close()

    def test_cleanrl_style_loop(self) -> None:
        """Gymnasium's vector environment, masks by `call`, `final_info` at the end: no library in between."""
        make = functools.partial(make_token_env, **TASK, allowed_ids=IDS)
        env = gym.vector.SyncVectorEnv([make] * 3, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
        rng = np.random.default_rng(0)
        observations, _ = env.reset(seed=1)
        assert observations.shape == (3, 64)
        finished = 0
        for _ in range(120):
            masks = np.stack(env.call("action_masks"))
            actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])
            observations, _rewards, terminations, truncations, infos = env.step(actions)
            over = terminations | truncations
            finished += int(over.sum())
            if over.any():
                assert infos["final_info"]["_is_success"][over].all()
        assert finished > 3
        env.close()

    def test_the_views_do_not_load_stable_baselines(self) -> None:
        code = (
            "import sys; from mathturn_gym.wrappers import WholeAnswerEnv; WholeAnswerEnv('MathSingleTurn-v0')\n"
            "from mathturn_gym.baselines.classic import make_token_env\n"
            "make_token_env(problems='add1').reset(seed=0)\n"
            "assert 'stable_baselines3' not in sys.modules\n"
            "import mathturn_gym.baselines.classic as c; c.WindowTransformer; assert 'stable_baselines3' in sys.modules\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
