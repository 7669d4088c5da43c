from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import mathturn_gym  # noqa: F401
from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.episodes.rollout import EpisodeRecorder, collect
from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError
from mathturn_gym.testing import RandomPolicy, ScriptedPolicy
from mathturn_gym.types import Completion, Episode, Ids, Problem, StopReason

DIALOGUE = Dialogue("builtin")
POLICY = RandomPolicy(DIALOGUE.vocab_size, DIALOGUE.end_of_turn[-1])


def key(episode: Episode) -> tuple[Any, ...]:
    return (
        episode.index,
        episode.problem_id,
        episode.ids.tolist(),
        episode.loss_mask.tolist(),
        episode.logprobs.tolist(),
        episode.rewards.tolist(),
        episode.verdicts,
        episode.stop_reason,
        episode.group,
    )


def make(num_envs: int, mode: str = "vector_entry_point", autoreset: Any = AutoresetMode.NEXT_STEP, **kw: Any) -> Any:
    kwargs = {"num_turns": 3, "max_completion_tokens": 12, **kw}
    if mode == "vector_entry_point":
        kwargs["autoreset_mode"] = autoreset
    else:
        kwargs["vector_kwargs"] = {"autoreset_mode": autoreset}
    return gym.make_vec("MathMultiTurnUntilCorrect-v0", num_envs=num_envs, vectorization_mode=mode, **kwargs)


def test_an_episode_depends_on_seed_and_index_alone() -> None:
    """Law 4: whatever the number of environments, their kind, the autoreset mode and the order of endings."""
    expected = [key(e) for e in collect(make(1), POLICY, 12, seed=3, group_size=2)]
    places = [(1, "sync"), (5, "sync"), (12, "vector_entry_point"), (20, "vector_entry_point"), (2, "async")]
    for autoreset in AutoresetMode:
        for num_envs, mode in places if autoreset is AutoresetMode.NEXT_STEP else places[2:]:
            env = make(num_envs, mode, autoreset)
            assert [key(e) for e in collect(env, POLICY, 12, seed=3, group_size=2)] == expected, (num_envs, mode)
            env.close()


def test_collections_continue_one_another() -> None:
    env = make(4)
    whole = [key(e) for e in collect(env, POLICY, 10, seed=1)]
    parts = collect(env, POLICY, 4, seed=1) + collect(env, POLICY, 6, seed=1, first_index=4)
    assert [key(e) for e in parts] == whole
    assert [key(e) for e in collect(env, POLICY, 10, seed=2)] != whole


def test_groups_play_one_problem_with_samples_of_their_own() -> None:
    episodes = collect(make(3), POLICY, 8, seed=0, group_size=4)
    assert [e.group for e in episodes] == ["0/0"] * 4 + ["0/1"] * 4
    assert len({e.problem_id for e in episodes[:4]}) == 1
    assert len({e.problem_id for e in episodes}) == 2
    assert len({e.ids.tobytes() for e in episodes}) == 8


def test_given_problems_are_played_in_order() -> None:
    problems = [Problem(f"p/{i}", f"{i}+1", str(i + 1)) for i in range(5)]
    order = ["p/3", "p/0", "p/4"]
    episodes = collect(make(2, problems=problems), POLICY, 6, problem_ids=order)
    assert [e.problem_id for e in episodes] == order * 2


def test_episodes_tell_their_story() -> None:
    problem = Problem("p/1", "What is 40+2?", "42", metadata={"level": 2})
    policy = ScriptedPolicy([r"\boxed{41}", r"\boxed{42}"], DIALOGUE)
    seen: list[int] = []
    env = make(2, problems=[problem], max_completion_tokens=32)
    (episode,) = collect(env, policy, 1, discount=0.5, on_episode=lambda e: seen.append(e.index))
    assert episode.rewards.tolist() == [-1.0, 1.0]
    assert episode.returns is not None
    assert episode.returns.tolist() == [-0.5, 1.0]
    assert episode.solved
    assert episode.stop_reason is StopReason.SOLVED
    assert (episode.terminated, episode.truncated, episode.num_turns) == (True, False, 2)
    assert episode.metadata == {"level": 2}
    assert seen == [0]
    first, second = episode.turns
    assert DIALOGUE.text(first.ids) == r"\boxed{41}"
    assert np.array_equal(np.concatenate([first.context, first.ids, first.feedback_ids]), second.context)
    assert first.feedback.startswith("Unfortunately")
    assert second.feedback_ids.size == 0
    assert episode.prompt_ids.tolist() == DIALOGUE.prompt_ids("What is 40+2?").tolist()


def test_budgets_bind_the_policy() -> None:
    asked: list[int] = []

    class Greedy:
        def complete(self, contexts: Any, *, max_tokens: Any, seeds: Any = None) -> list[Completion]:
            asked.extend(max_tokens)
            return [Completion(np.full(n, 70, np.int64), np.zeros(n, np.float32), truncated=True) for n in max_tokens]

    env = make(1, max_context_tokens=40, max_completion_tokens=30, problems=[Problem("p/1", "1+1", "2")])
    (episode,) = collect(env, Greedy(), 1)
    assert asked[0] == min(30, 40 - episode.prompt_length)
    assert len(episode.ids) <= 40
    assert episode.stop_reason is StopReason.CONTEXT
    assert episode.turn_truncated == (True,)


def test_a_prompt_without_room_is_an_episode_without_turns_and_never_reaches_the_policy() -> None:
    problems = [Problem("p/1", "x" * 60, "2"), Problem("p/2", "1+1", "2")]
    env = make(2, problems=problems, max_context_tokens=40, max_completion_tokens=40)
    episodes = collect(env, POLICY, 4, problem_ids=["p/1", "p/2"])
    assert [e.num_turns == 0 for e in episodes] == [True, False, True, False]
    assert all(e.stop_reason is StopReason.CONTEXT and e.truncated for e in episodes[::2])
    assert not episodes[0].loss_mask.any()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"episodes": -1}, "episodes must be an integer >= 0, got -1"),
        ({"seed": -1}, "seed must be an integer >= 0"),
        ({"discount": 1.5}, r"discount must be a finite number in \[0, 1\], got 1.5"),
        ({"group_size": 0}, "group_size must be an integer >= 1"),
        ({"problem_ids": []}, "problem_ids must hold at least one id"),
    ],
)
def test_arguments_are_checked(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        collect(make(1), POLICY, **{"episodes": 1, **kwargs})


def test_a_policy_that_miscounts_is_told() -> None:
    class Lazy:
        def complete(self, contexts: Any, *, max_tokens: Any, seeds: Any = None) -> list[Completion]:
            return []

    with pytest.raises(InvalidValueError, match="returned 0 completions for 2 contexts"):
        collect(make(2), Lazy(), 2)


def test_the_one_vector_environment_that_loses_resets_is_refused() -> None:
    env = gym.make_vec(
        "MathMultiTurn-v0", num_envs=1, vectorization_mode="async", vector_kwargs={"shared_memory": False}
    )
    with pytest.raises(InvalidValueError, match=r"cannot use AsyncVectorEnv with shared_memory=False"):
        collect(env, POLICY, 1)
    env.close()


def test_no_episodes() -> None:
    assert collect(make(2), POLICY, 0) == []


def test_recorder_refuses_what_breaks_the_sequence_law() -> None:
    info = {"problem_id": "p/1", "turn": 0, "completion_budget": 4}
    after = {"problem_id": "p/1", "turn": 1, "verdict": None, "completion_budget": 0}
    ids: Ids = np.array([1, 2], np.int64)
    for observation in ([1, 9, 3], [1, 2, 9], [1, 2]):
        recorder = EpisodeRecorder(ids, info)
        with pytest.raises(InvalidEpisodeError, match="the sequence law is broken"):
            recorder.add(Completion(np.array([3])), np.array(observation, np.int64), 1.0, False, False, after)
    recorder = EpisodeRecorder(ids, info)
    recorder.add(Completion(np.array([3])), np.array([1, 2, 3], np.int64), 1.0, True, False, after)
    with pytest.raises(InvalidEpisodeError, match="has ended"):
        recorder.add(Completion(np.array([3])), np.array([1, 2, 3, 3], np.int64), 1.0, True, False, after)


def test_episodes_keep_the_texts_budgets_and_other_numbers_of_their_turns() -> None:
    class Sure:
        """A policy that is sure of "4" and says how sure."""

        def complete(
            self, contexts: Sequence[Ids], *, max_tokens: Sequence[int], seeds: Any = None
        ) -> list[Completion]:
            ids = DIALOGUE.prompt_ids("4")[:3]
            return [Completion(ids, np.zeros(3, np.float32), entropies=np.full(3, 0.5, np.float32)) for _ in contexts]

    env = make(2, num_turns=2, max_completion_tokens=9, gold_in_info=True)
    problem = env.envs[0].unwrapped.source.get(0, 0)
    (episode,) = collect(env, Sure(), 1)
    assert episode.prompt == problem.prompt
    assert episode.gold == problem.gold
    assert episode.budgets == (9, 9)
    assert episode.responses == tuple(DIALOGUE.text(turn.ids) for turn in episode.turns)
    assert [turn.response for turn in episode.turns] == list(episode.responses)
    entropy = episode.token_values["entropy"]
    assert np.array_equal(np.isnan(entropy), ~episode.loss_mask)
    assert set(entropy[episode.loss_mask].tolist()) == {0.5}
    (silent,) = collect(make(1), POLICY, 1)
    assert (silent.gold, dict(silent.token_values)) == ((), {})  # gold only where it was asked for


def test_a_single_environment_is_refused_by_name() -> None:
    with pytest.raises(InvalidValueError, match=r"env must be a vector environment, got .*MathMultiTurn.*make_vec"):
        collect(gym.make("MathMultiTurn-v0"), RandomPolicy(10), 1)  # type: ignore[arg-type]
