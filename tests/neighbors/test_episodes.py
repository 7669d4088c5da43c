"""The player behind the adaptors, without any trainer."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from mathturn_gym.env.config import EnvConfig
from mathturn_gym.errors import InvalidValueError, MissingDependencyError
from mathturn_gym.neighbors.episodes import (
    EpisodePlayer,
    Generate,
    TextEpisode,
    completion_of,
    problem_from_json,
    problem_to_json,
)
from mathturn_gym.neighbors.require import _numbers, require
from mathturn_gym.types import Completion, Ids, Problem


def engine(script: Any) -> Generate:
    """The script, in asyncio."""

    async def generate(context: Ids, max_tokens: int) -> Completion:
        await asyncio.sleep(0)
        return script.completion(context, max_tokens)

    return generate


def test_an_episode_is_the_one_that_collect_plays(script: Any) -> None:
    player = EpisodePlayer(EnvConfig(**script.settings), "builtin", 0.5)
    episode = asyncio.run(player.play(script.problem, engine(script), index=0))
    expected = script.episode()
    assert np.array_equal(episode.ids, expected.ids)
    assert np.array_equal(episode.logprobs, expected.logprobs)
    assert np.array_equal(episode.turn_spans, expected.turn_spans)
    assert episode.verdicts == expected.verdicts
    assert episode.feedbacks == expected.feedbacks
    assert episode.rewards.tolist() == [-1.0, -1.0, 1.0]
    assert episode.returns is not None
    assert episode.returns.tolist() == [-1.25, -0.5, 1.0]
    assert episode.metadata == script.problem.metadata


def test_many_episodes_at_once_are_not_mixed_up() -> None:
    player = EpisodePlayer(EnvConfig(num_turns=3, max_completion_tokens=8), "builtin")
    rng = np.random.default_rng(0)

    async def random(context: Ids, max_tokens: int) -> Completion:
        await asyncio.sleep(rng.random() * 0.01)
        return Completion(rng.integers(50, 90, size=4))

    async def play() -> list[Any]:
        problems = [Problem(f"p/{i}", f"What is {i}+1?", str(i + 1)) for i in range(40)]
        episodes = await asyncio.gather(*(player.play(one, random, index=i) for i, one in enumerate(problems)))
        prompts = [player.decode(episode.prompt_ids) for episode in episodes]
        assert all(one.prompt in prompt for one, prompt in zip(problems, prompts, strict=True))
        return episodes

    episodes = asyncio.run(play())
    assert [episode.problem_id for episode in episodes] == [f"p/{i}" for i in range(40)]
    assert len(player._idle) <= 40
    asyncio.run(play())
    assert len(player._idle) <= 40  # used again


def test_an_engine_that_fails_gives_its_environment_back(script: Any) -> None:
    player = EpisodePlayer(EnvConfig(), "builtin")

    async def broken(context: Ids, max_tokens: int) -> Completion:
        raise RuntimeError("the engine is gone")

    with pytest.raises(RuntimeError, match="engine is gone"):
        asyncio.run(player.play(script.problem, broken))
    assert len(player._idle) == 1
    assert asyncio.run(player.play(script.problem, engine(script))).num_turns == 3


def test_a_prompt_without_room_is_an_episode_without_turns(script: Any) -> None:
    player = EpisodePlayer(EnvConfig(max_context_tokens=40), "builtin")
    long = Problem("p/long", "What is 1+1? " * 20, "2")
    episode = asyncio.run(player.play(long, engine(script)))
    assert (episode.num_turns, episode.truncated) == (0, True)


def test_completions_of_engines() -> None:
    cut = completion_of([5, 6, 7, 2], [-0.1, None, -0.3, -0.4], 3, {2}, version=4)
    assert (cut.ids.tolist(), cut.truncated, cut.version_start) == ([5, 6, 7], True, 4)
    assert np.isnan(cut.logprobs).tolist() == [False, True, False]
    whole = completion_of([5, 2], None, 9, {2})
    assert whole.truncated is False
    assert np.isnan(whole.logprobs).all()
    assert completion_of([], [], 4, {2}).truncated


def test_problems_travel_as_text(script: Any) -> None:
    assert problem_from_json(problem_to_json(script.problem)) == script.problem
    for bad in (None, "", "{}", '{"id": "x"}', "[1]", 3):
        with pytest.raises(InvalidValueError, match="a row's problem must be what this module's data set wrote"):
            problem_from_json(bad)


def test_answers_as_text(script: Any) -> None:
    env: Any = EnvConfig(num_turns=3, problems=[script.problem]).make(problems=[script.problem])
    episode = TextEpisode(env.unwrapped, 0.5)
    assert episode.value == 0.0
    episode.begin("p/1")
    assert episode.answer("?") == "Unfortunately your answer is wrong. Let's try again."
    assert episode.answer(r"\boxed{42}") == ""
    assert (episode.over, episode.solved_at, episode.rewards, episode.value) == (True, 1, [-1.0, 1.0], -0.5)


def test_versions() -> None:
    assert require("gymnasium", "1.4", "2", "pip install gymnasium")
    with pytest.raises(MissingDependencyError, match=r"nowhere-at-all is not installed: pip install it"):
        require("nowhere-at-all", "1", "2", "pip install it")
    with pytest.raises(
        MissingDependencyError, match=r"gymnasium 1\.\S+ is installed, this needs >=7,<8: pip install it"
    ):
        require("gymnasium", "7", "8", "pip install it")
    assert [_numbers(text) for text in ("1.16.0", "2.0.0rc1", "0.9.1.dev3", "4")] == [
        (1, 16, 0),
        (2, 0, 0),
        (0, 9, 1),
        (4,),
    ]
