"""Clients that are malformed, oversized, unauthorized, too fast, abandoned or slow; others are served meanwhile."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from mathturn_gym.env.config import EnvConfig
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.neighbors.serve.limits import AddressLimiter, Bucket, Limits

Serving = Callable[..., Any]


@contextmanager
def connected(server: Any, **options: Any) -> Iterator[Any]:
    """A bare WebSocket."""
    from websockets.sync.client import connect

    with connect(f"ws{server.url.removeprefix('http')}/ws", proxy=None, **options) as connection:
        yield connection


def ask(connection: Any, message: Any) -> Any:
    """The reply to a message."""
    connection.send(message if isinstance(message, (str, bytes)) else json.dumps(message))
    return json.loads(connection.recv(timeout=10))


def get(url: str, data: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, str, Any]:
    """Status, text and headers of a request."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers or {}), timeout=10) as reply:
            return reply.status, reply.read().decode(), reply.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers


def refused(server: Any, why: str) -> float:
    """How often the server counted a refusal."""
    return float(server.service.metrics.refused.labels(why)._value.get())


def plays(server: Any) -> bool:
    """True where another client is served."""
    env = gym.make("MathMultiTurn-v0", server=server.url)
    env.reset(seed=0)
    env.step(np.array([3]))
    env.close()
    return True


RESET = {"type": "reset", "data": {"seed": 0}}
STEP = {"type": "step", "data": {"text": r"\boxed{1}"}}

MALFORMED: list[Any] = [
    "",
    "no json",
    "[1, 2]",
    "3",
    "null",
    b"\x00\xff binary",
    "{",
    '{"type": "reset", "data": [',
    '{"type": "jump", "data": {}}',
    '{"no": "type"}',
    '{"type": "step"}',
    '{"type": "step", "data": []}',
    '{"type": "step", "data": {"text": "x", "tokens": "abc"}}',
    '{"type": "step", "data": {"text": "x", "tokens": [1e400]}}',
    '{"type": "step", "data": {"text": "x", "tokens": [NaN]}}',
    '{"type": "step", "data": {"text": "x", "tokens": [123456789012345678901234567890]}}',
    '{"type": "reset", "data": {"seed": null, "index": "x"}}',
    '{"type": "reset", "data": {"seed": 1.5}}',
    '{"type": "reset", "data": {"episode_id": 3, "family": [], "level": {}}}',
    '{"type": "mcp", "data": {}}',
]


@pytest.mark.parametrize("message", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_message_is_answered_and_the_session_goes_on(serving: Serving, message: Any) -> None:
    server = serving()
    with connected(server) as connection:
        reply = ask(connection, message)
        assert reply["type"] == "error" or reply["data"].get("error"), reply
        assert ask(connection, RESET)["type"] == "observation"
        assert ask(connection, message)["type"] in ("error", "mcp")
        assert ask(connection, STEP)["type"] == "observation"


def test_nesting_without_end_does_no_harm(serving: Serving) -> None:
    server = serving()
    with connected(server, max_size=None) as connection:
        connection.send('{"type": "reset", "data": ' + "[" * 200_000)
        assert json.loads(connection.recv(timeout=10))["type"] == "error"
    assert plays(server)


def test_many_bad_ids_are_one_error(serving: Serving) -> None:
    """A reply that names every bad id would be a hundred times the message."""
    server = serving()
    with connected(server, max_size=None) as connection:
        assert ask(connection, RESET)["type"] == "observation"
        message = json.dumps({"type": "step", "data": {"text": "", "tokens": ["x"] * 100_000}})
        connection.send(message)
        reply = connection.recv(timeout=10)
        assert json.loads(reply)["data"]["code"] == "VALIDATION_ERROR"
        assert len(reply) < 1000


def test_an_oversized_message_ends_its_session_only(serving: Serving) -> None:
    from websockets.exceptions import ConnectionClosed

    server = serving(limits=Limits(max_message_bytes=20_000))
    # The last fragment is the one too many: what is sent to a connection that is closed resets it, and the reason is lost.
    for fragments in (["x" * 30_000], ["x" * 9_000] * 3):
        with connected(server) as connection:
            assert ask(connection, RESET)["type"] == "observation"
            with pytest.raises(ConnectionClosed) as closed:  # noqa: PT012 - while it sends, or after
                connection.send(iter(fragments) if len(fragments) > 1 else fragments[0])
                connection.recv(timeout=10)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009
    server.wait_for_sessions(0)
    assert refused(server, "size") == 2
    assert plays(server)


def test_an_oversized_body_is_refused(serving: Serving) -> None:
    server = serving(limits=Limits(max_message_bytes=20_000))
    status, text, _ = get(f"{server.url}/reset", b" " * 50_000)
    assert (status, "20000 bytes" in text) == (413, True)
    assert refused(server, "size") == 1


def test_an_action_of_full_length_always_fits() -> None:
    pytest.importorskip("openenv", reason="OpenEnv is not installed: pip install 'mathturn-gym[serve]'")
    from mathturn_gym.neighbors.serve.environment import Service

    with pytest.raises(
        InvalidValueError, match=r"max_message_bytes must hold an action of max_completion_tokens=5000 ids"
    ):
        Service(EnvConfig(max_completion_tokens=5000), Limits(max_message_bytes=20_000))


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer no"}, {"Authorization": "secret"}, {"X-API-Key": "secre"}]
)
def test_without_a_key_nothing_is_open_but_the_health(serving: Serving, headers: dict[str, str]) -> None:
    from websockets.exceptions import InvalidStatus

    server = serving(api_keys=["secret"])
    for path in ("/info", "/metrics", "/schema", "/state", "/docs", "/MathMultiTurn-v0/splits"):
        assert get(server.url + path, headers=headers)[0] == 401
    with pytest.raises(InvalidStatus) as status, connected(server, additional_headers=headers):
        pass
    assert status.value.response.status_code == 401
    for path in ("/health", "/ready", "/play"):
        assert get(server.url + path)[0] == 200
    assert refused(server, "key") == 7


def test_keys_come_as_bearer_header_or_subprotocol(serving: Serving) -> None:
    server = serving(api_keys=["secret"])
    for headers in ({"Authorization": "Bearer secret"}, {"authorization": "bearer  secret "}, {"X-API-Key": "secret"}):
        with connected(server, additional_headers=headers) as connection:
            assert ask(connection, RESET)["type"] == "observation"
    subprotocol = "mathturn-key." + b"secret".hex()
    with connected(server, subprotocols=[subprotocol]) as connection:
        assert connection.subprotocol == subprotocol
        assert ask(connection, RESET)["type"] == "observation"


def test_an_abandoned_session_gives_its_place_back(serving: Serving) -> None:
    from websockets.exceptions import ConnectionClosed

    server = serving(limits=Limits(max_sessions=2, session_timeout=2.0))
    with connected(server) as silent, connected(server) as stopped:
        ask(stopped, RESET)
        server.wait_for_sessions(2)
        for connection in (silent, stopped):
            with pytest.raises(ConnectionClosed) as closed:
                connection.recv(timeout=10)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4408
    server.wait_for_sessions(0)
    assert refused(server, "idle") == 2
    assert plays(server)


def test_a_session_that_vanishes_without_a_word_gives_its_place_back(serving: Serving) -> None:
    server = serving(limits=Limits(session_timeout=0.5))
    with connected(server) as connection:
        ask(connection, RESET)
        server.wait_for_sessions(1)
        connection.socket.shutdown(socket.SHUT_RDWR)
        server.wait_for_sessions(0)


def test_a_client_that_does_not_read_is_cut(serving: Serving) -> None:
    """It asks for long contexts and takes none of them, until there is no room left for another."""
    server = serving(
        num_turns=1000,
        max_completion_tokens=1000,
        limits=Limits(send_timeout=0.3, steps_per_second=0, session_timeout=60),
    )
    head = (
        "GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.sendall(head.encode())
        server.wait_for_sessions(1)
        message = json.dumps({"type": "step", "data": {"text": "", "tokens": [50] * 1000}}).encode()
        raw.sendall(frame(json.dumps({"type": "reset", "data": {"seed": 0, "send_tokens": "all"}}).encode()))
        raw.settimeout(60)
        with pytest.raises((ConnectionError, TimeoutError)):  # noqa: PT012 - the cut comes at some message
            for _ in range(20_000):
                raw.sendall(frame(message))
                time.sleep(0.001)
    server.wait_for_sessions(0)
    assert refused(server, "slow reader") == 1
    assert plays(server)


def frame(payload: bytes) -> bytes:
    """A masked text frame."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 126]) + size.to_bytes(2, "big")
    assert size < 2**16
    return b"\x81" + length + b"\x00\x00\x00\x00" + payload


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /he", b"POST /reset HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"],
    ids=["none", "head", "body"],
)
def test_a_slow_request_is_cut(serving: Serving, sent: bytes) -> None:
    server = serving(limits=Limits(request_timeout=0.3))
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.settimeout(60)  # where nothing is cut, this is what ends the test
        raw.sendall(sent)
        try:
            reply = raw.recv(1000)
        except ConnectionResetError:
            reply = b""
        assert reply == b"" or reply.startswith(b"HTTP/1.1 408")
        assert bool(reply) == (b"{" in sent)
    assert refused(server, "slow request") == 1
    assert plays(server)


def test_a_session_may_be_slow_but_not_too_fast(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    from mathturn_gym.neighbors.serve import _gate

    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    # The limiter's time passes by its own pauses alone, so that they are the same on any machine.
    monkeypatch.setattr(_gate, "Bucket", partial(Bucket, now=lambda: sum(pauses)))
    monkeypatch.setattr(_gate, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": pause}))
    server = serving(limits=Limits(steps_per_second=20))
    with connected(server) as connection:
        ask(connection, RESET)
        for _ in range(40):
            connection.send(json.dumps({"type": "state"}))
        for _ in range(40):
            connection.recv(timeout=60)
        assert sum(pauses) == pytest.approx(21 / 20)  # 20 at once, the other 21 at 20 a second
        assert max(pauses) == pytest.approx(1 / 20)
        assert plays(server)


def test_an_address_that_asks_too_often_is_refused_for_a_while(serving: Serving) -> None:
    server = serving(limits=Limits(max_sessions=2, requests_per_second=2))
    replies = [get(f"{server.url}/info") for _ in range(2)]
    assert [status for status, *_ in replies] == [200, 200]
    while replies[-1][0] == 200:  # on a slow machine the two a second are asked for later
        replies.append(get(f"{server.url}/info"))
    assert (replies[-1][0], replies[-1][2]["retry-after"]) == (429, "1")
    assert get(f"{server.url}/health")[0] == 200
    time.sleep(1.1)
    assert get(f"{server.url}/info")[0] == 200


def test_ready_says_when_the_server_is_full(serving: Serving) -> None:
    server = serving(limits=Limits(max_sessions=1))
    assert get(f"{server.url}/ready")[:2] == (200, '{"free_sessions":1}')
    with connected(server) as connection:
        ask(connection, RESET)
        assert get(f"{server.url}/ready")[:2] == (503, '{"free_sessions":0}')


def test_metrics_count_what_happened(serving: Serving) -> None:
    server = serving(num_turns=2)
    with connected(server) as connection:
        ask(connection, RESET)
        ask(connection, STEP)
        ask(connection, {"type": "step", "data": {"text": "", "tokens": [1, 2, 3]}})
        ask(connection, "[]")
        page = get(f"{server.url}/metrics")[1]
    lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert lines["mathturn_sessions"] == "1.0"
    assert lines["mathturn_sessions_opened_total"] == "1.0"
    assert lines['mathturn_turns_total{status="no_answer"}'] == "1.0"
    assert lines['mathturn_turns_total{status="wrong"}'] == "1.0"
    assert lines['mathturn_episodes_total{stop_reason="turns"}'] == "1.0"
    assert lines['mathturn_refused_total{why="malformed"}'] == "1.0"
    assert float(lines["mathturn_action_tokens_total"]) > 3
    assert lines["mathturn_message_seconds_count"] == "3.0"


def test_a_bucket_lets_a_burst_through_and_then_the_rate() -> None:
    clock = [0.0]
    bucket = Bucket(rate=10.0, burst=5, now=lambda: clock[0])
    assert [bucket.take() for _ in range(6)] == [True] * 5 + [False]
    clock[0] = 0.1
    assert [bucket.take() for _ in range(2)] == [True, False]
    assert bucket.wait() == pytest.approx(0.1)
    clock[0] = 100.0
    assert [bucket.take() for _ in range(6)] == [True] * 5 + [False]


def test_addresses_are_limited_apart_and_forgotten() -> None:
    limiter = AddressLimiter(rate=1.0, burst=1)
    assert [limiter.take("a"), limiter.take("b"), limiter.take("a")] == [True, True, False]
    for number in range(70_000):
        limiter.take(str(number))
    assert len(limiter._buckets) == 65_536
    assert AddressLimiter(rate=0.0, burst=1).take("a")


def test_limits_are_checked() -> None:
    for name, value in (
        ("max_sessions", 0),
        ("session_timeout", 0),
        ("steps_per_second", -1),
        ("max_message_bytes", 10),
    ):
        with pytest.raises(InvalidValueError, match=name):
            Limits(**{name: value})
