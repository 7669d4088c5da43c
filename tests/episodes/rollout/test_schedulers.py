"""Which scheduler `collect` takes, and that a streaming one verifies beside its decoding."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import mathturn_gym  # noqa: F401 - registers the ids
from mathturn_gym.episodes.rollout import EpisodePlan, collect
from mathturn_gym.episodes.rollout._schedulers import EnvSlot
from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError, PolicyError, UserFunctionError
from mathturn_gym.testing import RandomPolicy
from mathturn_gym.types import Completion, Ids, Problem, Status, TurnContext, Verdict

PROBLEMS = [Problem(f"p/{i}", f"{i}+1?", str(i + 1)) for i in range(8)]
ORDER = [problem.id for problem in PROBLEMS]


def envs(num_envs: int, mode: str = "vector_entry_point", **kwargs: Any) -> Any:
    settings = {"problems": PROBLEMS, "num_turns": 2, "max_completion_tokens": 6, **kwargs}
    return gym.make_vec("MathMultiTurn-v0", num_envs=num_envs, vectorization_mode=mode, **settings)


class Every:
    """Can be asked in every way, and tells how it was."""

    def __init__(self, scheduler: str | None = None) -> None:
        if scheduler is not None:
            self.scheduler = scheduler
        self._random = RandomPolicy(300)
        self.asked: list[str] = []
        self.queue: dict[int, Completion] = {}
        self.advanced = 0

    def complete(self, contexts: Any, *, max_tokens: Any, seeds: Any = None) -> list[Completion]:
        self.asked.append("complete")
        return self._random.complete(contexts, max_tokens=max_tokens, seeds=seeds)

    async def acomplete(self, context: Ids, *, max_tokens: int, seed: Any = None, session: Any = None) -> Completion:
        self.asked.append("acomplete")
        return self._random.complete([context], max_tokens=[max_tokens], seeds=[seed])[0]

    def submit(self, context: Ids, *, max_tokens: int, seed: int | None = None) -> int:
        self.asked.append("submit")
        ticket = len(self.asked)
        self.queue[ticket] = self._random.complete([context], max_tokens=[max_tokens], seeds=[seed or 0])[0]
        return ticket

    def advance(self, steps: int | None = None) -> list[tuple[int, Completion]]:
        """All that is there: what ends together is judged together."""
        self.advanced += 1
        ended, self.queue = self.queue, {}
        return list(ended.items())

    def cancel(self, ticket: int) -> bool:
        return self.queue.pop(ticket, None) is not None

    def release(self, context: Ids) -> None:
        pass


class OneByOne(Every):
    """Ends one request at a time."""

    def advance(self, steps: int | None = None) -> list[tuple[int, Completion]]:
        self.advanced += 1
        time.sleep(0.001)
        return [self.queue.popitem()] if self.queue else []


@pytest.mark.parametrize(
    ("declared", "scheduler", "way"),
    [
        (None, "auto", "complete"),
        ("batched", "auto", "complete"),
        ("streaming", "auto", "submit"),
        ("async", "auto", "acomplete"),
        ("streaming", "batched", "complete"),
        (None, "streaming", "submit"),
        (None, "async", "acomplete"),
    ],
)
def test_a_policy_is_asked_as_it_declares_or_as_one_says(declared: Any, scheduler: Any, way: str) -> None:
    policy = Every(declared)
    episodes = collect(envs(3), policy, 5, problem_ids=ORDER, scheduler=scheduler)
    assert set(policy.asked) == {way}
    expected = collect(envs(2), RandomPolicy(300), 5, problem_ids=ORDER)
    assert [e.ids.tolist() for e in episodes] == [e.ids.tolist() for e in expected]


def test_a_streaming_policy_is_asked_in_batches_where_the_environments_are_out_of_reach() -> None:
    policy = Every("streaming")
    collect(RecordEpisodeStatistics(envs(2)), policy, 3)
    assert set(policy.asked) == {"complete"}
    with pytest.raises(InvalidValueError, match=r"scheduler 'streaming' plays the environments .* out of reach"):
        collect(RecordEpisodeStatistics(envs(2)), policy, 3, scheduler="streaming")


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="unknown scheduler 'fast'"):
        collect(envs(1), Every(), 1, scheduler="fast")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="unknown scheduler of policy Every 'fast'"):
        collect(envs(1), Every("fast"), 1)
    with pytest.raises(
        InvalidValueError, match=r"scheduler 'async' needs a policy with acomplete\(\).*declares 'batched'"
    ):
        collect(envs(1), RandomPolicy(9), 1, scheduler="async")
    with pytest.raises(
        InvalidValueError, match=r"needs a policy with submit\(\), advance\(\), cancel\(\), release\(\)"
    ):
        collect(envs(1), RandomPolicy(9), 1, scheduler="streaming")
    with pytest.raises(
        InvalidValueError, match=r"policy must be an object, got the name 'builtin': .*load_policy\('builtin'\)"
    ):
        collect(envs(1), "builtin", 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="problem_ids must be a list of ids, got the text 'p/1'"):
        collect(envs(1), RandomPolicy(9), 1, problem_ids="p/1")


@pytest.mark.parametrize("answer", ["none", "stranger"])
def test_a_streaming_policy_that_breaks_its_contract_is_told(answer: str) -> None:
    class Broken(Every):
        def advance(self, steps: int | None = None) -> list[tuple[int, Completion]]:
            return [] if answer == "none" else [(10**6, Completion(np.array([1])))]

    message = r"advance\(\) of .* must return completions of requests that were submitted"
    with pytest.raises(PolicyError, match=message):
        collect(envs(2), Broken("streaming"), 2)


# ---- verification beside decoding


class Recording:
    """Remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.threads: set[str] = set()

    def verify_batch(self, responses: Sequence[str], golds: Sequence[Any]) -> list[bool]:
        self.batches.append(len(responses))
        self.threads.add(threading.current_thread().name)
        return [False] * len(responses)


@pytest.mark.parametrize("mode", ["vector_entry_point", "sync"])
def test_what_ended_together_is_verified_in_one_call(mode: str) -> None:
    verifier = Recording()
    collect(envs(8, mode, verifier=verifier), Every("streaming"), 16, problem_ids=ORDER)
    assert verifier.batches == [8, 8, 8, 8]
    assert verifier.threads == {"verification"}


class Blocking:
    """Does not answer for problem p/0 before everything else has been answered."""

    def __init__(self, others: int) -> None:
        self._others, self._left = threading.Event(), others
        self.waited = False

    def verify_batch(self, responses: Sequence[str], golds: Sequence[Any]) -> list[bool]:
        if any(gold == ("1",) for gold in golds):
            self.waited = self._others.wait(60)
        else:
            self._left -= len(golds)
            if not self._left:
                self._others.set()
        return [False] * len(responses)


@pytest.mark.parametrize("num_envs", [2, 4])
def test_a_slow_verdict_holds_up_no_other_row(num_envs: int) -> None:
    """Were decoding held up, this would end after a minute, with `waited` False."""
    verifier = Blocking(others=7)
    ended: list[str] = []
    collect(
        envs(num_envs, verifier=verifier, num_turns=1),
        OneByOne("streaming"),
        8,
        problem_ids=ORDER,
        on_episode=lambda episode: ended.append(episode.problem_id),
    )
    assert verifier.waited
    assert ended[-1] == "p/0"


def test_episodes_do_not_depend_on_how_slow_their_verdicts_are() -> None:
    def pausing(seconds: float) -> Any:
        class Pausing:
            def verify_batch(self, responses: Sequence[str], golds: Sequence[Any]) -> list[float]:
                time.sleep(seconds * (1 + len(golds[0][0])))
                return [len(response) % 2 / 2 for response in responses]

        return Pausing()

    def play(seconds: float, policy: Any) -> list[Any]:
        env = envs(5, verifier=pausing(seconds), feedback="random", num_turns=3)
        episodes = collect(env, policy, 12, seed=3, group_size=2)
        return [(e.ids.tolist(), e.rewards.tolist(), e.index, e.group) for e in episodes]

    expected = play(0.0, RandomPolicy(300))
    assert play(0.0, Every("streaming")) == expected
    assert play(0.06, Every("streaming")) == expected
    assert play(0.06, OneByOne("streaming")) == expected


def test_async_judges_of_a_stream_run_beside_it() -> None:
    running = most = 0

    async def judge(context: TurnContext) -> bool:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
        return False

    collect(envs(8, verifier=judge, num_turns=1), OneByOne("streaming"), 8, problem_ids=ORDER)
    assert most > 1


def test_a_function_is_called_where_collect_was() -> None:
    seen: set[bool] = set()

    def verifier(response: str, gold: Any) -> bool:
        seen.add(threading.current_thread() is threading.main_thread())
        return False

    collect(envs(4, verifier=verifier), Every("streaming"), 4)
    assert seen == {True}


def test_an_error_beside_the_decoding_keeps_what_had_ended_and_leaves_no_requests() -> None:
    class Failing:
        calls = 0

        def verify_batch(self, responses: Sequence[str], golds: Sequence[Any]) -> list[bool]:
            raise ValueError("no")

    policy = OneByOne("streaming")
    with pytest.raises(UserFunctionError, match=r"verifier .*Failing has raised on each of its 3 calls"):
        collect(envs(4, verifier=Failing()), policy, 8, problem_ids=ORDER)
    assert policy.queue == {}

    def feedback(context: TurnContext) -> str:
        if context.problem.id == "p/2":
            raise ValueError("no")
        return "No."

    seen: list[int] = []
    with pytest.raises(
        UserFunctionError, match=r"feedback .* raised ValueError for problem 'p/2', turn 0: no"
    ) as caught:
        collect(
            envs(1, feedback=feedback),
            policy,
            8,
            problem_ids=ORDER,
            on_episode=lambda episode: seen.append(episode.index),
        )
    assert [episode.index for episode in caught.value.finished] == seen == [0, 1]


def test_wrappers_around_single_environments_are_stepped_through() -> None:
    class Doubling(gym.RewardWrapper[Ids, Ids]):
        def reward(self, reward: Any) -> float:
            return 2 * float(reward)

    class Cutting(gym.ActionWrapper[Ids, Ids, Ids]):
        """Plays something else than what was judged: the environment judges again."""

        def action(self, action: Ids) -> Ids:
            return action[:0]

    verifier = Recording()
    env = gym.make_vec(
        "MathMultiTurn-v0",
        num_envs=2,
        vectorization_mode="sync",
        wrappers=[Doubling],
        problems=PROBLEMS,
        verifier=verifier,
        num_turns=2,
    )
    episodes = collect(env, Every("streaming"), 4, problem_ids=ORDER)
    assert [episode.rewards.tolist() for episode in episodes] == [[-2.0, -2.0]] * 4
    assert sum(verifier.batches) == 8

    slot = EnvSlot(Cutting(gym.make("MathMultiTurn-v0", problems=PROBLEMS, verifier=verifier, num_turns=1)))
    slot.begin(EpisodePlan(), 0)
    verifier.batches.clear()
    with pytest.raises(InvalidEpisodeError, match="sequence law"):
        play_as_right(slot, SAID)
    base: Any = slot.env.unwrapped
    assert base.get_state().turns[0].reward == -1.0, "the verdict was for what the policy said, not for what was played"
    assert verifier.batches == [1]
    assert base.verdict_source is None


SAID = Completion(np.array([70, 71]))


def play_as_right(slot: EnvSlot, completion: Completion, turn: TurnContext | None = None) -> list[float]:
    """The rewards of the episode after a completion was played with the verdict that it is right."""
    turn = slot.turn(completion) if turn is None else turn
    assert turn is not None
    slot.play(completion, (turn, Verdict(Status.RIGHT)))
    return list(slot.recorder.episode().rewards)


def test_a_verdict_is_for_the_turn_that_was_judged_alone() -> None:
    verifier = Recording()
    slot = EnvSlot(gym.make("MathMultiTurn-v0", problems=PROBLEMS, verifier=verifier, num_turns=3))
    slot.begin(EpisodePlan(), 0)
    first = slot.turn(SAID)
    assert play_as_right(slot, SAID, first) == [1.0]
    assert verifier.batches == []
    slot.play(SAID)
    assert verifier.batches == [1], "the next turn is judged by the environment"
    assert play_as_right(slot, SAID, first) == [1.0, -1.0, -1.0], "a verdict of an earlier turn is not taken"
    slot.begin(EpisodePlan(), 0)
    other = slot.turn(SAID)
    slot.begin(EpisodePlan(), 0)
    assert play_as_right(slot, SAID, other) == [-1.0], "nor one of another episode"


def test_a_turn_that_is_judged_before_its_step_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    slot = EnvSlot(gym.make("MathMultiTurn-v0", problems=PROBLEMS, num_turns=3))
    slot.begin(EpisodePlan(), 0)
    base: Any = slot.env.unwrapped
    decoded: list[Any] = []
    decode = base.dialogue._decode

    def noted(ids: Any, **how: Any) -> Any:
        decoded.append(ids)
        return decode(ids, **how)

    monkeypatch.setattr(base.dialogue, "_decode", noted)
    play_as_right(slot, SAID)
    assert decoded == [[70, 71]]
    assert slot.turn(SAID) is slot.turn(SAID), "until something is played"
    assert slot.turn(Completion(np.array([70]))) is not slot.turn(SAID)
