"""The reverse proxy's configuration that `docs/serve.md` asks for beyond loopback, played through where nginx is installed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from mathturn_gym.neighbors.serve.limits import Limits

NGINX = os.environ.get("MATHTURN_NGINX") or shutil.which("nginx")
CONFIG = Path(__file__).parents[3] / "examples" / "serve" / "nginx.conf"
TRUSTED = {"proxy_headers": True, "forwarded_allow_ips": "127.0.0.1"}

Serving = Callable[..., Any]
Proxied = Callable[..., int]


def test_the_configuration_says_what_the_page_says() -> None:
    text, page = (
        CONFIG.read_text(encoding="utf-8"),
        (CONFIG.parents[2] / "docs" / "serve.md").read_text(encoding="utf-8"),
    )
    for setting in ("rate=50r/s", "connections 512", "client_header_timeout 10s", "client_max_body_size  1m"):
        assert setting in text
        assert re.search(r"\d+", setting)[0] in page  # type: ignore[index]
    assert "X-Forwarded-For   $remote_addr" in text
    assert "$proxy_add_x_forwarded_for" not in text
    assert f"proxy_read_timeout {int(Limits().session_timeout) + 60}s" in text


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Proxied]:
    """Starts nginx before a server, with the shipped configuration at other ports."""
    if NGINX is None:
        pytest.skip("nginx is not installed")
    with ExitStack() as stack:

        def start(upstream: int, **changes: str) -> int:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = int(probe.getsockname()[1])
            text = CONFIG.read_text(encoding="utf-8").replace("127.0.0.1:8000", f"127.0.0.1:{upstream}")
            text = text.replace("listen 8080", f"listen 127.0.0.1:{port}")
            for old, new in changes.items():
                assert old in text
                text = text.replace(old, new)
            (tmp_path / "tmp").mkdir()
            (tmp_path / "nginx.conf").write_text(text, encoding="utf-8")
            command = [
                NGINX,
                "-e",
                "stderr",
                "-p",
                str(tmp_path),
                "-c",
                str(tmp_path / "nginx.conf"),
                "-g",
                "daemon off;",
            ]
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            stack.callback(process.communicate, timeout=60)
            stack.callback(process.terminate)
            deadline = time.monotonic() + 60
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    return port
                except OSError:
                    assert process.poll() is None, process.stderr.read() if process.stderr else ""
                    assert time.monotonic() < deadline
                    time.sleep(0.05)

        yield start


def port_of(server: Any) -> int:
    return int(server.url.rpartition(":")[2])


def test_an_episode_through_the_proxy_while_strangers_hold_half_heads(serving: Serving, proxied: Proxied) -> None:
    server = serving(
        limits=Limits(max_sessions=8, connections_per_address=0), api_keys=["secret"], uvicorn_settings=TRUSTED
    )
    port = proxied(port_of(server), **{"client_header_timeout 10s": "client_header_timeout 1s"})
    with ExitStack() as stack:
        strangers = []
        for _ in range(96):
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            raw.settimeout(20)
            raw.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert raw.recv(1000).startswith(b"HTTP/1.1 200")
            raw.sendall(b"GET /health HTTP/1.1\r\nHo")
            strangers.append(raw)
        env = gym.make("MathMultiTurn-v0", server=f"http://127.0.0.1:{port}", api_key="secret")
        env.reset(seed=0)
        assert env.step(np.array([3]))[4]["turn"] == 1
        for raw in strangers:
            with contextlib.suppress(ConnectionResetError):  # which is also an end; a time-out is none
                assert raw.recv(1000) == b"" or raw.recv(1000) == b""
        assert env.step(np.array([3]))[4]["turn"] == 2
        env.close()


def test_the_proxy_limits_rates_and_writes_the_address_itself(serving: Serving, proxied: Proxied) -> None:
    server = serving(limits=Limits(sessions_per_client=1, connections_per_address=0), uvicorn_settings=TRUSTED)
    port = proxied(port_of(server), **{"burst=256": "burst=8"})
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    url = f"ws://127.0.0.1:{port}/ws"
    with connect(url, proxy=None, additional_headers={"X-Forwarded-For": "10.0.0.1"}):
        with pytest.raises(InvalidStatus) as status:
            connect(url, proxy=None, additional_headers={"X-Forwarded-For": "10.0.0.2"})
        assert status.value.response.status_code == 429
    statuses = []
    for _ in range(40):
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.settimeout(20)
            raw.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            statuses.append(int(raw.recv(1000).split()[1]))
    assert set(statuses) == {200, 429}
