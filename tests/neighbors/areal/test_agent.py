"""What the agent checks, and what it does with an environment or a policy that misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.errors import ChatTemplateError, InvalidValueError
from mathturn_gym.neighbors.areal import (
    BundledGenerationOutputs,
    GenerationHyperparameters,
    MathMultiTurnAgent,
    ReplyError,
    SequenceSample,
    ValidationError,
)
from mathturn_gym.neighbors.areal.protocol import EnvironmentService
from mathturn_gym.testing import make_tokenizer
from mathturn_gym.types import Completion

DIALOGUE = Dialogue("builtin")
GCONFIG = GenerationHyperparameters(n=4, max_new_tokens=8)
Reply = Callable[[tuple[str, list[int], Any]], Any]


class Env(EnvironmentService):
    """Gives scripted verdicts (an exception is raised), and remembers the answers."""

    def __init__(self, *verdicts: Any) -> None:
        self.verdicts = list(verdicts)
        self.answers: list[str] = []
        self.resets = 0

    async def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[None, dict[str, Any]]:
        self.resets += 1
        return None, {}

    async def step(self, action: tuple[str, list[str]]) -> Any:
        self.answers += action[1]
        verdict = self.verdicts.pop(0)
        if isinstance(verdict, BaseException):
            raise verdict
        return None, verdict, True, False, {}


def prompt(qid: Any = "q", ids: list[int] | None = None, **more: Any) -> SequenceSample:
    values: dict[str, torch.Tensor] = {
        "packed_prompts": torch.tensor(DIALOGUE.prompt_ids("1+1?").tolist() if ids is None else ids, dtype=torch.int64),
        **more,
    }
    return SequenceSample(
        keys=values,
        ids=[qid],
        dtypes={key: value.dtype for key, value in values.items()},
        trailing_shapes=dict.fromkeys(values, ()),
        seqlens={key: [[len(value)]] for key, value in values.items()},
        data=values,
    )


def saying(text: str = "4", **changes: Any) -> Reply:
    """A policy that always says the same, with some fields of its replies changed."""
    ids = [*DIALOGUE.tokenizer(text, add_special_tokens=False)["input_ids"], *DIALOGUE.end_of_turn]

    def reply(observation: tuple[str, list[int], Any]) -> Any:
        qid, context, _ = observation
        completion = Completion(np.array(ids), np.full(len(ids), -0.5), version_start=2)
        return replace(BundledGenerationOutputs.from_completion(qid, context, completion), **changes)

    return reply


def play(agent: MathMultiTurnAgent, env: Env, reply: Reply, question: Any = None) -> tuple[Any, list[Any]]:
    """One trajectory over two plain queues."""

    async def run() -> tuple[Any, list[Any]]:
        obs_queue: asyncio.Queue[Any] = asyncio.Queue()
        act_queue: asyncio.Queue[Any] = asyncio.Queue()
        seen: list[Any] = []

        async def policy() -> None:
            while True:
                seen.append(await obs_queue.get())
                act_queue.put_nowait(reply(seen[-1]))

        serving = asyncio.create_task(policy())
        try:
            chosen = prompt() if question is None else question
            return await agent.collect_trajectory(chosen, env, obs_queue, act_queue), seen
        finally:
            serving.cancel()

    return asyncio.run(run())


def agent(compat: bool = False, path: Path | None = None, **kwargs: Any) -> MathMultiTurnAgent:
    options: dict[str, Any] = {"num_turns": 2, "clock": lambda: 12.5, **kwargs}
    return MathMultiTurnAgent(GCONFIG, "builtin", path, compat=compat, **options)


@pytest.mark.parametrize("compat", [True, False])
def test_a_trajectory_by_hand(compat: bool, tmp_path: Path) -> None:
    env = Env([False], [True])
    chosen = agent(compat, tmp_path, turn_level_discount=0.5, reward_scaling=2.0, reward_bias=0.5)
    (sample,), seen = play(chosen, env, saying(), prompt(7, task_ids=torch.tensor([9])))
    assert env.resets == 1
    assert env.answers == ["4", "4"]
    first = prompt().data["packed_prompts"].tolist()  # type: ignore[index,union-attr]
    feedback = DIALOGUE.feedback_ids("Unfortunately your answer is wrong. Let's try again.", 0, np.array([2])).tolist()
    said = [*DIALOGUE.tokenizer("4")["input_ids"], 2]
    assert [(qid, ids) for qid, ids, _ in seen] == [("7", first), ("7", first + said + feedback)]
    assert {gconfig.n for _, _, gconfig in seen} == {1}
    assert sample.ids == ["7"]
    assert sample.data["rewards"].tolist() == [-2.5, 1.0]  # (-1 - .5) * 2 + .5 * 1, (1 - .5) * 2
    assert sample.data["birth_time"].tolist() == [12_500]
    assert sample.data["task_ids"].tolist() == [9]
    assert sample.metadata == {}
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {"2/7.txt", "2/7.jsonl"}


def test_without_a_folder_there_are_no_logs() -> None:
    for compat in (True, False):
        samples, _ = play(agent(compat), Env([True], [True]), saying())
        assert len(samples) == 1


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_turns": 0}, "num_turns must be an integer >= 1, got 0"),
        ({"num_turns": 2.5}, "num_turns must be an integer >= 1, got 2.5"),
        ({"turn_level_discount": 1.5}, r"turn_level_discount must be a finite number in \[0, 1\], got 1.5"),
        ({"reward_scaling": float("nan")}, "reward_scaling must be a finite number, got nan"),
        ({"reward_bias": "1"}, "reward_bias must be a finite number, got '1'"),
        ({"clock": 3}, "clock must be a function"),
        ({"path": 3}, "answer_save_path must be the path of a folder or None, got 3"),
        ({"path": __file__}, "answer_save_path must be a folder, but .* is a file"),
    ],
)
def test_arguments_are_checked(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        agent(**kwargs)
    agent(compat=True, **kwargs)  # as the original, which found out later or never


def test_settings_and_tokenizers_are_checked() -> None:
    bare = make_tokenizer()
    bare.chat_template = None
    with pytest.raises(ChatTemplateError, match="has no chat template"):
        MathMultiTurnAgent(GCONFIG, bare, None, compat=False)
    assert MathMultiTurnAgent(GCONFIG, bare, None).dialogue is None
    with pytest.raises(InvalidValueError, match="gconfig must be GenerationHyperparameters"):
        MathMultiTurnAgent(3, "builtin", None)
    mapped = MathMultiTurnAgent({"n": 4, "max_new_tokens": 8}, "builtin", None)
    assert mapped.gconfig == GCONFIG.new(n=1)

    @dataclass
    class Other:
        n: int = 8
        temperature: float = 0.5

    assert MathMultiTurnAgent(Other(), "builtin", None).gconfig == Other(n=1)


def test_original_without_a_template_fails_where_it_did() -> None:
    """After the first verdict, when feedback is made; even where the turn was the last."""
    bare = make_tokenizer()
    bare.chat_template = None
    env = Env([True])
    chosen = MathMultiTurnAgent(GCONFIG, bare, None, num_turns=1)
    with pytest.raises(ValueError, match="chat_template"):
        play(chosen, env, saying())
    assert env.verdicts == []


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (3, "prompt must be a SequenceSample of one item, got 3"),
        (SequenceSample.gather([prompt("a"), prompt("b")]), "prompt must be a SequenceSample of one item"),
        (prompt(ids=[]), "packed_prompts of query 'q' must hold at least one id"),
        (prompt(ids=[5, 10**6]), r"must be ids in \[0, "),
        (prompt(ids=[-1]), r"must be ids in \[0, "),
    ],
)
def test_prompts_are_checked(question: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        play(agent(), Env([True], [True]), saying(), question)


def test_a_prompt_without_prompts_is_refused() -> None:
    sample = SequenceSample(["task_ids"], ["q"], {"task_ids": torch.int64}, {"task_ids": ()}, {"task_ids": [[1]]}, None)
    with pytest.raises(InvalidValueError, match="must have data under 'packed_prompts'"):
        play(agent(), Env([True], [True]), saying(), sample)


def test_the_original_asserts_one_item() -> None:
    several = SequenceSample.gather([prompt("a"), prompt("b")])
    env = Env([True], [True])
    with pytest.raises(AssertionError, match=r"^$"):
        play(agent(compat=True), env, saying(), several)
    assert env.resets == 1


CONTEXT = DIALOGUE.prompt_ids("1+1?").tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seqs": []}, r"seqs must have one entry \(gconfig.n is 1\), got \[\]"),
        ({"seqs": [CONTEXT, CONTEXT]}, "seqs must have one entry"),
        ({"no_eos": [True, False]}, "no_eos must have one entry"),
        ({"prompt_ids": CONTEXT[1:]}, "prompt_ids must be the observation's"),
        ({"seqs": [[*CONTEXT[1:], 5, 6, 7]]}, "seqs.0. must begin with them"),
        ({"seqs": [[*CONTEXT, 5.5]]}, r"seqs\[0\] must be one row of integers, got float64"),
        ({"seqs": [[*CONTEXT, -5]]}, r"seqs\[0\] must be ids in \[0, "),
        ({"seqs": [[*CONTEXT, 10**7]]}, r"seqs\[0\] must be ids in \[0, "),
        ({"logprobs": [[0.0]]}, r"logprobs\[0\] must have \d+ entries, got shape \(1,\)"),
        ({"logprobs": [[float("nan")] * (len(CONTEXT) + 1)]}, r"logprobs\[0\] must be finite"),
        ({"logprobs": [[0.5] * (len(CONTEXT) + 1)]}, "must be a finite number <= 0, got 0.5"),
        ({"version_start": [3], "version_end": [2]}, "versions run backwards: 3 to 2"),
        ({"version_start": ["3"]}, "'str' object cannot be interpreted as an integer"),
    ],
)
def test_replies_are_checked(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ReplyError, match=rf"reply to query 'q', turn 0: .*{message}"):
        play(agent(path=tmp_path), Env([True], [True]), saying(**changes))
    assert list(tmp_path.iterdir()) == []


def test_a_reply_of_another_kind_is_named() -> None:
    with pytest.raises(ReplyError, match="seqs is missing from 'hello'"):
        play(agent(), Env([True], [True]), lambda observation: "hello")


def test_the_original_finds_out_at_the_end(tmp_path: Path) -> None:
    """A log-prob too few, a second version: nothing is said until the sample is made, and the logs are there."""
    for changes in ({"logprobs": [[0.0]]}, {"version_end": [2, 3]}):
        with pytest.raises(ValidationError):
            play(agent(True, tmp_path), Env([True], [True]), saying(**changes))
    assert (tmp_path / "2" / "q.jsonl").read_text().count("\n") == 4


@pytest.mark.parametrize("score", [2.0, -1.0, float("nan"), "right", None])
def test_scores_of_the_environment_are_checked(score: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"env.step must return .* with a score in \[0, 1\]"):
        play(agent(), Env([score], [True]), saying())


@pytest.mark.parametrize("result", [[], [True, False], 3])
def test_results_of_the_environment_are_checked(result: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"env.step must return"):
        play(agent(), Env(result, [True]), saying())


def test_scores_outside_the_range_are_the_originals_business() -> None:
    (sample,), _ = play(agent(True), Env([2], [-1]), saying())
    assert sample.data["rewards"].tolist() == [0.0, -3.0]  # ((2 - .5) * 2) + -3, ((-1 - .5) * 2)


def test_a_users_mistake_is_raised_by_the_repaired_agent() -> None:
    """The environment's complaint about its user is no verdict about an answer."""
    with pytest.raises(InvalidValueError, match="unknown query"):
        play(agent(), Env(InvalidValueError("unknown query")), saying())


def test_cancelling_is_not_a_verdict() -> None:
    with pytest.raises(asyncio.CancelledError):
        play(agent(), Env(asyncio.CancelledError()), saying())


def test_logprobs_of_the_prompt_do_not_reach_the_sample() -> None:
    size = len(CONTEXT)

    def reply(observation: Any) -> Any:
        made = saying()(observation)
        padded = [-9.0] * (len(observation[1]) - 1) + made.output_logprobs[0]
        return replace(made, logprobs=[padded])

    (sample,), _ = play(agent(num_turns=1), Env([True]), reply)
    assert sample.data["packed_logprobs"].tolist() == [0.0] * (size - 1) + [-0.5, -0.5]


def test_an_observation_is_the_policys_to_change() -> None:
    """What a policy does with the list it is given does not reach the trajectory (in the original it does)."""

    def reply(observation: Any) -> Any:
        made = saying()(observation)
        observation[1].clear()
        return made

    (sample,), _ = play(agent(), Env([False], [False]), reply)
    assert sample.data["packed_prompts"].tolist() == CONTEXT
    assert sample.seqlens["packed_input_ids"][0][0] == len(CONTEXT) + 2
