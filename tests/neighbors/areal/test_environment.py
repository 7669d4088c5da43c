"""The registries, the data set's schema, and the environment that judges it."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mathturn_gym.errors import InvalidValueError, ProblemFileError
from mathturn_gym.neighbors.areal import (
    ArealProblems,
    BundledGenerationOutputs,
    GenerationHyperparameters,
    MathCodeSingleStepEnv,
    MathMultiTurnAgent,
    make_agent,
    make_env,
    register_agent,
    register_environment,
)
from mathturn_gym.neighbors.areal.protocol import in_thread
from mathturn_gym.types import Completion, Status

ROWS: list[dict[str, Any]] = [
    {"query_id": "h1", "prompt": "Half of one?", "solutions": ["Halve it: $\\boxed{\\frac{1}{2}}$."], "task": "math"},
    {"query_id": "h2", "prompt": "1+1?", "solutions": ["\\boxed{3}", "2"], "level": 1},
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write(tmp_path / "train.jsonl", ROWS)


def step(env: MathCodeSingleStepEnv, query: str, *answers: str) -> tuple[list[float], list[Any]]:
    nothing, scores, terminated, truncated, info = asyncio.run(env.step((query, list(answers))))
    assert (nothing, terminated, truncated) == (None, True, False)
    return scores, info["verdicts"]


def test_answers_are_judged_by_our_verifier(dataset: Path) -> None:
    env = make_env("math-code-single-step", dataset_path=dataset)
    assert asyncio.run(env.reset()) == (None, {})
    scores, verdicts = step(env, "h1@idx:3-0", "\\boxed{0.5}", "\\boxed{0.6}", "no idea", "\\boxed{1/2")
    assert scores == [1.0, 0.0, 0.0, 0.0]
    assert [verdict.status for verdict in verdicts[:3]] == [Status.RIGHT, Status.WRONG, Status.NO_ANSWER]
    assert step(env, "h2", "\\boxed{2}", "\\boxed{3}", "\\boxed{4}")[0] == [1.0, 1.0, 0.0]


def test_scores_of_a_users_verifier_are_kept(dataset: Path) -> None:
    env = MathCodeSingleStepEnv(dataset, verifier=lambda response, gold: len(response) / 10)
    assert step(env, "h1", "ab", "0123456789")[0] == [0.2, 1.0]


def test_a_verifier_that_raises_or_hangs_is_a_verdict(dataset: Path) -> None:
    def explode(response: str, gold: Any) -> bool:
        raise KeyError(response)

    scores, verdicts = step(MathCodeSingleStepEnv(dataset, verifier=explode), "h1", "a")
    assert scores == [0.0]
    assert verdicts[0].status is Status.UNDECIDED
    release, before = threading.Event(), set(threading.enumerate())
    env = MathCodeSingleStepEnv(dataset, verifier=lambda response, gold: release.wait(), timeout=0.05)
    scores, verdicts = step(env, "h1", "a", "b")  # comes back, and the loop ends, while the thread is stuck
    stuck = set(threading.enumerate()) - before
    assert stuck
    assert all(thread.daemon for thread in stuck)  # nor does the interpreter wait for it
    release.set()
    assert scores == [0.0, 0.0]
    assert [verdict.reason for verdict in verdicts] == ["not judged within 0.05 s"] * 2


def test_the_event_loop_runs_while_answers_are_judged(dataset: Path) -> None:
    release = threading.Event()
    env = MathCodeSingleStepEnv(dataset, verifier=lambda response, gold: release.wait(30))

    async def both() -> Any:
        judging = asyncio.create_task(env.step(("h1", ["a"])))
        await asyncio.sleep(0.01)
        release.set()  # only a running loop gets here
        return await judging

    assert asyncio.run(both())[1] == [1.0]


@pytest.mark.parametrize("action", [("h1",), "h1", ("h1", "answer"), ("h1", [3]), (None, ["a"]), 7])
def test_bad_actions_are_refused(dataset: Path, action: Any) -> None:
    with pytest.raises(InvalidValueError, match="action must be"):
        asyncio.run(MathCodeSingleStepEnv(dataset).step(action))


def test_unknown_queries_are_refused(dataset: Path) -> None:
    with pytest.raises(InvalidValueError, match="'nope' is not in source 'train'"):
        asyncio.run(MathCodeSingleStepEnv(dataset).step(("nope@idx:0-0", ["a"])))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"task": "code"}, "line 3: field 'task' is 'code', and only 'math' can be judged here"),
        ({"task": None}, "line 3: field 'task' is None"),
        ({"solutions": []}, "line 3: field 'solutions' must be a list of texts"),
        ({"solutions": "\\boxed{2}"}, "line 3: field 'solutions' must be a list of texts"),
        ({"solutions": [" "]}, r"line 3: field 'solutions\[0\]' is empty"),
        ({"prompt": ""}, "line 3: field 'prompt' must be a non-empty text"),
        ({"query_id": ""}, "line 3: field 'query_id' must be a non-empty text"),
        ({"query_id": None, "question": "1?", "answer": "#### 1"}, "line 3: field 'query_id' must be"),
        ({"query_id": True}, "line 3: field 'query_id' must be a non-empty text"),
    ],
)
def test_broken_rows_are_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    good = {"query_id": "h3", "prompt": "1?", "solutions": ["1"], "task": "math"}
    path = write(tmp_path / "train.jsonl", [*ROWS, {**good, **row}])
    with pytest.raises(ProblemFileError, match=message):
        MathCodeSingleStepEnv(path)
    kept = ArealProblems(path, skip_bad_rows=True)
    assert [problem.id for problem in kept.problems] == ["h1", "h2"]
    assert kept.skipped[0].line == 3


def test_problems_serve_the_environment_too(dataset: Path) -> None:
    import gymnasium as gym

    import mathturn_gym  # noqa: F401 - registers the environments

    problems = ArealProblems(dataset)
    assert problems.by_id("h1").gold == ("\\frac{1}{2}",)
    assert problems.by_id("h2").gold == ("3", "2")
    assert problems.by_id("h2").metadata["level"] == 1
    env = gym.make("MathMultiTurn-v0", problems=problems)
    _, info = env.reset(options={"problem_id": "h2"})
    assert info["problem_id"] == "h2"


# ---- registries and messages


def test_registries_make_by_name_and_by_config(dataset: Path) -> None:
    gconfig = GenerationHyperparameters(n=4)
    agent = make_agent("math-multi-turn", gconfig=gconfig, tokenizer_path="builtin", answer_save_path=None, num_turns=2)
    assert isinstance(agent, MathMultiTurnAgent)
    assert (agent.gconfig.n, agent.num_turns, agent.compat) == (1, 2, True)
    config = SimpleNamespace(type_="math-code-single-step", args={"dataset_path": dataset})
    assert isinstance(make_env(config), MathCodeSingleStepEnv)


def test_registries_take_ones_own_once() -> None:
    register_agent("test-agent", lambda **kwargs: ("agent", kwargs))
    register_environment("test-env", lambda **kwargs: ("env", kwargs))
    assert make_agent("test-agent", a=1) == ("agent", {"a": 1})
    assert make_env("test-env", b=2) == ("env", {"b": 2})
    with pytest.raises(InvalidValueError, match="agent name 'test-agent' is taken"):
        register_agent("test-agent", dict)
    with pytest.raises(InvalidValueError, match="environment name 'math-code-single-step' is taken"):
        register_environment("math-code-single-step", dict)
    with pytest.raises(InvalidValueError, match="must be a text without '/'"):
        register_environment("a/b", dict)
    with pytest.raises(InvalidValueError, match="must be a class or a callable"):
        register_agent("other", 3)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="did you mean 'math-multi-turn'"):
        make_agent("math-multiturn")
    with pytest.raises(InvalidValueError, match="unknown environment 7"):
        make_env(SimpleNamespace(type_=7, args={}))


def test_generation_settings_are_checked_and_copied() -> None:
    settings = GenerationHyperparameters(n=4, temperature=0.0, max_new_tokens=9)
    assert (settings.greedy, settings.temperature) == (True, 1.0)
    assert settings.new(n=1) == GenerationHyperparameters(n=1, greedy=True, max_new_tokens=9)
    bad: list[tuple[str, Any]] = [("top_p", 0.0), ("top_p", 1.5), ("top_k", 0), ("n", 0), ("temperature", -1.0)]
    for name, value in bad:
        with pytest.raises(InvalidValueError, match=f"gconfig.{name} must be"):
            GenerationHyperparameters(**{name: value})


def test_a_reply_is_made_of_a_completion() -> None:
    completion = Completion(np.array([7, 8]), np.array([-0.5, -1.0]), truncated=True, version_start=2, version_end=3)
    reply = BundledGenerationOutputs.from_completion("q", [5, 6], completion)
    assert reply.seqs == [[5, 6, 7, 8]]
    assert reply.logprobs == [[0.0, -0.5, -1.0]]
    assert (reply.no_eos, reply.version_start, reply.version_end) == ([True], [2], [3])
    assert (reply.prompt_len, reply.seqlens, reply.output_ids) == (2, [4], [[7, 8]])
    with pytest.raises(InvalidValueError, match="prompt_ids of query 'q' must hold at least one id"):
        BundledGenerationOutputs.from_completion("q", [], completion)


def test_threads_hand_over_results_and_exceptions() -> None:
    def leave() -> None:
        raise SystemExit(3)

    def stop() -> None:
        raise StopIteration

    assert asyncio.run(in_thread(sum, [1, 2])) == 3
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_thread(divmod, 1, 0))
    for function in (leave, stop):
        with pytest.raises(RuntimeError, match="raised S"):
            asyncio.run(in_thread(function))
