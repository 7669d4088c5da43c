"""What a server takes from its clients (how many, how much, how long), and what it counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from mathturn_gym.errors import InvalidValueError, MissingDependencyError, check_float, check_int, install_extra

_BYTES_PER_ID: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a served environment.

    Rates (requests per second and address) are a reverse proxy's to limit: `examples/serve/nginx.conf` does.

    Args:
        max_sessions: Sessions at once; one more is told so and closed.
        sessions_per_client: Sessions at once of one client, which is an API key, or an address where there are no keys.
            0 lets one client take all.
        connections_per_address: Connections at once of one address; further ones are cut. 0 for no limit, which a server
            behind a proxy needs; None for twice `max_sessions` and 32 more, which is less than the server takes in all.
        session_timeout: Seconds without a message after which a session is closed, and its place is free again.
        send_timeout: Seconds that a client may leave replies unread before its connection is cut.
        request_timeout: Seconds that a client may take for the head of each request, and again for its body.
        max_message_bytes: The most that one message or request body may have.
        threads: Threads that verify answers; as many steps are worked on at once.

    Raises:
        InvalidValueError: a value outside its range.
    """

    max_sessions: int = 256
    sessions_per_client: int = 0
    connections_per_address: int | None = None
    session_timeout: float = 600.0
    send_timeout: float = 30.0
    request_timeout: float = 10.0
    max_message_bytes: int = 2**20
    threads: int = 8

    def __post_init__(self) -> None:
        """Checks every value."""
        for name, low in (("max_sessions", 1), ("sessions_per_client", 0), ("max_message_bytes", 1024), ("threads", 1)):
            check_int(name, getattr(self, name), low=low)
        if self.connections_per_address is None:
            object.__setattr__(self, "connections_per_address", 2 * self.max_sessions + 32)
        check_int("connections_per_address", self.connections_per_address, low=0)
        for name in ("session_timeout", "send_timeout", "request_timeout"):
            check_float(name, getattr(self, name), low=0.01, high=1e9)

    @property
    def max_connections(self) -> int:
        """Connections of all addresses: above it, requests are answered by status 503."""
        return 4 * self.max_sessions + 64

    def check_action_fits(self, max_completion_tokens: int) -> None:
        """Raises where an action of full length would be refused for its size."""
        needed = _BYTES_PER_ID * max_completion_tokens + 1024
        if needed > self.max_message_bytes:
            raise InvalidValueError(
                f"max_message_bytes must hold an action of max_completion_tokens={max_completion_tokens} ids as JSON,"
                f" {needed} bytes, got {self.max_message_bytes}"
            )


# ---- what a server counts, for Prometheus


try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
except ImportError as error:  # pragma: no cover - in an environment of its own
    raise MissingDependencyError(f"the server needs prometheus_client: {install_extra('serve')}") from error


_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counters of one server, in a registry of their own.

    Attributes:
        registry: Add metrics of your own here.
        open_sessions: Sessions that are open.
        connections: Connections by address, where there are any.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.open_sessions = 0
        self.connections: dict[str, int] = defaultdict(int)

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"mathturn_{name}", about, labels, registry=self.registry)

        Gauge("mathturn_sessions", "Sessions that are open", registry=self.registry).set_function(
            lambda: self.open_sessions
        )
        self._opened = counter("sessions_opened", "Sessions opened")
        self.refused = counter("refused", "What was not let in, or was cut off, and why", "why")
        self.errors = counter("errors", "Messages answered by an error, by its class", "error")
        self.episodes = counter("episodes", "Episodes ended, by reason", "stop_reason")
        self.turns = counter("turns", "Turns verified, by verdict", "status")
        self.tokens = counter("action_tokens", "Tokens of all actions")
        self.seconds = Histogram(
            "mathturn_message_seconds",
            "Seconds from a message to its reply",
            buckets=_SECONDS,
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Counts a session while it is open."""
        self._opened.inc()
        self.open_sessions += 1
        try:
            yield
        finally:
            self.open_sessions -= 1

    def count_turn(self, tokens: int, info: Mapping[str, Any]) -> None:
        """Counts one played turn by its info."""
        self.tokens.inc(tokens)
        if info["verdict"] is not None:
            self.turns.labels(info["verdict"].status.value).inc()
        if info["stop_reason"] is not None:
            self.episodes.labels(info["stop_reason"]).inc()

    def page(self) -> bytes:
        """All of it in Prometheus's text format."""
        return generate_latest(self.registry)
