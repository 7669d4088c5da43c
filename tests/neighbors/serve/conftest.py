"""A server in a thread, for whoever asks for one."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any

import pytest


class Server:
    """A server that runs, and where it is."""

    def __init__(self, url: str, app: Any) -> None:
        self.url, self.app = url, app

    @property
    def service(self) -> Any:
        """What its sessions share."""
        return self.app.state.service

    @property
    def sessions(self) -> int:
        """Sessions that are open."""
        return int(self.service.metrics.open_sessions)

    def wait_for_sessions(self, count: int, seconds: float = 60.0) -> None:
        """Returns once so many sessions are open."""
        deadline = time.monotonic() + seconds
        while self.sessions != count:
            assert time.monotonic() < deadline, f"{self.sessions} sessions are open, expected {count}"
            time.sleep(0.01)


def _libraries() -> None:
    """Loads what a server needs, or skips the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries below OpenEnv, while they are imported
        pytest.importorskip("openenv", reason="OpenEnv is not installed: pip install '.[serve]'")
        import mathturn_gym.neighbors.serve.app  # noqa: F401


@contextmanager
def running(uvicorn_settings: Mapping[str, Any] = MappingProxyType({}), **keywords: Any) -> Iterator[Server]:
    """Serves an environment at a free port until the block ends."""
    import uvicorn

    from mathturn_gym.neighbors.serve.app import create_app, uvicorn_config

    app = create_app(**keywords)
    server = uvicorn.Server(uvicorn_config(app, host="127.0.0.1", port=0, log_level="error", **uvicorn_settings))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < deadline, "the server did not start in time"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Server(f"http://127.0.0.1:{port}", app)
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        assert not thread.is_alive(), "the server did not end"


@pytest.fixture
def serving() -> Iterator[Callable[..., Server]]:
    """Starts servers; they end with the test."""
    _libraries()
    with ExitStack() as stack:
        yield lambda **keywords: stack.enter_context(running(**keywords))
