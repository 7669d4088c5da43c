"""uvicorn's connections with two time-outs that it does not have: for a request's head, and for a client that does not read."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from mathturn_gym.serve.limits import Limits
from mathturn_gym.serve.metrics import Metrics

__all__ = ["connection_classes"]

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
