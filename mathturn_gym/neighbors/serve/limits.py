"""What a server takes from its clients: how many, how much, how fast, how long."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from mathturn_gym.errors import InvalidValueError, MissingDependencyError, check_float, check_int

_BYTES_PER_ID: Final = 10
_MOST_ADDRESSES: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a served environment.

    Args:
        max_sessions: Sessions at once; one more is told so and closed.
        session_timeout: Seconds without a message after which a session is closed, and its place is free again.
        send_timeout: Seconds that a client may take to make room for a reply before its connection is cut.
        request_timeout: Seconds that a client may take for the head of a request, and again for its body.
        max_message_bytes: The most that one message or request body may have.
        steps_per_second: Messages of one session per second; a faster session waits. 0 for no limit.
        requests_per_second: New sessions and HTTP requests per second of one address; what is over it gets HTTP status
            429. A burst of `max_sessions` is let through, so that a trainer can open its sessions at once. 0 for no
            limit.
        threads: Threads that verify answers; as many steps are worked on at once.

    Raises:
        InvalidValueError: a value outside its range.
    """

    max_sessions: int = 256
    session_timeout: float = 600.0
    send_timeout: float = 30.0
    request_timeout: float = 10.0
    max_message_bytes: int = 2**20
    steps_per_second: float = 100.0
    requests_per_second: float = 50.0
    threads: int = 8

    def __post_init__(self) -> None:
        """Checks every value."""
        for name, low in (("max_sessions", 1), ("max_message_bytes", 1024), ("threads", 1)):
            check_int(name, getattr(self, name), low=low)
        for name in ("session_timeout", "send_timeout", "request_timeout"):
            check_float(name, getattr(self, name), low=0.01, high=1e9)
        for name in ("steps_per_second", "requests_per_second"):
            check_float(name, getattr(self, name), low=0.0)

    def check_action_fits(self, max_completion_tokens: int) -> None:
        """Raises where an action of full length would be refused for its size."""
        needed = _BYTES_PER_ID * max_completion_tokens + 1024
        if needed > self.max_message_bytes:
            raise InvalidValueError(
                f"max_message_bytes must hold an action of max_completion_tokens={max_completion_tokens} ids as JSON,"
                f" {needed} bytes, got {self.max_message_bytes}"
            )


class Bucket:
    """A token bucket: `burst` at once, `rate` per second in the long run.

    >>> bucket = Bucket(rate=2.0, burst=1, now=lambda: 0.0)
    >>> bucket.wait(), bucket.wait(), bucket.wait()
    (0.0, 0.5, 1.0)
    """

    __slots__ = ("_burst", "_full_at", "_now", "_rate")

    def __init__(self, rate: float, burst: float, now: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._now = rate, burst, now
        self._full_at = now()  # when the bucket will be full again: all that has to be kept

    def wait(self) -> float:
        """Takes one; returns the seconds after which it is within the rate (0 if it is now)."""
        now = self._now()
        self._full_at = max(self._full_at, now) + 1.0 / self._rate
        return max(0.0, self._full_at - now - self._burst / self._rate)

    def take(self) -> bool:
        """Takes one where the rate allows it now; what is refused costs nothing."""
        before = self._full_at
        if self.wait() == 0.0:
            return True
        self._full_at = before
        return False


class AddressLimiter:
    """A bucket per client address; addresses not heard of lately are forgotten.

    Args:
        rate: Per second and address; 0 for no limit.
        burst: At once.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, address: str) -> bool:
        """True where the address may send one more request now."""
        if not self._rate:
            return True
        bucket = self._buckets.pop(address, None) or Bucket(self._rate, self._burst)
        self._buckets[address] = bucket
        if len(self._buckets) > _MOST_ADDRESSES:
            self._buckets.popitem(last=False)
        return bucket.take()

    @property
    def retry_after(self) -> int:
        """Seconds to name in a refusal."""
        return max(1, math.ceil(1.0 / self._rate)) if self._rate else 1


# ---- what a server counts, for Prometheus


try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
except ImportError as error:  # pragma: no cover - in an environment of its own
    raise MissingDependencyError("the server needs prometheus_client: pip install 'mathturn-gym[serve]'") from error


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
