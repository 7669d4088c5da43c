"""Calls in any order: environment and recorder, the vector form beside single environments, and batches cut into parts."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from mathturn_gym.env import EpisodeState, MathMultiTurnEnv
from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.env.environment import info_of
from mathturn_gym.env.vector import MathMultiTurnVectorEnv
from mathturn_gym.episodes.packing import PackedBatch, micro_batches, pack, unpack
from mathturn_gym.episodes.packing.batch import FORMS, LAYOUTS
from mathturn_gym.episodes.packing.selection import select_rows
from mathturn_gym.episodes.rollout import EpisodeRecorder
from mathturn_gym.errors import EpisodeStateError, InvalidActionError
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Completion, Episode, Ids, Problem

PROBLEMS = [Problem(f"p/{n}", f"{n}+{n}?", str(2 * n)) for n in range(1, 4)]
SINGLE: dict[str, Any] = {
    "problems": PROBLEMS,
    "num_turns": 3,
    "max_completion_tokens": 16,
    "max_context_tokens": 90,
    "max_episode_tokens": 30,
    "stop_on_success": True,
}
SEVERAL: dict[str, Any] = {
    "problems": "add1",
    "num_turns": 2,
    "max_completion_tokens": 8,
    "max_context_tokens": 48,
    "stop_on_success": True,
}
WORDS = Dialogue("builtin")
STEPS = settings(max_examples=40, stateful_step_count=20, deadline=None)


def some_ids(vocab_size: int, most: int) -> st.SearchStrategy[Ids]:
    return st.lists(st.integers(0, vocab_size - 1), max_size=most).map(lambda ids: np.array(ids, np.int64))


def right_answer(env: MathMultiTurnEnv) -> Ids:
    return WORDS.encode(f"\\boxed{{{env.problem.gold[0]}}}")


def assert_same(left: Episode, right: Episode) -> None:
    for one in dataclasses.fields(Episode):
        a, b = getattr(left, one.name), getattr(right, one.name)
        assert a.tobytes() == b.tobytes() if isinstance(a, np.ndarray) else a == b, one.name


class EnvironmentAndRecorder(RuleBasedStateMachine):
    """What an environment says is what was said so far and what came now, wherever it is put back to."""

    env, twin = MathMultiTurnEnv(**SINGLE), MathMultiTurnEnv(**SINGLE)
    states = Bundle("states")

    def __init__(self) -> None:
        super().__init__()
        self.recorder: EpisodeRecorder | None = None
        self.observation: Ids = np.zeros(0, np.int64)
        self.over = False

    @initialize(seed=st.integers(0, 3))
    def begins(self, seed: int) -> None:
        self._begun(*self.env.reset(seed=seed))

    @rule(seed=st.none() | st.integers(0, 3))
    def begins_anew(self, seed: int | None) -> None:
        self._begun(*self.env.reset(seed=seed))

    def _begun(self, observation: Ids, info: dict[str, Any]) -> None:
        self.observation, self.over = observation, False
        self.recorder = EpisodeRecorder(observation, info)

    @precondition(lambda self: not self.over)
    @rule(ids=some_ids(env.dialogue.vocab_size, 16))
    def says(self, ids: Ids) -> None:
        self._plays(ids)

    @precondition(lambda self: not self.over)
    @rule()
    def answers(self) -> None:
        _, terminated, _ = self._plays(right_answer(self.env))
        assert terminated

    def _plays(self, ids: Ids) -> tuple[float, bool, bool]:
        assert self.recorder is not None
        observation, reward, terminated, truncated, info = self.env.step(ids)
        feedback = observation[info["feedback_start"] :]
        assert np.array_equal(observation, np.concatenate([self.observation, ids, feedback]))
        assert bool(feedback.size) is not (terminated or truncated)
        completion = Completion(ids, np.full(len(ids), -0.5, np.float32))
        self.recorder.add(completion, observation, reward, terminated, truncated, info)
        self.observation, self.over = observation, terminated or truncated
        return reward, terminated, truncated

    @precondition(lambda self: not self.over)
    @rule(action=st.sampled_from([np.array([0.5]), np.array([-1]), np.array([10**6]), np.zeros(17, np.int64), [1, 2]]))
    def is_given_what_is_no_action(self, action: Any) -> None:
        self._refused(InvalidActionError, action)

    @precondition(lambda self: self.over)
    @rule()
    def is_over(self) -> None:
        self._refused(EpisodeStateError, np.zeros(1, np.int64))

    def _refused(self, error: type[Exception], action: Any) -> None:
        try:
            self.env.step(action)
        except error:
            return
        raise AssertionError(f"{action!r} was played")

    @rule(target=states)
    def is_kept(self) -> tuple[EpisodeState, EpisodeRecorder | None, bool]:
        return self.env.get_state(), copy.deepcopy(self.recorder), self.over

    @rule(kept=states)
    def goes_back(self, kept: tuple[EpisodeState, EpisodeRecorder | None, bool]) -> None:
        state, recorder, over = kept
        self.observation, _ = self.env.set_state(state)
        self.recorder, self.over = copy.deepcopy(recorder), over
        assert np.array_equal(self.observation, state.ids)

    @invariant()
    def a_twin_in_this_state_says_the_same(self) -> None:
        if self.recorder is not None:
            observation, info = self.twin.set_state(self.env.get_state())
            assert np.array_equal(observation, self.observation)
            assert (info["completion_budget"] == 0) == self.over

    @invariant()
    def what_was_recorded_is_a_lawful_episode_and_survives_packing(self) -> None:
        if self.recorder is None:
            return
        assert np.array_equal(self.recorder.contexts[-1], self.observation)
        episode = self.recorder.episode()
        assert (episode.terminated or episode.truncated) == self.over
        assert_same(unpack(pack([episode]))[0], episode)


class VectorBesideSingle(RuleBasedStateMachine):
    """Three environments in the vector form are three environments."""

    vector = MathMultiTurnVectorEnv(num_envs=3, **SEVERAL)
    singles = MathMultiTurnEnv(**SEVERAL), MathMultiTurnEnv(**SEVERAL), MathMultiTurnEnv(**SEVERAL)

    @initialize(seed=st.integers(0, 5))
    def begins(self, seed: int) -> None:
        self._begins(seed)

    @rule(seed=st.integers(0, 5))
    def begins_anew(self, seed: int) -> None:
        self._begins(seed)

    def _begins(self, seed: int) -> None:
        observations, infos = self.vector.reset(seed=seed)
        self.over = [False] * 3
        for i, single in enumerate(self.singles):
            self._compare(i, single.reset(seed=seed + i), (observations[i], info_of(infos, i)))

    @rule(actions=st.tuples(*[some_ids(vector.single_action_space.vocab_size, 8)] * 3), right=st.integers(0, 7))
    def steps(self, actions: tuple[Ids, ...], right: int) -> None:
        said = [right_answer(single)[:8] if right >> i & 1 else actions[i] for i, single in enumerate(self.singles)]
        observations, rewards, terminated, truncated, infos = self.vector.step(tuple(said))
        for i, single in enumerate(self.singles):
            got = observations[i], rewards[i], terminated[i], truncated[i], info_of(infos, i)
            if self.over[i]:  # the step after an end begins the next episode
                observation, info = single.reset()
                self._compare(i, (observation, 0.0, False, False, info), got)
                self.over[i] = False
            else:
                expected = single.step(said[i])
                self._compare(i, expected, got)
                self.over[i] = expected[2] or expected[3]

    def _compare(self, i: int, expected: tuple[Any, ...], got: tuple[Any, ...]) -> None:
        assert np.array_equal(expected[0], got[0]), i
        assert list(expected[1:-1]) == [one.item() if hasattr(one, "item") else one for one in got[1:-1]], i
        for name, value in expected[-1].items():
            assert np.all(got[-1][name] == value), (i, name)


class Parts(RuleBasedStateMachine):
    """However a batch is cut, whole episodes come back to the bit, and no token is lost or counted twice."""

    @initialize(
        lengths=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), min_size=1, max_size=5),
        layout=st.sampled_from(LAYOUTS),
        form=st.sampled_from(FORMS),
    )
    def packs(self, lengths: list[list[int]], layout: Any, form: Any) -> None:
        self.episodes = [
            synthetic_episode(0, i, own, prompt=3, group="ab"[i % 2], max_version=2) for i, own in enumerate(lengths)
        ]
        self.batch: PackedBatch = pack(self.episodes, layout, form=form)

    @rule(data=st.data())
    def takes_rows(self, data: st.DataObject) -> None:
        rows = data.draw(st.sets(st.integers(0, self.batch.num_rows - 1), min_size=1))
        self.batch = select_rows(self.batch, sorted(rows))

    @rule(data=st.data(), keep=st.booleans())
    def takes_a_micro_batch(self, data: st.DataObject, keep: bool) -> None:
        before = self.batch.count("token")
        least = int(self.batch.lengths.max()) * (self.batch.num_rows if keep else 1)
        parts = micro_batches(self.batch, max_tokens=data.draw(st.integers(least, 4 * least)), keep_episodes=keep)
        assert sum(part.count("token") for part in parts) == before
        self.batch = data.draw(st.sampled_from(parts))

    @rule()
    def travels(self) -> None:
        self.batch = self.batch.replace_tensors({name: one.clone() for name, one in self.batch.tensors().items()})

    @invariant()
    def whole_episodes_come_back(self) -> None:
        if not hasattr(self, "batch"):
            return
        assert int(self.batch.loss_mask.sum()) == self.batch.count("token")
        if not self.batch.split_episodes:
            for episode in unpack(self.batch):
                assert_same(episode, self.episodes[episode.index])


EnvironmentAndRecorder.TestCase.settings = STEPS
VectorBesideSingle.TestCase.settings = STEPS
Parts.TestCase.settings = STEPS
TestEnvironmentAndRecorder = EnvironmentAndRecorder.TestCase
TestVectorBesideSingle = VectorBesideSingle.TestCase
TestParts = Parts.TestCase
