"""What stands before the application: hosts, origins, keys, sizes and JSON, for requests and sessions alike."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias

from mathturn_gym.neighbors.serve._protocol import IDLE_CLOSE_CODE, KEY_SUBPROTOCOL
from mathturn_gym.neighbors.serve.limits import Limits, Metrics

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

_LOG = logging.getLogger(__name__)

OPEN_PATHS: Final = ("/health", "/ready", "/play", "/", "/web")
"""Answered without a key: what a load balancer asks, and a page that holds no secret."""

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class ServerMiddleware:
    """An ASGI middleware that lets in who may come in, and what can be read.

    Args:
        app: The application behind it.
        limits: What is let through.
        keys: API keys, any of which opens; none leaves the server open to all who reach it.
        hosts: Names that a request's `Host` may have; empty allows any.
        origins: Web pages (as `https://host:port`) that may use the server, besides its own page.
        metrics: Counts what was not let through.
    """

    def __init__(
        self,
        app: App,
        limits: Limits,
        keys: Sequence[str],
        hosts: Sequence[str],
        origins: Sequence[str],
        metrics: Metrics,
    ) -> None:
        self._app, self._limits, self._metrics = app, limits, metrics
        self._keys = [key.encode() for key in keys]
        self._hosts, self._origins = [name.lower() for name in hosts], set(origins)
        self._sessions: Counter[bytes] = Counter()  # by client: a key, or an address

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handles one request or session."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        client = self._key_of(scope)
        refusal = self._refusal(scope, client)
        if refusal is not None:
            why, status, text, headers = refusal
            self._metrics.refused.labels(why).inc()
            await _respond(scope, send, status, text, headers)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await self._session(scope, receive, send, client or _address(scope))

    # ---- who may come in

    def _refusal(self, scope: Message, key: bytes | None) -> tuple[str, int, str, list[tuple[bytes, bytes]]] | None:
        """Reason, status, text and headers for who may not come in."""
        headers = dict(scope["headers"])
        host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
        # A web page can have its own name point at this machine (DNS rebinding): its requests then carry that name.
        if self._hosts and _name_of(host) not in self._hosts:
            return "host", 421, f"this server answers for {', '.join(self._hosts)}, not for {host[:80]!r}", []
        # A browser says which page asks; programs send no origin. WebSockets know no same-origin rule but this.
        if origin and origin.partition("://")[2].lower() != host.lower() and origin not in self._origins:
            return "origin", 403, f"pages of {origin[:80]!r} may not use this server: allowed_origins names others", []
        if scope["path"] in OPEN_PATHS:
            return None
        if self._keys and key is None:
            text = "this server needs an API key: send the header 'Authorization: Bearer KEY'"
            return "key", 401, text, [(b"www-authenticate", b"Bearer")]
        most, client = self._limits.sessions_per_client, key or _address(scope)
        if most and scope["type"] == "websocket" and self._sessions[client] >= most:
            return "sessions of a client", 429, f"a client may have {most} sessions at once", []
        return None

    def _key_of(self, scope: Message) -> bytes | None:
        """The server's key that a client gave; None where it gave none of them."""
        given = []
        for name, value in scope["headers"]:
            if name == b"x-api-key":
                given.append(value)
            elif name == b"authorization" and value[:7].lower() == b"bearer ":
                given.append(value[7:].strip())
        given += [_unhex(name) for name in scope.get("subprotocols", ()) if name.startswith(KEY_SUBPROTOCOL)]
        # Every pair is compared in full: how long it takes tells nothing about a key.
        matches = [key for one in given for key in self._keys if hmac.compare_digest(one, key)]
        return matches[0] if matches else None

    # ---- HTTP

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        """Reads the whole body first: its size and its time are limited, and what is behind never waits for it."""
        body, closing = b"", [(b"connection", b"close")]  # what follows of a body that is refused must not be read
        try:
            async with asyncio.timeout(self._limits.request_timeout):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self._limits.max_message_bytes:
                        self._metrics.refused.labels("size").inc()
                        text = f"a body may have {self._limits.max_message_bytes} bytes"
                        await _respond(scope, send, 413, text, closing)
                        return
        except TimeoutError:
            self._metrics.refused.labels("slow request").inc()
            text = f"the body did not come within {self._limits.request_timeout:g} s"
            await _respond(scope, send, 408, text, closing)
            return
        wrong = unreadable(body) if body else None
        if wrong is not None:
            self._metrics.refused.labels("malformed").inc()
            await _respond(scope, send, 400, f"the body {wrong}", [])
            return
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive_whole() -> Message:
            return next(parts, None) or await receive()

        await self._app(scope, receive_whole, send)

    # ---- sessions

    async def _session(self, scope: Message, receive: Receive, send: Send, client: bytes) -> None:
        messages = _SessionMessages(self._limits, self._metrics, receive, send, _key_subprotocol(scope))
        self._sessions[client] += 1
        try:
            with self._metrics.session():
                await self._app(scope, messages.receive, messages.send)
        except Exception:
            # OpenEnv answers even a client that has left, which then fails: no reason to fill the log.
            if not messages.gone:
                raise
            _LOG.debug("a client left before its reply", exc_info=True)
        finally:
            self._sessions[client] -= 1
            if not self._sessions[client]:
                del self._sessions[client]


class _SessionMessages:
    """One WebSocket's messages on their way in and out."""

    def __init__(self, limits: Limits, metrics: Metrics, receive: Receive, send: Send, subprotocol: str | None) -> None:
        self._limits, self._metrics, self._receive, self._send = limits, metrics, receive, send
        self._subprotocol = subprotocol
        self._began = 0.0
        self.gone = False

    async def receive(self) -> Message:
        """The next message that the application can read; a session that says nothing for too long is ended."""
        while True:
            try:
                async with asyncio.timeout(self._limits.session_timeout):
                    message = await self._receive()
            except TimeoutError:
                self._metrics.refused.labels("idle").inc()
                reason = f"no message for {self._limits.session_timeout:g} s"
                await self._send({"type": "websocket.close", "code": IDLE_CLOSE_CODE, "reason": reason})
                return {"type": "websocket.disconnect", "code": IDLE_CLOSE_CODE, "reason": reason}
            if message["type"] != "websocket.receive":
                return message
            text = message.get("text")
            wrong = "must be a JSON object, as text" if text is None else unreadable(text)
            if wrong is None:
                self._began = time.perf_counter()
                return message
            # OpenEnv ends the session at what it cannot read; such a client is told so and may go on.
            self._metrics.refused.labels("malformed").inc()
            await self.send({"type": "websocket.send", "text": _error(f"a message {wrong}")})

    async def send(self, message: Message) -> None:
        """Passes a message on, timed where it is a reply."""
        if message["type"] == "websocket.accept" and self._subprotocol is not None:
            message = {**message, "subprotocol": self._subprotocol}
        elif message["type"] == "websocket.send" and self._began:
            self._metrics.seconds.observe(time.perf_counter() - self._began)
            self._began = 0.0
        try:
            await self._send(message)
        # The client has left, or uvicorn has closed the connection itself (a message too large) while a reply was in work.
        except (OSError, RuntimeError):
            self.gone = True
            raise


def unreadable(data: str | bytes) -> str | None:
    """What is wrong with a message, or None for a JSON object that every reader behind this one can read.

    Python's own parser takes more than JSON (NaN, and 1e999, which no reply can quote), and fails in ways that OpenEnv does
    not expect: `RecursionError` for deep nesting, `ValueError` for an integer of thousands of digits. Halves of surrogate
    pairs parse, and cannot be sent back.
    """
    try:
        text = data if isinstance(data, str) else data.decode()
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        return "is nested too deeply"
    except UnicodeError:
        return "must be a JSON object, as Unicode text"
    except ValueError as error:
        return f"must be a JSON object, as text ({str(error)[:100]})"
    return None if isinstance(value, dict) else "must be a JSON object, as text"


def _finite(number: str) -> float:
    found = float(number)
    return found if math.isfinite(found) else _refuse(number[:20])


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _error(text: str) -> str:
    """OpenEnv's reply to a message that it cannot read."""
    return json.dumps({"type": "error", "data": {"message": text, "code": "INVALID_JSON"}})


def _address(scope: Message) -> bytes:
    return str(scope["client"][0]).encode() if scope.get("client") else b""


def _name_of(host: str) -> str:
    """The name in a `Host` header, without its port: `[::1]:8000` is `::1`."""
    found = re.fullmatch(r"\[([0-9a-fA-F:.]+)\](?::\d+)?|([^:]*)(?::\d+)?", host)
    return "" if found is None else (found[1] or found[2] or "").lower()


def _key_subprotocol(scope: Message) -> str | None:
    """The subprotocol by which a browser sent its key: it must be accepted by name, or the browser gives up."""
    return next((name for name in scope.get("subprotocols", ()) if name.startswith(KEY_SUBPROTOCOL)), None)


def _unhex(subprotocol: str) -> bytes:
    try:
        return bytes.fromhex(subprotocol.removeprefix(KEY_SUBPROTOCOL))
    except ValueError:
        return b""


async def _respond(scope: Message, send: Send, status: int, text: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """An HTTP response, to a request or in place of a WebSocket's handshake."""
    body = json.dumps({"detail": text}).encode()
    kind = "http.response" if scope["type"] == "http" else "websocket.http.response"
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": f"{kind}.start", "status": status, "headers": fields})
    await send({"type": f"{kind}.body", "body": body})
