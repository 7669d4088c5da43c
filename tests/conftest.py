"""What all tests share: one torch thread, hypothesis settings, and the folder of real data where there is one."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from mathturn_gym.base.model_folders import models_folder
from mathturn_gym.seeding import uniforms

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"  # whatever the caller has set: no test downloads
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

settings.register_profile(
    "ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("ci")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Of this folder, `--doctest-modules` is to read tests alone: the other files are scripts, or lie for them to import."""
    name = collection_path.name
    return True if name.endswith(".py") and not name.startswith("test_") else None


SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="module", autouse=True)
def no_event_loop_is_left_running() -> Iterator[None]:
    """A module that leaves a loop running fails itself, not whichever module comes next and calls `asyncio.run`."""
    yield
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real tokenizers, data sets and recordings; a clone elsewhere has none."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared folder: real tokenizers and data are not part of the repository")
    return SHARED


@pytest.fixture
def nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails the test where anything of it looks an address up or connects to one."""
    asked: list[Any] = []

    def ask(*args: Any, **kwargs: Any) -> None:
        asked.append(args)
        raise OSError("a test without a network")

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    monkeypatch.setattr(socket.socket, "connect", ask)
    yield
    assert asked == []


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """`benchmark(name)` is the module of a script of `benchmarks/` or `experiments/`."""
    for folder in ("benchmarks", "experiments"):
        monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / folder))
    return importlib.import_module


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct, where it has been fetched."""
    folder = models_folder() / "smollm2"
    if not (folder / "config.json").is_file():
        pytest.skip("SmolLM2 is not here: `make smollm` fetches it, `make test-llm` runs the tests that need it")
    return folder


@pytest.fixture(scope="session")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`short_run(episodes=, **settings)` is the folder of a run of that many episodes, of one turn each."""

    def make(episodes: int, **settings: Any) -> Path:
        from mathturn_gym.baselines import train
        from mathturn_gym.baselines.tasks import load_task

        small = {
            "minibatches": 1,
            "epochs": 1,
            "evaluation.episodes": 2,
            "evaluation.test_episodes": 0,
            "env.num_turns": 1,
        }
        path = tmp_path_factory.mktemp("runs") / "run"
        train(load_task("lins").config(settings={**small, **settings}, budget={"episodes": episodes}), run_dir=path)
        return path

    return make


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the run that a module's `finished` has made."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def find_chromium() -> str | None:
    """The browser: the one that MATHTURN_CHROMIUM names, or chromium on the path."""
    return os.environ.get("MATHTURN_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium, driven by Playwright; both are needed.

    Playwright's synchronous interface leaves an event loop marked as running in this thread for as long as it is open,
    and `asyncio.run` refuses to start beside one. So it is closed with the module that uses it.
    """
    api = pytest.importorskip("playwright.sync_api", reason="Playwright drives the browser: pip install playwright")
    executable = find_chromium()
    if executable is None:
        pytest.skip("no chromium on the path (Debian: apt-get install chromium; or set MATHTURN_CHROMIUM)")
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
        " --disable-component-update --disable-sync"
    )
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=flags.split())
        yield chromium
        chromium.close()


# ---- a server

VOCAB, STOP = 50, 7


class FakeServer(ThreadingHTTPServer):
    """A real HTTP server on this machine that answers as vLLM does, or as badly as a test wants.

    Completions are uniform over `VOCAB` ids, decided by prompt and seed; chats get what `says` returns. Everything it was asked
    is kept.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.failures: list[int] = []  # statuses to answer with first
        self.leave_out: tuple[str, ...] = ()
        self.raw_logprobs, self.delay, self.finish = False, 0.0, ""
        self.open = threading.Event()  # while it is cleared, nothing is answered
        self.open.set()
        self.weights, self.active, self.most_active = "old", 0, 0
        self.tokens = self.router = False  # whether it has vLLM's token endpoint, and a router's /finish_session
        self.label = "default"  # what it calls its weights
        self.dropped = 0
        self.dead = False  # connections end without an answer, as those of a process that was killed
        self.partial: int | None = None  # ids after which a completion waits for /pause
        self.paused = threading.Event()
        self.sessions: list[str | None] = []  # X-Session-ID of every request
        self.here = threading.local()  # .session: that of the request that this thread answers
        self.prefixes: set[tuple[str, ...]] = set()  # its prefix cache: salts and prompts
        self.hits = 0
        self.change: Callable[[dict[str, Any]], Any] = lambda choice: choice  # of a completion's choice
        self.says: Callable[[list[dict[str, str]]], Any] = lambda messages: "?"  # of a chat's messages
        self.headers: dict[str, str] = {}  # sent with failures
        self.write: Callable[[Any, bytes], None] | None = None  # writes a completion's whole answer
        self.authorizations: list[str | None] = []
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def completions(self) -> list[dict[str, Any]]:
        return [body for path, body in self.asked if path == "/v1/completions" and body.get("top_k") != 1]

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if self.failures:
            return self.failures.pop(0), {"error": "busy"}
        if path == "/v1/models":
            return 200, {"data": [{"id": "fake"}]}
        if path == "/collective_rpc":
            self.weights = body["kwargs"]["weights_path"]
            return 200, {"results": [None]}
        if path == "/reset_prefix_cache" or (path.startswith("/finish_session") and self.router):
            return 200, None
        if path.startswith("/pause"):
            self.paused.set()
            return 200, {"status": "paused"}
        if path == "/resume":
            self.paused.clear()
            self.partial = None
            return 200, {"status": "resumed"}
        if path == "/weight_info":
            return 200, {"weight_version": self.label}
        if path == "/update_weight_version":
            self.label = body["new_version"]
            return 200, {"success": True}
        if path == "/inference/v1/generate" and self.tokens:
            return 200, {"choices": [self.change(self.token_choice(body))]}
        if path == "/v1/chat/completions":
            return 200, {"choices": [{"message": {"role": "assistant", "content": self.says(body["messages"])}}]}
        if "prompt" not in body:
            return 404, {"error": "Not Found"}
        if len(body["prompt"]) > 200:
            return 400, {"error": "the prompt is longer than max_model_len"}
        if (
            body.get("top_k") == 1 and len(body["prompt"]) and body["max_tokens"] == 1
        ):  # the policy's own first question
            return 200, {"choices": [self.choice(body)]}
        return 200, {"choices": [self.change(self.choice(body))]}

    def choice(self, body: dict[str, Any]) -> dict[str, Any]:
        seed = sum((i + 1) * j for i, j in enumerate(body["prompt"])) * 7919 + body.get("seed", 0)
        ids = np.floor(uniforms(seed, body["max_tokens"]) * VOCAB).astype(int).tolist()
        if STOP in ids:
            ids = ids[: ids.index(STOP) + 1]
        certain = body["top_k"] == 1 and not self.raw_logprobs
        choice = {
            "finish_reason": self.finish or ("stop" if ids[-1] == STOP else "length"),
            "token_ids": ids,
            "prompt_token_ids": body["prompt"],
            "logprobs": {"token_logprobs": [0.0 if certain else -float(np.log(VOCAB))] * len(ids)},
            "text": "?",
        }
        return {key: value for key, value in choice.items() if key not in self.leave_out}

    def token_choice(self, body: dict[str, Any]) -> dict[str, Any]:
        """As vLLM's `/inference/v1/generate`: cut off at `partial` where a pause has come."""
        choice = self.choice({"prompt": body["token_ids"], **body["sampling_params"]})
        ids, logprobs = choice.pop("token_ids"), choice.pop("logprobs")["token_logprobs"]
        if self.partial is not None and len(ids) > self.partial:
            ids, choice["finish_reason"] = ids[: self.partial], "abort"
        content = [{"token_id": i, "logprob": one} for i, one in zip(ids, logprobs, strict=False)]
        spans = [{"version": self.label, "start": 0, "end": len(ids)}]
        return {**choice, "token_ids": ids, "logprobs": {"content": content}, "weight_versions": spans}

    def look_up(self, body: dict[str, Any]) -> None:
        """Counts a hit where a prompt continues one that was asked before under the same salt."""
        prompt, salt = body.get("prompt") or body.get("token_ids"), body.get("cache_salt", "")
        if isinstance(prompt, list):
            keys = {(salt, *map(str, prompt[:n])) for n in range(1, len(prompt) + 1)}
            self.hits += bool(keys & self.prefixes)
            self.prefixes.add((salt, *map(str, prompt)))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        with self.server.lock:
            self.server.asked.append((self.path, body))
            self.server.authorizations.append(self.headers.get("Authorization"))
            self.server.here.session = self.headers.get("X-Session-ID")
            self.server.sessions.append(self.server.here.session)
            self.server.look_up(body)
            self.server.active += 1
            self.server.most_active = max(self.server.most_active, self.server.active)
        time.sleep(self.server.delay)
        self.server.open.wait()
        if self.server.partial is not None and self.path in ("/v1/completions", "/inference/v1/generate"):
            self.server.paused.wait(10)
        with self.server.lock:
            self.server.active -= 1
            if self.server.dead:
                self.server.dropped += 1
                self.close_connection = True
                return
            status, answer = self.server.answer(self.path, body)
        content = b"" if answer is None else json.dumps(answer).encode()
        probe = body.get("top_k") == 1 and body.get("max_tokens") == 1
        with suppress(ConnectionError):  # who cancels does not wait for the answer
            if self.server.write is not None and self.path == "/v1/completions" and not probe:
                self.close_connection = True
                self.server.write(self.wfile, content)
                return
            self.send_response(status)
            for name, value in self.server.headers.items() if status >= 300 else ():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *args: Any) -> None:
        """Silent."""


@pytest.fixture
def make_server() -> Iterator[Callable[[], FakeServer]]:
    servers: list[FakeServer] = []

    def make() -> FakeServer:
        servers.append(FakeServer())
        return servers[-1]

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def server(make_server: Callable[[], FakeServer]) -> FakeServer:
    return make_server()
