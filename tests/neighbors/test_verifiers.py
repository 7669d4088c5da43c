"""verifiers' own rollouts on this environment, with a model behind its API that follows a script."""

from __future__ import annotations

import asyncio
import http.server
import json
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mathturn_gym.errors import InvalidValueError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("verifiers", reason="verifiers is not installed: `make test-integrations` runs this")
    pytest.importorskip("verifiers.v1", reason="verifiers is older than 0.4")
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.client import EvalClientConfig

    from mathturn_gym.neighbors.verifiers import load_environment

pytestmark = pytest.mark.filterwarnings("ignore")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "verifiers"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example's module, as `pip install ./examples/verifiers` would make it importable."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield
    sys.modules.pop("mathturn", None)


@contextmanager
def model(*answers: str) -> Iterator[tuple[str, list[Any]]]:
    """A server of chat completions that says these, one per turn."""
    asked: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append(body["messages"])
            text = answers[sum(message["role"] == "assistant" for message in body["messages"])]
            chunk = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
            said = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
            end = {"index": 0, "delta": {}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            chunks = [{**chunk, "choices": [said]}, {**chunk, "choices": [end], "usage": usage}]
            out = "".join(f"data: {json.dumps(one)}\n\n" for one in chunks).encode() + b"data: [DONE]\n\n"
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("content-length", str(len(out)))
            self.end_headers()
            self.wfile.write(out)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.usefixtures("module")
def test_an_episode_played_by_verifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_KEY", "none")
    env = load_environment(problems="lins", size=3, discount=0.5, settings={"num_turns": 4})
    tasks = list(env.taskset)
    assert len({task.key for task in tasks}) == 3
    right = json.loads(tasks[0].data.problem)["gold"][0]

    async def play(url: str) -> Any:
        context = ModelContext(model="m", client=EvalClientConfig(base_url=url, api_key_var="NO_KEY"))
        async with env.serving():
            return await env.run_episode(tasks[0], context)

    with model("I do not know", r"\boxed{-999}", rf"It is \boxed{{{right}}}.") as (url, asked):
        episode = asyncio.run(play(url))
    assert episode.ok, episode.errors
    (trace,) = episode.traces
    assert trace.rewards["episode_return"].score == -1 - 0.5 + 0.25
    assert trace.metrics == {"solved": 1.0, "solved_first": 0.0, "turns": 3.0}
    said = [message["content"] for message in asked[-1] if message["role"] == "user"]
    assert said == [tasks[0].data.prompt, *["Unfortunately your answer is wrong. Let's try again."] * 2]


@pytest.mark.usefixtures("module")
def test_mistakes_show_before_the_first_episode() -> None:
    for config, message in (
        ({"settings": {"num_turns": 0}}, "num_turns must be"),
        ({"settings": {"num_turn": 2}}, "did you mean 'num_turns'"),
        ({"gym_id": "MathMultiTurn-v1"}, "unknown environment"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            load_environment(size=1, **config)
    with pytest.raises(InvalidValueError, match="has no end: say how many"):
        list(load_environment(problems="lins").taskset)
