"""The server as OpenEnv's own client and routes see it."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.env.dialogue import completion_ids
from mathturn_gym.problems import load_problems
from mathturn_gym.types import Problem

Serving = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def client() -> Any:
    """OpenEnv's client; imported in the process that plays, as it brings three seconds of other imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries below OpenEnv, while they are imported
        pytest.importorskip("openenv", reason="OpenEnv is not installed: pip install '.[serve]'")
        from openenv.core import GenericEnvClient
    return GenericEnvClient


def call(url: str, data: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    """Status and JSON of a GET, or of a POST of `data`."""
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_openenvs_client_plays_an_episode_by_text(serving: Serving, client: Any) -> None:
    problems = [Problem("p/1", "What is 40+2?", "42")]
    server = serving(problems=problems, num_turns=3)
    local = MathMultiTurnEnv(problems, num_turns=3)
    with client(base_url=server.url).sync() as env:
        result = env.reset(seed=0, send_tokens="all")
        expected, info = local.reset(seed=0)
        assert result.observation["text"] == "What is 40+2?"
        assert result.observation["tokens"] == expected.tolist()
        assert (result.observation["start"], result.observation["truncated"], result.done) == (0, False, False)
        assert result.observation["info"]["problem_id"] == info["problem_id"] == "p/1"
        for text, reward in ((r"\boxed{41}", -1.0), (r"<|im_end|> It is \boxed{42}", 1.0), ("?", -1.0)):
            result = env.step({"text": text})
            expected, *_, info = local.step(completion_ids(local.dialogue, text))
            assert result.observation["tokens"] == expected.tolist()
            assert result.observation["text"] == info["feedback"]
            assert result.reward == reward
        assert result.done
        assert result.observation["info"]["stop_reason"] == "turns"
        state = env.state()
        assert (state["step_count"], state["problem_id"], state["turns_left"]) == (3, "p/1", 0)


def shows(shown: Any, sent: Any) -> bool:
    """True where everything that a page shows of a message stands in it."""
    if isinstance(shown, dict):
        return isinstance(sent, dict) and all(name in sent and shows(shown[name], sent[name]) for name in shown)
    return bool(shown == sent)


def test_the_page_shows_the_messages_as_they_are(serving: Serving) -> None:
    from websockets.sync.client import connect

    page = (Path(__file__).parents[3] / "docs" / "serve.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    messages = [(part[0], json.loads(part[2:])) for part in re.split(r"\n(?=[<>] )", block.strip())]
    assert len(messages) == 11
    server = serving(problems="add1", num_turns=2, max_completion_tokens=32)
    with connect(f"ws{server.url.removeprefix('http')}/ws") as socket:
        for direction, message in messages:
            if direction == ">":
                socket.send(json.dumps(message))
                continue
            sent = json.loads(socket.recv(timeout=10))
            assert shows(message, sent), (message, sent)


def test_send_tokens_says_which_ids_come(serving: Serving, client: Any) -> None:
    with client(base_url=serving().url).sync() as env:
        unasked = env.reset(seed=0).observation["tokens"]
        everything = env.reset(seed=0, send_tokens="all").observation
        assert unasked == everything["tokens"]
        assert env.reset(seed=0, send_tokens="none").observation["tokens"] == []
        step = env.step({"text": "?"}).observation
        assert (step["tokens"], step["start"]) == ([], step["info"]["completion_budget"] and step["start"])
        new = env.reset(seed=0, send_tokens="new").observation
        assert new["tokens"] == everything["tokens"]
        step = env.step({"text": "?"}).observation
        assert step["start"] == len(everything["tokens"]) == step["info"]["new_ids_start"]
        with pytest.raises(RuntimeError, match="InvalidValueError: send_tokens must be"):
            env.reset(seed=0, send_tokens="some")


def test_a_text_over_the_budget_is_cut_as_a_sample_would_be(serving: Serving, client: Any) -> None:
    with client(base_url=serving(max_completion_tokens=6).url).sync() as env:
        before = len(env.reset(seed=0, send_tokens="new").observation["tokens"])
        info = env.step({"text": "x" * 4000}).observation["info"]
        assert info["feedback_start"] == before + 6


def test_tokens_are_played_where_they_are_given(serving: Serving, client: Any) -> None:
    with client(base_url=serving().url).sync() as env:
        before = env.reset(seed=0, send_tokens="all").observation["tokens"]
        after = env.step({"text": "not read", "tokens": [5, 6, 7]}).observation["tokens"]
        assert after[: len(before) + 3] == [*before, 5, 6, 7]


def test_mistakes_are_told_and_the_session_goes_on(serving: Serving, client: Any) -> None:
    with client(base_url=serving().url).sync() as env:
        mistakes: list[tuple[Callable[[], Any], str]] = [
            (lambda: env.step({"text": "?"}), "InvalidValueError: step before reset"),
            (lambda: env.reset(sed=3), "unknown reset option 'sed': did you mean 'seed'"),
            (lambda: env.reset(seed=-1), "seed must be an integer"),
            (lambda: env.reset(seed="x"), "seed must be an integer"),
            (lambda: env.reset(problem_id="nope"), "problem_id 'nope'"),
            (lambda: env.reset(split="tset", index=0), "unknown split 'tset': did you mean 'test'"),
        ]
        for call_it, message in mistakes:
            with pytest.raises(RuntimeError, match=message):
                call_it()
        env.reset(seed=0)
        for action in (
            {"tokens": [1]},
            {"text": "x", "tokens": [-1]},
            {"text": "x", "tokens": [True]},
            {"text": "x", "more": 1},
        ):
            with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
                env.step(action)
        with pytest.raises(RuntimeError, match=r"InvalidActionError: .*id 999999 at position 1"):
            env.step({"text": "", "tokens": [1, 999_999]})
        with pytest.raises(RuntimeError, match=r"InvalidActionError: .*its length 2000 is over max_length=1024"):
            env.step({"text": "", "tokens": [1] * 2000})
        env.step({"text": "?"})


def test_an_answer_that_is_json_is_its_text(serving: Serving, client: Any) -> None:
    """Some clients read a model's reply as JSON where they can: `42` arrives as a number."""
    problems = [Problem("p/1", "What is 40+2?", "42")]
    with client(base_url=serving(problems=problems).url).sync() as env:
        env.reset(seed=0)
        for value, text in ((42, "42"), (4.5, "4.5"), (None, "null"), ([1, 2], "[1, 2]"), ({"a": 1}, '{"a": 1}')):
            assert env.step({"text": value}).observation["info"]["response"] == text


def test_text_is_the_one_required_field(serving: Serving) -> None:
    status, schema = call(f"{serving().url}/schema")
    assert status == 200
    assert schema["action"]["required"] == ["text"]
    assert set(schema["action"]["properties"]) == {"text", "tokens", "metadata"}
    assert {"truncated", "info", "tokens", "text"} <= set(schema["observation"]["properties"])


def test_tasks_are_the_problems_of_the_splits(serving: Serving, client: Any) -> None:
    url = serving().url
    assert call(f"{url}/list_environments") == (200, ["MathMultiTurn-v0"])
    tasks = f"{url}/MathMultiTurn-v0"
    assert call(f"{tasks}/splits")[1] == [{"name": name, "type": name} for name in ("train", "validation", "test")]
    assert call(f"{tasks}/num_tasks", {"split": "test"})[1] == {"num_tasks": 1000}
    _, found = call(f"{tasks}/task", {"split": "test", "index": 12})
    problem = load_problems("lins").part("test").get(0, 12)
    assert found["task"] == {
        "id": problem.id,
        "split": "test",
        "index": 12,
        "prompt": problem.prompt,
        "metadata": dict(problem.metadata),
    }
    with client(base_url=url).sync() as env:
        shown = env.reset(split="test", index=12).observation
        assert (shown["text"], shown["info"]["problem_id"]) == (problem.prompt, problem.id)
        with pytest.raises(RuntimeError, match=r"index must be in \[0, 999\], got 1000"):
            env.reset(split="test", index=1000)
        seeded = [env.reset(split="test", seed=4, index=i).observation["text"] for i in (0, 1)]
        assert seeded == [load_problems("lins").part("test").get(4, i).prompt for i in (0, 1)]
    _, some = call(f"{tasks}/task_range", {"split": "train", "start": 3, "stop": 5})
    assert [task["index"] for task in some["tasks"]] == [3, 4]
    assert len(call(f"{tasks}/tasks", {"split": "train"})[1]["tasks"]) == 1000
    assert call(f"{tasks}/task", {"split": "test", "index": 1000})[0] == 400
    status, told = call(f"{tasks}/task", {"split": "nope", "index": 0})
    assert (status, "unknown split" in told["detail"]) == (400, True)
    assert call(f"{url}/nope/splits")[0] == 404


def test_finite_problems_are_tasks_in_their_order(serving: Serving) -> None:
    problems = [Problem(f"p/{i}", f"What is {i}+1?", str(i + 1), metadata={"split": "train"}) for i in range(5)]
    tasks = f"{serving(problems=problems).url}/MathMultiTurn-v0"
    assert "train" in [split["name"] for split in call(f"{tasks}/splits")[1]]
    count = call(f"{tasks}/num_tasks", {"split": "train"})[1]["num_tasks"]
    _, found = call(f"{tasks}/tasks", {"split": "train"})
    ids = [task["id"] for task in found["tasks"]]
    assert len(ids) == count
    assert ids == [one for one in (p.id for p in problems) if one in ids]
    one_split = f"{serving(problems='lins:test').url}/MathMultiTurn-v0"
    assert [split["name"] for split in call(f"{one_split}/splits")[1]] == ["test"]


def test_episodes_are_played_in_sessions_alone(serving: Serving) -> None:
    """Each request over HTTP would have an environment of its own, in which no step can follow a reset."""
    url = serving().url
    listed = call(f"{url}/openapi.json")[1]["paths"]
    for path, data in (("reset", {"seed": 3}), ("step", {"action": {"text": "x"}}), ("state", None)):
        status, told = call(f"{url}/{path}", data)
        assert (status, "/ws" in told["detail"], f"/{path}" in listed) == (410, True, False)
    assert {"/schema", "/info", "/ready"} <= set(listed)
    assert call(f"{url}/health") == (200, {"status": "healthy"})
    assert call(f"{url}/metadata")[1]["name"] == "MathMultiTurn-v0"


def test_openenvs_validator_passes_the_server(serving: Serving) -> None:
    from openenv.cli._validation import validate_running_environment

    server = serving()
    report = validate_running_environment(server.url)
    assert (report["passed"], report["summary"]["failed_criteria"]) == (True, [])
    assert report["mode"] == "production"  # episodes live in sessions of /ws alone
    status, told = call(f"{server.url}/mcp", {"jsonrpc": "2.0", "id": 7, "method": "tools/list"})
    assert (status, told["id"], told["error"]["code"]) == (200, 7, -32601)
    assert server.service.metrics.open_sessions == 0


def test_no_reply_holds_an_accepted_answer(serving: Serving, client: Any) -> None:
    problems = [Problem("p/1", "Guess.", "987654321", hints=("Odd.",))]
    url = serving(problems=problems, feedback="plain").url
    with client(base_url=url).sync() as env:
        said = [env.reset(seed=0), env.step({"text": r"\boxed{3}"}), env.state()]
    pages = [call(f"{url}{path}")[1] for path in ("/info", "/metadata", "/schema")]
    tasks = call(f"{url}/MathMultiTurn-v0/tasks", {"split": "train"})[1]
    assert "987654321" not in repr([said, pages, tasks])


def test_a_bug_is_logged_and_not_told(
    serving: Serving, caplog: pytest.LogCaptureFixture, monkeypatch: Any, client: Any
) -> None:
    server = serving()
    with client(base_url=server.url).sync() as env:
        env.reset(seed=0)
        monkeypatch.setattr(MathMultiTurnEnv, "step", lambda self, action: 1 / 0)
        with pytest.raises(RuntimeError, match="ServerError: the server failed; its log has the reason") as told:
            env.step({"text": "x"})
    assert "division" not in str(told.value)
    assert "ZeroDivisionError" in caplog.text
    assert np.isclose(server.service.metrics.errors.labels("ZeroDivisionError")._value.get(), 1)
