"""Clients that are malformed, oversized, unauthorized, abandoned or slow; others are served meanwhile."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from mathturn_gym.env.config import EnvConfig
from mathturn_gym.errors import InvalidValueError, ServerError
from mathturn_gym.neighbors.serve.limits import Limits

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
    return json.loads(connection.recv(timeout=60))


def get(url: str, data: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, str, Any]:
    """Status, text and headers of a request."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers or {}), timeout=60) as reply:
            return reply.status, reply.read().decode(), reply.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers


def refused(server: Any, why: str) -> float:
    """How often the server counted a refusal."""
    return float(server.service.metrics.refused.labels(why)._value.get())


def plays(server: Any) -> bool:
    """True where another client is served, however slow this machine is: limits of a test are for its bad clients."""
    for name in ("request_timeout", "send_timeout", "session_timeout"):
        object.__setattr__(server.service.limits, name, 600.0)
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
    '{"type": "reset", "data": {"seed": ' + "[" * 100_000 + "]" * 100_000 + "}}",
    '{"type": "step", "data": {"text": "x", "tokens": [' + "7" * 6_000 + "]}}",
    '{"type": "reset", "data": {"seed": NaN}}',
    '{"type": "reset", "data": {"episode_id": "\\ud800"}}',
    '{"type": "\\udfff", "data": {}}',
    *(json.dumps({"type": "reset", "data": {name: [1]}}) for name in ("split", "index", "problem_id", "send_tokens")),
    '{"type": "reset", "data": {"split": {"a": 1}}}',
    '{"type": "reset", "data": {"seed": 1e999}}',
]


@pytest.mark.parametrize("message", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_message_is_answered_and_the_session_goes_on(serving: Serving, message: Any) -> None:
    server = serving()
    with connected(server) as connection:
        reply = ask(connection, message)
        assert reply["type"] == "error" or reply["data"].get("error"), reply
        assert "the server failed" not in str(reply)
        assert ask(connection, RESET)["type"] == "observation"
        assert ask(connection, message)["type"] in ("error", "mcp")
        assert ask(connection, message)["type"] in ("error", "mcp")
        assert ask(connection, STEP)["type"] == "observation"


def test_nesting_without_end_does_no_harm(serving: Serving) -> None:
    server = serving()
    with connected(server, max_size=None) as connection:
        connection.send('{"type": "reset", "data": ' + "[" * 200_000)
        assert json.loads(connection.recv(timeout=60))["type"] == "error"
    assert plays(server)


def test_many_bad_ids_are_one_error(serving: Serving) -> None:
    """A reply that names every bad id would be a hundred times the message."""
    server = serving()
    with connected(server, max_size=None) as connection:
        assert ask(connection, RESET)["type"] == "observation"
        message = json.dumps({"type": "step", "data": {"text": "", "tokens": ["x"] * 100_000}})
        connection.send(message)
        reply = connection.recv(timeout=60)
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
                connection.recv(timeout=60)
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
    pytest.importorskip("openenv", reason="OpenEnv is not installed: pip install '.[serve]'")
    from mathturn_gym.neighbors.serve.environment import Service

    with pytest.raises(
        InvalidValueError, match=r"max_message_bytes must hold an action of max_completion_tokens=5000 ids"
    ):
        Service(EnvConfig(max_completion_tokens=5000), Limits(max_message_bytes=20_000))
    with pytest.raises(InvalidValueError, match="as JSON, 11024 bytes"):
        Limits(max_message_bytes=11_023).check_action_fits(1000)
    Limits(max_message_bytes=11_024).check_action_fits(1000)


def test_messages_are_not_compressed(serving: Serving) -> None:
    """A client does not choose that the server unpacks what it sends."""
    server = serving()
    with connected(server, compression="deflate") as connection:
        assert not connection.protocol.extensions
    assert "server" not in get(f"{server.url}/health")[2]  # a name and a version help attackers alone


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
                connection.recv(timeout=60)
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
        limits=Limits(send_timeout=0.3, session_timeout=60),
    )
    head = (
        "GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
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
    [b"", b"GET /he", b"POST /reset HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{"],
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


def test_limits_are_checked() -> None:
    for name, value in (
        ("max_sessions", 0),
        ("session_timeout", 0),
        ("sessions_per_client", -1),
        ("connections_per_address", -1),
        ("max_message_bytes", 10),
    ):
        with pytest.raises(InvalidValueError, match=name):
            Limits(**{name: value})


# ---- strangers (issue 31)


@contextmanager
def raw_connection(server: Any, sent: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as raw:
        raw.settimeout(20)
        raw.sendall(sent)
        yield raw


def closed(raw: socket.socket) -> bool:
    """True once the other side has ended the connection; what it sends before is read."""
    try:
        while raw.recv(65536):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def test_a_later_head_is_timed_as_the_first_is(serving: Serving) -> None:
    """Kept-alive connections with half a head on them were never cut, and kept out clients with a key."""
    server = serving(limits=Limits(max_sessions=2, request_timeout=0.5), api_keys=["secret"])
    with ExitStack() as stack:
        raws = [stack.enter_context(raw_connection(server)) for _ in range(30)]
        for raw in raws:
            raw.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert raw.recv(1000).startswith(b"HTTP/1.1 200")
            raw.sendall(b"GET /health HTTP/1.1\r\nHo")
        assert all(map(closed, raws))
        assert refused(server, "slow request") == 30
    with connected(server, additional_headers={"X-API-Key": "secret"}) as connection:
        assert ask(connection, RESET)["type"] == "observation"


def test_a_session_outlives_the_time_of_the_head_that_began_it(serving: Serving) -> None:
    server = serving(limits=Limits(request_timeout=2.0))
    upgrade = (
        b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with raw_connection(server, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as raw:
        answer = b""
        while b"healthy" not in answer:  # head and body may come one by one
            answer += raw.recv(1000)
        assert answer.startswith(b"HTTP/1.1 200")
        raw.sendall(upgrade)
        assert raw.recv(1000).startswith(b"HTTP/1.1 101")
        time.sleep(3)
        raw.sendall(frame(b'{"type": "state"}'))
        assert raw.recv(1000)[:1] == b"\x81"
    assert refused(server, "slow request") == 0


def test_a_head_that_drips_has_no_more_time(serving: Serving) -> None:
    server = serving(limits=Limits(request_timeout=0.5))
    started = b"GET /health HTTP/1.1\r\n"
    # The cut comes at some byte.
    with raw_connection(server, started) as raw, pytest.raises((ConnectionError, TimeoutError)):  # noqa: PT012
        for number in range(200):
            raw.sendall(f"X-{number}: y\r\n".encode())
            time.sleep(0.05)
    assert refused(server, "slow request") == 1


def test_a_dripping_body_does_not_outlive_its_408(serving: Serving) -> None:
    server = serving(limits=Limits(request_timeout=0.3))
    head = b"POST /reset HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n{"
    with raw_connection(server, head) as raw:
        reply = raw.recv(1000)
        assert reply.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in reply.lower()
        with pytest.raises((ConnectionError, TimeoutError)):  # noqa: PT012
            for _ in range(200):
                raw.sendall(b" ")
                time.sleep(0.05)


def test_one_address_does_not_take_all_connections(serving: Serving) -> None:
    server = serving(limits=Limits(connections_per_address=4))
    with ExitStack() as stack:
        raws = [stack.enter_context(raw_connection(server)) for _ in range(6)]
        assert [closed(raw) for raw in raws[4:]] == [True, True]
        assert refused(server, "connections") == 2
        for raw in raws[:4]:
            raw.close()
    deadline = time.monotonic() + 60
    while True:  # the places come back
        try:
            assert plays(server)
            break
        except (ServerError, OSError):
            assert time.monotonic() < deadline


def test_a_websocket_keeps_its_place_in_the_count_and_gives_it_back(serving: Serving) -> None:
    server = serving(limits=Limits(connections_per_address=2))
    for _ in range(5):
        with connected(server) as connection, connected(server) as other:
            assert ask(connection, RESET)["type"] == ask(other, RESET)["type"] == "observation"
            with raw_connection(server) as third:
                assert closed(third)
        server.wait_for_sessions(0)
    assert refused(server, "connections") == 5
    with connected(server) as connection:
        assert ask(connection, RESET)["type"] == "observation"
    end = time.monotonic() + 60.0
    while server.service.metrics.connections:  # of an address that has left, nothing is kept
        assert time.monotonic() < end
        time.sleep(0.01)


def test_unread_pongs_end_the_connection(serving: Serving) -> None:
    """A client that pings and reads nothing held 223 MB; now 16 MiB at most, whatever its time."""
    server = serving(limits=Limits(send_timeout=600))
    upgrade = (
        b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    ping = b"\x89\xfd\x00\x00\x00\x00" + b"x" * 125
    with raw_connection(server) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.sendall(upgrade)
        server.wait_for_sessions(1)
        sent = 0
        with pytest.raises((ConnectionError, TimeoutError)):  # noqa: PT012 - the cut comes at some ping
            while sent < 300 * 2**20:
                raw.sendall(ping * 1000)
                sent += 131_000
        assert sent < 100 * 2**20
    server.wait_for_sessions(0)
    assert refused(server, "slow reader") == 1


def test_one_client_does_not_take_all_sessions(serving: Serving) -> None:
    from websockets.exceptions import InvalidStatus

    server = serving(limits=Limits(sessions_per_client=2), api_keys=["one", "two"])
    one, two = ({"X-API-Key": key} for key in ("one", "two"))
    with connected(server, additional_headers=one), connected(server, additional_headers=one) as second:
        with pytest.raises(InvalidStatus) as status, connected(server, additional_headers=one):
            pass
        assert status.value.response.status_code == 429
        with connected(server, additional_headers=two) as other:
            assert ask(other, RESET)["type"] == "observation"
        second.close()
        server.wait_for_sessions(1)
        with connected(server, additional_headers=one) as third:
            assert ask(third, RESET)["type"] == "observation"
            with pytest.raises(InvalidStatus), connected(server, additional_headers=one):
                pass


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"Host": "localhost:1"}, True),
        ({"Host": "evil.example"}, False),
        ({"Host": "127.0.0.1.evil.example:80"}, False),
        ({"Host": ""}, False),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://localhost:1", "Host": "localhost:1"}, True),
        ({"Origin": "http://localhost:2", "Host": "localhost:1"}, False),
        ({"Origin": "https://friend.example"}, True),
    ],
)
def test_other_pages_in_a_browser_do_not_play(serving: Serving, headers: dict[str, str], allowed: bool) -> None:
    """On a keyless loopback server any web page could open a WebSocket, or point its own name at this machine."""
    server = serving(allowed_origins=["https://friend.example"])
    fields = "".join(f"{name}: {value}\r\n" for name, value in {"Host": "127.0.0.1:8", **headers}.items())
    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    upgrade += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    for request in (f"GET /ws HTTP/1.1\r\n{fields}{upgrade}\r\n", f"GET /info HTTP/1.1\r\n{fields}\r\n"):
        with raw_connection(server, request.encode()) as raw:
            status = int(raw.recv(1000).split()[1])
        assert (status in (101, 200)) == allowed, status
        assert allowed or status in (403, 421)


def test_with_a_key_any_host_is_served_unless_hosts_are_named(serving: Serving) -> None:
    url = serving(api_keys=["secret"]).url
    assert get(f"{url}/info", headers={"X-API-Key": "secret", "Host": "my.host"})[0] == 200
    url = serving(api_keys=["secret"], allowed_hosts=["my.host"]).url
    assert get(f"{url}/info", headers={"X-API-Key": "secret", "Host": "my.host"})[0] == 200
    assert get(f"{url}/info", headers={"X-API-Key": "secret", "Host": "other.host"})[0] == 421


@pytest.mark.parametrize("trusted", [False, True])
def test_a_forwarded_address_is_believed_where_it_is_asked_for(serving: Serving, trusted: bool) -> None:
    settings = {"proxy_headers": True, "forwarded_allow_ips": "127.0.0.1"} if trusted else {}
    server = serving(limits=Limits(sessions_per_client=1), uvicorn_settings=settings)
    statuses = []
    with ExitStack() as stack:
        for address in ("10.0.0.1", "10.0.0.2"):
            from websockets.exceptions import InvalidStatus

            try:
                stack.enter_context(connected(server, additional_headers={"X-Forwarded-For": address}))
                statuses.append(101)
            except InvalidStatus as error:
                statuses.append(error.response.status_code)
    assert statuses == ([101, 101] if trusted else [101, 429])


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"seed": NaN}',
        b'{"seed": 1e999}',
        b'{"episode_id": "\\ud800"}',
        b"\xff",
        b"[]",
        b'{"seed": ' + b"7" * 6000 + b"}",
    ],
)
def test_a_malformed_body_is_a_400(serving: Serving, body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    server = serving()
    status, text, _ = get(f"{server.url}/reset", body, {"Content-Type": "application/json"})
    assert (status, "the body" in text) == (400, True)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("error", [RuntimeError("after sending 'websocket.close'"), ConnectionResetError()])
def test_a_reply_to_a_connection_that_was_closed_is_no_error_of_the_server(serving: Serving, error: Exception) -> None:
    """One in an hour of mixed load: an oversized message came while the reply to the one before was in work."""
    import asyncio

    server = serving()
    middleware = server.app.middleware_stack.app
    while type(middleware).__name__ != "ServerMiddleware":
        middleware = middleware.app

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.send", "text": "late"})

    async def send(message: Any) -> None:
        raise error

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    middleware._app = app
    scope = {"type": "websocket", "path": "/ws", "headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1)}
    asyncio.run(middleware(scope, receive, send))
    assert server.sessions == 0


@pytest.mark.parametrize(
    ("keys", "host", "warned"),
    [([], "0.0.0.0", True), (["k"], "0.0.0.0", False), ([], "127.0.0.1", False), ([], "localhost", False)],
)
def test_an_open_server_beyond_this_machine_is_warned_of(
    keys: list[str], host: str, warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("openenv", reason="OpenEnv is not installed: pip install '.[serve]'")
    import uvicorn

    from mathturn_gym.neighbors.serve.app import serve

    monkeypatch.setattr(uvicorn.Server, "run", lambda server: None)
    serve(host=host, api_keys=keys)
    assert ("without an API key" in caplog.text) == warned
