"""Gymnasium's own wrappers around ours, and ours around them: single environments, and vector ones in every mode."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers as theirs
from gymnasium.vector import AutoresetMode

import mathturn_gym  # noqa: F401 - registers the ids
from mathturn_gym.env.environment import info_of
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.testing import RandomPolicy
from mathturn_gym.types import Episode
from mathturn_gym.wrappers import ReturnsWrapper, VectorReturnsWrapper

TURNS = 2
KWARGS: dict[str, Any] = {"num_turns": TURNS, "max_completion_tokens": 8, "problems": "add1"}
WRONG = np.array([70])
MODES = list(itertools.product(["vector_entry_point", "sync", "async"], AutoresetMode))


def play(env: gym.Env[Any, Any], episodes: int = 2) -> list[dict[str, Any]]:
    """The infos of the steps that ended an episode."""
    ended: list[dict[str, Any]] = []
    env.reset(seed=0)
    while len(ended) < episodes:
        *_, terminated, truncated, info = env.step(WRONG)
        if terminated or truncated:
            ended.append(info)
            env.reset()
    return ended


def single(**kwargs: Any) -> gym.Env[Any, Any]:
    return gym.make("MathMultiTurn-v0", **{**KWARGS, **kwargs})


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: theirs.RecordEpisodeStatistics(env),
        lambda env: ReturnsWrapper(theirs.RecordEpisodeStatistics(env)),
        lambda env: theirs.RecordEpisodeStatistics(ReturnsWrapper(env)),
    ],
    ids=["statistics", "returns(statistics)", "statistics(returns)"],
)
def test_statistics(wrap: Callable[[Any], gym.Env[Any, Any]]) -> None:
    env = wrap(single())
    for info in play(env):
        assert (info["episode"]["r"], info["episode"]["l"]) == (-float(TURNS), TURNS)
        if "trajectory" in info:
            assert info["trajectory"].rewards.tolist() == [-1.0] * TURNS
    assert ("trajectory" in info) == ("Returns" in repr(env))


@pytest.mark.parametrize("how", ["wrapper", "max_episode_steps"])
def test_a_time_limit_truncates(how: str) -> None:
    env = theirs.TimeLimit(single(num_turns=5), 1) if how == "wrapper" else single(num_turns=5, max_episode_steps=1)
    for info in play(ReturnsWrapper(env)):
        episode: Episode = info["trajectory"]
        assert (episode.num_turns, episode.truncated, episode.terminated, episode.stop_reason) == (1, True, False, None)
        assert info["turns_left"] == 4


@pytest.mark.parametrize(
    ("wrap", "reward"),
    [
        (lambda env: theirs.TransformReward(env, lambda reward: 2 * float(reward)), -2.0),
        (lambda env: theirs.ClipReward(env, -0.5, 0.5), -0.5),
        (lambda env: theirs.OrderEnforcing(env), -1.0),
        (lambda env: theirs.PassiveEnvChecker(env), -1.0),
    ],
    ids=["transform", "clip", "order", "checker"],
)
def test_wrappers_that_leave_ids_alone(wrap: Callable[[Any], gym.Env[Any, Any]], reward: float) -> None:
    for info in play(ReturnsWrapper(wrap(single()))):
        assert info["trajectory"].rewards.tolist() == [reward] * TURNS


def test_autoreset_and_rendering() -> None:
    env = theirs.Autoreset(single())
    env.reset(seed=0)
    ended = [any(env.step(WRONG)[2:4]) for _ in range(6)]
    assert ended == [False, True, False] * 2
    shown = theirs.RenderCollection(single(render_mode="ansi"))
    shown.reset(seed=0)
    shown.step(WRONG)
    assert [str(frame).count("turn ") for frame in shown.render()] == [0, 1]


def test_pictures_are_of_one_size_and_change_with_the_turns() -> None:
    env = theirs.RenderCollection(single(render_mode="rgb_array"))
    env.reset(seed=0)
    env.step(WRONG)
    frames: Any = env.render()
    assert [(frame.shape, frame.dtype) for frame in frames] == [((540, 960, 3), np.uint8)] * 2
    inked = [int((frame < 250).any(axis=2).any(axis=1).sum()) for frame in frames]
    assert 0 < inked[0] < inked[1] < 540, "rows that have ink: a turn adds some, and nothing leaves the picture"


def test_record_video_gets_its_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """moviepy, which encodes them, is not needed to see what Gymnasium's wrapper asks for."""
    monkeypatch.setitem(sys.modules, "moviepy", ModuleType("moviepy"))
    env = theirs.RecordVideo(
        single(render_mode="rgb_array"), str(tmp_path / "videos"), episode_trigger=lambda episode: True
    )
    kept: list[Any] = []
    monkeypatch.setattr(env, "stop_recording", lambda: kept.extend(env.recorded_frames))
    play(ReturnsWrapper(env))
    assert len(kept) >= TURNS + 1
    assert env.frames_per_sec == 1
    env.recorded_frames.clear()  # nothing is left to encode


# ---- vector environments


def vector(mode: str, autoreset: AutoresetMode, num_envs: int = 3) -> Any:
    own: dict[str, Any] = {"autoreset_mode": autoreset}
    if mode != "vector_entry_point":
        own = {"vector_kwargs": own}
    return gym.make_vec("MathMultiTurn-v0", num_envs=num_envs, vectorization_mode=mode, **own, **KWARGS)


def play_vector(env: Any, steps: int = 7) -> list[dict[str, Any]]:
    """What each environment said where one of its episodes ended."""
    ended = []
    env.reset(seed=0)
    for _ in range(steps):
        *_, terminated, truncated, infos = env.step((WRONG,) * env.num_envs)
        over = terminated | truncated
        ended += [info_of(infos, i) for i in np.flatnonzero(over).tolist()]
        if over.any() and env.metadata["autoreset_mode"] is AutoresetMode.DISABLED:
            env.reset(options={"reset_mask": over})
    env.close()
    return ended


@pytest.mark.parametrize(("mode", "autoreset"), MODES)
@pytest.mark.parametrize("order", ["statistics", "returns(statistics)", "statistics(returns)"])
def test_vector_statistics(mode: str, autoreset: AutoresetMode, order: str) -> None:
    env = vector(mode, autoreset)
    for name in reversed(order.rstrip(")").split("(")):
        env = theirs.vector.RecordEpisodeStatistics(env) if name == "statistics" else VectorReturnsWrapper(env)
    ended = play_vector(env)
    assert len(ended) >= 6
    for info in ended:
        assert (info["episode"]["r"], info["episode"]["l"]) == (-float(TURNS), TURNS)
        assert ("trajectory" in info) == ("returns" in order)
        if "trajectory" in info:
            assert info["trajectory"].rewards.tolist() == [-1.0] * TURNS


@pytest.mark.parametrize(("mode", "autoreset"), MODES)
def test_collecting_through_vector_wrappers(mode: str, autoreset: AutoresetMode) -> None:
    seen: list[int] = []

    class Counting(gym.vector.VectorWrapper[Any, Any, Any, Any, Any]):
        def step(self, actions: Any) -> Any:
            seen.append(len(actions))
            return self.env.step(actions)

    plain = vector("vector_entry_point", AutoresetMode.NEXT_STEP)
    policy = RandomPolicy(plain.single_action_space.vocab_size)
    expected = [episode.ids.tolist() for episode in collect(plain, policy, 5, seed=0)]
    env = Counting(theirs.vector.RecordEpisodeStatistics(vector(mode, autoreset)))
    assert [episode.ids.tolist() for episode in collect(env, policy, 5, seed=0)] == expected
    assert set(seen) == {3}
    env.close()


# Environments of other processes cannot be played one by one (see test_schedulers).
@pytest.mark.parametrize(("mode", "scheduler"), [("sync", "batched"), ("async", "batched"), ("sync", "streaming")])
@pytest.mark.parametrize(
    ("wrap", "rewards"),
    [
        (lambda env: theirs.TimeLimit(env, 1), [-1.0]),
        (theirs.RecordEpisodeStatistics, [-1.0] * TURNS),
        (ReturnsWrapper, [-1.0] * TURNS),
        (lambda env: theirs.TransformReward(env, lambda reward: float(reward) / 4), [-0.25] * TURNS),
    ],
    ids=["limit", "statistics", "returns", "reward"],
)
def test_collecting_through_wrappers_of_single_environments(
    mode: str, scheduler: Any, wrap: Any, rewards: list[float]
) -> None:
    env = gym.make_vec("MathMultiTurn-v0", num_envs=2, vectorization_mode=mode, wrappers=[wrap], **KWARGS)
    policy = OneByOne() if scheduler == "streaming" else RandomPolicy(300)
    episodes = collect(env, policy, 5, seed=0, scheduler=scheduler)
    assert [episode.rewards.tolist() for episode in episodes] == [rewards] * 5
    assert [episode.index for episode in episodes] == [0, 1, 2, 3, 4]
    env.close()


class OneByOne(RandomPolicy):
    """Answers requests one by one."""

    def __init__(self) -> None:
        super().__init__(300)
        self._queue: list[tuple[int, Any]] = []
        self._tickets = itertools.count()

    def submit(self, context: Any, *, max_tokens: int, seed: int | None = None) -> int:
        self._queue.append(
            (next(self._tickets), self.complete([context], max_tokens=[max_tokens], seeds=[seed or 0])[0])
        )
        return self._queue[-1][0]

    def advance(self, steps: int | None = None) -> list[tuple[int, Any]]:
        return [self._queue.pop(0)] if self._queue else []

    def cancel(self, ticket: int) -> bool:
        return False

    def release(self, context: Any) -> None:
        pass


def test_infos_of_wrappers_without_masks() -> None:
    infos = {
        "turn": np.array([1, 2]),
        "_turn": np.array([True, True]),
        "episode": {"r": np.array([0.5, -1.0]), "l": np.array([3, 4])},
        "_episode": np.array([False, True]),
        "shared": "for all",
    }
    assert info_of(infos, 0) == {"turn": 1, "shared": "for all"}
    assert info_of(infos, 1) == {"turn": 2, "episode": {"r": -1.0, "l": 4}, "shared": "for all"}
