"""What a server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mathturn_gym.errors import MissingDependencyError

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
except ImportError as error:  # pragma: no cover - in an environment of its own
    raise MissingDependencyError("the server needs prometheus_client: pip install 'mathturn-gym[serve]'") from error

__all__ = ["Metrics"]

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counters of one server, in a registry of their own.

    Attributes:
        registry: Add metrics of your own here.
        open_sessions: Sessions that are open.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.open_sessions = 0
        self._sessions = Gauge("mathturn_sessions", "Sessions that are open", registry=self.registry)
        self._sessions.set_function(lambda: self.open_sessions)
        self._opened = Counter("mathturn_sessions_opened", "Sessions opened", registry=self.registry)
        self.refused = Counter(
            "mathturn_refused", "What was not let in, or was cut off, and why", ["why"], registry=self.registry
        )
        self.waited = Counter(
            "mathturn_rate_wait_seconds", "Seconds that sessions were slowed down", registry=self.registry
        )
        self.errors = Counter(
            "mathturn_errors", "Messages answered by an error, by its class", ["error"], registry=self.registry
        )
        self.episodes = Counter(
            "mathturn_episodes", "Episodes ended, by reason", ["stop_reason"], registry=self.registry
        )
        self.turns = Counter("mathturn_turns", "Turns verified, by verdict", ["status"], registry=self.registry)
        self.tokens = Counter("mathturn_action_tokens", "Tokens of all actions", registry=self.registry)
        self.seconds = Histogram(
            "mathturn_message_seconds",
            "Seconds from a message to its reply, waits for a rate not counted",
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
