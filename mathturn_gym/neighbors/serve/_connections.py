"""uvicorn's connections with what it has no setting for: a time limit for every head, and a bound on unread output.

uvicorn waits forever for a head that has begun, writes pongs to a client that reads nothing, and counts connections only
when a request is complete. A stranger without a key could so keep out those who have one (issue 31). Rates, and many
addresses at once, are a reverse proxy's to limit: see `examples/serve/nginx.conf`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from mathturn_gym.neighbors.serve.limits import Limits, Metrics

_MOST_UNREAD: Final = 2**24
"""Bytes that may wait for a client; uvicorn writes a reply only when the one before has gone, but pongs at any time."""


def connection_classes(limits: Limits, metrics: Metrics) -> tuple[type[asyncio.Protocol], type[asyncio.Protocol]]:
    """The classes to give to uvicorn as `http` and `ws`.

    Args:
        limits: Has the time-outs, and the number of connections.
        metrics: Counts the connections that were cut.
    """
    connections = metrics.connections

    class Watched:
        """Shared by both kinds of connection: a time limit and a size limit for unread output, and the count by address."""

        transport: asyncio.Transport
        loop: asyncio.AbstractEventLoop
        client: tuple[str, int] | None
        _unread: asyncio.TimerHandle | None = None

        def cut(self, why: str) -> None:
            """Ends the connection at once, without waiting for what is unread."""
            if not self.transport.is_closing():
                metrics.refused.labels(why).inc()
            self.transport.abort()

        def pause_writing(self) -> None:
            super().pause_writing()  # type: ignore[misc]
            if self._unread is None:
                self._unread = self.loop.call_later(limits.send_timeout, self.cut, "slow reader")

        def resume_writing(self) -> None:
            self._stop_timing()
            super().resume_writing()  # type: ignore[misc]

        def data_received(self, data: bytes) -> None:
            super().data_received(data)  # type: ignore[misc]
            if self.transport.get_write_buffer_size() > _MOST_UNREAD:
                self.cut("slow reader")

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timing()
            # A WebSocket takes over the place of the connection that it began as.
            address = self.client[0] if self.client else ""
            connections[address] -= 1
            if not connections[address]:
                del connections[address]
            super().connection_lost(exc)  # type: ignore[misc]

        def _stop_timing(self) -> None:
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

    class WatchedHTTP(Watched, H11Protocol):
        """A connection that is cut where the head of a request, the first or a later one, does not come in time."""

        _head: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            address = self.client[0] if self.client else ""
            connections[address] += 1
            most = limits.connections_per_address
            if (most and connections[address] > most) or sum(connections.values()) > 2 * limits.max_connections:
                self.cut("connections")
            else:
                self._time_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._time_head()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._time_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_head()
            super().connection_lost(exc)

        def _time_head(self) -> None:
            """Starts the timer if a head is awaited and the timer is not running (more bytes must not restart it); else stops it."""
            upgraded = self.transport.get_protocol() is not self
            if upgraded or not (self.cycle is None or self.cycle.response_complete):
                self._stop_head()
            elif self._head is None:
                self._head = self.loop.call_later(limits.request_timeout, self.cut, "slow request")

        def _stop_head(self) -> None:
            if self._head is not None:
                self._head.cancel()
                self._head = None

    class WatchedWebSocket(Watched, WebSocketsSansIOProtocol):
        """A WebSocket whose end for a message that is too large or malformed is counted."""

        def handle_parser_exception(self) -> None:
            closed = self.conn.close_sent
            why = "size" if closed is not None and closed.code == 1009 else "malformed"
            metrics.refused.labels(why).inc()
            super().handle_parser_exception()

        async def send(self, message: Any) -> None:
            await super().send(message)
            if message["type"] == "websocket.close":  # closing waits until everything is read, possibly forever
                self.loop.call_later(limits.send_timeout, self.transport.abort)
            if message["type"] == "websocket.http.response.body":
                # uvicorn does not count a refusal as an answer, and would log it as an error of the application.
                self.handshake_complete = True

    return WatchedHTTP, WatchedWebSocket
