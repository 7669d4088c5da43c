"""What stands before the application: keys, rates, sizes and time-outs, for HTTP requests and WebSocket sessions alike."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final, TypeAlias

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from mathturn_gym.neighbors.serve._session import IDLE_CLOSE_CODE, KEY_SUBPROTOCOL
from mathturn_gym.neighbors.serve.limits import AddressLimiter, Bucket, Limits, Metrics

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

_LOG = logging.getLogger(__name__)

OPEN_PATHS: Final = ("/health", "/ready", "/play")
"""Answered without a key: what a load balancer asks, and a page that holds no secret."""


class Gate:
    """An ASGI middleware.

    Args:
        app: The application behind it.
        limits: What is let through.
        keys: API keys, any of which opens; none leaves the server open to all.
        metrics: Counts what was not let through.
    """

    def __init__(self, app: App, limits: Limits, keys: Sequence[str], metrics: Metrics) -> None:
        self._app, self._limits, self._metrics = app, limits, metrics
        self._keys = [key.encode() for key in keys]
        self._addresses = AddressLimiter(
            limits.requests_per_second, max(limits.max_sessions, limits.requests_per_second)
        )

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handles one request or session."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await _respond(scope, send, *refusal)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await self._session(scope, receive, send)

    # ---- who may come in

    def _refusal(self, scope: Message) -> tuple[int, str, list[tuple[bytes, bytes]]] | None:
        """Status, text and headers for who may not come in."""
        if scope["path"] in OPEN_PATHS:
            return None
        address = scope["client"][0] if scope.get("client") else ""
        if not self._addresses.take(address):
            self._metrics.refused.labels("rate").inc()
            seconds = str(self._addresses.retry_after).encode()
            return 429, "too many requests from this address", [(b"retry-after", seconds)]
        if self._keys and not self._has_key(scope):
            self._metrics.refused.labels("key").inc()
            text = "this server needs an API key: send the header 'Authorization: Bearer KEY'"
            return 401, text, [(b"www-authenticate", b"Bearer")]
        return None

    def _has_key(self, scope: Message) -> bool:
        given = []
        for name, value in scope["headers"]:
            if name == b"x-api-key":
                given.append(value)
            elif name == b"authorization" and value[:7].lower() == b"bearer ":
                given.append(value[7:].strip())
        given += [_unhex(name) for name in scope.get("subprotocols", ()) if name.startswith(KEY_SUBPROTOCOL)]
        # Every pair is compared in full: how long it takes tells nothing about a key.
        matches = [hmac.compare_digest(one, key) for one in given for key in self._keys]
        return any(matches)

    # ---- HTTP

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        """Reads the whole body first: its size and its time are limited, and what is behind never waits for it."""
        body = b""
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
                        await _respond(scope, send, 413, f"a body may have {self._limits.max_message_bytes} bytes", [])
                        return
        except TimeoutError:
            self._metrics.refused.labels("slow request").inc()
            await _respond(scope, send, 408, f"the body did not come within {self._limits.request_timeout:g} s", [])
            return
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive_whole() -> Message:
            return next(parts, None) or await receive()

        await self._app(scope, receive_whole, send)

    # ---- sessions

    async def _session(self, scope: Message, receive: Receive, send: Send) -> None:
        session = _Session(self._limits, self._metrics, receive, send, _key_subprotocol(scope))
        with self._metrics.session():
            try:
                await self._app(scope, session.receive, session.send)
            except Exception:
                # OpenEnv answers even a client that has left, which then fails: no reason to fill the log.
                if not session.gone:
                    raise
                _LOG.debug("a client left before its reply", exc_info=True)


class _Session:
    """One WebSocket's messages on their way in and out."""

    def __init__(self, limits: Limits, metrics: Metrics, receive: Receive, send: Send, subprotocol: str | None) -> None:
        self._limits, self._metrics, self._receive, self._send = limits, metrics, receive, send
        self._subprotocol = subprotocol
        rate = limits.steps_per_second
        self._bucket = Bucket(rate, max(1.0, rate)) if rate else None
        self._began = 0.0
        self.gone = False

    async def receive(self) -> Message:
        """The next message that is worth to be looked at; a session that says nothing for too long is ended."""
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
            await self._keep_rate()
            text = message.get("text")
            if text is not None and text.lstrip()[:1] == "{":
                self._began = time.perf_counter()
                return message
            # OpenEnv ends the session where a message is no JSON object; such a client is told so and may go on.
            self._metrics.refused.labels("malformed").inc()
            await self._send({"type": "websocket.send", "text": _error("a message must be a JSON object, as text")})

    async def send(self, message: Message) -> None:
        """Passes a message on, timed where it is a reply."""
        if message["type"] == "websocket.accept" and self._subprotocol is not None:
            message = {**message, "subprotocol": self._subprotocol}
        elif message["type"] == "websocket.send" and self._began:
            self._metrics.seconds.observe(time.perf_counter() - self._began)
            self._began = 0.0
        try:
            await self._send(message)
        except OSError:  # by which a server says that the client has left
            self.gone = True
            raise

    async def _keep_rate(self) -> None:
        """Waits where the session is too fast: it is not read from meanwhile, so that its messages wait with it."""
        wait = self._bucket.wait() if self._bucket is not None else 0.0
        if wait > 0.0:
            self._metrics.waited.inc(wait)
            await asyncio.sleep(wait)


def _error(text: str) -> str:
    """OpenEnv's reply to a message that it cannot read."""
    return json.dumps({"type": "error", "data": {"message": text, "code": "INVALID_JSON"}})


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


# ---- uvicorn's connections with two time-outs that it does not have: for a request's head, and for a client that does not read


Classes: TypeAlias = "tuple[type[asyncio.Protocol], type[asyncio.Protocol]]"


def connection_classes(limits: Limits, metrics: Metrics) -> Classes:
    """The classes to give to uvicorn as `http` and `ws`.

    Args:
        limits: Has the time-outs.
        metrics: Counts the connections that were cut.
    """

    class TimedHTTP(H11Protocol):
        """Cut where the head of its first request does not come in time (uvicorn waits for it for ever)."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._head_timer = self.loop.call_later(limits.request_timeout, self._cut_if_silent)

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_timer.cancel()
            super().connection_lost(exc)

        def _cut_if_silent(self) -> None:
            # A request that came made a cycle, or handed the transport to the WebSocket's class.
            if self.cycle is None and self.transport.get_protocol() is self:
                metrics.refused.labels("slow request").inc()
                self.transport.abort()

    class TimedWebSocket(WebSocketsSansIOProtocol):
        """Cut where the client leaves no room for a reply for too long."""

        def handle_parser_exception(self) -> None:
            closed = self.conn.close_sent
            why = "size" if closed is not None and closed.code == 1009 else "malformed"
            metrics.refused.labels(why).inc()
            super().handle_parser_exception()

        async def send(self, message: Any) -> None:
            try:
                async with asyncio.timeout(limits.send_timeout):
                    await self.writable.wait()
            except TimeoutError:
                metrics.refused.labels("slow reader").inc()
                self.transport.abort()
                raise ClientDisconnected from None
            await super().send(message)
            if message["type"] == "websocket.http.response.body":
                # uvicorn does not count a refusal as an answer, and would log it as an error of the application.
                self.handshake_complete = True

    return TimedHTTP, TimedWebSocket
